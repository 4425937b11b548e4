package outbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// ErrInFlight means that a worker has a live lease of the event.
var ErrInFlight = errors.New("in_flight")

// ErrChanged means that an event is not as it was when somebody looked at it.
var ErrChanged = errors.New("it has changed meanwhile")

// Editable is an event as it is to be edited.
type Editable struct {
	Row     Row
	Content Content
	Now     time.Time // by the database's clock

	version string // changes with every update of the row
}

const versionSQL = `
select xmin::text, now()
  from {schema}.outbox -- outbox_pkey
 where id = $1`

// Editable reads an event that is to be edited. Errors are those of [Store.Show], and [ErrArchived].
func (s *Store) Editable(ctx context.Context, ref Ref) (e *Editable, err error) {
	err = s.inTx(ctx, showLimits, func(tx pgx.Tx) error {
		row, _, err := s.lookUpRow(ctx, tx, ref)
		if err != nil {
			return err
		}
		if row == nil {
			return fmt.Errorf("%s is not there: %w", ref, ErrNotFound)
		}
		if row.ArchivedAt != nil {
			return fmt.Errorf("%s cannot be edited: %w", ref, ErrArchived)
		}
		e = &Editable{Row: *row}
		// The version before the content: what changes in between is not edited unseen.
		if err := tx.QueryRow(ctx, s.sql(versionSQL), row.ID).Scan(&e.version, &e.Now); err != nil {
			return err
		}
		e.Content, err = s.content(ctx, tx, row)
		return err
	})
	if err != nil && !errors.Is(err, ErrNotFound) && !errors.Is(err, ErrArchived) {
		return nil, fmt.Errorf("edit: %w", err)
	}
	return e, err
}

// editSQL changes the row only as it was seen, and never one that a worker has.
const editSQL = `
with touched as (
	select id, status, attempts, destination, sha256(coalesce(payload_bytes, convert_to(payload::text, 'UTF8'))) as payload_hash
	  from {schema}.outbox -- outbox_pkey
	 where id = @id
	   and xmin::text = @version
	   and (lease_until is null or lease_until < clock_timestamp())
	   for update),
edited as (
	update {schema}.outbox o
	   set payload = @json::text::jsonb,
	       payload_bytes = @bytes::bytea,
	       idempotency_key = coalesce(@key::uuid, o.idempotency_key),
	       updated_at = clock_timestamp()
	  from touched t
	 where o.id = t.id
	returning o.id),
noted as (` + auditSQL + `)
select count(*) from edited`

// Edit gives an event another payload, and another key where newKey is not nil. Its status stays.
// The hash of the payload before is kept in outbox_audit. The error is [ErrInFlight] when a worker
// has it, and [ErrChanged] when it is not as e has it any more: nothing is changed then.
func (r *Run) Edit(ctx context.Context, e *Editable, payload []byte, newKey *uuid.UUID) error {
	args := pgx.NamedArgs{
		"id": e.Row.ID, "version": e.version, "operation": r.ID, "action": "edit", "key": newKey,
		"json": nil, "bytes": nil,
	}
	if e.Content.Binary {
		args["bytes"] = payload
	} else {
		args["json"] = string(payload)
	}
	var why error
	_, err := r.step(ctx, func(tx pgx.Tx, p *Progress) (n int, err error) {
		why = nil
		if err := tx.QueryRow(ctx, r.store.sql(editSQL), args).Scan(&n); err != nil {
			return 0, err
		}
		if n > 0 {
			p.Done = int64(n)
			return n, nil
		}
		if why, err = r.whyNot(ctx, tx, e.Row.ID); errors.Is(why, ErrInFlight) {
			p.skip(SkipInFlight, 1)
		} else {
			p.skip(SkipState, 1)
		}
		return 0, err
	})
	if err = errors.Join(err, why); err != nil {
		return fmt.Errorf("edit event %d: %w", e.Row.ID, err)
	}
	return nil
}

// whyNot says why an event could not be edited.
func (r *Run) whyNot(ctx context.Context, tx pgx.Tx, id int64) (why, err error) {
	rows, err := collectRows(tx.Query(ctx, r.store.sql(byIDSQL), id))
	switch {
	case err != nil:
		return nil, err
	case len(rows) == 0:
		return ErrNotFound, nil
	}
	var now time.Time
	if err := tx.QueryRow(ctx, nowSQL).Scan(&now); err != nil {
		return nil, err
	}
	if rows[0].Leased(now) {
		return ErrInFlight, nil
	}
	return ErrChanged, nil
}
