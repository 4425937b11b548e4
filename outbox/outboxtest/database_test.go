package outboxtest_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

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

func TestFilledIsMadeOnceAndACopyIsItsOwn(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	script := `
insert into outbox (aggregate_type, aggregate_id, event_type, payload) select 'order', i::text, 'order.created', '{}' from generate_series(1, 3) i;
create table made as select clock_timestamp() as at`
	look := func(db *pgxpool.Pool) (at time.Time, n int) {
		t.Helper()
		if err := db.QueryRow(ctx, `select at, (select count(*) from outbox) from made`).Scan(&at, &n); err != nil {
			t.Fatal(err)
		}
		return at, n
	}
	var first time.Time
	t.Run("copy", func(t *testing.T) {
		db := outboxtest.FilledCopy(t, script)
		if _, err := db.Exec(ctx, `delete from outbox where id = 1`); err != nil {
			t.Fatal(err)
		}
		at, n := look(db)
		if first = at; n != 2 {
			t.Errorf("%d rows after one was deleted, want 2", n)
		}
	})
	for range 2 {
		if at, n := look(outboxtest.Filled(t, script)); n != 3 || !at.Equal(first) {
			t.Errorf("%d rows made at %s, want 3 made at %s", n, at, first)
		}
	}
}
