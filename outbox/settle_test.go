package outbox_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxctl/outboxctl/outbox"
	"github.com/outboxctl/outboxctl/outbox/outboxtest"
)

// claimed inserts n events and claims them.
func claimed(t testing.TB, db *pgxpool.Pool, q *outbox.Queue, n int) []outbox.Event {
	t.Helper()
	insert(t, db, n)
	events := claim(t, q, n)
	if len(events) != n {
		t.Fatalf("claimed %d events, want %d", len(events), n)
	}
	return events
}

// empty takes everything out of db's tables; ids begin at 1 again.
func empty(t testing.TB, db *pgxpool.Pool) {
	t.Helper()
	exec(t, db, `truncate outbox, outbox_attempts, outbox_rollup restart identity`)
}

// outcome is one of an event.
func outcome(ev outbox.Event, status outbox.Status) outbox.Outcome {
	return outbox.Outcome{ID: ev.ID, Lease: ev.Lease, Status: status}
}

// outcomes are the same of each event.
func outcomes(events []outbox.Event, status outbox.Status) (outs []outbox.Outcome) {
	for _, ev := range events {
		outs = append(outs, outcome(ev, status))
	}
	return outs
}

// outIDs are the ids of outcomes, sorted.
func outIDs(outs []outbox.Outcome) (ids []int64) {
	for _, out := range outs {
		ids = append(ids, out.ID)
	}
	slices.Sort(ids)
	return ids
}

func TestSettleWritesEveryOutcome(t *testing.T) {
	t.Parallel()
	db := outboxtest.DB(t)
	q := newQueue(db)
	events := claimed(t, db, q, 6)
	exec(t, db, `update outbox set error = 'old', error_kind = 'http', error_code = 500, receipt = 'old' where id <> 6`)
	outs := []outbox.Outcome{
		{Status: outbox.Delivered, Receipt: "201 req-1", ErrorCode: 201, Latency: 30 * time.Millisecond},
		{Status: outbox.Pending, Delay: time.Hour, Error: "503 busy", ErrorKind: "http", ErrorCode: 503, Latency: time.Second},
		{Status: outbox.Failed, Error: "no route", ErrorKind: "connect"},
		{Status: outbox.DeadLetter, Error: "422", ErrorKind: "http", ErrorCode: 422},
		{Status: outbox.DeadLetter, Refund: true, Error: "claimed too often", ErrorKind: outbox.KindCrashed},
		{Status: outbox.Pending, Error: "cut off", ErrorKind: outbox.KindShutdown},
	}
	for i := range outs {
		outs[i].ID, outs[i].Lease = events[i].ID, events[i].Lease
	}
	if done := exchange(t, q, outs, 0); len(done.Lost)+len(done.Held) > 0 {
		t.Errorf("Exchange() = %+v, want all settled", done)
	}
	compare := func(name, sql, want string) {
		t.Helper()
		if got := query[string](t, db, sql); got != strings.TrimSpace(want) {
			t.Errorf("%s:\n%s\nwant\n%s", name, got, strings.TrimSpace(want))
		}
	}
	compare("rows", `select string_agg(concat_ws('|', id, status, attempts, coalesce(lease, '-'), coalesce(lease_until::text, '-'),
			coalesce(receipt, '-'), coalesce(error, '-'), coalesce(error_kind, '-'), coalesce(error_code::text, '-'),
			coalesce(round(extract(epoch from next_attempt_at - updated_at) / 60)::text, '-'), coalesce((finished_at >= last_attempt_at)::text, '-')), e'\n' order by id) from outbox`, `
1|delivered|1|-|-|201 req-1|-|-|-|-|true
2|pending|1|-|-|old|503 busy|http|503|60|-
3|failed|1|-|-|old|no route|connect|-|-|true
4|dead_letter|1|-|-|old|422|http|422|-|true
5|dead_letter|0|-|-|old|claimed too often|crashed|-|-|true
6|pending|1|-|-|-|cut off|shutdown|-|0|-`)
	compare("history", `select string_agg(concat_ws('|', event_id, attempt, outcome, coalesce(error_kind, '-'), coalesce(error_code::text, '-'),
			error, latency, lease = '`+events[0].Lease+`'), e'\n' order by event_id) from outbox_attempts`, `
2|1|pending|http|503|503 busy|00:00:01|t
3|1|failed|connect|-|no route|00:00:00|t
4|1|dead_letter|http|422|422|00:00:00|t
5|0|dead_letter|crashed|-|claimed too often|00:00:00|t
6|1|pending|shutdown|-|cut off|00:00:00|t`)
	compare("rollup", `select string_agg(concat_ws('|', event_type, outcome, error_kind, error_code, attempt, n, latency, minute = date_trunc('minute', minute)),
			e'\n' order by outcome, error_kind) from outbox_rollup`, `
order.created|dead_letter|crashed|0|0|1|00:00:00|t
order.created|dead_letter|http|422|1|1|00:00:00|t
order.created|delivered||201|1|1|00:00:00.03|t
order.created|failed|connect|0|1|1|00:00:00|t
order.created|pending|http|503|1|1|00:00:01|t
order.created|pending|shutdown|0|1|1|00:00:00|t`)
}

// History and rollup are driven by what was changed, never by what was asked.
func TestSettleRejectsStaleLease(t *testing.T) {
	t.Parallel()
	db := outboxtest.DB(t)
	for _, tt := range []struct{ name, change string }{
		{"claimed by another", `update outbox set lease = 'other/0123456789abcdef', attempts = 2 where id = 2`},
		{"deleted", `delete from outbox where id = 2`},
		{"replayed", `update outbox set status = 'pending', lease = null, lease_until = null, attempts = 0 where id = 2`},
		{"ended by an operator", `update outbox set status = 'discarded', lease = null, lease_until = null, finished_at = now() where id = 2`},
	} {
		for _, status := range []outbox.Status{outbox.Delivered, outbox.Failed, outbox.Pending} {
			t.Run(fmt.Sprint(tt.name, ", ", status), func(t *testing.T) {
				empty(t, db)
				q := newQueue(db)
				outs := outcomes(claimed(t, db, q, 3), status)
				exec(t, db, tt.change)
				const rowSQL = `select coalesce((select o::text from outbox o where id = 2), 'none')`
				before := query[string](t, db, rowSQL)
				done := exchange(t, q, outs, 0)
				if !slices.Equal(outIDs(done.Lost), []int64{2}) || len(done.Held) > 0 {
					t.Errorf("Exchange() = %+v, want event 2 lost", done)
				}
				if after := query[string](t, db, rowSQL); after != before {
					t.Errorf("the row is\n%s, was\n%s", after, before)
				}
				if n := query[int](t, db, `select count(*) from outbox_attempts where event_id = 2`); n != 0 {
					t.Errorf("%d rows of history, want none", n)
				}
				if n := query[int](t, db, `select sum(n) from outbox_rollup`); n != 2 {
					t.Errorf("%d outcomes in the rollup, want 2", n)
				}
			})
		}
	}
}

func TestReleaseGivesTheAttemptBackAndKeepsTheKnownError(t *testing.T) {
	t.Parallel()
	db := outboxtest.DB(t)
	q := newQueue(db)
	ev := claimed(t, db, q, 1)[0]
	exchange(t, q, []outbox.Outcome{{ID: ev.ID, Lease: ev.Lease, Status: outbox.Pending, Error: "503 busy", ErrorKind: "http", ErrorCode: 503}}, 0)
	ev = claim(t, q, 1)[0]
	done := exchange(t, q, []outbox.Outcome{{ID: ev.ID, Lease: ev.Lease, Status: outbox.Pending, Refund: true, Error: "limit", ErrorKind: "limit"}}, 0)
	if len(done.Lost)+len(done.Held) > 0 {
		t.Errorf("Exchange() = %+v, want it settled", done)
	}
	got := query[string](t, db, `select concat_ws('|', status, attempts, error, error_kind, error_code, next_attempt_at - updated_at < interval '1 second') from outbox`)
	if want := "pending|1|503 busy|http|503|t"; got != want {
		t.Errorf("the row is %s, want %s", got, want)
	}
	if n := query[int](t, db, `select (select count(*) from outbox_attempts) + (select sum(n) from outbox_rollup)`); n != 2 {
		t.Errorf("history and rollup count %d, want the one failure in each", n)
	}
	if again := claim(t, q, 1); len(again) != 1 || again[0].Attempts != 2 {
		t.Errorf("claimed %+v, want the event at once, at its second attempt", again)
	}
}

func TestSettleAndClaimShareATransaction(t *testing.T) {
	t.Parallel()
	db := outboxtest.DB(t)
	q := newQueue(db)
	events := claimed(t, db, q, 3)
	insert(t, db, 4)
	done := exchange(t, q, outcomes(events, outbox.Delivered), 3)
	if !slices.Equal(ids(done.Events), []int64{4, 5, 6}) || len(done.Lost)+len(done.Held) > 0 {
		t.Errorf("Exchange() = %+v, want 4, 5 and 6 claimed", done)
	}
	one := query[bool](t, db, `select count(distinct xmin::text) = 1 from outbox where id <= 6`)
	if !one {
		t.Error("settle and claim were not one transaction")
	}
}

func TestLockedRowInTheTableDelaysOnlyItself(t *testing.T) {
	t.Parallel()
	db := outboxtest.DB(t)
	q := newQueue(db)
	outs := outcomes(claimed(t, db, q, 5), outbox.Delivered)
	insert(t, db, 2)
	unlock := lockRows(t, db, 3)
	began := time.Now()
	done := exchange(t, q, outs, 1)
	if !slices.Equal(outIDs(done.Held), []int64{3}) || len(done.Lost) > 0 || done.Refused != nil {
		t.Errorf("Exchange() = %+v, want event 3 held", done)
	}
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("the others' settling took %s", took)
	}
	if n := query[int](t, db, `select count(*) from outbox where status = 'delivered'`); n != 4 {
		t.Errorf("%d events are delivered, want 4", n)
	}
	if again := exchange(t, q, done.Held, 0); !slices.Equal(outIDs(again.Held), []int64{3}) {
		t.Errorf("Exchange() = %+v while it is locked, want event 3 held", again)
	}
	if next := exchange(t, q, nil, 5); len(next.Events) != 2 {
		t.Errorf("claimed %v beside the locked row, want 6 and 7", ids(next.Events))
	}
	unlock()
	if last := exchange(t, q, done.Held, 0); len(last.Held)+len(last.Lost) > 0 {
		t.Errorf("Exchange() = %+v after the lock, want it settled", last)
	}
	if n := query[int](t, db, `select count(*) from outbox where status = 'delivered'`); n != 5 {
		t.Errorf("%d events are delivered, want 5", n)
	}
}

// While another worker's claim of a lapsed lease is not committed, nobody knows; then it is lost.
func TestLockedRowThatIsTakenOverIsLost(t *testing.T) {
	t.Parallel()
	db := outboxtest.DB(t)
	q := newQueue(db)
	outs := outcomes(claimed(t, db, q, 2), outbox.Delivered)
	tx, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `update outbox set lease = 'other' where id = 1`); err != nil {
		t.Fatal(err)
	}
	done := exchange(t, q, outs, 0)
	if !slices.Equal(outIDs(done.Held), []int64{1}) {
		t.Errorf("Exchange() = %+v, want event 1 held", done)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if done := exchange(t, q, done.Held, 0); !slices.Equal(outIDs(done.Lost), []int64{1}) {
		t.Errorf("Exchange() = %+v, want event 1 lost", done)
	}
}

// Somebody's constraint or trigger refuses a text that the destination wrote: it is left out.
func TestRefusedTextIsLeftOut(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, ddl string }{
		{"by a constraint", `alter table outbox add constraint plain check (receipt !~ 'bad')`},
		{"as data", `alter table outbox add constraint plain check (case when receipt ~ 'bad' then receipt::int > 0 else true end)`},
		{"by a trigger", `create function refuse() returns trigger language plpgsql as $$ begin raise 'not that'; end $$;
			create trigger refuse before update on outbox for each row when (new.receipt ~ 'bad') execute function refuse()`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			db := outboxtest.DB(t)
			q := newQueue(db)
			outs := outcomes(claimed(t, db, q, 20), outbox.Delivered)
			for i := range outs {
				outs[i].Receipt = "200"
			}
			outs[4].Receipt, outs[17].Receipt = "bad", "too bad"
			exec(t, db, tt.ddl)
			done, err := q.Exchange(t.Context(), outs, outbox.Want{})
			if err != nil || len(done.Held)+len(done.Lost) > 0 || done.Refused != nil {
				t.Errorf("Exchange() = %+v, %v; want all settled", done, err)
			}
			got := query[string](t, db, `select string_agg(id || ': ' || error, ', ' order by id) from outbox where receipt is null`)
			if want := "5: PostgreSQL refused the text of this outcome, 18: PostgreSQL refused the text of this outcome"; got != want {
				t.Errorf("without a receipt are %s, want %s", got, want)
			}
			if n := query[int](t, db, `select count(*) from outbox where status = 'delivered'`); n != 20 {
				t.Errorf("%d events are delivered, want 20", n)
			}
		})
	}
}

func TestRefusedRowDelaysOnlyItself(t *testing.T) {
	t.Parallel()
	db := outboxtest.DB(t)
	q := newQueue(db)
	outs := outcomes(claimed(t, db, q, 10), outbox.Delivered)
	for i := range outs {
		outs[i].Receipt = fmt.Sprint("receipt ", outs[i].ID)
	}
	insert(t, db, 1)
	exec(t, db, `create function refuse() returns trigger language plpgsql as $$ begin raise 'not this one'; end $$`)
	exec(t, db, `create trigger refuse before update on outbox for each row when (old.id = 3) execute function refuse()`)
	done, err := q.Exchange(t.Context(), outs, outbox.Want{N: 1})
	if err != nil || !slices.Equal(outIDs(done.Held), []int64{3}) || len(done.Lost) > 0 {
		t.Errorf("Exchange() = %+v, %v; want event 3 held", done, err)
	}
	if done.Refused == nil || !strings.Contains(done.Refused.Error(), "event 3") || !strings.Contains(done.Refused.Error(), "not this one") {
		t.Errorf("refused: %v, want the event and the reason", done.Refused)
	}
	if next := exchange(t, q, nil, 5); !slices.Equal(ids(next.Events), []int64{11}) {
		t.Errorf("claimed %v beside the refused row, want 11", ids(next.Events))
	}
	exec(t, db, `drop trigger refuse on outbox`)
	if last := exchange(t, q, done.Held, 0); len(last.Held)+len(last.Lost) > 0 || last.Refused != nil {
		t.Errorf("Exchange() = %+v after it was mended, want it settled", last)
	}
	if n := query[int](t, db, `select count(*) from outbox where status = 'delivered' and receipt = 'receipt ' || id`); n != 10 {
		t.Errorf("%d events are delivered with their receipts, want 10", n)
	}
}

// A destination with a row that is refused goes on, and its operator is told once.
func TestDispatcherGoesOnBesideARefusedRow(t *testing.T) {
	t.Parallel()
	db := outboxtest.DB(t)
	insert(t, db, 300)
	exec(t, db, `create function refuse() returns trigger language plpgsql as $$ begin raise 'not this one'; end $$`)
	exec(t, db, `create trigger refuse before update on outbox for each row when (old.id = 3 and new.status = 'delivered') execute function refuse()`)
	d := newDispatcher(db, &recorder{})
	d.Once = false
	stop, cancel := context.WithCancel(t.Context())
	defer cancel()
	var told []string
	var settled int
	d.Observer.Trouble = func(err error) { told = append(told, err.Error()) }
	d.Observer.Recovered = func() { told = append(told, "recovered") }
	d.Observer.Settled = func(r outbox.Report) {
		switch settled++; settled {
		case 299:
			exec(t, db, `drop trigger refuse on outbox`)
		case 300:
			cancel()
		}
	}
	s, err := d.Run(stop, context.Background())
	if err != nil || s.Delivered != 300 {
		t.Errorf("delivered %d: %v, want 300", s.Delivered, err)
	}
	if len(told) != 1 || !strings.Contains(told[0], "settle event 3") {
		t.Errorf("told %q, want once of event 3", told)
	}
}

// Something that only the claim needs is amiss: results are written nevertheless.
func TestSettleIsDoneAloneWhenTheClaimFails(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, ddl string }{
		{"a trigger", `create function refuse() returns trigger language plpgsql as $$ begin raise 'no claims'; end $$;
			create trigger refuse before update on outbox for each row when (new.status = 'in_progress') execute function refuse()`},
		{"a privilege", `alter table outbox rename column headers to heads`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			db := outboxtest.DB(t)
			q := newQueue(db)
			outs := outcomes(claimed(t, db, q, 3), outbox.Delivered)
			insert(t, db, 3)
			exec(t, db, tt.ddl)
			done, err := q.Exchange(t.Context(), outs, outbox.Want{N: 3})
			if len(done.Held)+len(done.Lost)+len(done.Events) > 0 {
				t.Errorf("Exchange() = %+v, %v; want the outcomes settled, nothing claimed", done, err)
			}
			if n := query[int](t, db, `select count(*) from outbox where status = 'delivered'`); n != 3 {
				t.Errorf("%d events are delivered, want 3", n)
			}
			if _, err := q.Exchange(t.Context(), nil, outbox.Want{N: 3}); err == nil {
				t.Error("the next claim succeeds, want its error")
			}
		})
	}
}

// A reply that never came says nothing: the settle is sent again, and only then does a missing row
// mean that the lease was lost.
func TestLostReplyIsUnknownNotLost(t *testing.T) {
	t.Parallel()
	db := outboxtest.DB(t)
	wire := &wire{marker: "a text to be known by"}
	wired := wire.connect(t, db)
	for _, tt := range []struct {
		name    string
		outcome outbox.Outcome
	}{
		{"delivered", outbox.Outcome{Status: outbox.Delivered}},
		{"retry", outbox.Outcome{Status: outbox.Pending, Delay: time.Hour, ErrorKind: "http"}},
		{"failed", outbox.Outcome{Status: outbox.Failed, ErrorKind: "http"}},
		{"dead letter", outbox.Outcome{Status: outbox.DeadLetter, ErrorKind: "http"}},
		{"release", outbox.Outcome{Status: outbox.Pending, Refund: true}},
	} {
		for _, way := range []struct {
			name   string
			arrive bool   // the statements, before the connection breaks
			then   string // what happens before the settle is sent again
			lost   bool
		}{
			{"it went through", true, ``, false},
			{"it went through and the event was claimed again", true,
				`update outbox set status = 'in_progress', lease = 'other', lease_until = now() + interval '1 hour' where status = 'pending'`, false},
			{"it did not", false, ``, false},
			{"it did not and the lease was lost", false, `update outbox set lease = 'other'`, true},
		} {
			if way.lost && tt.outcome.Refund {
				continue // a release that is lost changes nothing either
			}
			t.Run(tt.name+", "+way.name, func(t *testing.T) {
				empty(t, db)
				q := newQueue(wired)
				out := tt.outcome
				ev := claimed(t, db, q, 1)[0]
				out.ID, out.Lease, out.Error, out.Receipt = ev.ID, ev.Lease, wire.marker, wire.marker
				wire.cut(way.arrive)
				done, err := q.Exchange(t.Context(), []outbox.Outcome{out}, outbox.Want{})
				if err == nil || len(done.Held) != 1 || len(done.Lost) > 0 {
					t.Fatalf("Exchange() = %+v, %v; want the outcome held", done, err)
				}
				if way.then != "" {
					exec(t, db, way.then)
				}
				again := exchange(t, q, done.Held, 0)
				if len(again.Held) > 0 || (len(again.Lost) == 1) != way.lost {
					t.Errorf("Exchange() = %+v, want lost: %v", again, way.lost)
				}
				if n := query[int](t, db, `select count(*) from outbox_attempts`); n > 1 {
					t.Errorf("history has %d rows, want at most one", n)
				}
				if n := query[int](t, db, `select coalesce(sum(n), 0) from outbox_rollup`); n > 1 {
					t.Errorf("the rollup counts %d, want at most one", n)
				}
			})
		}
	}
}

// A settle alone, because a row is locked, is a transaction of several messages; the reply of its
// commit may be lost as well.
func TestLostReplyOfASettleAloneIsUnknownToo(t *testing.T) {
	t.Parallel()
	db := outboxtest.DB(t)
	wire := &wire{marker: "commit\x00"} // a whole statement, unlike the word in the begin
	q := newQueue(wire.connect(t, db))
	outs := outcomes(claimed(t, db, q, 2), outbox.Delivered)
	unlock := lockRows(t, db, 2)
	done := exchange(t, q, outs[1:], 0) // from now on event 2 is settled alone
	unlock()
	wire.cut(true)
	done, err := q.Exchange(t.Context(), append(done.Held, outs[0]), outbox.Want{})
	if err == nil || len(done.Held) != 2 {
		t.Fatalf("Exchange() = %+v, %v; want both held", done, err)
	}
	if n := query[int](t, db, `select count(*) from outbox where status = 'delivered'`); n != 2 {
		t.Fatalf("%d events are delivered, want both", n)
	}
	if again := exchange(t, q, done.Held, 0); len(again.Held)+len(again.Lost) > 0 {
		t.Errorf("Exchange() = %+v, want nothing lost", again)
	}
}

// wire breaks a connection once: when a message with the marker in it is sent.
type wire struct {
	marker string

	mu     sync.Mutex
	armed  bool
	arrive bool
}

// connect opens a second pool to db's database, over the wire.
func (w *wire) connect(t testing.TB, db *pgxpool.Pool) *pgxpool.Pool {
	t.Helper()
	cfg := db.Config()
	dial := cfg.ConnConfig.DialFunc
	cfg.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		return &wired{Conn: conn, wire: w}, err
	}
	again, err := pgxpool.NewWithConfig(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(again.Close)
	return again
}

// cut makes the next message with the marker the last one of its connection. It arrives and is
// answered, or it does not.
func (w *wire) cut(arrive bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.armed, w.arrive = true, arrive
}

// fires reports whether b is the message to break at.
func (w *wire) fires(b []byte) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	fires := w.armed && bytes.Contains(b, []byte(w.marker))
	if fires {
		w.armed = false
	}
	return fires
}

type wired struct {
	net.Conn
	wire *wire
	lost atomic.Bool // the answer to come
	tail []byte
}

func (c *wired) Write(b []byte) (int, error) {
	if !c.wire.fires(b) {
		return c.Conn.Write(b)
	}
	if c.wire.arrive {
		c.lost.Store(true)
		return c.Conn.Write(b)
	}
	return len(b), c.Close()
}

// Read drops an answer that is to be lost, up to PostgreSQL's "ready for the next query, in no
// transaction", and breaks the connection then.
func (c *wired) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	for err == nil && c.lost.Load() {
		if c.tail = append(c.tail, b[:n]...); bytes.HasSuffix(c.tail, []byte("Z\x00\x00\x00\x05I")) {
			_ = c.Close()
			return 0, io.ErrUnexpectedEOF
		}
		n, err = c.Conn.Read(b)
	}
	return n, err
}

// Whatever a destination answers, its text never stands in the way of a settle.
func TestAnyBytesFromASinkAreSettled(t *testing.T) {
	t.Parallel()
	db := outboxtest.DB(t)
	texts := []string{
		"nul \x00 in it", "bad \xff\xfe UTF-8", "half a rune \xe2\x82", "\x00", "\xff", strings.Repeat("\xff\x00", 5000),
		strings.Repeat("é", 3000), "escape \x1b[31m and \u009b31m", "surrogate \xed\xa0\x80", "newline \n and tab \t", `{"quoted": "\u0000"}`,
	}
	insert(t, db, 4*len(texts))
	sink := sinkFunc(func(_ context.Context, ev outbox.Event) (outbox.Receipt, error) {
		text := texts[int(ev.ID)%len(texts)]
		switch ev.ID % 4 {
		case 0:
			return outbox.Receipt{Text: text, Code: 1 << 40}, nil
		case 1:
			return outbox.Receipt{}, outbox.Permanent(errors.New(text))
		case 2:
			return outbox.Receipt{}, &outbox.DeliveryError{Verdict: outbox.VerdictPermanent, Kind: text, Code: -1 << 40, Err: errors.New(text)}
		}
		return outbox.Receipt{}, &outbox.DeliveryError{Verdict: outbox.VerdictPermanent, Kind: text}
	})
	d := newDispatcher(db, sink)
	d.Observer.Trouble = func(err error) { t.Error(err) }
	if s := run(t, d); s.Delivered != len(texts) || s.Dead != 3*len(texts) {
		t.Errorf("delivered %d, dead %d; want %d and %d", s.Delivered, s.Dead, len(texts), 3*len(texts))
	}
	const badSQL = `select count(*) from outbox
		where greatest(octet_length(receipt), octet_length(error), octet_length(error_kind)) > 1024
		   or concat(receipt, error, error_kind) ~ '[\u0001-\u001f\u007f-\u009f]'
		   or error ~ 'PostgreSQL refused'`
	if n := query[int](t, db, badSQL); n != 0 {
		t.Errorf("%d rows have a text that is too long, refused or not fit for a terminal", n)
	}
}

// An event whose worker died again and again, without an outcome, is a dead letter in the end.
func TestEventClaimedTooOftenIsACrashedDeadLetter(t *testing.T) {
	t.Parallel()
	db := outboxtest.DB(t)
	insert(t, db, 4)
	const three = `update outbox set attempts = 3, status = 'in_progress', lease = 'dead', lease_until = now() - interval '1 second'`
	exec(t, db, three)
	exec(t, db, `update outbox set attempts = 2 where id = 1`)
	history := `insert into outbox_attempts (event_id, attempt, lease, destination, outcome, error_kind)
		select $1::bigint, 1, 'old', '', 'pending', $2 from generate_series(1, $3::int)`
	exec(t, db, history, 3, outbox.KindShutdown, 1)
	exec(t, db, history, 4, "http", 3)
	sink := &recorder{}
	d := newDispatcher(db, sink)
	d.Policy.MaxAttempts = 3
	d.Source = queueFor(db, d)
	s := run(t, d)
	if s.Delivered != 2 || s.Dead != 2 || s.Sent != 2 {
		t.Errorf("summary %+v, want 2 delivered, 2 dead, 2 sent", counts(s))
	}
	got := query[string](t, db, `select string_agg(concat_ws(' ', id, status, attempts, error_kind), ', ' order by id) from outbox`)
	if want := "1 delivered 3, 2 dead_letter 3 crashed, 3 delivered 4, 4 dead_letter 3 crashed"; got != want {
		t.Errorf("the events are %s; want %s", got, want)
	}
	if n := query[int](t, db, `select count(*) from outbox_attempts where outcome = 'dead_letter' and error_kind = 'crashed'`); n != 2 {
		t.Errorf("history has %d rows of the crashed, want 2", n)
	}
}

// Shutdowns alone never make an event failed, however many there are.
func TestShutdownsNeverSpendAnEvent(t *testing.T) {
	t.Parallel()
	db := outboxtest.DB(t)
	insert(t, db, 1)
	for range 5 {
		stop, cancel := context.WithCancel(t.Context())
		d := newDispatcher(db, sinkFunc(func(ctx context.Context, _ outbox.Event) (outbox.Receipt, error) {
			cancel()
			<-ctx.Done()
			return outbox.Receipt{}, ctx.Err()
		}))
		d.Policy.MaxAttempts, d.Grace = 2, 10*time.Millisecond
		d.Source = queueFor(db, d)
		if s, err := d.Run(stop, context.Background()); err != nil || s.Sent != 1 || s.Failed+s.Dead > 0 {
			t.Fatalf("Run() = %+v, %v; want the event sent and cut off", counts(s), err)
		}
		cancel()
	}
	got := query[string](t, db, `select concat_ws(' ', status, attempts, error_kind, next_attempt_at <= now()) from outbox`)
	if want := "pending 5 shutdown t"; got != want {
		t.Errorf("the event is %s, want %s", got, want)
	}
}
