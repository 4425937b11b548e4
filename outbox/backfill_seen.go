package outbox

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// seen knows which events are there: in the outbox and in the archive, of what a backfill is about.
// Neither has an index by aggregate over finished events, and the hot path pays for none. So all of
// them are read once, and from then on those that are new. It takes 16
// bytes for an event, and as many again for one whose key comes from [BackfillKey].
//
// What is new has a higher id, but for what was inserted before the reading and committed after it.
// Nobody who has inserted is without a lock on the table until the commit. So mark, below which all
// is known, moves on only when those who held a lock at some moment are gone.
type seen struct {
	spec   BackfillSpec
	origin string // of the run's own events, which are no news

	old   []uuid.UUID // sorted: read at the start
	fresh map[uuid.UUID]bool

	mark    int64    // everything up to this id is known
	next    int64    // a later mark, which counts when
	waiting []string // these transactions have ended; nil = there is none
}

func newSeen(spec BackfillSpec) *seen { return &seen{spec: spec, fresh: map[uuid.UUID]bool{}} }

// aggregateSpace keeps what stands for an aggregate and a type apart from keys.
var aggregateSpace = uuid.NewSHA1(backfillSpace, []byte("aggregate"))

// about stands for all events of a type about an aggregate. Without a tenant in the specification
// the tenant makes no difference.
func (s *seen) about(tenant, aggregateType, aggregateID, eventType string) uuid.UUID {
	if s.spec.Tenant == (Field{}) {
		tenant = ""
	}
	return uuid.NewSHA1(aggregateSpace, []byte(strings.Join([]string{tenant, aggregateType, aggregateID, eventType}, "\x00")))
}

func (s *seen) has(id uuid.UUID) bool {
	_, found := slices.BinarySearchFunc(s.old, id, compareUUIDs)
	return found || s.fresh[id]
}

func compareUUIDs(a, b uuid.UUID) int { return bytes.Compare(a[:], b[:]) }

// events narrows to the constants of the specification.
const events = `
   and (@event_type::text is null or event_type = @event_type)
   and (@aggregate_type::text is null or aggregate_type = @aggregate_type)`

const (
	// writersSQL reads the locks after the snapshot that max(id) is of. Writers of other databases do
	// not count.
	writersSQL = `
select (select coalesce(max(id), 0) from {schema}.outbox),
       array(select virtualtransaction
               from pg_locks
              where locktype = 'relation'
                and relation = @outbox::text::regclass
                and database = (select oid from pg_database where datname = current_database())
                and mode in ('RowExclusiveLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
                and pid is distinct from pg_backend_pid())`

	allEventsSQL = `
select tenant_id, aggregate_type, aggregate_id, event_type, idempotency_key, origin
  from {schema}.outbox
 where true` + events

	newEventsSQL = `
select tenant_id, aggregate_type, aggregate_id, event_type, idempotency_key, origin
  from {schema}.outbox
 where id > @after -- outbox_pkey` + events

	archiveSQL = `select to_regclass(@archive::text) is not null`

	archivedEventsSQL = `
select tenant_id, aggregate_type, aggregate_id, event_type, idempotency_key, origin
  from {schema}.outbox_archive
 where true` + events
)

// tables are the names of tables as values.
func (s *Store) tables() pgx.NamedArgs {
	return pgx.NamedArgs{"outbox": s.schema + ".outbox", "archive": s.schema + ".outbox_archive"}
}

func (s *seen) args() pgx.NamedArgs {
	args := pgx.NamedArgs{"event_type": nil, "aggregate_type": nil}
	if s.spec.EventType.Column == "" {
		args["event_type"] = s.spec.EventType.Value
	}
	if s.spec.AggregateType.Column == "" {
		args["aggregate_type"] = s.spec.AggregateType.Value
	}
	return args
}

// read takes the events of a query in.
func (s *seen) read(ctx context.Context, tx pgx.Tx, sql string, args pgx.NamedArgs, unique bool, add func(uuid.UUID)) error {
	rows, err := tx.Query(ctx, sql, args)
	if err != nil {
		return err
	}
	var tenant, aggregateType, aggregateID, eventType, origin string
	var key uuid.UUID
	_, err = pgx.ForEachRow(rows, []any{&tenant, &aggregateType, &aggregateID, &eventType, &key, &origin}, func() error {
		if origin == s.origin && origin != "" {
			return nil
		}
		if key.Version() == 5 {
			add(key)
		}
		// Where an aggregate has several rows, another row's backfilled event says nothing of this one.
		if s.spec.Existing == SameAggregate && (unique || !strings.HasPrefix(origin, backfilled)) {
			add(s.about(tenant, aggregateType, aggregateID, eventType))
		}
		return nil
	})
	return err
}

// backfilled begins the origin of what a backfill has written.
const backfilled = "backfill:"

// openPatience is how long the start waits for those who are writing.
const openPatience = 30 * time.Second

// Gather reads what is there. It happens once, before the first step, and waits for transactions
// that have written and not committed yet.
func (b *Backfill) Gather(ctx context.Context) error {
	if b.gathered {
		return nil
	}
	if err := b.waitForWriters(ctx); err != nil {
		return err
	}
	if err := b.gatherAll(ctx); err != nil {
		return fmt.Errorf("backfill: read what is there: %w", err)
	}
	slices.SortFunc(b.seen.old, compareUUIDs)
	b.seen.old = slices.Compact(b.seen.old)
	b.gathered = true
	return nil
}

// waitForWriters sets the first mark.
func (b *Backfill) waitForWriters(ctx context.Context) error {
	mark, before, err := b.writers(ctx)
	b.seen.mark = mark
	for deadline := time.Now().Add(openPatience); err == nil && len(before) > 0 && !b.Spec.Force; {
		if time.Now().After(deadline) {
			return fmt.Errorf("%w: a transaction has been writing to the outbox for more than %s, and what it writes cannot be seen yet", ErrBusy, openPatience)
		}
		if err = wait(ctx, 100*time.Millisecond); err != nil {
			return context.Cause(ctx)
		}
		var now []string
		_, now, err = b.writers(ctx)
		before = slices.DeleteFunc(before, func(t string) bool { return !slices.Contains(now, t) })
	}
	if err != nil {
		return fmt.Errorf("backfill: look for open transactions: %w", err)
	}
	return nil
}

func (b *Backfill) writers(ctx context.Context) (top int64, transactions []string, err error) {
	err = b.store.inTx(ctx, slowReads, func(tx pgx.Tx) error {
		return tx.QueryRow(ctx, b.store.sql(writersSQL), b.store.tables()).Scan(&top, &transactions)
	})
	return top, transactions, err
}

// gatherAll reads the outbox from end to end in one statement, and the archive after it: what is moved
// there meanwhile is read once at least.
func (b *Backfill) gatherAll(ctx context.Context) error {
	read := func(tx pgx.Tx, sql string) error {
		return b.seen.read(ctx, tx, b.store.sql(sql), b.seen.args(), b.source.unique, func(id uuid.UUID) {
			b.seen.old = append(b.seen.old, id)
		})
	}
	err := b.store.inTx(ctx, slowReads, func(tx pgx.Tx) error { return read(tx, allEventsSQL) })
	if err != nil {
		return err
	}
	return b.store.inTx(ctx, slowReads, func(tx pgx.Tx) error {
		var there bool
		if err := tx.QueryRow(ctx, archiveSQL, b.store.tables()).Scan(&there); err != nil || !there {
			return err
		}
		return read(tx, archivedEventsSQL)
	})
}

// catchUp reads what has been committed since. It comes after the rows of the page were read: the
// event that was committed with one of them is seen.
func (b *Backfill) catchUp(ctx context.Context, tx pgx.Tx) error {
	s := b.seen
	var top int64
	var writers []string
	if err := tx.QueryRow(ctx, b.store.sql(writersSQL), b.store.tables()).Scan(&top, &writers); err != nil {
		return err
	}
	args := s.args()
	args["after"] = s.mark
	err := s.read(ctx, tx, b.store.sql(newEventsSQL), args, b.source.unique, func(id uuid.UUID) { s.fresh[id] = true })
	if err != nil {
		return err
	}
	s.advance(top, writers)
	return nil
}

// advance moves the mark on when all who were writing at the last look have ended, so that the
// reading after it has seen what they wrote.
func (s *seen) advance(top int64, writers []string) {
	if s.next == 0 {
		s.next, s.waiting = top, writers
		return
	}
	s.waiting = slices.DeleteFunc(s.waiting, func(t string) bool { return !slices.Contains(writers, t) })
	if len(s.waiting) == 0 {
		s.mark = max(s.mark, s.next)
		s.next, s.waiting = top, writers
	}
}
