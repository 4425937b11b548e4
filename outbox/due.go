package outbox

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// DueCount counts due events of one type.
type DueCount struct {
	Type   string
	N      int64
	Oldest time.Duration // how long the oldest has been due
}

// dueSQL counts no more than @limit rows: a backlog is told, not measured.
const dueSQL = `
select event_type, count(*), max(now() - due)
  from (select o.event_type, coalesce(o.next_attempt_at, o.available_at) as due
          from {schema}.outbox o -- outbox_due
         where o.destination = @destination
           and o.finished_at is null
           and coalesce(o.next_attempt_at, o.available_at) <= now()
           and (o.lease_until is null or o.lease_until < now())/*types*//*tenants*/
         limit @limit) d
 group by event_type
 order by event_type`

// Due counts what a claim could take now from a destination, by event type, up to limit events.
func (s *Store) Due(ctx context.Context, destination string, only Selection, limit int) (counts []DueCount, err error) {
	err = s.inTx(ctx, statsLimits, func(tx pgx.Tx) error {
		args := only.args()
		args["destination"], args["limit"] = destination, limit
		rows, err := tx.Query(ctx, s.sql(only.narrow(dueSQL)), args)
		if err != nil {
			return err
		}
		counts, err = pgx.CollectRows(rows, pgx.RowToStructByPos[DueCount])
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("due: %w", err)
	}
	return counts, nil
}

const waitsSQL = `
select exists (select
                 from {schema}.outbox o -- outbox_due
                where o.destination = @destination
                  and o.finished_at is null
                  and coalesce(o.next_attempt_at, o.available_at) <= now()
                  and (o.lease_until is null or o.lease_until < now())
                  and o.origin not like 'shadow%'/*types*//*tenants*/)`

// Waits reports whether a claim could take an event from a destination now, shadow copies left out.
func (s *Store) Waits(ctx context.Context, destination string, only Selection) (waits bool, err error) {
	err = s.inTx(ctx, statsLimits, func(tx pgx.Tx) error {
		args := only.args()
		args["destination"] = destination
		return tx.QueryRow(ctx, s.sql(only.narrow(waitsSQL)), args).Scan(&waits)
	})
	if err != nil {
		return false, fmt.Errorf("what waits: %w", err)
	}
	return waits, nil
}
