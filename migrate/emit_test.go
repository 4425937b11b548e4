package migrate_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outboxctl/outboxctl/outbox/outboxtest"
)

// querier is a connection or a transaction.
type querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

func value[T any](t *testing.T, db querier, sql string, args ...any) (v T) {
	t.Helper()
	if err := db.QueryRow(context.Background(), sql, args...).Scan(&v); err != nil {
		t.Fatal(err)
	}
	return v
}

const (
	key     = "9f0c1f5e-6f1c-4c8e-9a53-0d1f3f1b2a77"
	emitSQL = `select public.outbox_emit('order', '42', 'order.created', '{"n": 1}', $1)`
)

func TestEveryWayToInsertWorks(t *testing.T) {
	t.Parallel()
	ways := map[string]string{
		"article": `insert into outbox (aggregate_type, aggregate_id, event_type, idempotency_key, payload, status, available_at)
			values ('order', '42', 'order.created', gen_random_uuid(), '{"n": 1}', 'pending', now())`,
		"plain": `insert into outbox (aggregate_type, aggregate_id, event_type, payload) values ('order', '42', 'order.created', '{"n": 1}')`,
		"emit":  `select outbox_emit('order', '42', 'order.created', '{"n": 1}')`,
		"nulls": `select outbox_emit('order', '42', 'order.created', '{"n": 1}', null, null, null, null, null, null)`,
		"named": `select outbox_emit(event_type => 'order.created', aggregate_type => 'order', aggregate_id => '42', payload => '{"n": 1}')`,
	}
	const wantSQL = `
select (tenant_id, aggregate_type, aggregate_id, event_type, schema_version, destination, headers, payload, status, attempts)
     = ('', 'order', '42', 'order.created', 1, '', '{}'::jsonb, '{"n": 1}'::jsonb, 'pending', 0)
   and available_at = created_at
   and num_nonnulls(source_id, next_attempt_at, lease, lease_until, finished_at) = 0
  from outbox`
	for name, insert := range ways {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conn := connect(t, outboxtest.URL(t))
			exec(t, conn, insert)
			if !value[bool](t, conn, wantSQL) {
				t.Error("the row is not a pending event")
			}
		})
	}
}

func TestEmitTakesEverything(t *testing.T) {
	t.Parallel()
	conn := connect(t, outboxtest.URL(t))
	exec(t, conn, `select outbox_emit('order', '42', 'order.created', '{"n": 1}', $1, 'acme', '{"traceparent": "x"}', '2030-01-02T00:00Z', 7, 'crm')`, key)
	const wantSQL = `
select (idempotency_key, tenant_id, headers, available_at, schema_version, destination)
     = ($1::uuid, 'acme', '{"traceparent": "x"}'::jsonb, timestamptz '2030-01-02T00:00Z', 7, 'crm')
  from outbox`
	if !value[bool](t, conn, wantSQL, key) {
		t.Error("an argument did not reach its column")
	}
}

func TestEmitTreatsARepeatAsDone(t *testing.T) {
	t.Parallel()
	conn := connect(t, outboxtest.URL(t))
	first := value[int64](t, conn, emitSQL, key)
	exec(t, conn, `update outbox set destination = 'crm'`) // routed meanwhile
	if second := value[int64](t, conn, emitSQL, key); second != first {
		t.Errorf("a repeat returned %d, want %d", second, first)
	}
	if n := value[int](t, conn, `select count(*) from outbox`); n != 1 {
		t.Errorf("%d events, want 1", n)
	}
}

// Two producers emit the same key at once: the second waits for what becomes of the first.
func TestEmitIsSafeAtOnce(t *testing.T) {
	t.Parallel()
	for end, same := range map[string]bool{"commit": true, "rollback": false} {
		t.Run(end, func(t *testing.T) {
			t.Parallel()
			ctx := context.Background()
			url := outboxtest.URL(t)
			one, two, watch := connect(t, url), connect(t, url), connect(t, url)
			exec(t, one, `begin`)
			first := value[int64](t, one, emitSQL, key)
			second := make(chan int64, 1)
			go func() {
				var id int64
				two.QueryRow(ctx, emitSQL, key).Scan(&id)
				second <- id
			}()
			waits := func() bool {
				return value[bool](t, watch, `select exists (select from pg_locks where not granted)`)
			}
			for deadline := time.Now().Add(10 * time.Second); !waits(); {
				if time.Now().After(deadline) {
					t.Fatal("the second emit did not wait for the first")
				}
			}
			exec(t, one, end)
			id := <-second
			if id == 0 || (id == first) != same {
				t.Errorf("second emit = %d after the %s of the first, %d", id, end, first)
			}
			if n := value[int](t, watch, `select count(*) from outbox`); n != 1 {
				t.Errorf("%d events, want 1", n)
			}
		})
	}
}

func TestEmitIgnoresTheSearchPath(t *testing.T) {
	t.Parallel()
	conn := connect(t, outboxtest.URL(t))
	exec(t, conn, `
create schema evil;
create table evil.outbox (like public.outbox including all);
create function evil.now() returns timestamptz language sql as 'select timestamptz ''1970-01-01''';
create function evil.gen_random_uuid() returns uuid language sql as 'select ''00000000-0000-0000-0000-000000000000''::uuid';
create temp table outbox (id int);
set search_path = evil, pg_catalog, public`)
	exec(t, conn, emitSQL, nil)
	const wantSQL = `
select available_at > '2000-01-01' and idempotency_key <> '00000000-0000-0000-0000-000000000000'
  from public.outbox`
	if !value[bool](t, conn, wantSQL) {
		t.Error("emit used a function of the caller's search_path")
	}
}

func TestTheTableDefendsItself(t *testing.T) {
	t.Parallel()
	const insert = `insert into outbox (aggregate_type, aggregate_id, event_type, `
	tests := []struct{ constraint, sql string }{
		{"outbox_payload", insert + `payload) values ('order', '1', 'x', null)`},
		{"outbox_payload", insert + `payload, payload_bytes) values ('order', '1', 'x', '{}', '')`},
		{"outbox_status", insert + `payload, status) values ('order', '1', 'x', '{}', 'sent')`},
		{"outbox_lease", insert + `payload, status) values ('order', '1', 'x', '{}', 'in_progress')`},
		{"outbox_lease", insert + `payload, lease, lease_until) values ('order', '1', 'x', '{}', 'w', now())`},
		{"outbox_finished", insert + `payload, status) values ('order', '1', 'x', '{}', 'delivered')`},
		{"outbox_finished", insert + `payload, finished_at) values ('order', '1', 'x', '{}', now())`},
		{"outbox_attempts_positive", insert + `payload, attempts) values ('order', '1', 'x', '{}', -1)`},
		{"outbox_key_size", insert + `payload) values ('', '1', 'x', '{}')`},
		{"outbox_key_size", insert + `payload) values ('order', '', 'x', '{}')`},
		{"outbox_key_size", insert + `payload) values ('order', repeat('é', 1000), 'x', '{}')`},
		{"outbox_key_size", insert + `payload) values ('order', '1', repeat('x', 1001), '{}')`},
		{"outbox_key_size", insert + `payload, destination) values ('order', '1', 'x', '{}', repeat('x', 201))`},
	}
	conn := connect(t, outboxtest.URL(t))
	for _, tt := range tests {
		_, err := conn.Exec(context.Background(), tt.sql)
		if got := constraint(err); got != tt.constraint {
			t.Errorf("%s: refused by %q (%v), want %q", tt.sql, got, err, tt.constraint)
		}
	}
}
