package outbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
)

// settleSQL writes a batch of mixed outcomes. The lease is the fence: a row that another worker
// took over, or an operator touched, is not in done, and history and rollup are driven by done.
// A release keeps the error that was known.
const settleSQL = `
with v as (
	select *
	  from unnest(@ids::bigint[], @leases::text[], @statuses::text[], @delays::bigint[], @refunds::int[],
	              @receipts::text[], @errors::text[], @kinds::text[], @codes::int[], @latencies::bigint[])
	    as v(id, lease, status, delay, refund, receipt, error, error_kind, error_code, latency)),
done as (
	update {schema}.outbox o
	   set status = v.status,
	       lease = null,
	       lease_until = null,
	       attempts = o.attempts - v.refund,
	       next_attempt_at = case when v.status = 'pending'
	                              then clock_timestamp() + v.delay * interval '1 microsecond'
	                              else o.next_attempt_at end,
	       finished_at = case when v.status <> 'pending' then clock_timestamp() end,
	       receipt = coalesce(nullif(v.receipt, ''), o.receipt),
	       error = case when v.refund = 1 and v.status = 'pending' then o.error else nullif(v.error, '') end,
	       error_kind = case when v.refund = 1 and v.status = 'pending' then o.error_kind else nullif(v.error_kind, '') end,
	       error_code = case when v.refund = 1 and v.status = 'pending' then o.error_code
	                         when v.error_kind <> '' then nullif(v.error_code, 0) end,
	       updated_at = clock_timestamp()
	  from v
	 where o.id = v.id
	   and o.lease = v.lease
	returning o.id, o.destination, o.event_type, o.attempts, o.created_at, o.origin like 'shadow%' as shadow,
	          v.lease, v.status, v.refund, v.error, v.error_kind, v.error_code, v.latency),
history as (
	insert into {schema}.outbox_attempts
	       (event_id, attempt, lease, destination, outcome, error_kind, error_code, error, latency)
	select id, attempts, lease, destination, status, nullif(error_kind, ''), nullif(error_code, 0),
	       nullif(error, ''), latency * interval '1 microsecond'
	  from done
	 where status <> 'delivered'
	   and (refund = 0 or status <> 'pending')),
rolled as (
	insert into {schema}.outbox_rollup as r
	       (minute, worker, destination, event_type, outcome, error_kind, error_code, attempt, shadow, n, latency, age)
	select date_trunc('minute', now()), @slot::smallint, g.*
	  from (select destination, event_type, status, error_kind, error_code, least(attempts, 20)::smallint as attempt, shadow,
	               count(*), sum(latency) * interval '1 microsecond', sum(now() - least(greatest(created_at, now() - interval '1 year'), now()))
	          from done
	         where refund = 0 or status <> 'pending'
	         group by 1, 2, 3, 4, 5, 6, 7
	        offset 0) g -- so that few groups are sorted, not many rows
	 order by destination, event_type, status, error_kind, error_code, attempt, shadow
	on conflict (minute, worker, destination, event_type, outcome, error_kind, error_code, attempt, shadow)
	do update set n = r.n + excluded.n, latency = r.latency + excluded.latency, age = r.age + excluded.age)/*copies*/
select id, lease from done`

// deadLetterSQL is the part of a settle that gives a copy of what has died to another destination,
// in the order of the originals. A copy that is there already starts anew, unless a worker has it. It
// is found by outbox_key.
const deadLetterSQL = `,
copied as (
	insert into {schema}.outbox as c
	       (source_id, tenant_id, aggregate_type, aggregate_id, event_type, schema_version, idempotency_key,
	        destination, headers, payload, payload_bytes, created_at, origin)
	select coalesce(o.source_id, o.id), o.tenant_id, o.aggregate_type, o.aggregate_id, o.event_type, o.schema_version, o.idempotency_key,
	       @dead_letter, o.headers, o.payload, o.payload_bytes, o.created_at, 'dead_letter:' || o.destination
	  from done
	  join {schema}.outbox o on o.id = done.id
	 where done.status in ('failed', 'dead_letter')
	 order by o.id
	on conflict (idempotency_key, destination)
	do update set status = 'pending', attempts = 0, available_at = now(), next_attempt_at = null, finished_at = null,
	              lease = null, lease_until = null, receipt = null, error = null, error_kind = null, error_code = null,
	              origin = excluded.origin, updated_at = clock_timestamp()
	 where c.lease is null
	    or c.lease_until < clock_timestamp())`

// settleStatement is the settle of a queue, without what the queue does not need.
func settleStatement(o QueueOptions) string {
	copies := ""
	if o.DeadLetter != "" {
		copies = deadLetterSQL
	}
	return strings.Replace(settleSQL, "/*copies*/", copies, 1)
}

func settleArgs(outs []Outcome, slot int16, deadLetter string) pgx.NamedArgs {
	n := len(outs)
	ids, delays, latencies := make([]int64, n), make([]int64, n), make([]int64, n)
	refunds, codes := make([]int32, n), make([]int32, n)
	leases, statuses, receipts := make([]string, n), make([]string, n), make([]string, n)
	texts, kinds := make([]string, n), make([]string, n)
	for i, out := range outs {
		ids[i], leases[i], statuses[i] = out.ID, out.Lease, string(out.Status)
		delays[i], latencies[i] = out.Delay.Microseconds(), out.Latency.Microseconds()
		receipts[i], texts[i], kinds[i], codes[i] = out.Receipt, out.Error, out.ErrorKind, int32(out.ErrorCode)
		if out.Refund {
			refunds[i] = 1
		}
	}
	return pgx.NamedArgs{
		"ids": ids, "leases": leases, "statuses": statuses, "delays": delays, "refunds": refunds,
		"receipts": receipts, "errors": texts, "kinds": kinds, "codes": codes, "latencies": latencies,
		"slot": slot, "dead_letter": deadLetter,
	}
}

// settleAlone settles outs without a claim, after a settle was refused, and remembers which of them
// are in the way.
func (q *Queue) settleAlone(ctx context.Context, outs []Outcome) (Exchanged, error) {
	done, err := q.settleFree(ctx, outs)
	q.blocked = keys(done.Held)
	return done, err
}

// settleFree leaves out the rows that somebody else has locked, so that one of them delays only
// itself; a batch with a row that PostgreSQL refuses is halved until the one is found.
func (q *Queue) settleFree(ctx context.Context, outs []Outcome) (Exchanged, error) {
	var sorted sorted
	err := q.store.inTx(ctx, queueLimits, func(tx pgx.Tx) (err error) {
		if sorted, err = q.sortOut(ctx, tx, outs); err != nil || len(sorted.free) == 0 {
			return err
		}
		_, err = tx.Exec(ctx, q.settle, settleArgs(sorted.free, q.slot, q.o.DeadLetter))
		return err
	})
	switch {
	case err == nil:
		return Exchanged{Lost: sorted.lost, Held: sorted.locked}, nil
	case aboutARow(err) && len(outs) > 1:
		return q.halve(ctx, outs)
	case aboutARow(err):
		return q.settleBare(ctx, outs[0], err)
	}
	q.doubt(outs, err)
	return Exchanged{Held: outs}, fmt.Errorf("settle %d events: %w", len(outs), err)
}

// halve settles each half on its own.
func (q *Queue) halve(ctx context.Context, outs []Outcome) (Exchanged, error) {
	left, err := q.settleFree(ctx, outs[:len(outs)/2])
	right, err2 := q.settleFree(ctx, outs[len(outs)/2:])
	return Exchanged{
		Lost:    append(left.Lost, right.Lost...),
		Held:    append(left.Held, right.Held...),
		Refused: cmp.Or(left.Refused, right.Refused),
	}, errors.Join(err, err2)
}

// settleBare settles a refused outcome without its texts, which are all in it that a destination
// wrote. If that is not it, the outcome is held until the row is mended or taken over.
func (q *Queue) settleBare(ctx context.Context, out Outcome, why error) (Exchanged, error) {
	bare := out
	bare.Receipt, bare.Error = "", unreadable
	if bare == out {
		return Exchanged{Held: []Outcome{out}, Refused: fmt.Errorf("settle event %d: %w", out.ID, why)}, nil
	}
	done, err := q.settleFree(ctx, []Outcome{bare})
	if len(done.Held) > 0 {
		done.Held = []Outcome{out}
	}
	return done, err
}

const unreadable = "PostgreSQL refused the text of this outcome"

// sorted is what a settle finds: rows it has locked, rows that others have, and rows whose lease
// is lost.
type sorted struct{ free, locked, lost []Outcome }

// sortOut locks the rows of outs that are free.
func (q *Queue) sortOut(ctx context.Context, tx pgx.Tx, outs []Outcome) (s sorted, err error) {
	free, err := lookUp(ctx, tx, q.freeSQL, outs)
	if err != nil {
		return s, err
	}
	ours, err := lookUp(ctx, tx, q.heldSQL, outs)
	if err != nil {
		return s, err
	}
	for _, out := range outs {
		switch {
		case free[out.key()]:
			s.free = append(s.free, out)
		case ours[out.key()]:
			s.locked = append(s.locked, out)
		default:
			s.lost = append(s.lost, out)
		}
	}
	return s, nil
}

const (
	heldSQL = `
select o.id, o.lease
  from {schema}.outbox o
  join unnest($1::bigint[], $2::text[]) v(id, lease) on o.id = v.id and o.lease = v.lease`

	freeSQL = `
select o.id, o.lease
  from {schema}.outbox o
 where o.id = any ($1::bigint[])
   and o.lease = any ($2::text[])
 order by o.id
   for update skip locked`
)

// lookUp runs a query about the claims of outs: their ids and leases, as two arrays, and more.
func lookUp(ctx context.Context, tx pgx.Tx, sql string, outs []Outcome, more ...any) (map[claimKey]bool, error) {
	ids, leases := make([]int64, len(outs)), make([]string, len(outs))
	for i, out := range outs {
		ids[i], leases[i] = out.ID, out.Lease
	}
	rows, err := tx.Query(ctx, sql, append([]any{ids, leases}, more...)...)
	if err != nil {
		return nil, err
	}
	return keySet(rows)
}

// keySet reads rows of an id and a lease.
func keySet(rows pgx.Rows) (map[claimKey]bool, error) {
	set := make(map[claimKey]bool)
	var key claimKey
	_, err := pgx.ForEachRow(rows, []any{&key.id, &key.lease}, func() error {
		set[key] = true
		return nil
	})
	return set, err
}

// confirm takes back from done.Lost what was settled before with the reply lost: such a row may be
// missing because that first settle went through.
func (q *Queue) confirm(ctx context.Context, outs []Outcome, done *Exchanged) error {
	var unsure []Outcome
	for _, out := range done.Lost {
		if q.doubtful[out.key()] {
			unsure = append(unsure, out)
		}
	}
	ours, err := q.wentThrough(ctx, unsure)
	if err != nil { // to be asked again
		done.Held = append(done.Held, unsure...)
		ours = keys(unsure)
	}
	done.Lost = slices.DeleteFunc(done.Lost, func(out Outcome) bool { return ours[out.key()] })
	held := keys(done.Held)
	for _, out := range outs {
		if !held[out.key()] {
			delete(q.doubtful, out.key())
		}
	}
	return err
}

// wentThroughSQL finds the settles that were done: a failure or a retry has left its history row,
// and a delivered row is final whoever wrote it.
const wentThroughSQL = `
select v.id, v.lease
  from unnest($1::bigint[], $2::text[], $3::bool[]) v(id, lease, delivered)
 where exists (select from {schema}.outbox_attempts a where a.event_id = v.id and a.lease = v.lease)
    or v.delivered and exists (select from {schema}.outbox o where o.id = v.id and o.status = 'delivered')`

// wentThrough finds out of which outs the settle was done. Of a release it does not matter: it has
// changed nothing that counts.
func (q *Queue) wentThrough(ctx context.Context, outs []Outcome) (ours map[claimKey]bool, err error) {
	if len(outs) == 0 {
		return nil, nil
	}
	delivered := make([]bool, len(outs))
	for i, out := range outs {
		delivered[i] = out.Status == Delivered
	}
	err = q.store.inTx(ctx, queueLimits, func(tx pgx.Tx) (err error) {
		ours, err = lookUp(ctx, tx, q.okSQL, outs, delivered)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("confirm: %w", err)
	}
	for _, out := range outs {
		if out.released() {
			ours[out.key()] = true
		}
	}
	return ours, nil
}
