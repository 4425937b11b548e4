package outbox_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxctl/outboxctl/outbox"
	"github.com/outboxctl/outboxctl/outbox/outboxtest"
)

// redact runs a redaction to its end, in batches of 7, after it has rehearsed it.
func redact(t testing.TB, db *pgxpool.Pool, f outbox.Filter, paths ...string) (planned, done outbox.Progress) {
	t.Helper()
	ctx := context.Background()
	rules, err := outbox.NewRedaction(paths...)
	if err != nil {
		t.Fatal(err)
	}
	store := outbox.NewStore(db, "public")
	what := outbox.Redact{Filter: f, Rules: rules}
	rehearsal := store.Rehearse()
	if err := outbox.Drain(ctx, store.Redact(rehearsal, what), outbox.Pace{Batch: 7}, nil); err != nil {
		t.Fatal(err)
	}
	run, err := store.Begin(ctx, outbox.Operation{Command: "purge", Filter: f, Planned: -1})
	if err != nil {
		t.Fatal(err)
	}
	if err := outbox.Drain(ctx, store.Redact(run, what), outbox.Pace{Batch: 7}, nil); err != nil {
		t.Fatal(err)
	}
	if err := run.End(ctx, ""); err != nil {
		t.Fatal(err)
	}
	return rehearsal.Progress, run.Progress
}

// withPayload puts the same payload into all events.
func withPayload(t testing.TB, db *pgxpool.Pool, payload string) {
	t.Helper()
	exec(t, db, `update outbox set payload = $1::text::jsonb`, payload)
}

func TestRedactBlanksFinishedEventsAndTheArchive(t *testing.T) {
	t.Parallel()
	db := outboxtest.DB(t)
	purgeable(t, db, 20, 40*day)
	purgeable(t, db, 20, 10*day)
	withPayload(t, db, `{"order_id": 9007199254740993, "email": "a@example.com", "card": {"number": "4711", "kind": "visa"}}`)
	if got := purge(t, db, outbox.Purge{Archive: true, Filter: outbox.Filter{FinishedBefore: ago(t, db, 30*day)}}); got.Done != 20 {
		t.Fatalf("archived %d", got.Done)
	}
	planned, done := redact(t, db, outbox.Filter{}, "$.email", "$.card.*")
	// Of 6 x 40 events 80 are open; of the others 20 are in the archive.
	want := map[string]int64{"outbox": 140, "archive": 20}
	for name, p := range map[string]outbox.Progress{"planned": planned, "done": done} {
		if diff := cmp.Diff(want, purged(t, p).History); diff != "" || p.Done != 160 || p.Matched() != 160 {
			t.Errorf("%s %d of %d (-want +got):\n%s", name, p.Done, p.Matched(), diff)
		}
	}
	const hash = `sha256:` // of the text that PostgreSQL printed
	for table, n := range map[string]int{"outbox": 140, "outbox_archive": 20} {
		got := query[int](t, db, fmt.Sprintf(`
select count(*) from %s
 where payload::text = '{"card": {"kind": null, "number": null}, "email": null, "order_id": 9007199254740993}'
   and headers->>'redacted' ~ '^20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ %s[0-9a-f]{64}$'
   and right(headers->>'redacted', 64) = encode(sha256('{"card": {"kind": "visa", "number": "4711"}, "email": "a@example.com", "order_id": 9007199254740993}'), 'hex')`, table, hash))
		if got != n {
			t.Errorf("%s: %d are redacted, want %d", table, got, n)
		}
	}
	if n := query[int](t, db, `select count(*) from outbox where finished_at is null and payload->>'email' = 'a@example.com' and headers = '{}'`); n != 80 {
		t.Errorf("%d open events are as they were, want 80", n)
	}
	if n := query[int](t, db, `select count(*) from outbox_audit where action = 'redact' and length(payload_hash) = 32 and status <> 'pending'`); n != 160 {
		t.Errorf("%d events are noted, want 160", n)
	}
	planned, done = redact(t, db, outbox.Filter{}, "$.order_id")
	if planned.Matched() != 0 || done.Matched() != 0 {
		t.Errorf("again: planned %+v, done %+v", planned, done)
	}
}

func TestRedactGoesByTheFilter(t *testing.T) {
	t.Parallel()
	db := outboxtest.DB(t)
	purgeable(t, db, 10, 10*day)
	withPayload(t, db, `{"email": "a@example.com"}`)
	for _, tt := range []struct {
		filter outbox.Filter
		done   int64
	}{
		{outbox.Filter{IDs: []int64{1, 2, 3, 4}}, 2}, // 1 and 2 are open
		{outbox.Filter{Statuses: []outbox.Status{"failed"}}, 9},
		{outbox.Filter{Statuses: []outbox.Status{"pending", "in_progress"}}, 0},
		{outbox.Filter{FinishedBefore: ago(t, db, 11*day)}, 0},
		{outbox.Filter{Tenants: []string{"tenant-1"}, Statuses: []outbox.Status{"delivered", "dead_letter"}}, 7},
	} {
		if planned, done := redact(t, db, tt.filter, "$.email"); planned.Done != tt.done || done.Done != tt.done {
			t.Errorf("%+v: planned %d, done %d, want %d", tt.filter, planned.Done, done.Done, tt.done)
		}
	}
}

// What has nothing to hide stays as it is, and can be replayed; bytes become empty.
func TestRedactLeavesTheRest(t *testing.T) {
	t.Parallel()
	db := outboxtest.DB(t)
	exec(t, db, `
insert into outbox (aggregate_type, aggregate_id, event_type, payload, payload_bytes, headers, status, finished_at)
select 'order', '1', 'x', payload::jsonb, bytes, headers::jsonb, 'delivered', now()
  from (values ('{"email": null}', null, '{}'), ('{"a": 1}', null, '{"traceparent": "00-1"}'), ('[]', null, '{}'), ('null', null, '{}'),
               (null, '\x00ff'::bytea, '{"content-type": "image/png"}'), (null, '', '{}'), ('{"email": "x"}', null, '{"traceparent": "00-1"}'),
               ('{"email": "y"}', null, '[]')) v(payload, bytes, headers)`)
	planned, done := redact(t, db, outbox.Filter{}, "$.email")
	want := map[string]int64{"unchanged": 5}
	if diff := cmp.Diff(want, done.Skipped); diff != "" || done.Done != 3 || planned.Done != 3 {
		t.Errorf("planned %d, done %d, skipped (-want +got):\n%s", planned.Done, done.Done, diff)
	}
	got := query[string](t, db, `
select string_agg(coalesce(payload::text, payload_bytes::text) || ' ' || (headers - 'redacted')::text || case when headers ? 'redacted' then ' redacted' else '' end, E'\n' order by id)
  from outbox`)
	lines := `{"email": null} {}
{"a": 1} {"traceparent": "00-1"}
[] {}
null {}
\x {"content-type": "image/png"} redacted
\x {}
{"email": null} {"traceparent": "00-1"} redacted
{"email": null} {} redacted`
	if diff := cmp.Diff(lines, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if hash := query[string](t, db, `select right(headers->>'redacted', 64) from outbox where payload_bytes = '' and headers ? 'redacted'`); hash != query[string](t, db, `select encode(sha256('\x00ff'), 'hex')`) {
		t.Errorf("the hash of the bytes is %s", hash)
	}
}

// Large payloads are taken a few at a time.
func TestRedactFitsIntoMemory(t *testing.T) {
	t.Parallel()
	db := outboxtest.DB(t)
	exec(t, db, `
alter table outbox alter payload set storage external;
insert into outbox (aggregate_type, aggregate_id, event_type, payload, status, finished_at)
select 'order', i::text, 'x', jsonb_build_object('email', 'x', 'text', repeat(md5(i::text), 65536)), 'delivered', now() from generate_series(1, 9) i`)
	rules, err := outbox.NewRedaction("$.email")
	if err != nil {
		t.Fatal(err)
	}
	store := outbox.NewStore(db, "public")
	step := store.Redact(store.Rehearse(), outbox.Redact{Rules: rules})
	var sizes []string
	for {
		n, err := step(context.Background(), 1000)
		if err != nil {
			t.Fatal(err)
		}
		if n == 0 {
			break
		}
		sizes = append(sizes, fmt.Sprint(n))
	}
	if got := strings.Join(sizes, " "); got != "2 2 2 2 1" {
		t.Errorf("steps of %s events of 2 MB", got)
	}
}

func TestRedactLeavesLockedRowsOut(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	db := outboxtest.DB(t)
	purgeable(t, db, 5, 10*day)
	tx, err := db.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(ctx, `select from outbox where id <= 6 for update`); err != nil {
		t.Fatal(err)
	}
	if _, done := redact(t, db, outbox.Filter{}, "$"); done.Done != 16 || done.Skipped["locked"] != 4 {
		t.Errorf("%+v", done)
	}
	if err := tx.Rollback(ctx); err != nil {
		t.Fatal(err)
	}
}
