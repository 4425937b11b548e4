package migrate

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

const (
	pause    = 50 * time.Millisecond // between two looks at a lock; ±50 %
	patience = 5 * time.Minute       // with another migration that holds the lock
	tries    = 10                    // of one migration that others' locks are in the way of
)

// Up applies the migrations that are missing, each in a transaction of its own, and yields them
// as they are committed. Run by several at once, each migration is applied and yielded by one of
// them, and all end when there is nothing left to apply. A missing schema is created.
//
// It yields an error at most once, as its last: [ErrNewer] when the database knows migrations
// that this binary does not, [ErrBusy] when others' locks do not go away, [ErrName], or the
// database's. What was yielded before stays applied.
func (s *Schema) Up(ctx context.Context) iter.Seq2[Migration, error] {
	return func(yield func(Migration, error) bool) {
		for {
			m, done, err := s.patiently(ctx)
			if err != nil {
				yield(Migration{}, err)
				return
			}
			if done || !yield(m, nil) {
				return
			}
		}
	}
}

// patiently applies the next migration, and tries again while others are in the way.
func (s *Schema) patiently(ctx context.Context) (m Migration, done bool, err error) {
	start := time.Now()
	for failed := 0; ; {
		m, done, err = s.next(ctx)
		switch {
		case err == nil:
			return m, done, nil
		case errors.Is(err, errLocked):
			if time.Since(start) > patience {
				return m, false, fmt.Errorf("%w: another migration has been running for %s", ErrBusy, patience)
			}
		case passing(err):
			if failed++; failed == tries {
				return m, false, fmt.Errorf("%w: %w", ErrBusy, err)
			}
		default:
			return m, false, err
		}
		if err := sleep(ctx, pause/2+rand.N(pause)); err != nil {
			return m, false, err
		}
	}
}

// errLocked says that another migration of this schema holds the lock.
var errLocked = errors.New("another migration is running")

// limitsSQL: producers and dispatchers queue behind a DDL statement that waits for a lock, so rather
// give up and come again. Our own work may take longer than a role's queries usually may.
const limitsSQL = `set local lock_timeout = '2s'; set local statement_timeout = 0`

// lockSQL does not wait: a session that waits for a lock inside the server is not cancelled when
// its process dies, and would hold up the migration after next. It belongs to the transaction, so
// it cannot be left behind and works through a pooler.
const lockSQL = `select pg_try_advisory_xact_lock($1)`

// next applies the first migration that is missing; done says that there is none.
func (s *Schema) next(ctx context.Context) (m Migration, done bool, err error) {
	err = s.within(ctx, pgx.ReadWrite, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, limitsSQL); err != nil {
			return err
		}
		var locked bool
		if err := tx.QueryRow(ctx, lockSQL, lockKey(s.name)).Scan(&locked); err != nil {
			return fmt.Errorf("lock the schema: %w", err)
		}
		if !locked {
			return errLocked
		}
		applied, err := s.applied(ctx, tx)
		if err != nil {
			return fmt.Errorf("read the schema's version: %w", err)
		}
		m, done, err = missing(applied)
		if err != nil || done {
			return err
		}
		return s.apply(ctx, tx, m)
	})
	return m, done, err
}

// missing returns the first migration that was not applied.
func missing(applied []Step) (m Migration, done bool, err error) {
	for _, step := range applied {
		if step.Version > Latest {
			return m, false, fmt.Errorf("%w: version %d, known %d", ErrNewer, step.Version, Latest)
		}
	}
	for _, m := range migrations() {
		have := func(step Step) bool { return step.Version == m.Version }
		if !slices.ContainsFunc(applied, have) {
			return m, false, nil
		}
	}
	return m, true, nil
}

const schemaExistsSQL = `select exists (select from pg_namespace where nspname = $1)`

const recordSQL = `
insert into :"schema".outbox_migrations (version, name, min_binary)
values ($1, $2, $3)`

func (s *Schema) apply(ctx context.Context, tx pgx.Tx, m Migration) error {
	// `create schema if not exists` needs the right to create one even where there is one.
	var exists bool
	if err := tx.QueryRow(ctx, schemaExistsSQL, s.name).Scan(&exists); err != nil {
		return err
	}
	if !exists {
		if _, err := tx.Exec(ctx, in(s.name, `create schema :"schema"`)); err != nil {
			return fmt.Errorf("create schema %q: %w", s.name, err)
		}
	}
	if _, err := tx.Exec(ctx, in(s.name, m.up)); err != nil {
		return fmt.Errorf("migration %d %s: %w", m.Version, m.Name, err)
	}
	if _, err := tx.Exec(ctx, in(s.name, recordSQL), m.Version, m.Name, m.Oldest); err != nil {
		return fmt.Errorf("record migration %d: %w", m.Version, err)
	}
	return nil
}

// lockKey is the advisory lock of migrations of a schema. Two schemas of one database share it
// once in 2^64 pairs, and then only wait for each other.
func lockKey(schema string) int64 {
	sum := sha256.Sum256([]byte("outboxctl\x00migrate\x00" + schema))
	return int64(binary.BigEndian.Uint64(sum[:8]))
}

// passing reports whether err is of a kind that goes away: someone else's locks, or a schema that
// someone else, who does not take ours, created in between.
func passing(err error) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return ok && slices.Contains([]string{
		"55P03", // lock_not_available: lock_timeout
		"40P01", // deadlock_detected
		"40001", // serialization_failure
		"42P06", // duplicate_schema
	}, pg.Code) || ok && pg.Code == "23505" && pg.ConstraintName == "pg_namespace_nspname_index"
}

// sleep waits for d, or until ctx is done.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
