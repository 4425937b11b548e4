package outbox_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxctl/outboxctl/outbox"
	"github.com/outboxctl/outboxctl/outbox/outboxtest"
)

// emit inserts events named tenant/aggregate/type, in this order.
func emit(t testing.TB, db *pgxpool.Pool, events ...string) {
	t.Helper()
	for _, name := range events {
		part := strings.Split(name, "/")
		exec(t, db, `insert into outbox (tenant_id, aggregate_type, aggregate_id, event_type, payload) values ($1, 'order', $2, $3, '{}')`, part[0], part[1], part[2])
	}
}

// router routes order.* to crm and audit, email.* to mail, and shadows everything to staging.
func router(db *pgxpool.Pool) *outbox.Router {
	return outbox.NewStore(db, "public").Router(outbox.Routes{
		{EventTypes: []string{"order.*"}, To: []string{"crm", "audit"}},
		{EventTypes: []string{"email.*"}, To: []string{"mail"}},
		{EventTypes: []string{"order.paid"}, To: []string{"crm"}},
		{EventTypes: []string{"*.shadowed"}, To: []string{"staging"}, Shadow: true},
	})
}

// routed lists the rows: where they are, whose copies, in which state.
func routed(t testing.TB, db *pgxpool.Pool) string {
	t.Helper()
	return query[string](t, db, `
		select coalesce(string_agg(concat_ws(' ', coalesce(source_id, id) || ':', event_type, nullif(destination, ''), nullif(origin, ''),
		         case when status <> 'pending' then status end,
		         case when destination = '' and next_attempt_at > now() + interval '50 s' and finished_at is null then 'later' end), E'\n'
		         order by coalesce(source_id, id), destination), '')
		  from outbox`)
}

func step(t testing.TB, r *outbox.Router, want int) {
	t.Helper()
	if n, err := r.Step(context.Background(), 100); err != nil || n != want {
		t.Fatalf("Step() = %d, %v, want %d", n, err, want)
	}
}

func TestRouterGivesRowsAndCopies(t *testing.T) {
	t.Parallel()
	db := outboxtest.DB(t)
	emit(t, db, "/1/order.paid", "/1/email.sent", "/1/other", "/1/email.shadowed", "/1/other.shadowed")
	r := router(db)
	step(t, r, 5)
	want := `1: order.paid audit
1: order.paid crm
2: email.sent mail
3: other later
4: email.shadowed mail
4: email.shadowed staging shadow
5: other.shadowed later
5: other.shadowed staging shadow`
	if got := routed(t, db); got != want {
		t.Errorf("rows:\n%s\nwant\n%s", got, want)
	}
	if n := query[int](t, db, `select count(*) from outbox a join outbox b using (idempotency_key, created_at, available_at, payload) where a.id < b.id`); n != 3 {
		t.Errorf("%d copies have the key, the times and the payload of their original, want 3", n)
	}
	step(t, r, 0) // nobody is looked at again at once
	if n, err := r.Review(context.Background(), 100); n != 2 || err != nil {
		t.Errorf("Review() = %d, %v, want 2", n, err)
	}
	step(t, r, 2)
	if got := routed(t, db); got != want {
		t.Errorf("after another look:\n%s", got)
	}
}

// An event that nobody wanted is looked at again when its minute is over.
func TestRouterLooksAgain(t *testing.T) {
	t.Parallel()
	db := outboxtest.DB(t)
	emit(t, db, "/1/other")
	step(t, router(db), 1)
	exec(t, db, `update outbox set next_attempt_at = now() - interval '1 s'`)
	r := outbox.NewStore(db, "public").Router(outbox.Routes{{To: []string{"crm"}}})
	step(t, r, 1)
	if got := routed(t, db); got != "1: other crm" {
		t.Errorf("rows: %s", got)
	}
}

func TestRouterEndsWhatADestinationHas(t *testing.T) {
	t.Parallel()
	db := outboxtest.DB(t)
	emit(t, db, "/1/email.sent", "/2/email.sent", "/3/order.paid")
	exec(t, db, `update outbox set idempotency_key = (select idempotency_key from outbox where id = 1), destination = 'mail' where id = 2`)
	// A copy of event 3 that was made before its original is routed.
	exec(t, db, `insert into outbox (source_id, aggregate_type, aggregate_id, event_type, payload, idempotency_key, destination)
		select id, aggregate_type, aggregate_id, event_type, payload, idempotency_key, 'audit' from outbox where id = 3`)
	step(t, router(db), 2)
	want := `1: email.sent discarded
2: email.sent mail
3: order.paid audit
3: order.paid crm`
	if got := routed(t, db); got != want {
		t.Errorf("rows:\n%s\nwant\n%s", got, want)
	}
	if got := query[string](t, db, `select error_kind || ': ' || error from outbox where id = 1`); got != `duplicate: event 2 has the same key at destination "mail"` {
		t.Error(got)
	}
}

// A copy of the event's own at its first destination is no collision: the row takes the next one
// that has none.
func TestRouterKnowsItsOwnCopies(t *testing.T) {
	t.Parallel()
	db := outboxtest.DB(t)
	emit(t, db, "/1/order.paid")
	exec(t, db, `insert into outbox (source_id, aggregate_type, aggregate_id, event_type, payload, idempotency_key, destination)
		select id, aggregate_type, aggregate_id, event_type, payload, idempotency_key, 'crm' from outbox where id = 1`)
	step(t, router(db), 1)
	if got, want := routed(t, db), "1: order.paid audit\n1: order.paid crm"; got != want {
		t.Errorf("rows:\n%s\nwant\n%s", got, want)
	}
}

// A copy that was a shadow serves the route that now leads to its destination, and what becomes of it counts.
func TestRealRouteTakesAShadowCopyOver(t *testing.T) {
	t.Parallel()
	db := outboxtest.DB(t)
	emit(t, db, "/1/order.shadowed")
	store := outbox.NewStore(db, "public")
	step(t, store.Router(outbox.Routes{{To: []string{"staging"}, Shadow: true}}), 1)
	if got, want := routed(t, db), "1: order.shadowed later\n1: order.shadowed staging shadow"; got != want {
		t.Fatalf("rows:\n%s\nwant\n%s", got, want)
	}
	exec(t, db, `update outbox set status = 'failed', finished_at = now() where destination = 'staging'`)

	r := store.Router(outbox.Routes{{To: []string{"staging"}}, {To: []string{"crm"}}})
	if n, err := r.Review(t.Context(), 100); err != nil || n != 1 {
		t.Fatalf("Review() = %d, %v, want 1", n, err)
	}
	step(t, r, 1)
	if got, want := routed(t, db), "1: order.shadowed crm\n1: order.shadowed staging failed"; got != want {
		t.Errorf("rows:\n%s\nwant\n%s", got, want)
	}
}

// However many events somebody holds, those behind them are found.
func TestHeldEventsHideNoOthersFromTheRouter(t *testing.T) {
	t.Parallel()
	db := outboxtest.DB(t)
	exec(t, db, `insert into outbox (aggregate_type, aggregate_id, event_type, payload, status, lease, lease_until)
		select 'order', n::text, 'order.paid', '{}', 'in_progress', 'w/1', now() + interval '1 minute' from generate_series(1, 150) n`)
	emit(t, db, "/1/order.paid", "/a/order.paid", "/b/order.paid") // the first is behind one that is held
	step(t, router(db), 2)
	exec(t, db, `update outbox set lease_until = now() - interval '1 s' where id = 1`)
	step(t, router(db), 1)
	step(t, router(db), 1)
	step(t, router(db), 0)
}

// What is leased or locked stays, and keeps the later events of its aggregate back.
func TestRouterKeepsTheOrderOfAggregates(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	db := outboxtest.DB(t)
	emit(t, db, "/1/order.a", "/1/order.b", "/2/order.a", "/2/order.b", "/3/order.a", "/3/order.b")
	exec(t, db, `update outbox set status = 'in_progress', lease = 'w/1', lease_until = now() + interval '1 minute' where id = 1`)
	exec(t, db, `update outbox set available_at = now() + interval '1 hour' where id = 5`) // keeps its place
	tx, err := db.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(ctx)
	if _, err := tx.Exec(ctx, `select from outbox where id = 3 for update`); err != nil {
		t.Fatal(err)
	}
	r := outbox.NewStore(db, "public").Router(outbox.Routes{{To: []string{"crm"}}})
	step(t, r, 2)
	if got := query[string](t, db, `select string_agg(id::text, ' ' order by id) from outbox where destination = 'crm'`); got != "5 6" {
		t.Errorf("routed %s, want 5 6", got)
	}
	tx.Rollback(ctx)
	exec(t, db, `update outbox set lease_until = now() - interval '1 s' where id = 1`)
	step(t, r, 4)
	if n := query[int](t, db, `select count(*) from outbox where destination = 'crm' and status = 'pending' and lease is null`); n != 6 {
		t.Errorf("%d of 6 are routed", n)
	}
}

func TestRouterTakesTurnsAmongTenants(t *testing.T) {
	t.Parallel()
	db := outboxtest.DB(t)
	exec(t, db, `insert into outbox (tenant_id, aggregate_type, aggregate_id, event_type, payload)
		select 'big', 'order', n::text, 'order.paid', '{}' from generate_series(1, 1000) n`)
	emit(t, db, "/1/order.paid", "a/1/order.paid", "z/1/order.paid")
	r := router(db)
	step(t, r, 28) // a quarter of a page is each tenant's, and the others have one event each
	if n := query[int](t, db, `select count(*) from outbox where destination = '' and tenant_id <> 'big'`); n != 0 {
		t.Errorf("%d events of small tenants are left", n)
	}
	steps := 0
	for n := 1; n > 0; steps++ {
		var err error
		if n, err = r.Step(context.Background(), 100); err != nil {
			t.Fatal(err)
		}
	}
	if n := query[int](t, db, `select count(*) from outbox where destination = ''`); n != 0 || steps > 42 {
		t.Errorf("%d events are left after %d steps", n, steps)
	}
}

func TestOneRouterWorksAtATime(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	db := outboxtest.DB(t)
	emit(t, db, "/1/order.paid")
	tx, err := db.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(ctx)
	if _, err := tx.Exec(ctx, `select pg_advisory_xact_lock(hashtextextended('"public" outboxctl router', 0))`); err != nil {
		t.Fatal(err)
	}
	if _, err := router(db).Step(ctx, 100); !errors.Is(err, outbox.ErrBusy) {
		t.Errorf("Step() = %v, want ErrBusy", err)
	}
	tx.Rollback(ctx)
	step(t, router(db), 1)
}

// halt is a tracer that stops its process in the middle of a step, before the first statement with a word.
type halt struct {
	word    string
	reached chan struct{}
	until   chan struct{}
}

func (h *halt) TraceQueryStart(ctx context.Context, _ *pgx.Conn, q pgx.TraceQueryStartData) context.Context {
	if strings.Contains(q.SQL, h.word) {
		close(h.reached)
		<-h.until
	}
	return ctx
}

func (*halt) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// A process that is suspended in a step holds the turn, and its locks, for some seconds and not until it goes on.
func TestSuspendedRouterLosesItsTurn(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	db := outboxtest.DB(t)
	emit(t, db, "/1/order.paid")
	config := db.Config()
	h := &halt{word: "-- outbox_unrouted", reached: make(chan struct{}), until: make(chan struct{})}
	config.ConnConfig.Tracer = h
	suspended, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		t.Fatal(err)
	}
	defer suspended.Close()
	goOn := sync.OnceFunc(func() { close(h.until) })
	defer goOn()
	ended := make(chan error, 1)
	go func() {
		_, err := router(suspended).Step(ctx, 100)
		ended <- err
	}()
	<-h.reached
	began := time.Now()
	for {
		n, err := router(db).Step(ctx, 100)
		if err == nil && n == 1 {
			break
		}
		if !errors.Is(err, outbox.ErrBusy) {
			t.Fatalf("Step() = %d, %v beside a suspended router, want ErrBusy or 1 event", n, err)
		}
		time.Sleep(50 * time.Millisecond)
	}
	if took := time.Since(began); took > 15*time.Second {
		t.Errorf("a suspended router held the turn for %s, want 5s", took)
	}
	goOn()
	if err := <-ended; err == nil {
		t.Error("Step() of the suspended router = nil, want an error: it has lost its session")
	}
}

// Whoever listens learns which destinations have news, and so does the router's own process.
func TestRouterTellsTheNews(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	db := outboxtest.DB(t)
	conn, err := db.Acquire(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	if _, err := conn.Exec(ctx, "listen "+outbox.NewStore(db, "public").Channel()); err != nil {
		t.Fatal(err)
	}
	emit(t, db, "/1/order.paid", "/1/order.sent", "/1/other")
	r := router(db)
	var told []string
	r.Routed = func(names []string) { told = append(told, names...) }
	step(t, r, 3)
	if strings.Join(told, " ") != "audit crm" {
		t.Errorf("told %q", told)
	}
	var heard []string
	for range 2 {
		n, err := conn.Conn().WaitForNotification(ctx)
		if err != nil {
			t.Fatal(err)
		}
		heard = append(heard, n.Payload)
	}
	if strings.Join(heard, " ") != "audit crm" {
		t.Errorf("heard %q", heard)
	}
}
