package main_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/outboxctl/outboxctl/outbox/outboxtest"
)

// configure writes a configuration file.
func configure(t testing.TB, text string, values ...any) (file string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "outboxctl.yaml")
	if err := os.WriteFile(file, fmt.Appendf(nil, text, values...), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// A router and a dispatcher without routes race for the same events. Both say so, whoever began first.
func TestRouterAndDispatcherWithoutRoutesWarn(t *testing.T) {
	t.Parallel()
	url, db := database(t)
	r := outboxtest.NewReceiver(t, nil)
	plain := dispatch(t, url, r.URL)
	eventually(t, "it is seen", func() bool { return query[int](t, db, `select count(*) from outbox_workers`) == 1 })
	router := start(t, url, "dispatch", "--config", configure(t, `
destinations:
  crm: {url: %q, allow_private: true}
routes:
  - {to: [crm]}
`, r.URL))
	router.says("another dispatcher takes events before they are routed")
	plain.says("another dispatcher routes the events that this one serves")
}

// Three processes route and deliver, one of them is killed again and again: every event arrives at
// each of its destinations, one that fails costs the other nothing, and what no route wants stays.
func TestRoutedEventsReachEachOfTheirDestinations(t *testing.T) {
	t.Parallel()
	const n = 300
	url, db := database(t)
	good := outboxtest.NewReceiver(t, nil)
	bad := outboxtest.NewReceiver(t, func(int, *outboxtest.Request) outboxtest.Answer {
		if rand.Float64() < 0.5 {
			return outboxtest.Answer{Status: 503}
		}
		return outboxtest.Answer{}
	})
	file := configure(t, `
poll_interval: 100ms
destinations:
  good: {url: %q, allow_private: true, lease: 4s, request_timeout: 1s}
  bad: {url: %q, allow_private: true, lease: 4s, request_timeout: 1s, retry: {max_attempts: 100, backoff: 50ms..200ms}, breaker: {failures: 0}}
routes:
  - {event_type: "order.*", to: [good, bad]}
`, good.URL, bad.URL)
	begin := func() *process { return start(t, url, "dispatch", "--config", file) }
	first, second, third := begin(), begin(), begin()
	for i := range 3 {
		insert(t, db, "order.created", n/3)
		insert(t, db, "other", 1)
		time.Sleep(200 * time.Millisecond) // some are under way
		third.kill()
		if i < 2 {
			third = begin()
		}
	}
	eventually(t, "all routed events have ended", func() bool {
		return query[int](t, db, `select count(*) from outbox where status = 'delivered'`) == 2*n
	})
	if left := query[int](t, db, `select count(*) from outbox where finished_at is null and destination = '' and error_kind = 'unrouted'`); left != 3 {
		t.Errorf("%d events are unrouted, want 3", left)
	}
	if len(good.ByKey()) != n || len(bad.ByKey()) != n {
		t.Errorf("%d and %d events arrived, want %d each", len(good.ByKey()), len(bad.ByKey()), n)
	}
	// Ten are sent at once, and each kill can repeat those.
	if repeats := good.Count() - n; repeats > 3*10 {
		t.Errorf("%d repeats at the destination that never fails", repeats)
	}
	first.stop()
	second.stop()
}

// A router that is killed in the middle of a step, again and again, has done it whole or not at all:
// nothing is lost, nothing is copied twice, and each event is sent once to each destination. The
// routers deliver nothing themselves, so that no kill can repeat a request.
func TestRouterKilledWithinAStepLosesAndRepeatsNothing(t *testing.T) {
	t.Parallel()
	const n, kills = 300, 5
	url, db := database(t)
	first, second := outboxtest.NewReceiver(t, nil), outboxtest.NewReceiver(t, nil)
	file := configure(t, `
poll_interval: 100ms
destinations:
  first: {url: %q, allow_private: true}
  second: {url: %q, allow_private: true}
  looking: {url: %[2]q, allow_private: true}
  idle: {url: "file:%[3]s/idle.ndjson"}
routes:
  - {to: [first, second]}
  - {to: [looking], shadow: true}
`, first.URL, second.URL, t.TempDir())
	insert(t, db, "order.created", n)
	for i := range kills {
		// Nobody else may write this key meanwhile: the router stops at its copy, with others made.
		held := begin(t, db)
		if _, err := held.Exec(t.Context(), `insert into outbox (aggregate_type, aggregate_id, event_type, payload, destination, idempotency_key)
			select 'order', 'held', 'order.created', '{}', 'second', idempotency_key from outbox where destination = '' order by id offset $1 limit 1`, 40*i); err != nil {
			t.Fatal(err)
		}
		router := start(t, url, "dispatch", "--config", file, "--destination", "idle")
		eventually(t, "the router waits within its step", func() bool {
			return query[bool](t, db, `select exists (select from pg_stat_activity
				where datname = current_database() and wait_event_type = 'Lock' and query like '%insert into%source_id%')`)
		})
		router.kill()
		if err := held.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	start(t, url, "dispatch", "--config", file, "--destination", "idle")
	start(t, url, "dispatch", "--config", file, "--destination", "first,second,looking")
	eventually(t, "all is delivered", func() bool {
		return query[int](t, db, `select count(*) from outbox where status = 'delivered'`) == 3*n
	})
	for destination, originals := range map[string]int{"first": n, "second": 0, "looking": 0} {
		got := query[string](t, db, `select count(*) || ' ' || count(distinct coalesce(source_id, id)) || ' ' || count(*) filter (where source_id is null)
			from outbox where destination = $1`, destination)
		if want := fmt.Sprint(n, n, originals); got != want {
			t.Errorf("at %s are %s rows, events, originals; want %s", destination, got, want)
		}
	}
	if first.Count() != n || second.Count() != 2*n {
		t.Errorf("%d and %d requests, want %d and %d", first.Count(), second.Count(), n, 2*n)
	}
}

// Through the router, too, the events of an aggregate come one after the other in the order of their
// producers who take turns, at the destination of the rows and at that of the copies, whoever of three
// processes that route and deliver is killed: B04.
func TestOrderHoldsThroughTheRouter(t *testing.T) {
	t.Parallel()
	seed, kills, aggregates, events := uint64(1), 4, 15, 600
	if long {
		seed, kills, events = uint64(time.Now().UnixNano()), 60, 10_000
	}
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 1))
	url, db := database(t)
	orders(t, db, aggregates)
	answer := func(n int, _ *outboxtest.Request) outboxtest.Answer {
		roll := rand.New(rand.NewPCG(seed, uint64(n)))
		a := outboxtest.Answer{Delay: time.Duration(roll.IntN(10)) * time.Millisecond}
		if p := roll.IntN(100); p < 4 {
			a.Status = 503
		} else if p < 5 {
			a.Reset = true
		}
		return a
	}
	rows, copies := outboxtest.NewReceiver(t, answer), outboxtest.NewReceiver(t, answer)
	const settings = "ordering: aggregate, allow_private: true, lease: 4s, request_timeout: 1s, parallel: 6, batch_size: 60, " +
		"retry: {max_attempts: 50, backoff: 50ms..500ms}, breaker: {failures: 0}"
	file := configure(t, `
poll_interval: 200ms
log_level: error
destinations:
  rows: {url: %q, %s}
  copies: {url: %[3]q, %[2]s}
routes:
  - {to: [rows, copies]}
`, rows.URL, settings, copies.URL)
	workers := make([]*process, 3)
	for i := range workers {
		workers[i] = start(t, url, "dispatch", "--config", file)
	}
	var produced atomic.Int64
	var producers sync.WaitGroup
	for i := range 4 {
		producers.Go(func() {
			own := rand.New(rand.NewPCG(seed, uint64(100+i)))
			for produced.Add(1) <= int64(events) {
				if err := change(t.Context(), db, 1+own.IntN(aggregates)); err != nil {
					t.Errorf("produce: %v", err)
					return
				}
				time.Sleep(time.Duration(own.IntN(15)) * time.Millisecond)
			}
		})
	}
	for range kills {
		time.Sleep(time.Duration(200+random.IntN(500)) * time.Millisecond)
		i := random.IntN(len(workers))
		workers[i].kill()
		workers[i] = start(t, url, "dispatch", "--config", file)
	}
	producers.Wait()
	deadline := time.Now().Add(3 * patience)
	for query[int](t, db, `select count(*) from outbox where finished_at is null`) > 0 {
		if time.Sleep(50 * time.Millisecond); time.Now().After(deadline) {
			t.Fatal("it does not come to an end")
		}
	}
	for _, destination := range []string{"rows", "copies"} {
		if n := query[int](t, db, `select count(distinct idempotency_key) from outbox where status = 'delivered' and destination = $1`, destination); n != events {
			t.Errorf("%d events were delivered to %s, want %d", n, destination, events)
		}
	}
	if n := query[int](t, db, `select coalesce(sum(events), 0)::int from outbox_late`); n != 0 {
		t.Errorf("%d events are counted as late, want none: producers take turns", n)
	}
	for name, r := range map[string]*outboxtest.Receiver{"rows": rows, "copies": copies} {
		t.Logf("%s: %d requests for %d events, %d of them repeats", name, r.Count(), events, inOrder(t, r, nil))
	}
}
