package outbox_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxctl/outboxctl/outbox"
	"github.com/outboxctl/outboxctl/outbox/outboxtest"
)

// toCRM routes everything there.
func toCRM(db *pgxpool.Pool) *outbox.Router {
	return outbox.NewStore(db, "public").Router(outbox.Routes{{To: []string{"crm"}}})
}

// routeSteps makes n steps of so many events, each of which must find as many.
func routeSteps(t testing.TB, r *outbox.Router, n, limit int) {
	t.Helper()
	for i := range n {
		if got, err := r.Step(context.Background(), limit); err != nil || got != limit {
			t.Fatalf("Step() %d = %d, %v, want %d", i, got, err, limit)
		}
	}
}

// unroutedIDs lists what no router has given a destination.
func unroutedIDs(t testing.TB, db *pgxpool.Pool) string {
	t.Helper()
	return query[string](t, db, `select coalesce(string_agg(id::text, ' ' order by id), '') from outbox where destination = ''`)
}

// What is routed already leaves entries in the index until it is vacuumed. A walk from the front would pass all of
// them in every step; so would one along another index, whatever the statistics are of.
func TestRouterPassesWhatItHasRoutedSeldom(t *testing.T) {
	t.Parallel()
	const (
		delivered = `insert into outbox (aggregate_type, aggregate_id, event_type, payload, destination, status, finished_at)
			select 'order', i::text, 'order.paid', '{}', 'crm', 'delivered', now() from generate_series(1, 20000) i`
		elsewhere = `insert into outbox (aggregate_type, aggregate_id, event_type, payload, destination)
			select 'order', i::text, 'order.paid', '{}', 'mail' from generate_series(1, 20000) i`
		unrouted = `insert into outbox (tenant_id, aggregate_type, aggregate_id, event_type, payload)
			select (i % 2)::text, 'order', i::text, 'order.paid', '{}' from generate_series(1, 20000) i`
		analyze = `vacuum analyze outbox`
	)
	for name, fill := range map[string][]string{
		"statistics of now":             {delivered, elsewhere, unrouted, analyze},
		"statistics of an empty table":  {analyze, delivered, elsewhere, unrouted},
		"statistics of what is over":    {delivered, analyze, elsewhere, unrouted},
		"statistics of what is routed":  {elsewhere, analyze, delivered, unrouted},
		"no statistics, a fresh backup": {delivered, elsewhere, unrouted},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := outboxtest.DB(t)
			withOption(t, db, "routes")
			filler := reconnect(t, db, nil)
			exec(t, filler, `alter table outbox set (autovacuum_enabled = off)`)
			for _, sql := range fill {
				exec(t, filler, sql)
			}
			filler.Close() // which writes its statistics
			ofIndex := func() int {
				return query[int](t, db, `select idx_blks_hit + idx_blks_read from pg_statio_user_indexes where indexrelname = 'outbox_unrouted'`)
			}
			ofTable := func() int { return reads(t, db) }
			pages, read := settled(t, ofIndex), settled(t, ofTable)
			worker := reconnect(t, db, nil)
			routeSteps(t, toCRM(worker), 150, 100)
			worker.Close()
			if pages = settled(t, ofIndex) - pages; pages < 150 || pages > 4000 {
				t.Errorf("150 steps read %d pages of outbox_unrouted, want 4000 at most", pages)
			}
			if read = settled(t, ofTable) - read; read > 15_000*12 {
				t.Errorf("150 steps of 100 events read %d entries and rows, want %d at most", read, 15_000*12)
			}
		})
	}
}

// An event that commits late is behind the place that the router has come to. It comes before the younger ones of its
// aggregate all the same.
func TestRouterTakesTheOlderOfAnAggregateFirst(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	db := outboxtest.DB(t)
	tx, err := db.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(ctx)
	if _, err := tx.Exec(ctx, `insert into outbox (aggregate_type, aggregate_id, event_type, payload) values ('order', 'late', 'order.paid', '{}')`); err != nil {
		t.Fatal(err)
	}
	emit(t, db, "/1/order.paid", "/2/order.paid", "/3/order.paid", "/4/order.paid")
	r := toCRM(db)
	routeSteps(t, r, 2, 1) // the walk is at event 3
	if err := tx.Commit(ctx); err != nil {
		t.Fatal(err)
	}
	exec(t, db, `update outbox set aggregate_id = 'late' where id = 4`)
	routeSteps(t, r, 1, 1)
	if got := unroutedIDs(t, db); got != "4 5" {
		t.Errorf("%s are left to route, want 4 5: event 1 goes before event 4, which is of the same aggregate", got)
	}
}

// New tenants, and what comes up behind the place that the router has come to, wait for a few steps at most.
func TestRouterLooksAtAllNowAndThen(t *testing.T) {
	t.Parallel()
	db := outboxtest.DB(t)
	exec(t, db, `insert into outbox (tenant_id, aggregate_type, aggregate_id, event_type, payload)
		select 'big', 'order', i::text, 'order.paid', '{}' from generate_series(1, 100) i`)
	r := toCRM(db)
	routeSteps(t, r, 2, 2)
	emit(t, db, "a/1/order.paid", "z/1/order.paid")
	exec(t, db, `update outbox set destination = '' where id = 1`)
	routeSteps(t, r, 17, 2)
	if n := query[int](t, db, `select count(*) from outbox where destination = '' and (tenant_id <> 'big' or id = 1)`); n != 0 {
		t.Errorf("%d of two new tenants' events, and one that was put back, are left after 17 steps", n)
	}
}

// The place of a tenant stays before what somebody holds, so that it holds the later ones of its aggregate.
func TestRouterStaysBeforeWhatIsHeld(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	db := outboxtest.DB(t)
	emit(t, db, "/1/order.paid", "/2/order.paid", "/3/order.paid", "/4/order.paid", "/5/order.paid", "/2/order.paid", "/6/order.paid")
	tx, err := db.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(ctx)
	if _, err := tx.Exec(ctx, `select from outbox where id = 2 for update`); err != nil {
		t.Fatal(err)
	}
	r := toCRM(db)
	for _, want := range []int{2, 2, 1, 0} { // of three that it looks at, one is held, and in the end one more behind it
		if n, err := r.Step(ctx, 3); err != nil || n != want {
			t.Fatalf("Step() = %d, %v, want %d: %s are left", n, err, want, unroutedIDs(t, db))
		}
	}
	if got := unroutedIDs(t, db); got != "2 6" {
		t.Errorf("%s are left, want 2 and 6 behind it", got)
	}
	if err := tx.Rollback(ctx); err != nil {
		t.Fatal(err)
	}
	emit(t, db, "/7/order.paid", "/8/order.paid", "/9/order.paid")
	routeSteps(t, r, 1, 3)
	if got := unroutedIDs(t, db); got != "9 10" {
		t.Errorf("%s are left, want 9 and 10: what is no longer held has its turn at once", got)
	}
}
