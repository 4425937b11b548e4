package outbox_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxctl/outboxctl/outbox"
	"github.com/outboxctl/outboxctl/outbox/outboxtest"
)

// ordersSQL is the business table of the examples, with orders of the last n days, one a second.
const ordersSQL = `
create table orders (id bigint primary key, customer_id text, amount_cents int, currency text, status text, created_at timestamptz not null);
create index orders_created on orders (created_at, id)`

func orders(t testing.TB, db *pgxpool.Pool, n int) {
	t.Helper()
	exec(t, db, ordersSQL)
	moreOrders(t, db, 1, n)
}

// moreOrders are five a minute, from midnight of January 1st on.
func moreOrders(t testing.TB, db *pgxpool.Pool, from, to int) {
	t.Helper()
	exec(t, db, `insert into orders select i, 'c-' || i % 7, i * 37 % 10000, 'EUR', 'new', timestamptz '2026-01-01 00:00Z' + i / 5 * interval '1 minute'
  from generate_series($1::int, $2::int) i`, from, to)
}

func orderCreated() outbox.BackfillSpec {
	return outbox.BackfillSpec{
		Schema: "public", Table: "orders", TimeColumn: "created_at",
		EventType: outbox.Field{Value: "order.created"}, AggregateType: outbox.Field{Value: "order"}, AggregateID: outbox.Field{Column: "id"},
		Payload: []outbox.PayloadField{{Name: "order_id", Column: "id"}, {Name: "amount_cents", Column: "amount_cents"}},
		Until:   time.Date(2027, 1, 1, 0, 0, 0, 0, time.UTC),
	}
}

// backfill runs one to its end, in batches of 100.
func backfill(t testing.TB, db *pgxpool.Pool, spec outbox.BackfillSpec) outbox.Progress {
	t.Helper()
	return backfillBy(t, db, spec, 100)
}

func backfillBy(t testing.TB, db *pgxpool.Pool, spec outbox.BackfillSpec, batch int) outbox.Progress {
	t.Helper()
	ctx := context.Background()
	store := outbox.NewStore(db, "public")
	b := newBackfill(t, store, spec)
	run, err := store.Begin(ctx, outbox.Operation{Command: "backfill", Planned: -1})
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Gather(ctx); err != nil {
		t.Fatal(err)
	}
	if err := outbox.Drain(ctx, b.Step(run, 0), outbox.Pace{Batch: batch}, nil); err != nil {
		t.Fatal(err)
	}
	if err := run.End(ctx, ""); err != nil {
		t.Fatal(err)
	}
	return run.Progress
}

func newBackfill(t testing.TB, store *outbox.Store, spec outbox.BackfillSpec) *outbox.Backfill {
	t.Helper()
	b, err := store.Backfill(context.Background(), spec)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// wantProgress compares a progress but for its cursor.
func wantProgress(t testing.TB, got outbox.Progress, done int64, skipped map[string]int64) {
	t.Helper()
	want := outbox.Progress{Done: done, Skipped: skipped}
	if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(outbox.Progress{}, "Cursor"), cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("progress (-want +got):\n%s", diff)
	}
}

func TestBackfillWritesAnEventForEachRow(t *testing.T) {
	t.Parallel()
	db := outboxtest.DB(t)
	orders(t, db, 250)
	wantProgress(t, backfill(t, db, orderCreated()), 250, nil)
	got := query[string](t, db, `
select concat_ws(' ', tenant_id = '', aggregate_type, aggregate_id, event_type, schema_version, destination = '', headers, payload, status, attempts,
                 available_at = created_at, origin, idempotency_key)
  from outbox where aggregate_id = '42'`)
	if want := `t order 42 order.created 1 t {"occurred_at": "2026-01-01T00:08:00.000000Z"} {"order_id": 42, "amount_cents": 1554} pending 0 t backfill:1 ` +
		outbox.BackfillKey("public.orders", "order.created", 1, "42").String(); got != want {
		t.Errorf("an event is\n%s, want\n%s", got, want)
	}
	if out := query[int](t, db, `select count(*) from (select id, lag(id) over (order by aggregate_id::int) before from outbox) o where id < before`); out > 0 {
		t.Errorf("%d events are out of their source's order", out)
	}
	wantProgress(t, backfill(t, db, orderCreated()), 0, map[string]int64{"repeat": 250})
}

func TestBackfillKeepsToItsWindow(t *testing.T) {
	t.Parallel()
	db := outboxtest.DB(t)
	orders(t, db, 250)
	spec := orderCreated()
	spec.Since, spec.Until = time.Date(2026, 1, 1, 0, 10, 0, 0, time.UTC), time.Date(2026, 1, 1, 0, 20, 0, 0, time.UTC)
	wantProgress(t, backfill(t, db, spec), 50, nil)
	if got := query[string](t, db, `select min(aggregate_id::int) || ' to ' || max(aggregate_id::int) from outbox`); got != "50 to 99" {
		t.Errorf("the window has orders %s, want 50 to 99", got)
	}
}

// A live producer writes random keys. Its events are known by their aggregate, also those of
// transactions that began before the backfill and ended in the middle of it.
func TestBackfillLeavesOutWhatProducersWrote(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	db := outboxtest.DB(t)
	orders(t, db, 400)
	const emit = `insert into outbox (tenant_id, aggregate_type, aggregate_id, event_type, payload) select 'acme', 'order', i::text, $3, '{}' from generate_series($1::int, $2::int) i`
	exec(t, db, emit, 1, 50, "order.created")
	exec(t, db, emit, 51, 60, "order.paid") // another type
	exec(t, db, `update outbox set status = 'delivered', finished_at = now() where id <= 20`)
	store := outbox.NewStore(db, "public")
	b := newBackfill(t, store, orderCreated())
	if err := b.Gather(ctx); err != nil {
		t.Fatal(err)
	}
	run, err := store.Begin(ctx, outbox.Operation{Command: "backfill"})
	if err != nil {
		t.Fatal(err)
	}
	// One writes now and commits between two pages; then one writes and commits at once.
	late, err := db.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer late.Rollback(ctx)
	if _, err := late.Exec(ctx, `insert into orders select 1001, 'c', 1, 'EUR', 'new', '2026-06-01'`); err != nil {
		t.Fatal(err)
	}
	if _, err := late.Exec(ctx, emit, 1001, 1001, "order.created"); err != nil {
		t.Fatal(err)
	}
	step := b.Step(run, 0)
	pages := 0
	for n := -1; n != 0; pages++ {
		if n, err = step(ctx, 100); err != nil {
			t.Fatal(err)
		}
		switch pages {
		case 0:
			exec(t, db, emit, 150, 159, "order.created")
		case 2:
			if err := late.Commit(ctx); err != nil {
				t.Fatal(err)
			}
			exec(t, db, emit, 350, 359, "order.created")
		}
	}
	wantProgress(t, run.Progress, 330, map[string]int64{"exists": 71})
	if twice := query[int](t, db, `select count(*) from (select aggregate_id from outbox where event_type = 'order.created' group by 1 having count(*) > 1) o`); twice > 0 {
		t.Errorf("%d orders have two events", twice)
	}
}

// The start waits for who has written and not committed.
func TestBackfillWaitsForOpenTransactions(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	db := outboxtest.DB(t)
	orders(t, db, 10)
	tx, err := db.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(ctx)
	if _, err := tx.Exec(ctx, `insert into outbox (aggregate_type, aggregate_id, event_type, payload) values ('order', '7', 'order.created', '{}')`); err != nil {
		t.Fatal(err)
	}
	exec(t, db, `insert into outbox (aggregate_type, aggregate_id, event_type, payload) values ('order', '3', 'order.created', '{}')`)
	b := newBackfill(t, outbox.NewStore(db, "public"), orderCreated())
	soon, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
	defer cancel()
	if err := b.Gather(soon); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("beside an open transaction Gather() = %v, want it to wait", err)
	}
	if err := tx.Commit(ctx); err != nil {
		t.Fatal(err)
	}
	wantProgress(t, backfill(t, db, orderCreated()), 8, map[string]int64{"exists": 2})
}

func TestBackfillSkipsWhatTheOutboxRefuses(t *testing.T) {
	t.Parallel()
	db := outboxtest.DB(t)
	exec(t, db, `create table doc (id int primary key, about text, version bigint, body json)`)
	exec(t, db, `insert into doc select i, 'a' || i, 1, '{"n": 1}' from generate_series(1, 230) i`)
	exec(t, db, `update doc set about = '' where id = 5;
update doc set about = null where id = 6;
update doc set about = repeat('x', 2001) where id = 7;
update doc set version = 1::bigint << 40 where id = 120;
update doc set body = '{"n": "\u0000"}' where id = 121;
update doc set body = null where id = 230`)
	spec := outbox.BackfillSpec{
		Schema: "public", Table: "doc", EventType: outbox.Field{Value: "doc.written"}, AggregateType: outbox.Field{Value: "doc"},
		AggregateID: outbox.Field{Column: "about"}, SchemaVersion: outbox.Field{Column: "version"}, PayloadColumn: "body", Existing: outbox.SameKey,
	}
	wantProgress(t, backfill(t, db, spec), 224, map[string]int64{"invalid": 6})
}

func TestBackfillRehearsalIsExact(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	db := outboxtest.DB(t)
	orders(t, db, 250)
	exec(t, db, `insert into outbox (aggregate_type, aggregate_id, event_type, payload) select 'order', i::text, 'order.created', '{}' from generate_series(1, 50) i`)
	store := outbox.NewStore(db, "public")
	b := newBackfill(t, store, orderCreated())
	if err := b.Gather(ctx); err != nil {
		t.Fatal(err)
	}
	run := store.Rehearse()
	if err := outbox.Drain(ctx, b.Step(run, 0), outbox.Pace{Batch: 100}, nil); err != nil {
		t.Fatal(err)
	}
	wantProgress(t, run.Progress, 200, map[string]int64{"exists": 50})
	var about []string
	for _, ev := range b.Samples() {
		about = append(about, ev.AggregateID+" "+string(ev.Payload)+" "+ev.Headers["occurred_at"])
	}
	want := []string{
		`51 {"order_id": 51, "amount_cents": 1887} 2026-01-01T00:10:00.000000Z`,
		`52 {"order_id": 52, "amount_cents": 1924} 2026-01-01T00:10:00.000000Z`,
		`53 {"order_id": 53, "amount_cents": 1961} 2026-01-01T00:10:00.000000Z`,
	}
	if diff := cmp.Diff(want, about); diff != "" {
		t.Errorf("samples (-want +got):\n%s", diff)
	}
	wantProgress(t, backfill(t, db, orderCreated()), 200, map[string]int64{"exists": 50})
}

func TestBackfillDetectsGaps(t *testing.T) {
	t.Parallel()
	db := outboxtest.DB(t)
	orders(t, db, 10_000)
	exec(t, db, `insert into outbox (aggregate_type, aggregate_id, event_type, payload) select 'order', i::text, 'order.created', '{}' from generate_series(1, 8000) i`)
	got, err := newBackfill(t, outbox.NewStore(db, "public"), orderCreated()).Detect(context.Background(), 1000, nil)
	if err != nil {
		t.Fatal(err)
	}
	want := []outbox.Gap{
		{Day: "2026-01-01", EventType: "order.created", Rows: 7199, Present: 7199},
		{Day: "2026-01-02", EventType: "order.created", Rows: 2801, Present: 801, Missing: 2000},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("gaps (-want +got):\n%s", diff)
	}
	if n := query[int](t, db, `select count(*) from outbox`); n != 8000 {
		t.Errorf("detect left %d events, there were 8000", n)
	}
}

// hostile are names that really exist: nothing of them is SQL.
var hostile = []string{`My-Schema`, `Out"box`, `x; drop table victim; --`, `{schema}`, `{after}`, `@keys`, `'); delete from victim; --`, `$1`, `é "q" `}

func TestBackfillTakesNamesLiterally(t *testing.T) {
	t.Parallel()
	db := outboxtest.DB(t)
	exec(t, db, `create table victim (id int); insert into victim values (1)`)
	for i, schema := range hostile {
		table, col := hostile[(i+1)%len(hostile)], hostile[(i+2)%len(hostile)]
		q := func(name string) string { return `"` + strings.ReplaceAll(name, `"`, `""`) + `"` }
		exec(t, db, `create schema `+q(schema))
		exec(t, db, `create table `+q(schema)+`.`+q(table)+` (`+q(col)+` text primary key, "at" timestamptz, other text)`)
		exec(t, db, `insert into `+q(schema)+`.`+q(table)+` select $1::text || i, now() - i * interval '1 hour', $1 from generate_series(1, 25) i`, col)
		store := outbox.NewStore(db, "public")
		spec := outbox.BackfillSpec{
			Schema: schema, Table: table, TimeColumn: "at", EventType: outbox.Field{Value: col}, AggregateType: outbox.Field{Value: table},
			AggregateID: outbox.Field{Column: col}, Headers: map[string]outbox.Field{col: {Column: col}, "c": {Value: schema}},
			Payload: []outbox.PayloadField{{Name: schema, Column: col}}, Until: time.Now(),
		}
		b := newBackfill(t, store, spec)
		run, err := store.Begin(t.Context(), outbox.Operation{Command: "backfill"})
		if err != nil {
			t.Fatal(err)
		}
		if err := b.Gather(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := outbox.Drain(t.Context(), b.Step(run, 0), outbox.Pace{Batch: 10}, nil); err != nil {
			t.Errorf("%q.%q: %v", schema, table, err)
		}
		wantProgress(t, run.Progress, 25, nil)
		if n := query[int](t, db, `select count(*) from outbox where payload ->> $1 = aggregate_id and headers ->> $2 = aggregate_id and aggregate_type = $3`, schema, col, table); n != 25 {
			t.Errorf("%q.%q: %d events have its payload and header, want 25", schema, table, n)
		}
	}
	if n := query[int](t, db, `select count(*) from victim`); n != 1 {
		t.Error("the victim is hurt")
	}
}

func TestBackfillRefusesWhatItCannotKnow(t *testing.T) {
	t.Parallel()
	db := outboxtest.DB(t)
	orders(t, db, 1)
	exec(t, db, `
create table bare (id int, at timestamptz);
create table large (id bigint, at timestamptz, primary key (id));
insert into large select i, now() from generate_series(1, 120000) i; analyze large;
create view orders_seen as select * from orders;
create view large_seen as select * from large;
create schema shop; create table shop.customers (id int primary key);
create table history (id int primary key, order_id int, at timestamptz)`)
	tests := []struct {
		name, want, hint string
		edit             func(*outbox.BackfillSpec)
	}{
		{"table", `there is no table or view "public"."ordrs"`, `there is "public"."orders"`, func(s *outbox.BackfillSpec) { s.Table = "ordrs" }},
		{"schema", `there is no table or view "public"."customers"`, `there is "shop"."customers"`, func(s *outbox.BackfillSpec) { s.Table = "customers" }},
		{"SQL", `there is no table or view "public"."orders; delete from victim"`, ``, func(s *outbox.BackfillSpec) { s.Table = "orders; delete from victim" }},
		{"column", `"public"."orders" has no column "create_at"`, `there is created_at`, func(s *outbox.BackfillSpec) { s.TimeColumn = "create_at" }},
		{"expression", `"public"."orders" has no column "id + 1"`, ``, func(s *outbox.BackfillSpec) { s.AggregateID.Column = "id + 1" }},
		{"type", `the time column "customer_id" is of type text: want timestamp with time zone or timestamp without time zone or date`, `what needs an expression needs a view`,
			func(s *outbox.BackfillSpec) { s.TimeColumn = "customer_id" }},
		{"no key", `"public"."bare" has neither a primary key nor a unique index over columns that are not null`, `give it one`,
			func(s *outbox.BackfillSpec) { s.Table, s.TimeColumn, s.Payload = "bare", "at", nil }},
		{"view", `"public"."orders_seen" is no table: it has no primary key`, `name the columns that make a row of it one: key`,
			func(s *outbox.BackfillSpec) { s.Table = "orders_seen" }},
		{"not unique", `no index of "public"."orders" makes (customer_id) unique`, `the key is a primary key or a unique index over columns that are not null`,
			func(s *outbox.BackfillSpec) { s.Key = []string{"customer_id"} }},
		{"no index", `"public"."large" has about 120000 rows and no index that begins with "at": each page would read all of it`,
			`create index concurrently on "public"."large" ("at", "id"), or --force`,
			func(s *outbox.BackfillSpec) { s.Table, s.TimeColumn, s.Payload = "large", "at", nil }},
		{"sorted view", `the view "public"."large_seen" has about 120000 rows, and each page would sort them all`, `index the columns below it, or --force`,
			func(s *outbox.BackfillSpec) {
				s.Table, s.TimeColumn, s.Payload, s.Key = "large_seen", "at", nil, []string{"id"}
			}},
		{"several rows", `an aggregate may have several rows in "public"."history": say what an event without their key means`,
			`existing "aggregate": leave such aggregates out; existing "key": only an event of the same key counts`,
			func(s *outbox.BackfillSpec) {
				s.Table, s.TimeColumn, s.Payload, s.AggregateID.Column = "history", "at", nil, "order_id"
			}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			spec := orderCreated()
			tt.edit(&spec)
			_, err := outbox.NewStore(db, "public").Backfill(t.Context(), spec)
			bad, ok := errors.AsType[*outbox.SpecError](err)
			if !ok || bad.Text != tt.want || bad.Hint != tt.hint {
				t.Errorf("Backfill() = %v (%+v), want %q, %q", err, bad.Hint, tt.want, tt.hint)
			}
		})
	}
}
