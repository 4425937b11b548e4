package main_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxctl/outboxctl/outbox/outboxtest"
)

// database is a migrated one: its URL for processes, its pool for the test.
func database(t testing.TB) (string, *pgxpool.Pool) {
	t.Helper()
	db := outboxtest.DB(t)
	return db.Config().ConnString(), db
}

func execute(t testing.TB, db *pgxpool.Pool, sql string, args ...any) {
	t.Helper()
	if _, err := db.Exec(context.Background(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// query returns the one value that sql selects.
func query[T any](t testing.TB, db *pgxpool.Pool, sql string, args ...any) (v T) {
	t.Helper()
	if err := db.QueryRow(context.Background(), sql, args...).Scan(&v); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return v
}

const insertSQL = `
insert into outbox (aggregate_type, aggregate_id, event_type, payload)
select 'order', i::text, $1, jsonb_build_object('n', i)
  from generate_series(1, $2::int) i`

// insert commits n events of one type, of as many aggregates.
func insert(t testing.TB, db *pgxpool.Pool, eventType string, n int) {
	t.Helper()
	execute(t, db, insertSQL, eventType, n)
}

// begin starts a transaction, which ends with the test at the latest.
func begin(t testing.TB, db *pgxpool.Pool) pgx.Tx {
	t.Helper()
	tx, err := db.Begin(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	return tx
}

func commit(t testing.TB, tx pgx.Tx) {
	t.Helper()
	if err := tx.Commit(context.Background()); err != nil {
		t.Fatal(err)
	}
}

// count is the number of rows in a status.
func count(t testing.TB, db *pgxpool.Pool, status string) int {
	t.Helper()
	return query[int](t, db, `select count(*) from outbox where status = $1`, status)
}

// allDelivered returns when no event is open, and fails the test unless n are delivered.
func allDelivered(t testing.TB, db *pgxpool.Pool, n int) {
	t.Helper()
	eventually(t, "no event is open", func() bool {
		return query[int](t, db, `select count(*) from outbox where finished_at is null`) == 0
	})
	if have := count(t, db, "delivered"); have != n {
		t.Fatalf("%d events are delivered, want %d", have, n)
	}
}

// lapse makes the leases of dead workers lapse now instead of half a minute later.
func lapse(t testing.TB, db *pgxpool.Pool) {
	t.Helper()
	execute(t, db, `update outbox set lease_until = now() - interval '1 second' where status = 'in_progress'`)
}
