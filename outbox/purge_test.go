package outbox_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxctl/outboxctl/outbox"
	"github.com/outboxctl/outboxctl/outbox/outboxtest"
)

// purge runs a purge to its end, in batches of 7, and returns what it did.
func purge(t testing.TB, db *pgxpool.Pool, what outbox.Purge) outbox.Progress {
	t.Helper()
	ctx := context.Background()
	store := outbox.NewStore(db, "public")
	run, err := store.Begin(ctx, outbox.Operation{Command: "purge", Alone: true, Filter: what.Filter, Planned: -1})
	if err != nil {
		t.Fatal(err)
	}
	if err := outbox.Drain(ctx, store.Purge(run, what), outbox.Pace{Batch: 7}, nil); err != nil {
		t.Fatal(err)
	}
	if err := run.End(ctx, ""); err != nil {
		t.Fatal(err)
	}
	return run.Progress
}

// rehearsed is what the same purge says that it would do.
func rehearsed(t testing.TB, db *pgxpool.Pool, what outbox.Purge) outbox.Progress {
	t.Helper()
	store := outbox.NewStore(db, "public")
	run := store.Rehearse()
	if err := outbox.Drain(context.Background(), store.Purge(run, what), outbox.Pace{Batch: 7}, nil); err != nil {
		t.Fatal(err)
	}
	return run.Progress
}

func purged(t testing.TB, p outbox.Progress) outbox.Purged {
	t.Helper()
	more, err := p.Purged()
	if err != nil {
		t.Fatal(err)
	}
	return more
}

// ago is a time by the database's clock.
func ago(t testing.TB, db *pgxpool.Pool, d time.Duration) time.Time {
	t.Helper()
	now, err := outbox.NewStore(db, "public").Now(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return now.Add(-d)
}

// purgeable inserts an event of each status, n times, that ended or should have begun an age ago.
func purgeable(t testing.TB, db *pgxpool.Pool, n int, age time.Duration) {
	t.Helper()
	exec(t, db, `
insert into outbox (aggregate_type, aggregate_id, event_type, tenant_id, payload, status, attempts, available_at, created_at,
                    finished_at, lease, lease_until, error_kind)
select 'order', i::text, 'order.' || case when i % 2 = 0 then 'paid' else 'created' end, 'tenant-' || i % 3, '{"n": 1}', s, 1,
       now() - $2::interval, now() - $2::interval,
       case when s in ('delivered', 'failed', 'dead_letter', 'discarded') then now() - $2::interval end,
       case s when 'in_progress' then 'w/1' end, case s when 'in_progress' then now() - $2::interval end,
       case when s in ('failed', 'dead_letter', 'discarded') then 'http' end
  from generate_series(1, $1) i,
       unnest(array['pending', 'in_progress', 'delivered', 'failed', 'dead_letter', 'discarded']) with ordinality u(s, k)
 order by i, k`, n, age)
}

// left counts the events by status.
func left(t testing.TB, db *pgxpool.Pool) string {
	t.Helper()
	return query[string](t, db, `select coalesce(string_agg(status || ' ' || n, ', ' order by status), '')
from (select status, count(*) n from outbox group by status) s`)
}

const day = 24 * time.Hour

func TestPurgeTakesWhatIsNamedAndOldAndNeverOpen(t *testing.T) {
	t.Parallel()
	const all = "dead_letter 20, delivered 20, discarded 20, failed 20, in_progress 20, pending 20"
	tests := []struct {
		name   string
		filter outbox.Filter
		done   int64
		left   string
	}{
		{"delivered by default", outbox.Filter{}, 10, "dead_letter 20, delivered 10, discarded 20, failed 20, in_progress 20, pending 20"},
		{"named", outbox.Filter{Statuses: []outbox.Status{"failed", "discarded"}}, 20,
			"dead_letter 20, delivered 20, discarded 10, failed 10, in_progress 20, pending 20"},
		{"all that ended", outbox.Filter{Statuses: []outbox.Status{"delivered", "failed", "dead_letter", "discarded"}}, 40,
			"dead_letter 10, delivered 10, discarded 10, failed 10, in_progress 20, pending 20"},
		{"open", outbox.Filter{Statuses: []outbox.Status{"pending", "in_progress"}}, 0, all},
		{"a type", outbox.Filter{EventTypes: []string{"*.paid"}}, 5, "dead_letter 20, delivered 15, discarded 20, failed 20, in_progress 20, pending 20"},
		{"a tenant", outbox.Filter{Tenants: []string{"tenant-0"}, Statuses: []outbox.Status{"dead_letter"}}, 3,
			"dead_letter 17, delivered 20, discarded 20, failed 20, in_progress 20, pending 20"},
		{"none of that kind", outbox.Filter{ErrorKinds: []string{"http"}}, 0, all},
		{"ids, of every age and status", outbox.Filter{IDs: []int64{1, 2, 3, 4, 5, 6, 7, 8, 9, 99, 100, 101, 102, 103, 104, 105, 1000}}, 2,
			"dead_letter 20, delivered 18, discarded 20, failed 20, in_progress 20, pending 20"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			db := outboxtest.DB(t)
			purgeable(t, db, 10, 31*day) // ids 1 to 60
			purgeable(t, db, 10, 29*day)
			tt.filter.FinishedBefore = ago(t, db, 30*day)
			what := outbox.Purge{Filter: tt.filter}
			plan := rehearsed(t, db, what)
			if got := left(t, db); got != all {
				t.Fatalf("a rehearsal left %s", got)
			}
			got := purge(t, db, what)
			if got.Done != tt.done || plan.Done != tt.done || got.Matched() != tt.done {
				t.Errorf("purged %d of %d, rehearsed %d, want %d", got.Done, got.Matched(), plan.Done, tt.done)
			}
			if got := left(t, db); got != tt.left {
				t.Errorf("left %s, want %s", got, tt.left)
			}
			if again := purge(t, db, what); again.Matched() != 0 {
				t.Errorf("again: %+v", again)
			}
		})
	}
}

func TestPurgeFindsKeys(t *testing.T) {
	t.Parallel()
	db := outboxtest.DB(t)
	purgeable(t, db, 10, 31*day)
	keys := query[[]uuid.UUID](t, db, `select array_agg(idempotency_key order by id) from outbox where id between 1 and 12`)
	got := purge(t, db, outbox.Purge{Filter: outbox.Filter{Keys: keys, FinishedBefore: ago(t, db, 30*day)}})
	if got.Done != 2 || !strings.Contains(left(t, db), "delivered 8,") {
		t.Errorf("purged %d, left %s", got.Done, left(t, db))
	}
}

// A row that somebody holds is passed over, once, and the next run takes it.
func TestPurgeLeavesLockedRowsOut(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	db := outboxtest.DB(t)
	purgeable(t, db, 20, 31*day)
	tx, err := db.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(ctx, `select from outbox where status = 'delivered' and id < 40 for update`); err != nil {
		t.Fatal(err)
	}
	what := outbox.Purge{Filter: outbox.Filter{FinishedBefore: ago(t, db, 30*day)}}
	got := purge(t, db, what)
	if diff := cmp.Diff(map[string]int64{"locked": 7}, got.Skipped); diff != "" || got.Done != 13 {
		t.Errorf("done %d, skipped (-want +got):\n%s", got.Done, diff)
	}
	if err := tx.Rollback(ctx); err != nil {
		t.Fatal(err)
	}
	if got := purge(t, db, what); got.Done != 7 || got.Matched() != 7 {
		t.Errorf("then %+v", got)
	}
}

// An event that is put back between the look of a step and its lock is open, and stays.
func TestPurgeBesideReplays(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	db := outboxtest.DB(t)
	const n = 3000
	exec(t, db, `
insert into outbox (aggregate_type, aggregate_id, event_type, payload, status, finished_at)
select 'order', i::text, 'order.created', '{}', 'delivered', now() - interval '31 days' + i * interval '1 s' from generate_series(1, $1::int) i`, n)
	var beside sync.WaitGroup
	for worker := range 2 {
		beside.Go(func() {
			for i := 1 + worker; i <= n; i += 2 { // from the newest on
				if _, err := db.Exec(ctx, `update outbox set status = 'pending', finished_at = null where id = $1`, n+1-i); err != nil {
					t.Error(err)
				}
			}
		})
	}
	got := purge(t, db, outbox.Purge{Filter: outbox.Filter{FinishedBefore: ago(t, db, 30*day)}})
	beside.Wait()
	if got.Done == 0 || got.Done == n {
		t.Fatalf("purged %d: the replays were not beside it", got.Done)
	}
	if want := fmt.Sprintf("pending %d", n-got.Done); left(t, db) != want {
		t.Errorf("left %s, want %s", left(t, db), want)
	}
}

func TestPurgeSaysWhatItIsAbout(t *testing.T) {
	t.Parallel()
	db := outboxtest.DB(t)
	exec(t, db, `
insert into outbox (aggregate_type, aggregate_id, event_type, payload, status, finished_at)
select 'order', i::text, 'order.created', jsonb_build_object('text', repeat(md5(i::text), 10)), 'delivered', '2026-01-01'::timestamptz + i * interval '1 hour'
  from generate_series(1, 50) i`)
	got := purged(t, rehearsed(t, db, outbox.Purge{Filter: outbox.Filter{FinishedBefore: time.Date(2026, 1, 3, 0, 0, 0, 0, time.UTC)}}))
	want := outbox.Purged{Bytes: got.Bytes, Oldest: time.Date(2026, 1, 1, 1, 0, 0, 0, time.UTC), Newest: time.Date(2026, 1, 2, 23, 0, 0, 0, time.UTC)}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if each := got.Bytes / 47; each < 400 || each > 700 {
		t.Errorf("%d bytes an event", each)
	}
}

// A run that ended early has kept what it did, and the next one does the rest.
func TestPurgeGoesOnWhereOneStopped(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	db := outboxtest.DB(t)
	purgeable(t, db, 30, 31*day)
	store := outbox.NewStore(db, "public")
	run, err := store.Begin(ctx, outbox.Operation{Command: "purge", Alone: true, Planned: 30})
	if err != nil {
		t.Fatal(err)
	}
	what := outbox.Purge{Filter: outbox.Filter{FinishedBefore: ago(t, db, 30*day)}}
	step := store.Purge(run, what)
	for range 2 {
		if n, err := step(ctx, 40); n != 10 || err != nil {
			t.Fatalf("step = %d, %v", n, err)
		}
	}
	if n := query[int](t, db, `select done from outbox_operations`); n != 20 {
		t.Errorf("the operation's row says %d, want 20", n)
	}
	exec(t, db, `update outbox_operations set heartbeat_at = now() - interval '1 minute'`) // it is dead
	if got := purge(t, db, what); got.Done != 10 {
		t.Errorf("the second run purged %d, want 10", got.Done)
	}
}

func TestPurgeTakesOldHistory(t *testing.T) {
	t.Parallel()
	db := outboxtest.DB(t)
	purgeable(t, db, 2, 100*day) // ids 1 to 12: pending, in progress, delivered, failed, dead letter, discarded
	exec(t, db, `
insert into outbox_attempts (event_id, attempt, lease, destination, at, outcome)
select e, a, 'w/1', '', now() - interval '100 days' + a * interval '5 days', 'pending' from generate_series(1, 4) a, generate_series(1, 20) e;
insert into outbox_rollup (minute, worker, destination, event_type, outcome, attempt, n, latency, age)
select date_trunc('minute', now()) - d * interval '1 day', w, '', 't', 'delivered', 1, 1, '0', '0' from generate_series(30, 39) d, generate_series(1, 3) w;
insert into outbox_samples (at, name, value)
select now() - d * interval '1 day', n, 1 from generate_series(30, 39) d, unnest(array['a', 'b', 'c']) n`)
	what := outbox.Purge{
		Filter:  outbox.Filter{FinishedBefore: ago(t, db, 1000*day)},
		History: outbox.History{Attempts: ago(t, db, 89*day), Rollup: ago(t, db, 35*day+time.Hour)},
	}
	// Of 20 events, 8 may still be looked into; of each of the others two attempts are old.
	want := map[string]int64{"attempts": 24, "rollup": 12, "samples": 12}
	plan := rehearsed(t, db, what)
	if diff := cmp.Diff(want, purged(t, plan).History); diff != "" {
		t.Errorf("rehearsed (-want +got):\n%s", diff)
	}
	got := purge(t, db, what)
	if diff := cmp.Diff(want, purged(t, got).History); diff != "" {
		t.Errorf("purged (-want +got):\n%s", diff)
	}
	if got.Matched() != 0 {
		t.Errorf("%d events are counted", got.Matched())
	}
	for table, n := range map[string]int{"outbox_attempts": 80 - 24, "outbox_rollup": 18, "outbox_samples": 18, "outbox": 12} {
		if got := query[int](t, db, fmt.Sprintf(`select count(*) from %s`, table)); got != n {
			t.Errorf("%s has %d rows, want %d", table, got, n)
		}
	}
	if got := purged(t, purge(t, db, what)); len(got.History) != 0 {
		t.Errorf("again: %v", got.History)
	}
}

func TestPurgeNeedsAnAge(t *testing.T) {
	t.Parallel()
	defer func() {
		if recover() == nil {
			t.Error("a purge without an age is made")
		}
	}()
	store := outbox.NewStore(outboxtest.DB(t), "public")
	store.Purge(store.Rehearse(), outbox.Purge{})
}

func TestPurgeKnowsItsPast(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	db := outboxtest.DB(t)
	store := outbox.NewStore(db, "public")
	rate := func() float64 {
		r, err := store.PastRate(ctx, "purge", "")
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	if got := rate(); got != 0 {
		t.Errorf("rate before any: %v", got)
	}
	exec(t, db, `insert into outbox_operations (command, done, started_at, ended_at) values
('purge', 50000, now() - interval '1 hour', now() - interval '1 hour' + interval '10 s'), ('purge', 5, now(), now() + interval '1 s'),
('replay', 9000, now() - interval '1 s', now()), ('purge', 100000, now(), null)`)
	if got := rate(); got != 5000 {
		t.Errorf("rate %v, want 5000", got)
	}
	v, err := store.Vacuuming(ctx)
	if err != nil || !v.Auto {
		t.Errorf("Vacuuming() = %+v, %v", v, err)
	}
	exec(t, db, `alter table outbox set (autovacuum_enabled = off)`)
	if v, err = store.Vacuuming(ctx); err != nil || v.Auto {
		t.Errorf("Vacuuming() with autovacuum off = %+v, %v", v, err)
	}
}
