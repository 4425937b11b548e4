package crash_test

import (
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxctl/outboxctl/outbox/outboxtest"
)

// operation is an operator's command, which the same command finishes.
type operation struct {
	name    string
	long    bool // is left to the long form
	prepare func(t *testing.T, db *pgxpool.Pool)
	args    []string
	judge   func(t *testing.T, db *pgxpool.Pool)
}

// many events are worked at in batches of fifteen: three of them, and a look that finds nothing.
const many = 40

var theOperations = []operation{
	{"replay", false, buried, []string{"replay", "--status=failed"}, func(t *testing.T, db *pgxpool.Pool) {
		equal(t, db, "pending events", `select count(*) from outbox where status = 'pending' and attempts = 0`, many)
		recorded(t, db)
	}},
	{"discard", true, buried, []string{"events", "discard", "--status=failed", "--reason", "test"}, func(t *testing.T, db *pgxpool.Pool) {
		equal(t, db, "discarded events", `select count(*) from outbox where status = 'discarded'`, many)
		recorded(t, db)
	}},
	{"purge", false, ended, []string{"purge", "--older-than", "30d"}, func(t *testing.T, db *pgxpool.Pool) {
		equal(t, db, "events that are left", `select count(*) from outbox`, 10)
		equal(t, db, "events that were counted", `select sum(done)::int from outbox_operations`, many)
	}},
	{"archive", false, ended, []string{"purge", "--older-than", "30d", "--archive"}, func(t *testing.T, db *pgxpool.Pool) {
		equal(t, db, "events that are left", `select count(*) from outbox`, 10)
		equal(t, db, "rows of the archive", `select count(*) from outbox_archive`, many)
		equal(t, db, "events in the archive", `select count(distinct (id, payload)) from outbox_archive`, many)
		equal(t, db, "events that were counted", `select sum(done)::int from outbox_operations`, many)
	}},
	{"redact", true, ended, []string{"purge", "--older-than", "30d", "--redact", "--path", "$", "--reason", "test"}, func(t *testing.T, db *pgxpool.Pool) {
		equal(t, db, "events", `select count(*) from outbox`, many+10)
		equal(t, db, "redacted events", `select count(*) from outbox where headers ? 'redacted'`, many)
		recorded(t, db)
	}},
	{"backfill", false, orders, []string{"backfill", "--table", "orders", "--event-type", "order.created", "--aggregate-type", "order", "--aggregate-id", "id",
		"--time-column", "created_at", "--payload", "id", "--all"}, func(t *testing.T, db *pgxpool.Pool) {
		equal(t, db, "events", `select count(*) from outbox`, many)
		equal(t, db, "orders with an event", `select count(distinct aggregate_id) from outbox`, many)
		equal(t, db, "events that were counted", `select sum(done)::int from outbox_operations`, many)
	}},
}

// recorded compares the record with what was done.
func recorded(t *testing.T, db *pgxpool.Pool) {
	t.Helper()
	equal(t, db, "lines of the record", `select count(*) from outbox_audit`, many)
	equal(t, db, "events in the record", `select count(distinct event_id) from outbox_audit`, many)
	equal(t, db, "operations that are wrong about what they did",
		`select count(*) from outbox_operations o where done <> (select count(*) from outbox_audit a where a.operation = o.id)`, 0)
}

func buried(t *testing.T, db *pgxpool.Pool) {
	execute(t, db, `insert into outbox (aggregate_type, aggregate_id, event_type, payload, status, attempts, finished_at, error_kind)
		select 'order', i::text, 'order.created', '{}', 'failed', 10, now() - interval '1 hour', 'http' from generate_series(1, $1::int) i`, many)
}

// ended events are old; of the ten beside them five are young and five open.
func ended(t *testing.T, db *pgxpool.Pool) {
	execute(t, db, `insert into outbox (aggregate_type, aggregate_id, event_type, payload, status, finished_at, created_at)
		select 'order', i::text, 'order.created', jsonb_build_object('n', i), 'delivered', now() - interval '40 days' + i * interval '1 s', now() - interval '41 days'
		  from generate_series(1, $1::int) i`, many)
	execute(t, db, `insert into outbox (aggregate_type, aggregate_id, event_type, payload, status, finished_at, created_at)
		select 'order', 'beside', 'order.created', '{}', case when i > 5 then 'delivered' else 'pending' end, case when i > 5 then now() end, now() - interval '41 days'
		  from generate_series(1, 10) i`)
}

func orders(t *testing.T, db *pgxpool.Pool) {
	execute(t, db, `create table orders (id bigint primary key, created_at timestamptz not null)`)
	execute(t, db, `create index on orders (created_at, id)`)
	execute(t, db, `insert into orders select i, now() - interval '1 day' + i * interval '1 s' from generate_series(1, $1::int) i`, many)
}

// operations are deaths of operators' commands.
func operations() (all []crashed) {
	for _, o := range theOperations {
		if o.long && !long {
			continue
		}
		play := func(t *testing.T, s *stage) { s.operate(t, o) }
		for _, point := range []string{"operation-begun", "before-operation-end"} {
			all = append(all, crashed{o.name, point, 1, play})
		}
		for _, point := range []string{"step-before-commit", "step-after-commit"} {
			for _, nth := range times([]int{2}, 1, 3) {
				all = append(all, crashed{o.name, point, nth, play})
			}
		}
	}
	return all
}

func (s *stage) operate(t *testing.T, o operation) {
	db := outboxtest.DB(t)
	s.url = db.Config().ConnString()
	o.prepare(t, db)
	args := append(o.args, "--batch-size", "15", "--yes")
	s.dies(t, s.victim(t, args...))
	gone(t, db)
	// Half a minute later, nobody thinks any more that the dead one is at work.
	execute(t, db, `update outbox_operations set heartbeat_at = heartbeat_at - interval '31 s'`)
	s.well(t, args...)
	o.judge(t, db)
}

// migrations are deaths of a migrate.
func migrations() (all []crashed) {
	for _, point := range []string{"migration-before-commit", "migration-after-commit"} {
		for _, nth := range times([]int{1, 7, 13}, 2, 3, 4, 5, 6, 8, 9, 10, 11, 12) {
			all = append(all, crashed{"migrate", point, nth, func(t *testing.T, s *stage) { s.migrate(t) }})
		}
	}
	for _, nth := range times([]int{1, 2}) {
		all = append(all, crashed{"migrate --with", "index-built", nth, func(t *testing.T, s *stage) { s.migrate(t, "--with", "routes,hold") }})
	}
	return all
}

func (s *stage) migrate(t *testing.T, with ...string) {
	s.url = outboxtest.Empty(t)
	args := append([]string{"migrate"}, with...)
	s.dies(t, s.victim(t, args...))
	s.well(t, args...)
	s.well(t, "migrate", "verify")
	conn, err := pgx.Connect(t.Context(), s.url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	var locks int
	err = conn.QueryRow(t.Context(), `select count(*) from pg_locks
		where locktype = 'advisory' and database = (select oid from pg_database where datname = current_database())`).Scan(&locks)
	if err != nil || locks != 0 {
		t.Errorf("%d locks are left (%v)", locks, err)
	}
}
