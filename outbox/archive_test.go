package outbox_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/outboxctl/outboxctl/outbox"
	"github.com/outboxctl/outboxctl/outbox/outboxtest"
)

// Whatever an event says is in the archive as it was in the outbox.
func TestArchiveKeepsTheWholeEvent(t *testing.T) {
	t.Parallel()
	db := outboxtest.DB(t)
	exec(t, db, `
insert into outbox (source_id, tenant_id, aggregate_type, aggregate_id, event_type, schema_version, destination, headers, payload,
                    status, attempts, available_at, next_attempt_at, last_attempt_at, finished_at, created_at, updated_at,
                    receipt, error, error_kind, error_code, origin)
values (41, 'acme', 'order', '7', 'order.created', 3, 'crm', '{"traceparent": "00-1"}', '{"b": 9007199254740993, "a": 1.10}',
        'dead_letter', 4, '2026-01-01', '2026-01-02', '2026-01-03', '2026-01-31 23:59:59+00', '2026-01-01', '2026-01-05',
        'r-1', 'answered 422', 'http', 422, 'replay:7');
insert into outbox (aggregate_type, aggregate_id, event_type, payload_bytes, status, finished_at)
values ('order', '8', 'order.created', '\x00ff', 'delivered', '2026-02-01 00:00:00+00')`)
	const rows = `select jsonb_agg(to_jsonb(o) - array['archived_at', 'lease', 'lease_until'] order by id) from `
	before := query[string](t, db, rows+`outbox o`)
	got := purge(t, db, outbox.Purge{Archive: true, Filter: outbox.Filter{
		Statuses: []outbox.Status{"delivered", "dead_letter"}, FinishedBefore: ago(t, db, 0)}})
	if got.Done != 2 {
		t.Errorf("archived %d, want 2", got.Done)
	}
	if diff := cmp.Diff(before, query[string](t, db, rows+`outbox_archive o`)); diff != "" {
		t.Errorf("the archive (-outbox +archive):\n%s", diff)
	}
	if n := query[int](t, db, `select count(*) from outbox`); n != 0 {
		t.Errorf("%d events are left in the outbox", n)
	}
	if names := query[string](t, db, `select string_agg(distinct tableoid::regclass::text, ' ' order by tableoid::regclass::text) from outbox_archive`); names != "outbox_archive_2026_01 outbox_archive_2026_02" {
		t.Errorf("they are in %s", names)
	}
}

// A column of the outbox that a migration adds has to be decided here, too.
func TestArchiveHasEveryColumn(t *testing.T) {
	t.Parallel()
	db := outboxtest.DB(t)
	missing := query[string](t, db, `
select coalesce(string_agg(o.attname || ' ' || format_type(o.atttypid, o.atttypmod), ', ' order by o.attnum), '')
  from pg_attribute o
 where o.attrelid = 'outbox'::regclass and o.attnum > 0 and not o.attisdropped
   and not exists (select from pg_attribute a where a.attrelid = 'outbox_archive'::regclass and a.attname = o.attname and a.atttypid = o.atttypid)`)
	if want := "lease text, lease_until timestamp with time zone"; missing != want {
		t.Errorf("the archive lacks %s, want %s", missing, want)
	}
}

// A batch of which not everything arrives does not happen.
func TestArchiveLosesNothing(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	db := outboxtest.DB(t)
	purgeable(t, db, 10, 31*day)
	exec(t, db, `select outbox_archive_prepare(array[now() - interval '744 hours'])`)
	exec(t, db, `
create function swallow() returns trigger language plpgsql as $$ begin if new.aggregate_id = '10' then return null; end if; return new; end $$;
create trigger swallow before insert on outbox_archive for each row execute function swallow()`)
	store := outbox.NewStore(db, "public")
	run, err := store.Begin(ctx, outbox.Operation{Command: "purge", Planned: -1})
	if err != nil {
		t.Fatal(err)
	}
	before := left(t, db)
	step := store.Purge(run, outbox.Purge{Archive: true, Filter: outbox.Filter{FinishedBefore: ago(t, db, 30*day)}})
	if _, err := step(ctx, 100); err == nil || !strings.Contains(err.Error(), "of 10 events 9 arrived in the archive") {
		t.Errorf("step = %v", err)
	}
	if left(t, db) != before || query[int](t, db, `select count(*) from outbox_archive`) != 0 {
		t.Errorf("left %s", left(t, db))
	}
}

func TestDropArchiveTakesWholeMonths(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	db := outboxtest.DB(t)
	exec(t, db, `
insert into outbox (aggregate_type, aggregate_id, event_type, payload, status, finished_at)
select 'order', i::text, 'order.created', '{}', 'delivered', '2025-01-01 12:00+00'::timestamptz + i * interval '1 day' from generate_series(0, 99) i`)
	if got := purge(t, db, outbox.Purge{Archive: true, Filter: outbox.Filter{FinishedBefore: ago(t, db, 30*day)}}); got.Done != 100 {
		t.Fatalf("archived %d", got.Done)
	}
	exec(t, db, `create table the_rest partition of outbox_archive default`)
	store := outbox.NewStore(reconnect(t, db, map[string]string{"timezone": "Asia/Tokyo", "datestyle": "German"}), "public")
	march15 := time.Date(2025, 3, 15, 0, 0, 0, 0, time.UTC)
	got, err := store.Partitions(ctx, march15)
	month := func(m time.Month) time.Time { return time.Date(2025, m, 1, 0, 0, 0, 0, time.UTC) }
	want := []outbox.Partition{
		{Name: "outbox_archive_2025_01", From: month(1), To: month(2), Rows: 31},
		{Name: "outbox_archive_2025_02", From: month(2), To: month(3), Rows: 28},
	}
	if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(outbox.Partition{}, "Bytes")); diff != "" || err != nil {
		t.Errorf("Partitions() = %v (-want +got):\n%s", err, diff)
	}
	rehearsal := store.Rehearse()
	if err := outbox.Drain(ctx, store.DropArchive(rehearsal, march15), outbox.Pace{}, nil); err != nil || rehearsal.Progress.Done != 2 {
		t.Errorf("a rehearsal counts %d, %v", rehearsal.Progress.Done, err)
	}
	run, err := store.Begin(ctx, outbox.Operation{Command: "purge", Planned: 2})
	if err != nil {
		t.Fatal(err)
	}
	if err := outbox.Drain(ctx, store.DropArchive(run, march15), outbox.Pace{}, nil); err != nil || run.Progress.Done != 2 {
		t.Errorf("dropped %d, %v", run.Progress.Done, err)
	}
	if n := query[int](t, db, `select count(*) from outbox_archive`); n != 100-31-28 {
		t.Errorf("%d events are left in the archive", n)
	}
}

// Somebody who reads the archive for long is not in the way of others for long.
func TestDropArchiveWaitsBriefly(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	db := outboxtest.DB(t)
	exec(t, db, `select outbox_archive_prepare(array['2025-01-01'::timestamptz])`)
	tx, err := db.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(ctx, `select from outbox_archive`); err != nil {
		t.Fatal(err)
	}
	store := outbox.NewStore(db, "public")
	run, err := store.Begin(ctx, outbox.Operation{Command: "purge", Planned: -1})
	if err != nil {
		t.Fatal(err)
	}
	step := store.DropArchive(run, ago(t, db, 0))
	began := time.Now()
	if _, err := step(ctx, 1); err == nil || time.Since(began) > 2*time.Second {
		t.Errorf("step = %v after %s", err, time.Since(began))
	}
	if err := tx.Rollback(ctx); err != nil {
		t.Fatal(err)
	}
	if n, err := step(ctx, 1); n != 1 || err != nil {
		t.Errorf("then step = %d, %v", n, err)
	}
	if err := errors.Join(run.End(ctx, "")); err != nil {
		t.Error(err)
	}
}

func TestPurgeForgetsTheOldRecord(t *testing.T) {
	t.Parallel()
	db := outboxtest.DB(t)
	exec(t, db, `
insert into outbox_operations (command, heartbeat_at, ended_at) select 'replay', now() - d * interval '1 day', now() from generate_series(360, 379) d order by d desc;
insert into outbox_audit (operation, event_id, at, action, status, attempts, destination)
select 1, 1, now() - d * interval '1 day', 'replay', 'failed', 1, '' from generate_series(360, 379) d order by d desc`)
	what := outbox.Purge{
		Filter:  outbox.Filter{FinishedBefore: ago(t, db, 1000*day)},
		History: outbox.History{Record: ago(t, db, 365*day+time.Hour)},
	}
	want := map[string]int64{"operations": 14, "audit": 14}
	if diff := cmp.Diff(want, purged(t, rehearsed(t, db, what)).History); diff != "" {
		t.Errorf("rehearsed (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(want, purged(t, purge(t, db, what)).History); diff != "" {
		t.Errorf("purged (-want +got):\n%s", diff)
	}
}
