package outbox

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// Replay says which events are to be sent again.
type Replay struct {
	Filter Filter    // with statuses: final ones, and pending where MoveTo is set
	Before time.Time // events that end from then on are not meant: no run takes an event twice
	Rate   float64   // events that become due per second; 0 = all at once
	MoveTo *string   // the destination they go to instead of theirs, of which the filter names one
}

// replayReasons are judged after those of every change, and movedReason where keys might clash.
const (
	replayReasons = `
	                 when f.redacted then 'redacted'
	                 when exists (select
	                                from busy b
	                               where (b.destination, b.tenant_id, b.aggregate_type, b.aggregate_id)
	                                   = (f.destination, f.tenant_id, f.aggregate_type, f.aggregate_id)) then 'in_flight'`

	movedReason = `
	                 when exists (select
	                                from {schema}.outbox k -- outbox_key
	                               where k.idempotency_key = f.idempotency_key
	                                 and k.destination = @move_to) then 'duplicate'`
)

// replaySQL makes an event that has ended as new: the key stays, and so do the attempts' history and
// the time when it happened, which goes into its headers. next_attempt_at is null so that
// available_at decides. An open event is moved as it is; what it waited for was the other destination.
// A shadow stays one.
const replaySQL = `
	update {schema}.outbox o
	   set status = 'pending',
	       destination = coalesce(@move_to::text, o.destination),
	       attempts = case when o.finished_at is null then o.attempts else 0 end,
	       available_at = case when o.finished_at is null then o.available_at else t.due end,
	       next_attempt_at = case when o.finished_at is null and @gap::bigint > 0 and t.due > o.available_at then t.due end,
	       lease = null,
	       lease_until = null,
	       finished_at = null,
	       receipt = null,
	       error = case when o.finished_at is null then o.error end,
	       error_kind = case when o.finished_at is null then o.error_kind end,
	       error_code = case when o.finished_at is null then o.error_code end,
	       headers = case when o.finished_at is not null and isfinite(o.created_at)
	                       and jsonb_typeof(o.headers) = 'object' and not o.headers ? 'occurred_at'
	                      then o.headers || jsonb_build_object('occurred_at',
	                                          to_char(o.created_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'))
	                      else o.headers end,
	       origin = case when o.origin like 'shadow%' then 'shadow ' else '' end || 'replay:' || @operation::bigint,
	       updated_at = clock_timestamp()
	  from (select id, greatest(@due::timestamptz, now()) + place * @gap::bigint * interval '1 microsecond' as due
	          from touched) t
	 where o.id = t.id`

// Replay returns the change that puts events back to pending: with their key, and all their attempts
// before them.
func (s *Store) Replay(r Replay) *Change {
	c := s.change(r.Filter, r.Before, pgx.NamedArgs{"action": "replay", "move_to": r.MoveTo})
	c.rate = r.Rate
	reasons := replayReasons
	if r.MoveTo != nil {
		reasons += movedReason
		c.args["action"] = "move"
	}
	c.compose(reasons, replaySQL)
	return c
}

// spreadSQL finds until when earlier runs of the same command have spread their events, whatever
// ended them: what comes now comes behind.
const spreadSQL = `
select coalesce(max((o.cursor ->> 'due')::timestamptz), now())
  from {schema}.outbox_operations o
  join {schema}.outbox_operations mine on mine.id = @operation
 where o.command = mine.command
   and o.id <> mine.id
   and o.filter - @times::text[] = mine.filter - @times::text[]
   and (o.cursor ->> 'due')::timestamptz > now()`

// freeFrom returns the time from which on a run's events can be due without being more than the rate
// says, together with those of the run before it.
func (c *Change) freeFrom(ctx context.Context, tx pgx.Tx, run *Run) (at time.Time, err error) {
	err = tx.QueryRow(ctx, c.store.sql(spreadSQL), pgx.NamedArgs{
		"operation": run.ID, "times": []string{"since", "until", "finished_before", "rate", "canary"},
	}).Scan(&at)
	if err != nil {
		return at, fmt.Errorf("spread of the run before: %w", err)
	}
	return at, nil
}
