package outbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Ref names one event: by its id, or by its key where the id is 0.
type Ref struct {
	ID  int64
	Key uuid.UUID
}

func (r Ref) String() string {
	if r.ID != 0 {
		return fmt.Sprintf("event %d", r.ID)
	}
	return "the event with the key " + r.Key.String()
}

// ErrNotFound means that nothing is known of an event: no row, and no trace of what became of one.
var ErrNotFound = errors.New("it was never written, or it has been purged")

// SeveralError means that a key names several events: one at each destination.
type SeveralError struct{ Rows []Row }

func (e *SeveralError) Error() string {
	return fmt.Sprintf("the key %s is at %d destinations", e.Rows[0].Key, len(e.Rows))
}

// Detail is all that is known of an event.
type Detail struct {
	ID       int64
	Row      *Row // nil = purged: what follows is what is left
	Content  Content
	Siblings []Row     // the same key at other destinations
	Attempts []Attempt // the oldest first
	Notes    []Note    // the oldest first
	Now      time.Time // by the database's clock
}

// Content is what an event says.
type Content struct {
	Readable bool   // false: the database's role may not read it
	Headers  []byte // JSON
	Payload  []byte // JSON, or any bytes when Binary is set
	Binary   bool
}

// Attempt is one that did not deliver, as outbox_attempts has it, or the one that did.
type Attempt struct {
	Number      int
	At          time.Time // of its end
	Outcome     Status
	Destination string
	ErrorKind   string
	ErrorCode   int
	Error       string // or the receipt
	Latency     time.Duration
	Worker      string
}

// Note is what an operator's command did to an event: a row of outbox_audit and its operation.
type Note struct {
	Operation   int64
	At          time.Time
	Action      string // replay, discard, edit, reveal, …
	Who         string
	Host        string
	Reason      string
	Status      Status // before
	Attempts    int    // before
	Destination string // before
	PayloadHash []byte // SHA-256 of the payload before; nil = it was not changed
}

// maxHistory is how much of an event's history is read, the newest of it.
const maxHistory = 1000

var showLimits = limits{statement: 5 * time.Second, lock: time.Second, reads: true}

const (
	byIDSQL = `
select ` + rowColumns + `
  from {schema}.outbox o -- outbox_pkey
 where o.id = $1`

	byKeySQL = `
select ` + rowColumns + `
  from {schema}.outbox o -- outbox_key
 where o.idempotency_key = $1
 order by o.id`
)

// lookUpRow finds the one row that ref names, in the outbox or else in the archive, and those of both
// that share its key.
func (s *Store) lookUpRow(ctx context.Context, tx pgx.Tx, ref Ref) (row *Row, siblings []Row, err error) {
	key := ref.Key
	if ref.ID != 0 {
		rows, err := collectRows(tx.Query(ctx, s.sql(byIDSQL), ref.ID))
		if err == nil && len(rows) == 0 {
			rows, err = s.archivedRows(ctx, tx, archivedByIDSQL, ref.ID)
		}
		if err != nil || len(rows) == 0 {
			return nil, nil, err
		}
		row, key = &rows[0], rows[0].Key
	}
	live, err := collectRows(tx.Query(ctx, s.sql(byKeySQL), key))
	if err != nil {
		return nil, nil, err
	}
	archived, err := s.archivedRows(ctx, tx, archivedByKeySQL, key)
	if err != nil {
		return nil, nil, err
	}
	named := live
	if len(live) == 0 {
		named = archived
	}
	switch {
	case row != nil:
	case len(named) > 1:
		return nil, nil, &SeveralError{named}
	case len(named) == 1:
		row = new(named[0])
	default:
		return nil, nil, nil
	}
	return row, slices.DeleteFunc(append(live, archived...), func(other Row) bool { return other.ID == row.ID }), nil
}

// Show gathers what is known of an event. The error is [ErrNotFound] when that is nothing, and a
// [SeveralError] when a key names several.
func (s *Store) Show(ctx context.Context, ref Ref) (d *Detail, err error) {
	err = s.inTx(ctx, showLimits, func(tx pgx.Tx) error {
		d = &Detail{ID: ref.ID}
		if err := tx.QueryRow(ctx, nowSQL).Scan(&d.Now); err != nil {
			return err
		}
		if d.Row, d.Siblings, err = s.lookUpRow(ctx, tx, ref); err != nil {
			return err
		}
		if d.Row != nil {
			d.ID = d.Row.ID
			if d.Content, err = s.content(ctx, tx, d.Row); err != nil {
				return err
			}
		}
		return s.history(ctx, tx, d)
	})
	switch {
	case err != nil:
		return nil, fmt.Errorf("show: %w", err)
	case d.Row == nil && len(d.Attempts)+len(d.Notes) == 0:
		return nil, fmt.Errorf("%s is not there: %w", ref, ErrNotFound)
	}
	return d, nil
}

// A reader's role may see how events are doing and not what they say.
const (
	readableSQL = `
select bool_and(has_column_privilege($1::text, c, 'select'))
  from unnest(array['headers', 'payload', 'payload_bytes']) c`

	contentSQL = `
select headers::text, payload_bytes is not null, coalesce(payload_bytes, convert_to(payload::text, 'UTF8'))
  from {schema}{home} -- outbox_pkey, outbox_archive_pkey
 where id = $1`
)

func (s *Store) content(ctx context.Context, tx pgx.Tx, r *Row) (c Content, err error) {
	if err := tx.QueryRow(ctx, readableSQL, s.schema+r.home()).Scan(&c.Readable); err != nil || !c.Readable {
		return c, err
	}
	err = tx.QueryRow(ctx, s.sql(strings.ReplaceAll(contentSQL, "{home}", r.home())), r.ID).Scan(c.targets()...)
	return c, err
}

// targets are where the columns of contentSQL go.
func (c *Content) targets() []any { return []any{&c.Headers, &c.Binary, &c.Payload} }

const (
	attemptsSQL = `
select * from (
	select id, attempt, at, outcome, destination, coalesce(error_kind, ''), coalesce(error_code, 0), coalesce(error, ''),
	       (extract(epoch from coalesce(latency, interval '0')) * 1000000)::bigint, lease
	  from {schema}.outbox_attempts -- outbox_attempts_event
	 where event_id = $1
	 order by id desc
	 limit $2) a
 order by id`

	notesSQL = `
select * from (
	select a.id, a.operation, a.at, a.action, coalesce(op.who, ''), coalesce(op.host, ''), coalesce(op.reason, ''),
	       a.status, a.attempts, a.destination, a.payload_hash
	  from {schema}.outbox_audit a -- outbox_audit_event
	  left join {schema}.outbox_operations op on op.id = a.operation
	 where a.event_id = $1
	 order by a.id desc
	 limit $2) n
 order by id`
)

// history reads the attempts and what operators did.
func (s *Store) history(ctx context.Context, tx pgx.Tx, d *Detail) error {
	rows, err := tx.Query(ctx, s.sql(attemptsSQL), d.ID, maxHistory)
	if err != nil {
		return err
	}
	if d.Attempts, err = pgx.CollectRows(rows, scanAttempt); err != nil {
		return err
	}
	if last, ok := d.Row.delivery(d.Attempts); ok {
		d.Attempts = append(d.Attempts, last)
	}
	if rows, err = tx.Query(ctx, s.sql(notesSQL), d.ID, maxHistory); err != nil {
		return err
	}
	d.Notes, err = pgx.CollectRows(rows, scanNote)
	return err
}

func scanAttempt(row pgx.CollectableRow) (a Attempt, err error) {
	var micros int64
	var lease string
	err = row.Scan(nil, &a.Number, &a.At, &a.Outcome, &a.Destination, &a.ErrorKind, &a.ErrorCode, &a.Error, &micros, &lease)
	a.At, a.Latency, a.Worker = a.At.UTC(), time.Duration(micros)*time.Microsecond, workerOf(lease)
	return a, err
}

func scanNote(row pgx.CollectableRow) (n Note, err error) {
	err = row.Scan(nil, &n.Operation, &n.At, &n.Action, &n.Who, &n.Host, &n.Reason, &n.Status, &n.Attempts, &n.Destination, &n.PayloadHash)
	n.At = n.At.UTC()
	return n, err
}

// delivery is the attempt that delivered, of which the row alone tells.
func (r *Row) delivery(history []Attempt) (Attempt, bool) {
	if r == nil || r.Status != Delivered || r.FinishedAt == nil || r.Attempts == 0 {
		return Attempt{}, false
	}
	if n := len(history); n > 0 && history[n-1].Outcome == Delivered && !history[n-1].At.Before(*r.FinishedAt) {
		return Attempt{}, false
	}
	return Attempt{Number: r.Attempts, At: *r.FinishedAt, Outcome: Delivered, Destination: r.Destination, Error: r.Receipt}, true
}
