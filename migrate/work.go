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
	pause    = 50 * time.Millisecond // between two looks at the lock of migrations; ±50 %
	patience = 5 * time.Minute       // with another migration, and of work that nobody queues behind
)

// Limits bound the waiting for others' locks. Producers and dispatchers queue behind a statement
// that waits for a lock of a table: so it gives up soon, lets them pass, and comes again.
type Limits struct {
	Lock  time.Duration // of one try
	Tries int           // of one migration
}

// all is the time that the tries take together.
func (l Limits) all() time.Duration { return time.Duration(l.Tries) * l.Lock }

// MaxLock is the longest that producers should have to queue behind a migration.
const MaxLock = 2 * time.Second

// Defaults returns the usual limits. One try is longer than PostgreSQL's deadlock_timeout, after
// which an autovacuum that is in the way is sent away.
func Defaults() Limits { return Limits{Lock: 1500 * time.Millisecond, Tries: 10} }

// Limit sets how long migrations wait for others' locks.
func (s *Schema) Limit(l Limits) { s.limits = l }

// work is one run of Up or Down.
type work struct {
	*Schema
	*teller
}

// working makes the iterator of a run.
func (s *Schema) working(run func(*work) error) iter.Seq2[News, error] {
	return func(yield func(News, error) bool) {
		w := &work{s, &teller{yield: yield}}
		w.end(run(w))
	}
}

// patiently runs f in a transaction that holds the lock of migrations, and tries again while others
// are in the way of what.
func (w *work) patiently(ctx context.Context, what string, f func(context.Context, pgx.Tx) error) error {
	w.told = nil
	start, failed := time.Now(), 0
	for {
		err := w.watched(ctx, what, func(ctx context.Context, pid chan<- int) error { return w.locked(ctx, pid, f) })
		switch {
		case err == nil:
			return nil
		case errors.Is(err, errLocked):
			err = w.queue(ctx, start)
		case passing(err):
			if failed++; failed >= w.limits.Tries {
				return w.busy(err)
			}
			err = sleep(ctx, w.rest(err))
		}
		if err != nil {
			return err
		}
	}
}

// rest is the time between two tries. Those who queued behind a lock have it to themselves for
// twice as long as they waited.
func (w *work) rest(err error) time.Duration {
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok && pg.Code == lockNotAvailable {
		return 2 * w.limits.Lock
	}
	return jitter(pause)
}

// errLocked says that another migration of this schema holds the lock.
var errLocked = errors.New("another migration is running")

// lockSQL does not wait: a session that waits for a lock inside the server is not cancelled when
// its process dies, and would hold up the migration after next. It belongs to the transaction, so
// it cannot be left behind and works through a pooler.
const lockSQL = `select pg_try_advisory_xact_lock($1)`

func (w *work) locked(ctx context.Context, pid chan<- int, f func(context.Context, pgx.Tx) error) error {
	return w.within(ctx, pgx.ReadWrite, w.limits.Lock, func(tx pgx.Tx, backend int) error {
		pid <- backend
		var locked bool
		if err := tx.QueryRow(ctx, lockSQL, lockKey(w.name)).Scan(&locked); err != nil {
			return fmt.Errorf("lock the schema: %w", err)
		}
		if !locked {
			return errLocked
		}
		return f(ctx, tx)
	})
}

func milliseconds(d time.Duration) string { return fmt.Sprintf("%dms", d.Milliseconds()) }

// lockKey is the advisory lock of migrations of a schema. Two schemas of one database share it
// once in 2^64 pairs, and then only wait for each other.
func lockKey(schema string) int64 {
	sum := sha256.Sum256([]byte("outboxctl\x00migrate\x00" + schema))
	return int64(binary.BigEndian.Uint64(sum[:8]))
}

const lockNotAvailable = "55P03" // what lock_timeout ends with

// passing reports whether err is of a kind that goes away: someone else's locks, or a schema that
// someone else, who does not take ours, created in between.
func passing(err error) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return ok && slices.Contains([]string{
		lockNotAvailable,
		"40P01", // deadlock_detected
		"40001", // serialization_failure
		"42P06", // duplicate_schema
	}, pg.Code) || ok && pg.Code == "23505" && pg.ConstraintName == "pg_namespace_nspname_index"
}

// jitter keeps several that wait for the same thing apart: d ±50 %.
func jitter(d time.Duration) time.Duration { return d/2 + rand.N(d) }

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
