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
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxctl/outboxctl/outbox"
	"github.com/outboxctl/outboxctl/outbox/outboxtest"
)

// stats looks at db over the last quarter of an hour.
func stats(t testing.TB, db *pgxpool.Pool) *outbox.Stats {
	t.Helper()
	st, err := outbox.NewStore(db, "public").Stats(context.Background(), outbox.Look{Window: 15 * time.Minute, Top: 10})
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
	none := map[string]float64{"1m": 0, "5m": 0, "15m": 0}
	want := &outbox.Stats{
		Depth:     outbox.Depth{Status: statuses()},
		Delivered: none, Created: none, LastDelivered: -time.Second,
		Buried: map[outbox.Status]int64{"failed": 0, "dead_letter": 0},
		Window: 15 * time.Minute,
		Tries:  outbox.Tries{Delivered: map[int]int64{}, Retried: map[int]int64{}, Ended: map[int]int64{}},
	}
	db := outboxtest.DB(t)
	if diff := cmp.Diff(want, stats(t, db), theirs...); diff != "" {
		t.Errorf("Stats() (-want +got):\n%s", diff)
	}
	insert(t, db, 1)
	exec(t, db, `update outbox set available_at = now() + interval '1 hour'`)
	if lag := stats(t, db).Lag; lag != 0 {
		t.Errorf("the lag is %s with a future event alone, want 0", lag)
	}
}

// theirs leaves out what the server has to say, and what only the store knows.
var theirs = cmp.Options{
	cmpopts.IgnoreUnexported(outbox.Stats{}, outbox.Depth{}, outbox.DestinationStats{}, outbox.Tally{}),
	cmpopts.IgnoreFields(outbox.Stats{}, "Database"),
	cmpopts.EquateEmpty(),
	cmpopts.EquateApproxTime(0),
	cmp.Comparer(func(a, b time.Duration) bool { return (a - b).Abs() < 5*time.Second }),
}

// statuses are all of them, with these counts: pending, in_progress, delivered, failed, dead_letter,
// discarded.
func statuses(counts ...int64) map[outbox.Status]int64 {
	all := map[outbox.Status]int64{}
	for i, status := range outbox.Statuses() {
		all[status] = 0
		if i < len(counts) {
			all[status] = counts[i]
		}
	}
	return all
}

func TestStatsCountsEveryStatusTypeTenantAndDestination(t *testing.T) {
	t.Parallel()
	db := outboxtest.DB(t)
	insert(t, db, 7)
	exec(t, db, `update outbox set event_type = 'user.created', destination = 'crm', tenant_id = 'acme' where id in (6, 7)`)
	exec(t, db, `update outbox set available_at = now() + interval '1 hour' where id = 1`)
	exec(t, db, `update outbox set available_at = now() - interval '90 seconds', next_attempt_at = now() + interval '20 minutes', attempts = 1 where id = 2`)
	exec(t, db, `update outbox set status = 'in_progress', lease = 'a', lease_until = now() + interval '1 minute', last_attempt_at = now() - interval '10 seconds' where id = 3`)
	exec(t, db, `update outbox set status = 'in_progress', lease = 'a', lease_until = now() - interval '1 minute' where id in (4, 6)`)
	exec(t, db, `update outbox set available_at = now() - interval '40 seconds' where id = 7`)
	finished(t, db, 4, outbox.Delivered, nil)
	finished(t, db, 3, outbox.Failed, "http")
	finished(t, db, 2, outbox.DeadLetter, "crashed")
	finished(t, db, 1, outbox.Discarded, "discarded")
	exec(t, db, `insert into outbox_destinations (destination, ordering, breaker, paused_until, pause_reason)
		values ('crm', 'aggregate', 'open', '2031-01-01Z', 'too slow'), ('mail', 'none', 'closed', 'infinity', 'broken')`)
	exec(t, db, `insert into outbox_tenant_pauses (destination, tenant_id, paused_until, reason, paused_by)
		values ('', 'acme', '2031-01-01Z', 'floods', 'anna'), ('crm', 'globex', 'infinity', '', ''), ('crm', 'over', now(), '', ''), ('erp', 'acme', 'infinity', '', '')`)
	exec(t, db, `insert into outbox_late (destination, events, last_event) values ('crm', 3, 7)`)
	exec(t, db, `insert into outbox_workers (worker, destinations) values ('a', '{crm}')`)
	st := stats(t, db)
	st.Created, st.Dispatchers = nil, nil
	until := time.Date(2031, 1, 1, 0, 0, 0, 0, time.UTC)
	const minute = time.Minute
	paused := func(destination, tenant string) []outbox.Paused {
		return []outbox.Paused{{Pause: outbox.Pause{Destination: destination, Tenant: tenant, For: outbox.Forever}}}
	}
	acme := paused("", "acme")
	acme[0].For, acme[0].Until, acme[0].Reason, acme[0].By = time.Until(until), until, "floods", "anna"
	want := &outbox.Stats{
		Depth: outbox.Depth{Status: statuses(4, 3, 4, 3, 2, 1), Due: 4, Lapsed: 2, Retrying: 1, Future: 1,
			OldestDue: minute, OldestLapsed: minute, OldestInProgress: 10 * time.Second, NextDue: 20 * minute},
		Lag: 90 * time.Second, // that of the oldest open event, also while it waits for a retry
		EventTypes: outbox.Ranking{Of: 4, Top: []outbox.Depth{
			{Name: "order.created", Status: statuses(3, 2), Due: 2, Lapsed: 1, Retrying: 1, Future: 1,
				OldestDue: minute, OldestLapsed: minute, OldestInProgress: 10 * time.Second, NextDue: 20 * minute},
			{Name: "user.created", Status: statuses(1, 1), Due: 2, Lapsed: 1, OldestDue: minute, OldestLapsed: minute},
			{Name: "order.1", Status: statuses(0, 0, 2, 2, 1, 1)},
			{Name: "order.0", Status: statuses(0, 0, 2, 1, 1)},
		}},
		Tenants: outbox.Ranking{Of: 2, Top: []outbox.Depth{
			{Name: "", Status: statuses(3, 2, 4, 3, 2, 1), Due: 2, Lapsed: 1, Retrying: 1, Future: 1,
				OldestDue: minute, OldestLapsed: minute, OldestInProgress: 10 * time.Second, NextDue: 20 * minute},
			{Name: "acme", Status: statuses(1, 1), Due: 2, Lapsed: 1, OldestDue: minute, OldestLapsed: minute},
		}},
		Destinations: []outbox.DestinationStats{
			{Depth: outbox.Depth{Name: "", Status: statuses(3, 2, 4, 3, 2, 1), Due: 2, Lapsed: 1, Retrying: 1, Future: 1,
				OldestDue: minute, OldestLapsed: minute, OldestInProgress: 10 * time.Second, NextDue: 20 * minute},
				Ordering: "none", Breaker: "closed", Tenants: acme},
			{Depth: outbox.Depth{Name: "crm", Status: statuses(1, 1), Due: 2, Lapsed: 1, OldestDue: minute, OldestLapsed: minute},
				Ordering: "aggregate", Late: 3, Breaker: "open", Paused: true, PausedUntil: &until, Reason: "too slow", Tenants: paused("crm", "globex"), Served: true},
			{Depth: outbox.Depth{Name: "erp", Status: map[outbox.Status]int64{}}, Ordering: "none", Breaker: "closed", Tenants: paused("erp", "acme")},
			{Depth: outbox.Depth{Name: "mail", Status: map[outbox.Status]int64{}},
				Ordering: "none", Breaker: "closed", Paused: true, Reason: "broken"},
		},
		Delivered: map[string]float64{"1m": 0, "5m": 0, "15m": 0}, LastDelivered: -time.Second,
		Buried: map[outbox.Status]int64{"failed": 0, "dead_letter": 0},
		Window: 15 * time.Minute,
		Tries:  outbox.Tries{Delivered: map[int]int64{}, Retried: map[int]int64{}, Ended: map[int]int64{}},
	}
	if diff := cmp.Diff(want, st, theirs...); diff != "" {
		t.Errorf("Stats() (-want +got):\n%s", diff)
	}
}

// Of many names the fullest are listed, and it is said how many there are.
func TestStatsRanksNames(t *testing.T) {
	t.Parallel()
	db := outboxtest.DB(t)
	exec(t, db, `insert into outbox (tenant_id, aggregate_type, aggregate_id, event_type, destination, payload)
		select 'tenant ' || i, 'order', n::text, 'type ' || i, 'destination ' || i % 15, '{}' from generate_series(1, 2000) i, generate_series(1, 1 + (i > 1990)::int) n`)
	st := stats(t, db)
	for _, r := range []outbox.Ranking{st.EventTypes, st.Tenants} {
		if r.Of != 2000 || len(r.Top) != 10 || r.Top[9].Open() != 2 {
			t.Errorf("%d of %d names, the last with %d events; want the 10 of 2000 that have 2", len(r.Top), r.Of, r.Top[len(r.Top)-1].Open())
		}
	}
	if len(st.Destinations) != 10 || st.Unlisted != 5 || st.Open() != 2010 {
		t.Errorf("%d destinations, %d unlisted, %d open events; want 10, 5 and 2010", len(st.Destinations), st.Unlisted, st.Open())
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
	rates := stats(t, db).Delivered
	for span, want := range map[string]float64{"1m": 12000, "5m": 12000} {
		if math.Abs(rates[span]-want) > want*0.03 {
			t.Errorf("%s: %.0f a minute, want %.0f", span, rates[span], want)
		}
	}
	if rate := rates["15m"]; rate < 12000*1.9 || rate > 12000*2.3 {
		t.Errorf("15m: %.0f a minute, want about twice as much", rate)
	}
}

// Rates of creation come from the ids: whatever became of the events, and over gaps that a purge left.
func TestStatsCreated(t *testing.T) {
	t.Parallel()
	db := outboxtest.DB(t)
	exec(t, db, `insert into outbox (id, aggregate_type, aggregate_id, event_type, payload, created_at, status, finished_at)
		select i, 'order', '1', 'order.created', '{}', now() - (3001 - i) * interval '0.5 s', case when i % 2 = 0 then 'pending' else 'delivered' end, case when i % 2 = 1 then now() end
		  from generate_series(1, 3000) i`)
	for _, gap := range []string{`false`, `id < 900`, `id between 2000 and 2300`, `id < 2900`} {
		exec(t, db, `delete from outbox where `+gap)
		created := stats(t, db).Created
		for span, want := range map[string]float64{"1m": 120, "5m": 120, "15m": 120} {
			switch {
			case gap == `id < 2900` && span == "1m":
				want = 101
			case gap == `id < 2900` && span == "5m":
				want = 101.0 / 5
			case gap == `id < 2900`:
				want = 101.0 / 15
			}
			if got := created[span]; math.Abs(got-want) > want/20 {
				t.Errorf("without %s, %s: %.1f created a minute, want %.1f", gap, span, got, want)
			}
		}
	}
}

// A backlog drains by the difference between what is delivered and what is created.
func TestStatsDrain(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		due                int64
		delivered, created float64
		want               time.Duration
	}{{0, 0, 10, 0}, {100, 0, 0, -1}, {100, 10, 10, -1}, {100, 10, 20, -1}, {100, 60, 10, 2 * time.Minute}} {
		st := outbox.Stats{Depth: outbox.Depth{Due: tt.due}, Delivered: map[string]float64{"5m": tt.delivered}, Created: map[string]float64{"5m": tt.created}}
		if got := st.Drain(); got != tt.want {
			t.Errorf("%+v: Drain() = %s", tt, got)
		}
	}
}

// The lag is right within a second whoever has the oldest event (B73), and nothing reads the table from its start.
func TestStatsLagAndCost(t *testing.T) {
	t.Parallel()
	db := outboxtest.DB(t)
	finished(t, db, 5000, outbox.Delivered, nil)
	insert(t, db, 100)
	exec(t, db, `update outbox set available_at = now() - interval '1 hour' where id = 5001`)
	exec(t, db, `vacuum analyze outbox`)
	scans := func() int64 {
		t.Helper()
		exec(t, db, `select pg_stat_clear_snapshot()`)
		return query[int64](t, db, `select seq_scan from pg_stat_user_tables where relname = 'outbox'`)
	}
	lock, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Rollback(context.Background())
	before := scans()
	right := func(what string) {
		t.Helper()
		age := func() time.Duration {
			return query[time.Duration](t, db, `select clock_timestamp() - available_at from outbox where id = 5001`)
		}
		least := age()
		if lag := stats(t, db).Lag; lag < least-time.Second || lag > age()+time.Second {
			t.Errorf("the lag is %s when the oldest event %s, want %s", lag, what, least)
		}
	}
	exec(t, db, `insert into outbox_destinations (destination, paused_until) values ('paused', 'infinity')`)
	for _, state := range []string{
		`attempts = 0`,
		`attempts = 3, next_attempt_at = now() + interval '1 hour'`,
		`destination = 'paused'`,
		`status = 'in_progress', lease = 'a', lease_until = now() + interval '1 minute'`,
		`status = 'in_progress', lease = 'a', lease_until = now() - interval '1 minute'`,
	} {
		exec(t, db, `update outbox set `+state+` where id = 5001`)
		right("has " + state)
	}
	if _, err := lock.Exec(t.Context(), `select from outbox where id = 5001 for update`); err != nil {
		t.Fatal(err)
	}
	right("is locked")
	time.Sleep(1100 * time.Millisecond) // the server's processes report their scans once a second
	stats(t, db)
	if n := scans() - before; n != 0 {
		t.Errorf("%d scans of the whole table, want none", n)
	}
}

func TestStatsTries(t *testing.T) {
	t.Parallel()
	db := outboxtest.DB(t)
	exec(t, db, `insert into outbox_rollup (minute, worker, destination, event_type, outcome, error_kind, attempt, n, latency, age)
		select date_trunc('minute', now()), w, d, 'a', o, k, a, n, interval '1 s' * n, '0'
		  from (values ('delivered', '', 1, 10), ('delivered', '', 3, 2), ('pending', 'http', 1, 4), ('pending', 'http', 2, 3),
		               ('failed', 'http', 10, 1), ('dead_letter', 'http', 1, 5)) v(o, k, a, n), generate_series(1, 2) w, unnest('{crm,mail}'::text[]) d`)
	st := stats(t, db)
	want := outbox.Tries{Delivered: map[int]int64{1: 40, 3: 8}, Retried: map[int]int64{1: 16, 2: 12}, Ended: map[int]int64{1: 20, 10: 4}}
	if diff := cmp.Diff(want, st.Tries); diff != "" {
		t.Errorf("tries (-want +got):\n%s", diff)
	}
	if st.Buried[outbox.Failed] != 4 || st.Buried[outbox.DeadLetter] != 20 {
		t.Errorf("%v in the last hour, want 4 failed and 20 dead letters", st.Buried)
	}
	if st.LastDelivered < 0 || st.LastDelivered > time.Minute {
		t.Errorf("the last delivery was %s ago, want less than a minute", st.LastDelivered)
	}
	d := st.Destinations[0]
	if d.Name != "crm" || d.Attempts != 50 || d.Errors != 26 || d.Latency() != time.Second || d.ErrorShare() != 0.52 {
		t.Errorf("%s: %d attempts, %d errors, %s each, share %v; want crm, 50, 26, 1s, 0.52", d.Name, d.Attempts, d.Errors, d.Latency(), d.ErrorShare())
	}
}

// Nobody looks: what has been due for minutes, and neither a dispatcher nor a pause has to do with it.
func TestStatsUnserved(t *testing.T) {
	t.Parallel()
	db := outboxtest.DB(t)
	exec(t, db, `insert into outbox (aggregate_type, aggregate_id, event_type, payload, destination, available_at) values
		('a', '1', 'a', '{}', 'cron', now() - interval '1 minute'), ('a', '1', 'a', '{}', 'later', now() + interval '1 minute'),
		('a', '1', 'a', '{}', 'forgotten', now() - interval '3 minutes'), ('a', '1', 'a', '{}', 'served', now() - interval '3 minutes'),
		('a', '1', 'a', '{}', 'paused', now() - interval '3 minutes')`)
	exec(t, db, `insert into outbox_destinations (destination, paused_until) values ('paused', 'infinity')`)
	exec(t, db, `insert into outbox_workers (worker, destinations) values ('a', '{served}')`)
	unserved := stats(t, db).Unserved()
	if len(unserved) != 1 || unserved[0].Name != "forgotten" {
		t.Errorf("Unserved() = %+v, want the forgotten one", unserved)
	}
}

// A row that a router has looked at and left is unrouted; one that a dispatcher of the default
// destination has released is not.
func TestStatsUnrouted(t *testing.T) {
	t.Parallel()
	db := outboxtest.DB(t)
	emit(t, db, "/1/other", "/2/other.shadowed")
	step(t, router(db), 2)
	exec(t, db, `update outbox set next_attempt_at = now() where id = 1`)
	insert(t, db, 1)
	exec(t, db, `update outbox set next_attempt_at = now() + interval '1 minute' where event_type = 'order.created'`)
	if st := stats(t, db); st.Unrouted != 2 || st.Due != 0 {
		t.Errorf("%d unrouted, %d due; want 2, and none", st.Unrouted, st.Due)
	}
}

// Shadow copies, also those that are sent again, count under their destination and nowhere else, also where it
// has events of its own.
func TestStatsCountShadowsUnderTheirDestinationAlone(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	db := outboxtest.DB(t)
	emit(t, db, "/1/email.shadowed", "/2/email.shadowed", "/3/email.shadowed", "/4/email.shadowed")
	step(t, router(db), 4)
	exec(t, db, `update outbox set origin = 'shadow replay:7' where destination = 'staging' and source_id = 2`)
	exec(t, db, `update outbox set available_at = now() - interval '1 hour' where destination = 'staging'`)
	exec(t, db, `update outbox set available_at = now() + interval '1 hour' where destination = 'staging' and source_id = 4`)
	exec(t, db, `update outbox set status = 'in_progress', lease = 'a', lease_until = now() - interval '1 minute', attempts = 1
		where destination = 'staging' and source_id = 3`)
	emit(t, db, "/9/order.own")
	exec(t, db, `update outbox set destination = 'staging' where event_type = 'order.own'`)
	before := stats(t, db)
	if got := fmt.Sprint(before.Status[outbox.Pending], before.Due, before.Lapsed, before.Future, before.Tenants.Top[0].Due, before.EventTypes.Top[0].Due, len(before.Unserved())); got != "5 5 0 0 5 4 0" || before.Lag > time.Minute {
		t.Errorf("the others' depth is %s, lag %s", got, before.Lag)
	}
	staging := before.Destinations[0]
	judged := staging.Judged()
	if got := fmt.Sprint(staging.Name, staging.Open(), staging.Due, staging.Lapsed, staging.Future, " ", judged.Open(), judged.Due, judged.Lapsed, judged.Future); got != "staging5 4 1 1 1 1 0 0" {
		t.Errorf("staging is %s", got)
	}
	if staging.OldestDue < 59*time.Minute || judged.OldestDue > time.Minute {
		t.Errorf("the oldest is due for %s, without shadows for %s", staging.OldestDue, judged.OldestDue)
	}
	d := newDispatcher(db, sinkFunc(func(_ context.Context, ev outbox.Event) (outbox.Receipt, error) {
		if ev.Shadow {
			return outbox.Receipt{}, outbox.Permanent(&outbox.DeliveryError{Kind: "http", Code: 422})
		}
		return outbox.Receipt{Text: "200", Code: 200}, nil
	}))
	d.Source = outbox.NewStore(db, "public").Queue(outbox.QueueOptions{Destination: "staging", Worker: "a", Lease: d.Lease, MaxAttempts: 10, PollInterval: time.Second})
	sum := run(t, d)
	if sum.Dead != 3 || sum.Shadows != 3 || sum.Delivered != 1 {
		t.Errorf("the run is %+v, want three dead, all of them shadows, and one delivered", sum)
	}
	st := stats(t, db)
	staging = st.Destinations[slices.IndexFunc(st.Destinations, func(d outbox.DestinationStats) bool { return d.Name == "staging" })]
	judged = staging.Judged()
	got := fmt.Sprint(st.Status[outbox.DeadLetter], st.Attempts, st.Errors, st.Buried[outbox.DeadLetter], st.Answers, " ",
		staging.Status[outbox.DeadLetter], staging.Attempts, staging.Errors, " ", judged.Status[outbox.DeadLetter], judged.Attempts, judged.Errors)
	if want := "0 1 0 0 [{ 200 1}] 3 4 3 0 1 0"; got != want {
		t.Errorf("stats are %s, want %s", got, want)
	}
	store, look := outbox.NewStore(db, "public"), outbox.Look{Window: time.Hour, Top: 10}
	hours, err := store.StatsByHour(ctx, look)
	if err != nil || len(hours) != 1 || hours[0].DeadLetters != 0 || hours[0].Delivered != 1 {
		t.Errorf("StatsByHour() = %+v, %v", hours, err)
	}
	failures, err := store.StatsByError(ctx, look)
	if err != nil || len(failures) != 1 || failures[0].Destination != "staging" || failures[0].N != 3 {
		t.Errorf("StatsByError() = %+v, %v", failures, err)
	}
}

func TestStatsDatabase(t *testing.T) {
	t.Parallel()
	db := outboxtest.DB(t)
	insert(t, db, 1000)
	exec(t, db, `update pg_index set indisvalid = false where indexrelid = 'outbox_lag'::regclass`)
	tx, err := db.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	if _, err := tx.Exec(t.Context(), `select set_config('application_name', 'nightly report', true), count(*) from outbox`); err != nil {
		t.Fatal(err)
	}
	insert(t, db, 1)
	d := stats(t, db).Database
	if d.TableBytes < 100_000 || d.IndexBytes < 50_000 || !slices.Equal(d.InvalidIndexes, []string{"outbox_lag"}) {
		t.Errorf("%+v, want sizes and the invalid index", d)
	}
	h := d.Snapshot
	if h == nil || h.Holder != "session" || h.Name != "nightly report" || h.PID == 0 || h.State != "idle in transaction" || h.Age < 0 || h.Transactions < 1 {
		t.Errorf("the oldest snapshot is %+v, want that of the nightly report", h)
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
	if rate := st.Delivered["1m"]; rate < 70 || rate > 80.01 {
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
	for _, et := range st.EventTypes.Top {
		if et.Status[outbox.Delivered] != 0 {
			t.Errorf("%s: %v, want no count of the delivered", et.Name, et.Status)
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
