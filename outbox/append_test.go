package outbox_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/outboxctl/outboxctl/migrate"
	"github.com/outboxctl/outboxctl/outbox"
	"github.com/outboxctl/outboxctl/outbox/outboxtest"
)

// way is one of the two ways to append: it writes a business row and events in one transaction,
// which ends as the last function says.
type way struct {
	name  string
	write func(t *testing.T, db *pgxpool.Pool, commit bool, events ...outbox.Event) error
}

var ways = []way{{"pgx", writePgx}, {"database/sql", writeSQL}}

const businessSQL = `insert into business (note) values ('something happened')`

func writePgx(t *testing.T, db *pgxpool.Pool, commit bool, events ...outbox.Event) error {
	ctx := context.Background()
	return pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, businessSQL); err != nil {
			t.Fatal(err)
		}
		if err := outbox.Append(ctx, tx, events...); err != nil {
			return err
		}
		return unless(commit)
	})
}

func writeSQL(t *testing.T, db *pgxpool.Pool, commit bool, events ...outbox.Event) error {
	ctx := context.Background()
	std := stdlib.OpenDBFromPool(db)
	defer std.Close()
	tx, err := std.BeginTx(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback() // does nothing after the commit
	if _, err := tx.ExecContext(ctx, businessSQL); err != nil {
		t.Fatal(err)
	}
	if err := outbox.AppendSQL(ctx, tx, events...); err != nil {
		return err
	}
	if err := unless(commit); err != nil {
		return err
	}
	return tx.Commit()
}

var errRollback = errors.New("rolled back")

func unless(commit bool) error {
	if commit {
		return nil
	}
	return errRollback
}

// producer is a database with a business table.
func producer(t *testing.T) *pgxpool.Pool {
	t.Helper()
	db := outboxtest.DB(t)
	exec(t, db, `create table business (note text)`)
	return db
}

// fact is an event of an order.
func fact(order int, payload string) outbox.Event {
	return outbox.Event{AggregateType: "order", AggregateID: fmt.Sprint(order), Type: "order.created", Payload: []byte(payload)}
}

func TestAppendIsAtomicWithTheBusinessRow(t *testing.T) {
	t.Parallel()
	db := producer(t)
	for _, w := range ways {
		t.Run(w.name, func(t *testing.T) {
			before := query[string](t, db, `select concat((select count(*) from business), ' ', (select count(*) from outbox))`)
			if err := w.write(t, db, false, fact(1, `{}`), fact(2, `{}`)); !errors.Is(err, errRollback) {
				t.Fatal(err)
			}
			after := query[string](t, db, `select concat((select count(*) from business), ' ', (select count(*) from outbox))`)
			if after != before {
				t.Errorf("%s rows of business and events after the rollback, want %s", after, before)
			}
			if err := w.write(t, db, true, fact(1, `{}`), fact(2, `{}`)); err != nil {
				t.Fatal(err)
			}
			one := query[bool](t, db, `select count(*) = 3 and count(distinct x) = 1
				from (select xmin::text as x from business union all select xmin::text from outbox order by 1 desc limit 3) r`)
			if !one {
				t.Error("the business row and the events are not one transaction's")
			}
		})
	}
}

func TestAppendWritesTheWholeEvent(t *testing.T) {
	t.Parallel()
	db := producer(t)
	for i, w := range ways {
		t.Run(w.name, func(t *testing.T) {
			due := time.Date(2031, 5, 6, 7, 8, 9, 123456000, time.FixedZone("", 3*3600))
			full := outbox.Event{
				TenantID: "acme", AggregateType: "order", AggregateID: "7", Type: "order.paid", SchemaVersion: 3,
				Key: uuid.UUID{15: byte(i)}, Destination: "crm", AvailableAt: due, Payload: []byte(`{"a": 1}`),
				Headers: map[string]string{"traceparent": "00-1", "x": `quote " and <&> é`},
			}
			full.Key[0] = 0x5b
			if err := w.write(t, db, true, full, fact(8, `[1]`)); err != nil {
				t.Fatal(err)
			}
			got := query[string](t, db, `select string_agg(concat_ws('|', tenant_id, aggregate_type, aggregate_id, event_type, schema_version, destination,
				headers, payload, payload_bytes, status, attempts, available_at at time zone 'UTC' = '2031-05-06 04:08:09.123456', available_at = now()), e'\n' order by id)
				from (select * from outbox order by id desc limit 2) o`)
			want := `acme|order|7|order.paid|3|crm|{"x": "quote \" and <&> é", "traceparent": "00-1"}|{"a": 1}|pending|0|t|f
|order|8|order.created|1||{}|[1]|pending|0|f|f`
			if got != want {
				t.Errorf("the rows are\n%s\nwant\n%s", got, want)
			}
			if n := query[int](t, db, `select count(*) from outbox where idempotency_key = $1`, full.Key); n != 1 {
				t.Errorf("%d rows have the key %s, want 1", n, full.Key)
			}
			if zero := query[int](t, db, `select count(*) from outbox where idempotency_key = $1 or available_at > now() and aggregate_id = '8'`, uuid.Nil); zero != 0 {
				t.Errorf("%d events got no key of their own or are not due", zero)
			}
		})
	}
}

func TestAppendKeepsTheOrderOfABatch(t *testing.T) {
	t.Parallel()
	db := producer(t)
	for _, w := range ways {
		t.Run(w.name, func(t *testing.T) {
			exec(t, db, `truncate outbox`)
			var events []outbox.Event
			for i := range 2000 {
				ev := fact(i, `{}`)
				if i%3 == 0 {
					ev.Key = uuid.New() // in no order
				}
				events = append(events, ev)
			}
			if err := w.write(t, db, true, events...); err != nil {
				t.Fatal(err)
			}
			if n := query[int](t, db, `select count(*) from (select aggregate_id::int - row_number() over (order by id) as off from outbox) o where off = -1`); n != 2000 {
				t.Errorf("%d of 2000 events are in their place", n)
			}
		})
	}
}

// The same fact again, under any destination, changes nothing and is no error.
func TestAppendTakesARepeatedKeyAsDone(t *testing.T) {
	t.Parallel()
	db := producer(t)
	for _, w := range ways {
		t.Run(w.name, func(t *testing.T) {
			exec(t, db, `truncate outbox`)
			first, again, elsewhere, other := fact(1, `{"n": 1}`), fact(2, `{"n": 2}`), fact(3, `{"n": 3}`), fact(4, `{"n": 4}`)
			first.Key = uuid.New()
			again.Key, elsewhere.Key, elsewhere.Destination = first.Key, first.Key, "crm"
			for _, batch := range [][]outbox.Event{{first, again, elsewhere}, {first}, {elsewhere, other}} {
				if err := w.write(t, db, true, batch...); err != nil {
					t.Fatal(err)
				}
			}
			got := query[string](t, db, `select string_agg(aggregate_id || destination, ' ' order by id) from outbox`)
			if got != "1 4" {
				t.Errorf("the events are of %s, want 1 and 4", got)
			}
		})
	}
}

// Two transactions with one key: the second waits for the first and then has nothing to do.
func TestAppendOfOneKeyAtOnceWritesOneEvent(t *testing.T) {
	t.Parallel()
	db := producer(t)
	ev := fact(1, `{}`)
	ev.Key = uuid.New()
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			if err := ways[i%2].write(t, db, true, ev); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if n := query[int](t, db, `select count(*) from outbox`); n != 1 {
		t.Errorf("%d events, want 1", n)
	}
	if n := query[int](t, db, `select count(*) from business`); n != 8 {
		t.Errorf("%d business rows, want 8", n)
	}
}

// What a producer wrote is what a sink gets: as jsonb prints it, or byte for byte.
func TestPayloadsArriveExactly(t *testing.T) {
	t.Parallel()
	db := producer(t)
	bytes := make([]byte, 256)
	for i := range bytes {
		bytes[i] = byte(i)
	}
	payloads := []struct{ in, out string }{
		{`9007199254740993`, `9007199254740993`},
		{`1.10`, `1.10`},
		{`1e400`, "1" + strings.Repeat("0", 400)},
		{`-0.000000000000000000000000000000000001`, `-0.000000000000000000000000000000000001`},
		{`{"html": "<a href='x'>&amp;</a>", "n": 123456789012345678901234567890.10}`, `{"n": 123456789012345678901234567890.10, "html": "<a href='x'>&amp;</a>"}`},
		{`"{\"nested\": \"\\u00e9 \\\" \\n\"}"`, `"{\"nested\": \"\\u00e9 \\\" \\n\"}"`},
		{`"\u00e9 \ud83e\uddfe \u2028 é 🧾"`, "\"é 🧾 \u2028 é 🧾\""},
		{`null`, `null`}, {`""`, `""`}, {`[]`, `[]`}, {" [1,\n2] ", `[1, 2]`},
	}
	for _, w := range ways {
		t.Run(w.name, func(t *testing.T) {
			exec(t, db, `truncate outbox`)
			var events []outbox.Event
			for i, p := range payloads {
				events = append(events, fact(i, p.in))
			}
			for _, raw := range [][]byte{bytes, {}, nil, []byte(`{"a":  1}`)} {
				ev := fact(len(events), "")
				ev.Payload, ev.Binary = raw, true
				events = append(events, ev)
			}
			if err := w.write(t, db, true, events...); err != nil {
				t.Fatal(err)
			}
			got := claim(t, newQueue(db), 100)
			if len(got) != len(events) {
				t.Fatalf("claimed %d events, want %d", len(got), len(events))
			}
			for i, ev := range got {
				want := string(events[i].Payload)
				if i < len(payloads) {
					want = payloads[i].out
				}
				if string(ev.Payload) != want || ev.Binary != events[i].Binary {
					t.Errorf("payload %d is %q, binary %v; want %q, %v", i, ev.Payload, ev.Binary, want, events[i].Binary)
				}
			}
		})
	}
}

func TestAppendRefusesWhatIsNoEventAndWritesNothing(t *testing.T) {
	t.Parallel()
	db := producer(t)
	good := fact(1, `{}`)
	bad := func(change func(*outbox.Event)) outbox.Event {
		ev := fact(2, `{}`)
		change(&ev)
		return ev
	}
	for _, tt := range []struct {
		name string
		ev   outbox.Event
		want string
	}{
		{"no payload", fact(2, ""), "append event 2 of 2: the payload is not JSON"},
		{"half a payload", fact(2, `{"a":`), "append event 2 of 2: the payload is not JSON"},
		{"two payloads", fact(2, `{} {}`), "append event 2 of 2: the payload is not JSON"},
		{"a number that JSON has not", fact(2, `NaN`), "append event 2 of 2: the payload is not JSON"},
		{"a NUL that jsonb has not", fact(2, `"\u0000"`), "append 2 events: "},
		{"half a surrogate pair", fact(2, `"\ud800"`), "append 2 events: "},
		{"no aggregate type", bad(func(ev *outbox.Event) { ev.AggregateType = "" }), "outbox_key_size"},
		{"a huge tenant", bad(func(ev *outbox.Event) { ev.TenantID = strings.Repeat("x", 2001) }), "outbox_key_size"},
		{"a time that JSON has not", bad(func(ev *outbox.Event) { ev.AvailableAt = time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC) }), "append 2 events: "},
	} {
		for _, w := range ways {
			t.Run(tt.name+", "+w.name, func(t *testing.T) {
				err := w.write(t, db, true, good, tt.ev)
				if err == nil || !strings.Contains(err.Error(), tt.want) {
					t.Errorf("the error is %v, want %q in it", err, tt.want)
				}
				if n := query[int](t, db, `select (select count(*) from outbox) + (select count(*) from business)`); n != 0 {
					t.Errorf("%d rows were written, want none", n)
				}
			})
		}
	}
}

func TestAppendOfNothingDoesNothing(t *testing.T) {
	t.Parallel()
	if err := outbox.Append(t.Context(), nil); err != nil {
		t.Error(err)
	}
	if err := outbox.AppendSQL(t.Context(), (*sql.Tx)(nil)); err != nil {
		t.Error(err)
	}
}

// Every statement of the package in a schema whose name needs all the care there is.
func TestSchemaNameThatNeedsQuoting(t *testing.T) {
	t.Parallel()
	const schema = `we"ird sch'ema; @destination $1 /*types*/ {schema} -- é`
	url := outboxtest.Empty(t)
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	for _, err := range migrate.New(conn, schema).Up(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
	}
	_ = conn.Close(t.Context())
	db, err := pgxpool.New(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	appendTo(t, db, outbox.Appender{Schema: schema}, fact(1, `{}`), fact(2, `{}`))

	store := outbox.NewStore(db, schema)
	worker, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { store.Worker(outbox.Worker{Name: "test"}).Live(worker) })
	for _, only := range []outbox.Selection{{EventTypes: []string{"none"}, Tenants: []string{""}}, {}} {
		counts, err := store.Due(t.Context(), "", only, 10)
		if err != nil || (len(counts) == 1) != (only.Tenants == nil) {
			t.Errorf("Due() = %+v, %v", counts, err)
		}
		d := newDispatcher(db, &recorder{})
		d.Source = store.Queue(outbox.QueueOptions{Worker: "test", Lease: d.Lease, MaxAttempts: 10, PollInterval: d.PollInterval, Only: only})
		want := 2
		if only.Tenants != nil {
			want = 0
		}
		if s := run(t, d); s.Delivered != want {
			t.Errorf("delivered %d, want %d", s.Delivered, want)
		}
	}
	st, err := store.Stats(t.Context(), outbox.Look{Window: time.Hour, Top: 10})
	if err != nil || st.Status[outbox.Delivered] != 2 || st.Attempts != 2 {
		t.Errorf("Stats() = %+v, %v; want 2 delivered in 2 attempts", st, err)
	}
	stop()
	wg.Wait()
}

// appendTo appends events in transactions of their own, one way and the other.
func appendTo(t *testing.T, db *pgxpool.Pool, a outbox.Appender, events ...outbox.Event) {
	t.Helper()
	ctx := t.Context()
	half := slices.Collect(slices.Chunk(events, (len(events)+1)/2))
	if err := pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error { return a.Append(ctx, tx, half[0]...) }); err != nil {
		t.Fatal(err)
	}
	std := stdlib.OpenDBFromPool(db)
	defer std.Close()
	tx, err := std.BeginTx(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(a.AppendSQL(ctx, tx, half[1]...), tx.Commit()); err != nil {
		t.Fatal(err)
	}
}

// TestAppendChangesNoText has texts that encoding/json would write as others: they are refused, so
// that two aggregates never become one.
func TestAppendChangesNoText(t *testing.T) {
	t.Parallel()
	db := outboxtest.DB(t)
	good := outbox.Event{TenantID: "acme", AggregateType: "order", AggregateID: "é <&> 🧾 \u2028", Type: "order.created", Payload: []byte(`{"a":"<&> é"}`)}
	for _, tt := range []struct {
		name   string
		change func(*outbox.Event)
		want   string // in the error; "" = taken
	}{
		{"nothing odd", func(*outbox.Event) {}, ""},
		{"tenant", func(ev *outbox.Event) { ev.TenantID = "\xff" }, "not UTF-8"},
		{"aggregate", func(ev *outbox.Event) { ev.AggregateID = "a\xc3" }, "not UTF-8"},
		{"a header", func(ev *outbox.Event) { ev.Headers = map[string]string{"a": "\xff"} }, "not UTF-8"},
		{"a header's name", func(ev *outbox.Event) { ev.Headers = map[string]string{"\xff": "a"} }, "not UTF-8"},
		{"type", func(ev *outbox.Event) { ev.Type = "\xed\xa0\x80" }, "not UTF-8"},
		{"payload", func(ev *outbox.Event) { ev.Payload = []byte("\"\xff\"") }, "not JSON in UTF-8"},
		{"a NUL", func(ev *outbox.Event) { ev.AggregateID = "a\x00" }, "22P05"},
	} {
		ev := good
		tt.change(&ev)
		err := pgx.BeginFunc(t.Context(), db, func(tx pgx.Tx) error { return outbox.Append(t.Context(), tx, ev) })
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q in it", tt.name, err, tt.want)
		}
	}
	var same bool
	err := db.QueryRow(t.Context(), `select aggregate_id = $1 and payload = '{"a": "<&> é"}' from outbox`, good.AggregateID).Scan(&same)
	if err != nil || !same {
		t.Errorf("the text arrives unchanged: %v, %v", same, err)
	}
}
