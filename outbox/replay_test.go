package outbox_test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxctl/outboxctl/outbox"
	"github.com/outboxctl/outboxctl/outbox/outboxtest"
)

// bury inserts n events that failed in their tenth attempt an hour ago, one millisecond after the other.
func bury(t testing.TB, db *pgxpool.Pool, n int) {
	t.Helper()
	exec(t, db, `insert into outbox (aggregate_type, aggregate_id, event_type, payload, status, attempts, created_at, available_at, finished_at,
		last_attempt_at, next_attempt_at, receipt, error, error_kind, error_code)
		select 'order', i::text, 'order.' || i % 2, jsonb_build_object('n', i), 'failed', 10, at, at, at, at, at, 'r', 'answered 503', 'http', 503
		  from (select i, now() - interval '1 hour' + i * interval '1 ms' as at from generate_series(1, $1::int) i) g`, n)
}

// failed are all events that have failed until now.
func failed(t testing.TB, db *pgxpool.Pool) outbox.Replay {
	t.Helper()
	return outbox.Replay{Filter: outbox.Filter{Statuses: []outbox.Status{outbox.Failed}}, Before: query[time.Time](t, db, `select now()`)}
}

// operate makes a change, batch by batch, and returns what it has done.
func operate(t testing.TB, db *pgxpool.Pool, command string, change *outbox.Change, batch int) *outbox.Run {
	t.Helper()
	run, err := outbox.NewStore(db, "public").Begin(context.Background(), outbox.Operation{Command: command, Planned: -1})
	if err != nil {
		t.Fatal(err)
	}
	if err := outbox.Drain(context.Background(), change.Step(run), outbox.Pace{Batch: batch}, nil); err != nil {
		t.Fatal(err)
	}
	return run
}

func replay(t testing.TB, db *pgxpool.Pool, r outbox.Replay, batch int) *outbox.Run {
	t.Helper()
	return operate(t, db, "replay", outbox.NewStore(db, "public").Replay(r), batch)
}

// tally is done and skipped of a run or a rehearsal.
type tally struct {
	Done    int64
	Skipped map[string]int64
}

func tallied(run *outbox.Run) tally { return tally{run.Progress.Done, run.Progress.Skipped} }

// rehearse returns what a change would do.
func rehearse(t testing.TB, db *pgxpool.Pool, change *outbox.Change, batch int) tally {
	t.Helper()
	run := outbox.NewStore(db, "public").Rehearse()
	if err := outbox.Drain(context.Background(), change.Step(run), outbox.Pace{Batch: batch}, nil); err != nil {
		t.Fatal(err)
	}
	return tallied(run)
}

func TestReplayMakesAnEventAsNewAndKeepsItsKeyAndHistory(t *testing.T) {
	t.Parallel()
	db := outboxtest.DB(t)
	bury(t, db, 3)
	exec(t, db, `update outbox set headers = '{"occurred_at": "then", "traceparent": "00-1"}' where id = 2`)
	exec(t, db, `update outbox set headers = '["odd"]' where id = 3`)
	exec(t, db, `insert into outbox_attempts (event_id, attempt, lease, destination, outcome, error_kind) values (1, 10, 'w/1', '', 'failed', 'http')`)
	key := query[uuid.UUID](t, db, `select idempotency_key from outbox where id = 1`)
	created := query[string](t, db, `select to_char(created_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') from outbox where id = 1`)

	made := replay(t, db, failed(t, db), 2)
	if got := tallied(made); got.Done != 3 || len(got.Skipped) > 0 {
		t.Errorf("replayed %+v, want all three", got)
	}
	const fresh = `select count(*) from outbox
	 where status = 'pending' and attempts = 0 and origin = 'replay:' || $1::bigint
	   and available_at between now() - interval '1 minute' and now() and updated_at > now() - interval '1 minute'
	   and num_nonnulls(next_attempt_at, lease, lease_until, finished_at, receipt, error, error_kind, error_code) = 0`
	if n := query[int](t, db, fresh, made.ID); n != 3 {
		t.Errorf("%d of 3 events are as new", n)
	}
	if got := query[uuid.UUID](t, db, `select idempotency_key from outbox where id = 1`); got != key {
		t.Errorf("the key was %s and is %s", key, got)
	}
	headers := query[string](t, db, `select string_agg(headers::text, ' ' order by id) from outbox`)
	if want := `{"occurred_at": "` + created + `"} {"occurred_at": "then", "traceparent": "00-1"} ["odd"]`; headers != want {
		t.Errorf("headers are %s, want %s", headers, want)
	}
	if n := query[int](t, db, `select count(*) from outbox_attempts`); n != 1 {
		t.Errorf("the history has %d rows, want 1", n)
	}
	audit := query[string](t, db, `select string_agg(concat_ws(' ', event_id, operation, action, status, attempts), ', ' order by event_id) from outbox_audit`)
	if want := "1 1 replay failed 10, 2 1 replay failed 10, 3 1 replay failed 10"; audit != want {
		t.Errorf("the audit has %s, want %s", audit, want)
	}
	sink := &recorder{}
	if summary := run(t, newDispatcher(db, sink)); summary.Delivered != 2 || summary.Dead != 1 {
		t.Errorf("delivered %d and %d dead, want 2 and the one with odd headers", summary.Delivered, summary.Dead)
	}
	for _, ev := range sink.events {
		if ev.Attempts != 1 {
			t.Errorf("event %d is in attempt %d, want 1", ev.ID, ev.Attempts)
		}
	}
}

func TestReplayTouchesNothingElse(t *testing.T) {
	t.Parallel()
	db := outboxtest.DB(t)
	exec(t, db, `insert into outbox_destinations (destination, ordering) values ('crm', 'aggregate'), ('mail', 'none')`)
	exec(t, db, `
insert into outbox (destination, aggregate_type, aggregate_id, event_type, payload, status, lease, lease_until, finished_at, error_kind, headers)
values ('',     'order', '1', 'moved',     '{}', 'failed',      null,  null,                        now() - interval '1 h', 'http',     '{}'),
       ('',     'order', '1', 'pending',   '{}', 'pending',     null,  null,                        null,                   null,       '{}'),
       ('',     'order', '1', 'leased',    '{}', 'in_progress', 'w/1', now() + interval '1 minute', null,                   null,       '{}'),
       ('',     'order', '1', 'lapsed',    '{}', 'in_progress', 'w/2', now() - interval '1 minute', null,                   null,       '{}'),
       ('',     'order', '1', 'delivered', '{}', 'delivered',   null,  null,                        now() - interval '1 h', null,       '{}'),
       ('',     'order', '1', 'dead',      '{}', 'dead_letter', null,  null,                        now() - interval '1 h', 'http',     '{}'),
       ('',     'order', '1', 'discarded', '{}', 'discarded',   null,  null,                        now() - interval '1 h', 'discarded','{}'),
       ('',     'order', '1', 'redacted',  '{}', 'failed',      null,  null,                        now() - interval '1 h', 'http',     '{"redacted": {}}'),
       ('',     'order', '1', 'later',     '{}', 'failed',      null,  null,                        now() + interval '1 h', 'http',     '{}'),
       ('crm',  'order', '1', 'busy',      '{}', 'failed',      null,  null,                        now() - interval '1 h', 'http',     '{}'),
       ('crm',  'order', '1', 'leased',    '{}', 'in_progress', 'w/3', now() + interval '1 minute', null,                   null,       '{}'),
       ('crm',  'order', '2', 'moved',     '{}', 'failed',      null,  null,                        now() - interval '1 h', 'http',     '{}'),
       ('crm',  'order', '2', 'lapsed',    '{}', 'in_progress', 'w/3', now() - interval '1 minute', null,                   null,       '{}'),
       ('mail', 'order', '1', 'moved',     '{}', 'failed',      null,  null,                        now() - interval '1 h', 'http',     '{}'),
       ('mail', 'order', '1', 'leased',    '{}', 'in_progress', 'w/3', now() + interval '1 minute', null,                   null,       '{}')`)
	before := query[string](t, db, `select string_agg(o::text, E'\n' order by id) from outbox o where event_type <> 'moved'`)
	want := tally{3, map[string]int64{outbox.SkipRedacted: 1, outbox.SkipInFlight: 1}}
	for _, batch := range []int{100, 1} {
		if diff := cmp.Diff(want, rehearse(t, db, outbox.NewStore(db, "public").Replay(failed(t, db)), batch)); diff != "" {
			t.Errorf("the rehearsal in batches of %d (-want +got):\n%s", batch, diff)
		}
	}
	if diff := cmp.Diff(want, tallied(replay(t, db, failed(t, db), 100))); diff != "" {
		t.Errorf("the run (-want +got):\n%s", diff)
	}
	after := query[string](t, db, `select string_agg(o::text, E'\n' order by id) from outbox o where event_type <> 'moved'`)
	if before != after {
		t.Errorf("the others were\n%s\nand are\n%s", before, after)
	}
	if n := query[int](t, db, `select count(*) from outbox where event_type = 'moved' and status = 'pending'`); n != 3 {
		t.Errorf("%d of 3 are pending", n)
	}
}

// Every filter selects the same events for a replay as it does in plain SQL, whatever the walk and
// however small its windows.
func TestReplaySelectsWhatItsFilterSays(t *testing.T) {
	t.Parallel()
	db := outboxtest.DB(t)
	bury(t, db, 40)
	exec(t, db, `update outbox set status = 'dead_letter', error_code = 422 where id % 4 = 0`)
	exec(t, db, `update outbox set status = 'delivered', error = null, error_kind = null, error_code = null where id % 4 = 1`)
	exec(t, db, `update outbox set status = 'pending', finished_at = null where id % 8 = 2`)
	exec(t, db, `update outbox set tenant_id = 'acme' where id % 3 = 0`)
	exec(t, db, `update outbox set finished_at = now() - interval '2 h' where finished_at is not null and id > 20`) // all at once
	keys := []uuid.UUID{query[uuid.UUID](t, db, `select idempotency_key from outbox where id = 3`), query[uuid.UUID](t, db, `select idempotency_key from outbox where id = 12`)}
	all := []outbox.Status{outbox.Failed, outbox.DeadLetter, outbox.Delivered}
	tests := []struct {
		name   string
		filter outbox.Filter
		where  string
	}{
		{"failed", outbox.Filter{Statuses: []outbox.Status{outbox.Failed}}, `status = 'failed'`},
		{"delivered, too", outbox.Filter{Statuses: all}, `finished_at is not null`},
		{"a tenant", outbox.Filter{Statuses: all, Tenants: []string{"acme"}}, `finished_at is not null and tenant_id = 'acme'`},
		{"one of many", outbox.Filter{Statuses: all, Aggregates: []outbox.Aggregate{{Type: "order", ID: "39"}}}, `id = 39`},
		{"ids of any status", outbox.Filter{Statuses: all, IDs: []int64{2, 3, 4, 5, 99}}, `id in (3, 4, 5)`},
		{"ids of one status", outbox.Filter{Statuses: []outbox.Status{outbox.DeadLetter}, IDs: []int64{2, 3, 4, 5}}, `id = 4`},
		{"keys", outbox.Filter{Statuses: all, Keys: keys}, `id in (3, 12)`},
		{"a code", outbox.Filter{Statuses: all, ErrorCodes: []int{422}}, `error_code = 422 and finished_at is not null`},
		{"ended long ago", outbox.Filter{Statuses: all, FinishedBefore: time.Now().Add(-90 * time.Minute)}, `id > 20 and finished_at is not null`},
		{"types", outbox.Filter{Statuses: all, EventTypes: []string{"*.1"}}, `event_type = 'order.1' and finished_at is not null`},
		{"nothing", outbox.Filter{Statuses: all, Tenants: []string{"x' or 'x' = 'x"}}, `false`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			want := query[int64](t, db, `select count(*) from outbox where `+tt.where)
			for _, batch := range []int{1, 7, 1000} {
				r := outbox.Replay{Filter: tt.filter, Before: time.Now()}
				if got := rehearse(t, db, outbox.NewStore(db, "public").Replay(r), batch); got.Done != want {
					t.Errorf("in batches of %d it is %d events, want %d", batch, got.Done, want)
				}
			}
		})
	}
}

func TestReplaySpreadsDueTimesOverBatchesAndRuns(t *testing.T) {
	t.Parallel()
	db := outboxtest.DB(t)
	bury(t, db, 250)
	r := failed(t, db)
	r.Rate = 50
	first, err := outbox.NewStore(db, "public").Begin(context.Background(), outbox.Operation{Command: "replay", Filter: r.Filter})
	if err != nil {
		t.Fatal(err)
	}
	step := outbox.NewStore(db, "public").Replay(r).Step(first)
	for range 3 { // and the process dies
		if _, err := step(context.Background(), 40); err != nil {
			t.Fatal(err)
		}
	}
	second, err := outbox.NewStore(db, "public").Begin(context.Background(), outbox.Operation{Command: "replay", Filter: r.Filter})
	if err != nil {
		t.Fatal(err)
	}
	if err := outbox.Drain(context.Background(), outbox.NewStore(db, "public").Replay(r).Step(second), outbox.Pace{Batch: 40}, nil); err != nil {
		t.Fatal(err)
	}
	if first.Progress.Done != 120 || second.Progress.Done != 130 {
		t.Fatalf("replayed %d and %d, want 120 and 130", first.Progress.Done, second.Progress.Done)
	}
	gaps := query[string](t, db, `select string_agg(distinct gap::text, ' ')
	  from (select available_at - lag(available_at) over (order by id) as gap from outbox) g`)
	if gaps != "00:00:00.02" {
		t.Errorf("between the due times are %s, want 00:00:00.02 each time", gaps)
	}
}

// Events of a run that fail again are not taken again by it.
func TestReplayTakesNoEventTwice(t *testing.T) {
	t.Parallel()
	db := outboxtest.DB(t)
	bury(t, db, 30)
	run, err := outbox.NewStore(db, "public").Begin(context.Background(), outbox.Operation{Command: "replay"})
	if err != nil {
		t.Fatal(err)
	}
	step := outbox.NewStore(db, "public").Replay(failed(t, db)).Step(run)
	for range 10 {
		if _, err := step(context.Background(), 10); err != nil {
			t.Fatal(err)
		}
		exec(t, db, `update outbox set status = 'failed', finished_at = clock_timestamp(), error_kind = 'http' where finished_at is null`)
	}
	if run.Progress.Done != 30 {
		t.Errorf("%d events were replayed, want each of 30 once", run.Progress.Done)
	}
}

func TestReplayWaitsALittleForLockedRowsAndCountsThem(t *testing.T) {
	t.Parallel()
	db := outboxtest.DB(t)
	bury(t, db, 10)
	release := lockRows(t, db, 2, 5)
	lockRows(t, db, 7)
	time.AfterFunc(300*time.Millisecond, release)
	got := tallied(replay(t, db, failed(t, db), 4))
	if diff := cmp.Diff(tally{9, map[string]int64{outbox.SkipLocked: 1}}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// What was changed between the look and the lock is judged as it is then.
func TestReplayJudgesRowsAsOthersLeaveThem(t *testing.T) {
	t.Parallel()
	db := outboxtest.DB(t)
	bury(t, db, 10)
	tx, err := db.Begin(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	for _, sql := range []string{
		`update outbox set status = 'discarded' where id = 1`,
		`update outbox set status = 'pending', finished_at = null where id = 2`,
		`update outbox set headers = '{"redacted": {}}' where id = 3`,
		`delete from outbox where id = 4`,
		`update outbox set finished_at = now() + interval '1 minute' where id = 5`,
		`update outbox set updated_at = now() where id = 6`,
	} {
		if _, err := tx.Exec(context.Background(), sql); err != nil {
			t.Fatal(err)
		}
	}
	time.AfterFunc(300*time.Millisecond, func() { _ = tx.Commit(context.Background()) })
	got := tallied(replay(t, db, failed(t, db), 100))
	if diff := cmp.Diff(tally{5, map[string]int64{outbox.SkipState: 4, outbox.SkipRedacted: 1}}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if n := query[int](t, db, `select count(*) from outbox where status = 'pending'`); n != 6 { // with the one that was pending before
		t.Errorf("%d events are pending, want 6", n)
	}
}

func TestReplaysAtOnceMoveEachEventOnce(t *testing.T) {
	t.Parallel()
	db := outboxtest.DB(t)
	bury(t, db, 600)
	r := failed(t, db)
	var wg sync.WaitGroup
	runs := make([]*outbox.Run, 3)
	for i := range runs {
		wg.Go(func() { runs[i] = replay(t, db, r, 20) })
	}
	wg.Wait()
	var done int64
	for _, run := range runs {
		done += run.Progress.Done
	}
	if moved := query[int](t, db, `select count(*) from outbox_audit`); done != 600 || moved != 600 {
		t.Errorf("%d events were replayed, %d are in the audit, want each of 600 once", done, moved)
	}
}

// A dispatcher that is at work finds what a replay puts back within its poll interval, also behind
// its marks.
func TestReplayIsFoundByADispatcherThatIsAtWork(t *testing.T) {
	t.Parallel()
	db := outboxtest.DB(t)
	bury(t, db, 50)
	sink := &recorder{}
	d := newDispatcher(db, sink)
	d.Once, d.PollInterval = false, 500*time.Millisecond
	d.Source = queueFor(db, d)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = d.Run(ctx, context.Background())
	}()
	defer func() { stop(); <-ended }()
	insert(t, db, 5)
	eventually(t, func() bool { return query[int](t, db, `select count(*) from outbox where status = 'delivered'`) == 5 })
	replay(t, db, failed(t, db), 100)
	eventually(t, func() bool { return query[int](t, db, `select count(*) from outbox where status = 'delivered'`) == 55 })
	if n := query[int](t, db, `select count(*) from outbox where origin <> '' and finished_at - available_at > interval '3 s'`); n > 0 {
		t.Errorf("%d events were found late", n)
	}
}

func TestReplayReadsByIndex(t *testing.T) {
	t.Parallel()
	db := outboxtest.DB(t)
	bury(t, db, 2000)
	finished(t, db, 20_000, outbox.Delivered, nil)
	exec(t, db, `vacuum analyze outbox`)
	tests := []struct {
		filter outbox.Filter
		index  string
	}{
		{outbox.Filter{Statuses: []outbox.Status{outbox.Failed}}, "outbox_graveyard"},
		{outbox.Filter{Statuses: []outbox.Status{outbox.Delivered}}, "outbox_done"},
		{outbox.Filter{Statuses: []outbox.Status{outbox.Failed}, IDs: []int64{1, 2}}, "outbox_pkey"},
		{outbox.Filter{Statuses: []outbox.Status{outbox.Failed}, Keys: []uuid.UUID{uuid.New()}}, "outbox_key"},
	}
	for _, tt := range tests {
		plans, err := outbox.NewStore(db, "public").Replay(outbox.Replay{Filter: tt.filter, Before: time.Now(), Rate: 1}).Explain(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(plans[0], tt.index) || slices.ContainsFunc(plans, func(plan string) bool { return strings.Contains(plan, "Seq Scan on outbox ") }) {
			t.Errorf("want %s and no scan of the table:\n%s", tt.index, strings.Join(plans, "\n\n"))
		}
	}
}

// Behind a pooler no statement is prepared, and values say themselves what they are.
func TestChangesWorkThroughAPooler(t *testing.T) {
	t.Parallel()
	db := outboxtest.DB(t)
	bury(t, db, 12)
	config := db.Config()
	config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
	pooled, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer pooled.Close()
	key := query[uuid.UUID](t, db, `select idempotency_key from outbox where id = 2`)
	to := "new"
	all := outbox.Filter{
		Statuses: []outbox.Status{outbox.Failed, outbox.Pending}, EventTypes: []string{"order.*"}, Tenants: []string{""}, Destinations: []string{""},
		Aggregates: []outbox.Aggregate{{Type: "order", ID: "2"}, {Type: "order", ID: "3"}}, Since: time.Now().Add(-2 * time.Hour), Until: time.Now(),
		ErrorKinds: []string{"http"}, ErrorCodes: []int{503},
	}
	named := all
	named.Keys, named.IDs = []uuid.UUID{key}, []int64{1, 2}
	for _, f := range []outbox.Filter{named, all} {
		r := outbox.Replay{Filter: f, Before: time.Now().Add(time.Minute), Rate: 10, MoveTo: &to}
		if got := tallied(replay(t, pooled, r, 5)); got.Done != 1 {
			t.Errorf("replayed %+v, want one event", got)
		}
	}
	change := outbox.NewStore(pooled, "public").Discard(discardOf(outbox.Pending, outbox.Failed))
	if got := tallied(operate(t, pooled, "discard", change, 5)); got.Done != 12 {
		t.Errorf("discarded %+v, want 12", got)
	}
	if _, err := change.Overtaken(t.Context()); err != nil {
		t.Error(err)
	}
}
