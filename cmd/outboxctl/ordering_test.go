package main_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxctl/outboxctl/outbox/outboxtest"
)

// change writes an event of an aggregate as producers should: with the aggregate's row locked first.
func change(ctx context.Context, db *pgxpool.Pool, aggregate int) error {
	return pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `update orders set changes = changes + 1 where id = $1`, aggregate); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, `insert into outbox (aggregate_type, aggregate_id, event_type, payload) values ('order', $1::int::text, 'order.changed', '{}')`, aggregate)
		return err
	})
}

// orders makes n aggregates.
func orders(t testing.TB, db *pgxpool.Pool, n int) {
	t.Helper()
	execute(t, db, `create table orders (id int primary key, changes int not null default 0)`)
	execute(t, db, `insert into orders (id) select generate_series(1, $1::int)`, n)
}

// frozen is when a dispatcher was suspended, or had just woken up: what it sent before it fell asleep may
// still be on its way then, by no fault of its own.
type frozen struct{ from, to time.Time }

// inOrder checks what a receiver has seen, aggregate by aggregate: each event's first request comes after
// the first of the one before, and not before the receiver has taken that or refused it for good; a
// repeat is of an event that was not known to be delivered when a fault came; and no two
// requests are open at once. A dispatcher that was suspended is excused for what it had in hand.
func inOrder(t *testing.T, r *outboxtest.Receiver, asleep []frozen) (repeats int) {
	t.Helper()
	of := map[string][]outboxtest.Request{}
	sequence := map[int]int64{}
	for _, request := range r.Requests() {
		e := envelope(t, request.Body)
		of[e.AggregateID] = append(of[e.AggregateID], request)
		sequence[request.N], _ = strconv.ParseInt(e.Sequence, 10, 64)
	}
	for id, requests := range of {
		highest := int64(0)
		var open outboxtest.Request // the one that ends last
		taken := map[int64]bool{}   // or refused for good, by the last request of each
		for _, request := range requests {
			seq := sequence[request.N]
			if seq <= highest {
				if repeats++; request.Attempt < 2 {
					t.Errorf("aggregate %s: event %d comes after %d, and is no repeat", id, seq, highest)
				}
			}
			highest = max(highest, seq)
			overlaps := open.N > 0 && (open.Done.IsZero() || request.At.Before(open.Done))
			excused := slices.ContainsFunc(asleep, func(f frozen) bool { return request.At.After(f.from) && request.At.Before(f.to) })
			if overlaps && !excused {
				t.Errorf("aggregate %s: event %d is sent while %d is: at %s, %s", id, seq, sequence[open.N],
					request.At.Format(time.StampMicro), open.Done.Format(time.StampMicro))
			}
			for earlier, ok := range taken {
				if earlier < seq && !ok && !excused {
					t.Errorf("aggregate %s: event %d is sent although %d has to be sent again", id, seq, earlier)
				}
			}
			a := request.Answer
			ok := !a.Reset && !request.Left && (a.Status == 0 || a.Status == 422)
			taken[seq] = ok || excused && taken[seq]
			open = request
		}
	}
	return repeats
}

// TestOrderHoldsThroughKillsAndStops has producers that take turns, three dispatchers that are killed and
// suspended at random, and a receiver that fails at random: B04, B14.
func TestOrderHoldsThroughKillsAndStops(t *testing.T) {
	t.Parallel()
	const lease = 4 * time.Second
	seed, faults, aggregates, events := uint64(1), 6, 20, 1000
	if long {
		seed, faults, events = uint64(time.Now().UnixNano()), 60, 10_000
	}
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 1))
	url, db := database(t)
	orders(t, db, aggregates)
	r := outboxtest.NewReceiver(t, func(n int, _ *outboxtest.Request) outboxtest.Answer {
		roll := rand.New(rand.NewPCG(seed, uint64(n)))
		a := outboxtest.Answer{Delay: time.Duration(roll.IntN(15)) * time.Millisecond}
		switch p := roll.IntN(100); {
		case p < 4:
			a.Status = 503
		case p < 5:
			a.Status = 422
		case p < 6:
			a.Reset = true
		}
		return a
	})
	flags := []string{"--ordering", "aggregate", "--lease", lease.String(), "--request-timeout", "1s", "--backoff", "50ms..500ms",
		"--max-attempts", "50", "--batch-size", "60", "--parallel", "6", "--log-level", "error"}
	workers := make([]*process, 3)
	for i := range workers {
		workers[i] = dispatch(t, url, r.URL, flags...)
	}
	var produced atomic.Int64
	var producers sync.WaitGroup
	for i := range 8 {
		producers.Go(func() {
			own := rand.New(rand.NewPCG(seed, uint64(100+i)))
			for produced.Add(1) <= int64(events) {
				if err := change(context.Background(), db, 1+own.IntN(aggregates)); err != nil {
					t.Errorf("produce: %v", err)
					return
				}
				time.Sleep(time.Duration(own.IntN(20)) * time.Millisecond)
			}
		})
	}
	var asleep []frozen
	for range faults {
		time.Sleep(time.Duration(200+random.IntN(600)) * time.Millisecond)
		i := random.IntN(len(workers))
		if random.IntN(2) == 0 {
			workers[i].kill()
			workers[i] = dispatch(t, url, r.URL, flags...)
			continue
		}
		from := time.Now()
		workers[i].signal(syscall.SIGSTOP)
		time.Sleep(lease + time.Second)
		workers[i].signal(syscall.SIGCONT)
		asleep = append(asleep, frozen{from, time.Now().Add(time.Second)})
	}
	producers.Wait()
	deadline := time.Now().Add(3 * patience)
	for query[int](t, db, `select count(*) from outbox where finished_at is null`) > 0 {
		if time.Sleep(50 * time.Millisecond); time.Now().After(deadline) {
			t.Fatal("it does not come to an end")
		}
	}
	if n := query[int](t, db, `select count(*) from outbox where status in ('delivered', 'dead_letter')`); n != events {
		t.Errorf("%d events have ended, want %d", n, events)
	}
	if n := query[int](t, db, `select coalesce(sum(events), 0)::int from outbox_late`); n != 0 {
		t.Errorf("%d events are counted as late, want none: producers take turns", n)
	}
	repeats := inOrder(t, r, asleep)
	t.Logf("%d requests for %d events, %d of them repeats of what was in hand at a fault or failed", r.Count(), events, repeats)
}

// TestOrderNeedsNoFault delivers what eight producers who take turns write to two dispatchers: each event once, none
// out of order.
func TestOrderNeedsNoFault(t *testing.T) {
	t.Parallel()
	const events = 1000
	url, db := database(t)
	orders(t, db, 3)
	r := outboxtest.NewReceiver(t, nil)
	first := dispatch(t, url, r.URL, "--ordering", "aggregate")
	second := dispatch(t, url, r.URL, "--ordering", "aggregate")
	var producers sync.WaitGroup
	for range 8 {
		producers.Go(func() {
			for i := range events / 8 {
				if err := change(context.Background(), db, 1+i%3); err != nil {
					t.Errorf("produce: %v", err)
					return
				}
			}
		})
	}
	producers.Wait()
	allDelivered(t, db, events)
	first.stop()
	second.stop()
	if repeats := inOrder(t, r, nil); repeats > 0 || r.Count() != events {
		t.Errorf("%d requests, %d repeats; want %d and none", r.Count(), repeats, events)
	}
}

// TestReplayedEventsGoBeforeYoungerOnes replays the first event of every aggregate while younger ones wait: where order
// is kept it goes first, and no two of an aggregate are sent at once.
func TestReplayedEventsGoBeforeYoungerOnes(t *testing.T) {
	t.Parallel()
	const aggregates, younger = 20, 10
	url, db := database(t)
	orders(t, db, aggregates)
	r := outboxtest.NewReceiver(t, func(n int, _ *outboxtest.Request) outboxtest.Answer {
		if n <= aggregates {
			return outboxtest.Answer{Status: 422}
		}
		return outboxtest.Answer{Delay: 3 * time.Millisecond}
	})
	first := dispatch(t, url, r.URL, "--ordering", "aggregate")
	second := dispatch(t, url, r.URL, "--ordering", "aggregate")
	for i := range aggregates {
		if err := change(context.Background(), db, 1+i); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "the first are refused", func() bool { return count(t, db, "dead_letter") == aggregates })
	command(t, url, "dispatch", "pause", "default", "--reason", "so that there are younger ones")
	first.says("msg=paused")
	second.says("msg=paused")
	for range younger {
		for i := range aggregates {
			if err := change(context.Background(), db, 1+i); err != nil {
				t.Fatal(err)
			}
		}
	}
	command(t, url, "replay", "--status", "dead_letter", "--reason", "mended", "--yes")
	command(t, url, "dispatch", "resume", "default", "--reason", "so that they are sent")
	allDelivered(t, db, aggregates*(1+younger))
	first.stop()
	second.stop()
	sent, free := map[string]int64{}, map[string]time.Time{}
	for _, request := range r.Requests()[aggregates:] {
		e := envelope(t, request.Body)
		seq, _ := strconv.ParseInt(e.Sequence, 10, 64)
		if seq <= sent[e.AggregateID] {
			t.Errorf("aggregate %s: event %d is sent after %d", e.AggregateID, seq, sent[e.AggregateID])
		}
		if request.At.Before(free[e.AggregateID]) {
			t.Errorf("aggregate %s: event %d is sent while %d is", e.AggregateID, seq, sent[e.AggregateID])
		}
		sent[e.AggregateID], free[e.AggregateID] = seq, request.Done
	}
	if got := r.Count(); got != aggregates*(2+younger) {
		t.Errorf("%d requests, want %d", got, aggregates*(2+younger))
	}
}

// pairsSQL finds aggregates that a lock on 32 bits would take for one: their names have the same hash, with
// their type before them and without.
const pairsSQL = `
create table pairs as
select kind, min(n)::text as one, max(n)::text as other
  from generate_series(1, 300000) n,
       lateral (values ('typed', hashtext('typed:' || n)), ('bare', hashtext(n::text))) h(kind, hash)
 group by kind, hash
having count(*) > 1`

// TestSimilarNamesDoNotWaitForEachOther hangs aggregates; those whose name looks the same side by side, or has
// the same hash, and twenty thousand others, do not wait: B51.
func TestSimilarNamesDoNotWaitForEachOther(t *testing.T) {
	t.Parallel()
	url, db := database(t)
	execute(t, db, pairsSQL)
	execute(t, db, `insert into pairs values ('order:1', '2', ''), ('order', '', '1:2')`)
	const write = `insert into outbox (aggregate_type, aggregate_id, event_type, payload) select kind, %[1]s, '%[2]s', '{}' from pairs where %[1]s <> ''`
	execute(t, db, fmt.Sprintf(write, "one", "hangs"))
	execute(t, db, fmt.Sprintf(write, "one", "behind"))
	hang := query[int](t, db, `select count(*) from outbox where event_type = 'hangs'`)
	if hang < 5 {
		t.Fatalf("%d aggregates hang: there are hardly pairs of the same hash", hang)
	}
	r := outboxtest.NewReceiver(t, func(_ int, r *outboxtest.Request) outboxtest.Answer {
		return outboxtest.Answer{Hang: strings.Contains(string(r.Body), `"hangs"`)}
	})
	dispatch(t, url, r.URL, "--ordering", "aggregate", "--parallel", "100", "--request-timeout", "28s", "--lease", "30s", "--log-level", "warn")
	r.Wait(t, hang, patience)
	execute(t, db, fmt.Sprintf(write, "other", "healthy"))
	began := time.Now()
	r.Wait(t, 2*hang, patience)
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("the healthy ones were sent after %s", took)
	}
	others := 2000
	if long {
		others = 20_000
	}
	execute(t, db, `insert into outbox (aggregate_type, aggregate_id, event_type, payload) select 'user', i::text, 'other', '{}' from generate_series(1, $1::int) i`, others)
	r.Wait(t, 2*hang+others, 25*time.Second)
	t.Logf("%d aggregates hang, as many of the same hash and %d others do not wait", hang, others)
	eventually(t, "only the aggregates that hang are left", func() bool { return count(t, db, "in_progress") <= 2*hang })
	for _, request := range r.Requests() {
		if envelope(t, request.Body).EventType == "behind" {
			t.Error("an event was sent past the one that hangs")
		}
	}
}

// TestHotAggregateDoesNotSlowTheOthers puts a failing head before a mountain; events of other
// aggregates that come meanwhile are sent within two seconds: B51.
func TestHotAggregateDoesNotSlowTheOthers(t *testing.T) {
	t.Parallel()
	mountain, others := 20_000, 200
	if long {
		mountain, others = 100_000, 1000
	}
	url, db := database(t)
	execute(t, db, `insert into outbox (aggregate_type, aggregate_id, event_type, payload) select 'order', 'hot', 'hot', '{}' from generate_series(1, $1::int) i`, mountain)
	r := outboxtest.NewReceiver(t, func(_ int, r *outboxtest.Request) outboxtest.Answer {
		if strings.Contains(string(r.Body), `"hot"`) {
			return outboxtest.Answer{Status: 503, Delay: 20 * time.Millisecond}
		}
		return outboxtest.Answer{}
	})
	dispatch(t, url, r.URL, "--ordering", "aggregate", "--backoff", "50ms..200ms", "--max-attempts", "1000", "--log-level", "error")
	r.Wait(t, 3, patience)
	inserted := map[string]time.Time{}
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for i := range others {
		<-tick.C
		id := fmt.Sprint(i)
		execute(t, db, `insert into outbox (aggregate_type, aggregate_id, event_type, payload) values ('order', $1, 'other', '{}')`, id)
		inserted[id] = time.Now()
	}
	eventually(t, "the others are delivered", func() bool { return count(t, db, "delivered") == len(inserted) })
	var waits []time.Duration
	hot := map[string]bool{}
	for _, request := range r.Requests() {
		e := envelope(t, request.Body)
		if at, other := inserted[e.AggregateID]; other {
			waits = append(waits, request.At.Sub(at))
		} else {
			hot[e.Sequence] = true
		}
	}
	slices.Sort(waits)
	p99 := waits[len(waits)*99/100]
	t.Logf("beside %d events of one aggregate the others wait %s (p50), %s (p99)", mountain, waits[len(waits)/2], p99)
	if p99 > 2*time.Second {
		t.Errorf("the others waited up to %s (p99), want at most 2s", p99)
	}
	if len(hot) != 1 {
		t.Errorf("%d events of the hot aggregate were sent, want its head alone", len(hot))
	}
}
