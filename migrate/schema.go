package migrate

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// maxName is the longest identifier of PostgreSQL in bytes; it cuts longer ones off silently.
const maxName = 63

// Beginner starts a transaction, as *pgxpool.Pool and *pgx.Conn do.
type Beginner interface {
	BeginTx(ctx context.Context, opts pgx.TxOptions) (pgx.Tx, error)
}

// Schema is the outbox's schema in one database.
type Schema struct {
	db     Beginner
	name   string
	steps  []Migration
	limits Limits
}

// New returns the schema of that raw name in db, there or not. It may need quoting; My-"Schema"
// is a name. db is a *pgxpool.Pool or a *pgx.Conn for whoever migrates.
func New(db Beginner, name string) *Schema {
	return &Schema{db: db, name: name, steps: migrations(), limits: Defaults()}
}

// latest is the version that the steps lead to: [Latest].
func (s *Schema) latest() int { return s.steps[len(s.steps)-1].Version }

// Status is where a schema stands.
type Status struct {
	Current    int // the newest migration applied; 0 = none
	Latest     int // what this binary needs
	Migrations []Step
}

// Step is a migration with the time it was applied.
type Step struct {
	Version   int
	Name      string
	AppliedAt time.Time // zero = not yet
	Oldest    int       // the oldest binary schema version that may run beside it
}

// Status returns where the schema stands: the migrations that were applied, among them ones that
// only a newer binary knows, then those that were not. A missing schema is no error.
func (s *Schema) Status(ctx context.Context) (Status, error) {
	var applied []Step
	err := s.read(ctx, func(tx pgx.Tx) (err error) {
		applied, err = s.applied(ctx, tx)
		return err
	})
	if err != nil {
		return Status{}, fmt.Errorf("schema status: %w", err)
	}
	return s.status(applied), nil
}

// Check returns the schema's version, and an error when this binary cannot work with it:
// [ErrMissing], [ErrOlder] or [ErrNewer]. A version above [Latest] without an error means that a
// newer binary migrated, in a way that this one may go on beside.
func (s *Schema) Check(ctx context.Context) (int, error) {
	st, err := s.Status(ctx)
	if err != nil {
		return 0, err
	}
	return st.Current, st.check()
}

func (st Status) check() error {
	oldest := 0
	for _, step := range st.Migrations {
		if !step.AppliedAt.IsZero() {
			oldest = max(oldest, step.Oldest)
		}
	}
	switch {
	case st.Current == 0:
		return ErrMissing
	case st.Current < st.Latest:
		return fmt.Errorf("%w: version %d, needed %d", ErrOlder, st.Current, st.Latest)
	case oldest > st.Latest:
		return fmt.Errorf("%w: version %d, known %d", ErrNewer, st.Current, st.Latest)
	}
	return nil
}

func (s *Schema) status(applied []Step) Status {
	st := Status{Latest: s.latest(), Migrations: applied}
	known := map[int]bool{}
	for _, step := range applied {
		st.Current = max(st.Current, step.Version)
		known[step.Version] = true
	}
	for _, m := range s.steps {
		if !known[m.Version] {
			st.Migrations = append(st.Migrations, Step{Version: m.Version, Name: m.Name, Oldest: m.Oldest})
		}
	}
	return st
}

const migratedSQL = `
select exists (
	select from pg_class c join pg_namespace n on n.oid = c.relnamespace
	 where n.nspname = $1
	   and c.relname = 'outbox_migrations')`

const appliedSQL = `
select version, name, applied_at, min_binary
  from :"schema".outbox_migrations
 order by version`

// applied returns the migrations that the database has, none when it has no outbox.
func (s *Schema) applied(ctx context.Context, tx pgx.Tx) ([]Step, error) {
	var migrated bool
	if err := tx.QueryRow(ctx, migratedSQL, s.name).Scan(&migrated); err != nil || !migrated {
		return nil, err
	}
	rows, err := tx.Query(ctx, in(s.name, appliedSQL))
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[Step])
}

// read runs f in a transaction that can write nothing. Nobody queues behind one that waits to read, so
// it has the patience of all tries together.
func (s *Schema) read(ctx context.Context, f func(pgx.Tx) error) error {
	return s.within(ctx, pgx.ReadOnly, s.limits.all(), func(tx pgx.Tx, _ int) error { return f(tx) })
}

// settingsSQL opens a transaction in which no name resolves but by its schema, and in which a role's
// timeouts, made for queries, do not count.
const settingsSQL = `
select pg_catalog.pg_backend_pid(),
       pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true),
       pg_catalog.set_config('lock_timeout', $1, true),
       pg_catalog.set_config('statement_timeout', '0', true),
       pg_catalog.set_config('idle_in_transaction_session_timeout', '60s', true)`

// within runs f in a transaction with our settings, and tells it its backend's process id.
func (s *Schema) within(ctx context.Context, mode pgx.TxAccessMode, lock time.Duration, f func(pgx.Tx, int) error) error {
	if err := checkName(s.name); err != nil {
		return err
	}
	// Read committed: what is seen after the lock is taken must be newer than the lock.
	opts := pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: mode}
	return pgx.BeginTxFunc(ctx, s.db, opts, func(tx pgx.Tx) error {
		var backend int
		if err := tx.QueryRow(ctx, settingsSQL, milliseconds(lock)).Scan(&backend, nil, nil, nil, nil); err != nil {
			return err
		}
		return f(tx, backend)
	})
}

func checkName(name string) error {
	if name == "" || len(name) > maxName || strings.ContainsRune(name, 0) {
		return fmt.Errorf("%w: %q", ErrName, name)
	}
	return nil
}
