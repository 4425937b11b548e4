package outboxtest_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outboxctl/outboxctl/outbox/outboxtest"
)

func TestDBIsMigratedAndOfItsOwn(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	one, two := outboxtest.DB(t), outboxtest.DB(t)
	if _, err := one.Exec(ctx, `insert into outbox (aggregate_type, aggregate_id, event_type, payload) values ('order', '1', 'order.created', '{}')`); err != nil {
		t.Fatal(err)
	}
	var n int
	if err := two.QueryRow(ctx, `select count(*) from outbox`).Scan(&n); err != nil {
		t.Fatal(err)
	}
	if n != 0 {
		t.Errorf("the other test's database has %d events, want 0", n)
	}
}

func TestDBIsDroppedAtCleanup(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	var name string
	t.Run("inner", func(t *testing.T) {
		if err := outboxtest.DB(t).QueryRow(ctx, `select current_database()`).Scan(&name); err != nil {
			t.Fatal(err)
		}
	})
	var n int
	if err := outboxtest.DB(t).QueryRow(ctx, `select count(*) from pg_database where datname = $1`, name).Scan(&n); err != nil {
		t.Fatal(err)
	}
	if n != 0 {
		t.Errorf("database %s is still there", name)
	}
}

func TestEmptyIsEmpty(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, outboxtest.Empty(t))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	var n int
	if err := conn.QueryRow(ctx, `select count(*) from pg_class where relnamespace = 'public'::regnamespace`).Scan(&n); err != nil {
		t.Fatal(err)
	}
	if n != 0 {
		t.Errorf("an empty database has %d relations, want 0", n)
	}
}

func TestAgeMovesEveryTime(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	db := outboxtest.DB(t)
	var id int64
	err := db.QueryRow(ctx, `
insert into outbox (aggregate_type, aggregate_id, event_type, payload, status, next_attempt_at, finished_at, last_attempt_at)
values ('order', '1', 'order.created', '{}', 'failed', now(), now(), now())
returning id`).Scan(&id)
	if err != nil {
		t.Fatal(err)
	}
	outboxtest.Age(t, db, id, time.Hour)
	var aged bool
	err = db.QueryRow(ctx, `
select greatest(available_at, next_attempt_at, finished_at, last_attempt_at, created_at, updated_at) < now() - interval '59 min'
  from outbox where id = $1`, id).Scan(&aged)
	if err != nil {
		t.Fatal(err)
	}
	if !aged {
		t.Error("a time was left behind")
	}
}
