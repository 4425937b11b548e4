package outbox_test

import (
	"context"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxctl/outboxctl/outbox"
	"github.com/outboxctl/outboxctl/outbox/outboxtest"
)

// stats looks at db over the last quarter of an hour.
func stats(t testing.TB, db *pgxpool.Pool) *outbox.Stats {
	t.Helper()
	st, err := outbox.NewStore(db, "public").Stats(context.Background(), 15*time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	return st
}

// finished inserts n rows that ended that way.
func finished(t testing.TB, db *pgxpool.Pool, n int, status outbox.Status, kind any) {
	t.Helper()
	exec(t, db, `insert into outbox (aggregate_type, aggregate_id, event_type, payload, status, error_kind, finished_at)
		select 'order', '1', 'order.' || i % 2, '{}', $2, $3, now() - i * interval '1 ms' from generate_series(1, $1::int) i`, n, status, kind)
}

func TestStatsOfAnEmptyOutbox(t *testing.T) {
	t.Parallel()
	want := &outbox.Stats{
		Status: map[outbox.Status]int64{"pending": 0, "in_progress": 0, "delivered": 0, "failed": 0, "dead_letter": 0, "discarded": 0},
		Rates:  map[string]float64{"1m": 0, "5m": 0, "15m": 0},
		Window: 15 * time.Minute,
	}
	db := outboxtest.DB(t)
	if diff := cmp.Diff(want, normal(stats(t, db))); diff != "" {
		t.Errorf("Stats() (-want +got):\n%s", diff)
	}
	insert(t, db, 1)
	exec(t, db, `update outbox set available_at = now() + interval '1 hour'`)
	if lag := stats(t, db).Lag; lag != 0 {
		t.Errorf("the lag is %s with a future event alone, want 0", lag)
	}
}

// normal makes empty lists nil.
func normal(st *outbox.Stats) *outbox.Stats {
	st.EventTypes, st.Destinations = slices.Clip(st.EventTypes), slices.Clip(st.Destinations)
	if len(st.Destinations) == 0 {
		st.Destinations = nil
	}
	if len(st.Dispatchers) == 0 {
		st.Dispatchers = nil
	}
	if len(st.Answers) == 0 {
		st.Answers = nil
	}
	return st
}

func TestStatsCountsEveryStatusTypeAndDestination(t *testing.T) {
	t.Parallel()
	db := outboxtest.DB(t)
	insert(t, db, 7)
	exec(t, db, `update outbox set event_type = 'user.created', destination = 'crm' where id in (6, 7)`)
	exec(t, db, `update outbox set available_at = now() + interval '1 hour' where id = 1`)
	exec(t, db, `update outbox set available_at = now() - interval '90 seconds', next_attempt_at = now() + interval '1 hour' where id = 2`)
	exec(t, db, `update outbox set status = 'in_progress', lease = 'a', lease_until = now() + interval '1 minute' where id = 3`)
	exec(t, db, `update outbox set status = 'in_progress', lease = 'a', lease_until = now() - interval '1 minute' where id in (4, 6)`)
	finished(t, db, 4, outbox.Delivered, nil)
	finished(t, db, 3, outbox.Failed, "http")
	finished(t, db, 2, outbox.DeadLetter, "crashed")
	finished(t, db, 1, outbox.Discarded, "discarded")
	exec(t, db, `insert into outbox_destinations (destination, ordering, breaker, paused_until, pause_reason)
		values ('crm', 'aggregate', 'open', '2031-01-01Z', 'too slow'), ('mail', 'none', 'closed', 'infinity', 'broken')`)
	st := normal(stats(t, db))
	if lag := st.Lag; lag < 90*time.Second || lag > 95*time.Second {
		t.Errorf("the lag is %s, want 90s: that of the oldest open event, also while it waits for a retry", lag)
	}
	st.Lag = 0
	until := time.Date(2031, 1, 1, 0, 0, 0, 0, time.UTC)
	for i, d := range st.Destinations {
		if d.PausedUntil != nil {
			st.Destinations[i].PausedUntil = new(d.PausedUntil.UTC())
		}
	}
	want := &outbox.Stats{
		Status:       map[outbox.Status]int64{"pending": 4, "in_progress": 3, "delivered": 4, "failed": 3, "dead_letter": 2, "discarded": 1},
		LapsedLeases: 2,
		EventTypes: []outbox.EventTypeStats{
			{Type: "order.0", Status: map[outbox.Status]int64{"delivered": 2, "failed": 1, "dead_letter": 1}},
			{Type: "order.1", Status: map[outbox.Status]int64{"delivered": 2, "failed": 2, "dead_letter": 1, "discarded": 1}},
			{Type: "order.created", Status: map[outbox.Status]int64{"pending": 3, "in_progress": 2}},
			{Type: "user.created", Status: map[outbox.Status]int64{"pending": 1, "in_progress": 1}},
		},
		Destinations: []outbox.DestinationStats{
			{Name: "", Ordering: "none", Breaker: "closed", Open: 5},
			{Name: "crm", Ordering: "aggregate", Breaker: "open", PausedUntil: &until, Reason: "too slow", Open: 2},
			{Name: "mail", Ordering: "none", Breaker: "closed", Reason: "broken"},
		},
		Rates:  map[string]float64{"1m": 0, "5m": 0, "15m": 0},
		Window: 15 * time.Minute,
	}
	if diff := cmp.Diff(want, st); diff != "" {
		t.Errorf("Stats() (-want +got):\n%s", diff)
	}
}

// A steady stream has the same rate at any second of the minute.
func TestStatsRates(t *testing.T) {
	t.Parallel()
	db := outboxtest.DB(t)
	exec(t, db, `insert into outbox_rollup (minute, worker, destination, event_type, outcome, attempt, n, latency, age)
		select m, w, '', 'order.created', o, 1, 6000 * least(1, extract(epoch from now() - m) / 60), '0', '0'
		  from generate_series(date_trunc('minute', now()) - interval '30 minutes', now(), '1 minute') m,
		       generate_series(1, 2) w, unnest('{delivered,pending}'::text[]) o`)
	exec(t, db, `update outbox_rollup set n = n * 3 where minute < now() - interval '6 minutes' - interval '1 minute'`)
	rates := stats(t, db).Rates
	for span, want := range map[string]float64{"1m": 12000, "5m": 12000} {
		if math.Abs(rates[span]-want) > want*0.03 {
			t.Errorf("%s: %.0f a minute, want %.0f", span, rates[span], want)
		}
	}
	if rate := rates["15m"]; rate < 12000*1.9 || rate > 12000*2.3 {
		t.Errorf("15m: %.0f a minute, want about twice as much", rate)
	}
}

func TestStatsErrorShareAndAnswers(t *testing.T) {
	t.Parallel()
	db := outboxtest.DB(t)
	exec(t, db, `insert into outbox_rollup (minute, worker, destination, event_type, outcome, error_kind, error_code, attempt, n, latency, age)
		select now() - ago, w, '', e, o, k, c, 1, n, '0', '0'
		  from (values (interval '0', 'delivered', '', 200, 30), ('0', 'pending', 'http', 503, 4), ('5 min', 'pending', 'http', 503, 1),
		               ('10 min', 'failed', 'connect', 0, 2), ('0', 'dead_letter', 'http', 422, 3), ('1 min', 'pending', 'shutdown', 0, 50),
		               ('16 min', 'failed', 'http', 500, 1000)) v(ago, o, k, c, n),
		       generate_series(1, 2) w, unnest('{a,b}'::text[]) e`)
	st := stats(t, db)
	want := []outbox.AnswerStats{{Kind: "", Code: 200, N: 120}, {Kind: "http", Code: 503, N: 20}, {Kind: "http", Code: 422, N: 12}, {Kind: "connect", N: 8}}
	if diff := cmp.Diff(want, st.Answers); diff != "" {
		t.Errorf("answers (-want +got):\n%s", diff)
	}
	if st.Attempts != 160 || st.Errors != 40 || st.ErrorShare() != 0.25 {
		t.Errorf("%d attempts, %d errors, share %v; want 160, 40, 0.25", st.Attempts, st.Errors, st.ErrorShare())
	}
}

// What a dispatcher did is what stats tell.
func TestStatsTellWhatADispatcherDid(t *testing.T) {
	t.Parallel()
	db := outboxtest.DB(t)
	insert(t, db, 100)
	d := newDispatcher(db, sinkFunc(func(_ context.Context, ev outbox.Event) (outbox.Receipt, error) {
		switch ev.ID % 10 {
		case 0:
			return outbox.Receipt{}, outbox.Permanent(&outbox.DeliveryError{Kind: "http", Code: 422})
		case 1:
			return outbox.Receipt{}, &outbox.DeliveryError{Kind: "http", Code: 503}
		}
		return outbox.Receipt{Text: "200", Code: 200}, nil
	}))
	d.Wait = 0
	run(t, d)
	st := stats(t, db)
	got := fmt.Sprint(st.Status, st.Attempts, st.Errors, st.Answers)
	want := "map[dead_letter:10 delivered:80 discarded:0 failed:0 in_progress:0 pending:10] 100 20 [{ 200 80} {http 422 10} {http 503 10}]"
	if got != want {
		t.Errorf("stats are %s, want %s", got, want)
	}
	if rate := st.Rates["1m"]; rate < 70 || rate > 80.01 {
		t.Errorf("%.0f delivered in the last minute, want 80", rate)
	}
}

func TestStatsAreExactUpToAHundredThousandAndEstimatedBeyond(t *testing.T) {
	t.Parallel()
	db := outboxtest.DB(t)
	exec(t, db, `alter table outbox set (autovacuum_enabled = off)`)
	insert(t, db, 500)
	finished(t, db, 50, outbox.Failed, "http")
	finished(t, db, 99_950, outbox.Delivered, nil)
	if st := stats(t, db); st.Estimated || st.Status[outbox.Delivered] != 99_950 || st.Status[outbox.Failed] != 50 {
		t.Errorf("estimated %v: %v, want exact counts of 100,000", st.Estimated, st.Status)
	}
	finished(t, db, 1, outbox.Delivered, nil)
	if st := stats(t, db); !st.Estimated || st.Status[outbox.Delivered] < 99_951 || st.Status[outbox.Failed] != 50 {
		t.Errorf("estimated %v: %v, want an estimate from what is not analysed", st.Estimated, st.Status)
	}
	finished(t, db, 19_999, outbox.Delivered, nil)
	exec(t, db, `vacuum analyze outbox`)
	st := stats(t, db)
	if !st.Estimated || !near(st.Status[outbox.Delivered], 119_950) || st.Status[outbox.Failed] != 50 || st.Status[outbox.Pending] != 500 {
		t.Errorf("estimated %v: %v, want about 119,950 delivered, 50 failed and 500 pending exactly", st.Estimated, st.Status)
	}
	for _, et := range st.EventTypes {
		if et.Status[outbox.Delivered] != 0 {
			t.Errorf("%s: %v, want no count of the delivered", et.Type, et.Status)
		}
	}
	noScan(t, db)
}

// near allows for five percent.
func near(got, want int64) bool { return got > want*95/100 && got < want*105/100 }

// noScan checks that neither claims nor stats read the whole of a large table.
func noScan(t *testing.T, db *pgxpool.Pool) {
	t.Helper()
	store := outbox.NewStore(db, "public")
	plan, err := store.ExplainStats(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	q := newQueue(db)
	for _, want := range []outbox.Want{{N: 100, Fresh: true}, {N: 100}} {
		claim, err := q.ExplainClaim(t.Context(), want)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(claim, "using outbox_due") {
			t.Errorf("a claim does not use outbox_due:\n%s", claim)
		}
		plan += "\n" + claim
		exchange(t, q, nil, 1) // so that there are marks
	}
	for line := range strings.Lines(plan) {
		if strings.Contains(line, "Seq Scan on outbox ") {
			t.Errorf("a whole scan of the table:\n%s", plan)
			return
		}
	}
}

// Two million delivered rows, a few open ones: the figures are there in the twinkling of an eye.
func TestStatsOfMillionsAreQuick(t *testing.T) {
	if os.Getenv("OUTBOXCTL_TEST_LONG") == "" {
		t.Skip("the long form, with OUTBOXCTL_TEST_LONG=1, has it")
	}
	t.Parallel()
	db := outboxtest.DB(t)
	insert(t, db, 1000)
	finished(t, db, 5_000, outbox.Failed, "http")
	finished(t, db, 2_000_000, outbox.Delivered, nil)
	exec(t, db, `insert into outbox_rollup (minute, worker, destination, event_type, outcome, attempt, n, latency, age)
		select m, w, '', 'type ' || e, 'delivered', 1, 10, '0', '0'
		  from generate_series(date_trunc('minute', now()) - interval '7 days', now(), '1 minute') m, generate_series(1, 2) w, generate_series(1, 5) e`)
	exec(t, db, `vacuum analyze outbox`)
	stats(t, db) // the first one reads the disk
	began := time.Now()
	st := stats(t, db)
	if took := time.Since(began); took > 300*time.Millisecond {
		t.Errorf("Stats() took %s, want less than 300ms", took)
	}
	if !near(st.Status[outbox.Delivered], 2_000_000) || st.Status[outbox.Failed] != 5000 || st.Status[outbox.Pending] != 1000 {
		t.Errorf("%v, want about 2,000,000 delivered, 5,000 failed, 1,000 pending", st.Status)
	}
	noScan(t, db)

	finished(t, db, 300_000, outbox.DeadLetter, "http")
	exec(t, db, `vacuum analyze outbox`)
	st = stats(t, db)
	if dead, delivered := st.Status[outbox.DeadLetter], st.Status[outbox.Delivered]; !near(dead, 300_000) || !near(delivered, 2_000_000) || st.Status[outbox.Failed] > 10_000 {
		t.Errorf("%v, want about 300,000 dead letters, 5,000 failed and 2,000,000 delivered", st.Status)
	}
}

func TestWorkerIsSeenWhileItLives(t *testing.T) {
	t.Parallel()
	db := outboxtest.DB(t)
	exec(t, db, `insert into outbox_workers (worker, name, seen_at) values
		('gone/1', 'gone', now() - interval '31 seconds'), ('dead/1', 'dead', now() - interval '25 hours')`)
	life, end := context.WithCancel(t.Context())
	defer end()
	w := outbox.NewStore(db, "public").Worker(outbox.Worker{
		Name: "crm-1", Host: "host", PID: 42, Version: "1.2.3", Destinations: []string{"crm", ""}, Parallel: 10, BatchSize: 100,
	})
	var wg sync.WaitGroup
	wg.Go(func() { w.Live(life) })
	eventually(t, func() bool { return len(stats(t, db).Dispatchers) == 1 })
	got := stats(t, db).Dispatchers
	if len(got) != 1 || got[0].Up < 0 || got[0].Up > time.Minute || got[0].Seen < 0 || got[0].Seen > 30*time.Second {
		t.Fatalf("dispatchers %+v, want the one that lives", got)
	}
	got[0].Up, got[0].Seen = 0, 0
	want := []outbox.DispatcherStats{{Name: "crm-1", Host: "host", PID: 42, Version: "1.2.3", Destinations: []string{"crm", ""}, Parallel: 10, BatchSize: 100}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("dispatchers (-want +got):\n%s", diff)
	}
	end()
	wg.Wait()
	if left := query[string](t, db, `select coalesce(string_agg(name, ' '), '') from outbox_workers`); left != "gone" {
		t.Errorf("left are %q, want the one not seen for 31s: the dead one is swept, the one that ended left", left)
	}
}

// eventually waits until something is so, or fails.
func eventually(t testing.TB, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !is(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("it has not come to be in 20s")
		}
	}
}

func TestDueCountsWhatAClaimCouldTake(t *testing.T) {
	t.Parallel()
	db := outboxtest.DB(t)
	insert(t, db, 8)
	exec(t, db, `update outbox set event_type = 'user.created', available_at = now() - interval '1 minute' where id > 5`)
	exec(t, db, `update outbox set available_at = now() + interval '1 minute' where id = 1`)
	exec(t, db, `update outbox set status = 'in_progress', lease = 'a', lease_until = now() + interval '1 minute' where id = 2`)
	exec(t, db, `update outbox set destination = 'crm' where id = 3`)
	exec(t, db, `update outbox set status = 'delivered', finished_at = now() where id = 6`)
	due := func(destination string, only outbox.Selection, limit int) string {
		t.Helper()
		counts, err := outbox.NewStore(db, "public").Due(t.Context(), destination, only, limit)
		if err != nil {
			t.Fatal(err)
		}
		var all []string
		for _, c := range counts {
			all = append(all, fmt.Sprint(c.Type, " ", c.N, " ", c.Oldest >= time.Minute))
		}
		return strings.Join(all, ", ")
	}
	for _, tt := range []struct{ got, want string }{
		{due("", outbox.Selection{}, 100), "order.created 2 false, user.created 2 true"},
		{due("", outbox.Selection{EventTypes: []string{"order.*"}}, 1), "order.created 1 false"},
		{due("", outbox.Selection{EventTypes: []string{"user.*"}}, 100), "user.created 2 true"},
		{due("crm", outbox.Selection{}, 100), "order.created 1 false"},
		{due("elsewhere", outbox.Selection{}, 100), ""},
	} {
		if tt.got != tt.want {
			t.Errorf("due are %q, want %q", tt.got, tt.want)
		}
	}
}
