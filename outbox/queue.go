package outbox

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	mathrand "math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
)

// queueLimits bound an exchange. The lock timeout is short: claims skip locked rows, so only a
// settle waits, and it has a better way than waiting; see settleAlone.
var queueLimits = limits{statement: 10 * time.Second, lock: 500 * time.Millisecond}

// exchangeTimeout bounds an exchange as seen from here, the way to the server included.
const exchangeTimeout = 15 * time.Second

// QueueOptions say whose events a [Queue] hands out, to whom and for how long.
type QueueOptions struct {
	Destination  string        // "" = the default one
	Worker       string        // a name for logs and leases; the fence is the claim's random part
	Lease        time.Duration // how long a claimed event is ours
	MaxAttempts  int           // beyond it, a claim looks up how many attempts shutdowns cut off
	PollInterval time.Duration // a walk from the very start happens at least this often
	Only         Selection
}

// Queue is one destination's side of the lease protocol: it claims due events and settles what
// became of them. It implements [Source] and serves one loop.
type Queue struct {
	store    *Store
	o        QueueOptions
	slot     int16 // spreads the workers' rollup rows
	walk     walk
	fullSQL  string
	markSQL  string
	settle   string
	bodySQL  string
	okSQL    string
	freeSQL  string
	heldSQL  string
	doubtful map[claimKey]bool // settled once, with the reply lost
	blocked  map[claimKey]bool // found locked or refused, to be settled without a claim beside it
}

var _ Source = (*Queue)(nil)

// Queue returns the queue of one destination.
func (s *Store) Queue(o QueueOptions) *Queue {
	o.Worker = clean(o.Worker)
	q := &Queue{store: s, o: o, slot: int16(mathrand.N(1 << 15)), walk: walk{every: o.PollInterval}, doubtful: map[claimKey]bool{}}
	q.fullSQL = s.sql(q.o.Only.narrow(claimFullSQL))
	q.markSQL = s.sql(q.o.Only.narrow(claimMarkedSQL))
	q.settle, q.okSQL = s.sql(settleSQL), s.sql(wentThroughSQL)
	q.bodySQL = s.sql(payloadSQL)
	q.freeSQL, q.heldSQL = s.sql(freeSQL), s.sql(heldSQL)
	return q
}

// Exchange settles outs and claims up to want.N due events, in one transaction and one round trip.
//
// An error never loses an outcome: what was not settled for sure is in the result's Held, also
// when the error is not nil.
func (q *Queue) Exchange(ctx context.Context, outs []Outcome, want Want) (Exchanged, error) {
	ctx, cancel := context.WithTimeout(ctx, exchangeTimeout)
	defer cancel()
	slices.SortFunc(outs, func(a, b Outcome) int { return cmp.Compare(a.ID, b.ID) }) // the order of locks
	done, err := q.exchange(ctx, outs, want)
	return done, errors.Join(err, q.confirm(ctx, outs, &done), q.countShutdowns(ctx, done.Events))
}

// shutdownsSQL counts how many of an event's attempts a shutdown cut off.
const shutdownsSQL = `
select event_id, count(*)
  from {schema}.outbox_attempts -- outbox_attempts_event
 where event_id = any ($1::bigint[])
   and error_kind = 'shutdown'
 group by event_id`

// countShutdowns looks the shutdowns of the events up that were claimed more often than allowed:
// such attempts do not count against an event.
func (q *Queue) countShutdowns(ctx context.Context, events []Event) error {
	worn := make(map[int64]*Event)
	for i, ev := range events {
		if ev.Attempts > q.o.MaxAttempts {
			worn[ev.ID] = &events[i]
		}
	}
	if len(worn) == 0 {
		return nil
	}
	err := q.store.inTx(ctx, queueLimits, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, q.store.sql(shutdownsSQL), slices.Collect(maps.Keys(worn)))
		if err != nil {
			return err
		}
		var id int64
		var n int
		_, err = pgx.ForEachRow(rows, []any{&id, &n}, func() error {
			worn[id].Shutdowns = n
			return nil
		})
		return err
	})
	if err != nil {
		for _, ev := range worn { // not known to have crashed: to be sent, not buried
			ev.Shutdowns = ev.Attempts
		}
		return fmt.Errorf("count shutdowns: %w", err)
	}
	return nil
}

// exchange tries the one round trip, and the settle alone when PostgreSQL refuses that.
func (q *Queue) exchange(ctx context.Context, outs []Outcome, want Want) (Exchanged, error) {
	if slices.ContainsFunc(outs, func(out Outcome) bool { return q.blocked[out.key()] }) {
		return q.settleAlone(ctx, outs)
	}
	done, err := q.roundTrip(ctx, outs, want)
	switch {
	case err == nil:
		return done, nil
	case refused(err) && len(outs) > 0:
		alone, settleErr := q.settleAlone(ctx, outs)
		return alone, errors.Join(settleErr, claimTrouble(err, settleErr))
	}
	q.doubt(outs, err)
	return Exchanged{Held: outs}, fmt.Errorf("exchange: %w", err)
}

// doubt notes that a settle of outs may have gone through although it ended with err.
func (q *Queue) doubt(outs []Outcome, err error) {
	if refused(err) || pgconn.SafeToRetry(err) {
		return
	}
	for _, out := range outs {
		q.doubtful[out.key()] = true
	}
}

// refused reports whether PostgreSQL answered with an error and is still there: nothing of the
// transaction was done.
func refused(err error) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return ok && pg.SeverityUnlocalized != "FATAL" && pg.SeverityUnlocalized != "PANIC" && !strings.HasPrefix(pg.Code, "57P")
}

// claimTrouble keeps the first error for the caller, unless a settle alone has explained it: a
// locked or bad outcome is no reason to stop claiming. Were it the claim's own, the next one tells.
func claimTrouble(err, settleErr error) error {
	pg, _ := errors.AsType[*pgconn.PgError](err)
	if settleErr == nil && (pg.Code == lockNotAvailable || aboutARow(err)) {
		return nil
	}
	return fmt.Errorf("claim: %w", err)
}

const lockNotAvailable = "55P03"

// aboutARow reports whether a single row of a batch may be all that is wrong: its data, or what a
// constraint or a trigger of somebody's says of it.
func aboutARow(err error) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return ok && slices.Contains([]string{"22", "23", "44", "P0"}, pg.Code[:min(2, len(pg.Code))])
}

// roundTrip sends the whole transaction as one pipeline.
func (q *Queue) roundTrip(ctx context.Context, outs []Outcome, want Want) (Exchanged, error) {
	conn, err := q.store.db.Acquire(ctx)
	if err != nil {
		return Exchanged{}, err
	}
	defer conn.Release() // a connection inside a failed transaction is closed, not reused

	var (
		batch   pgx.Batch
		settled map[claimKey]bool
		claim   = claimed{destination: q.o.Destination, lease: newLease(q.o.Worker)}
	)
	batch.Queue(beginSQL)
	batch.Queue(localSQL, queueLimits.args()...)
	if len(outs) > 0 {
		batch.Queue(q.settle, settleArgs(outs, q.slot)).Query(func(rows pgx.Rows) (err error) {
			settled, err = keySet(rows)
			return err
		})
	}
	if want.N > 0 {
		sql, args := q.claimStatement(want, claim.lease)
		batch.Queue(sql, args).Query(func(rows pgx.Rows) error { return claim.scan(rows) })
	}
	batch.Queue(commitSQL)
	if err := conn.SendBatch(ctx, &batch).Close(); err != nil {
		return Exchanged{}, err
	}
	done := Exchanged{Events: claim.events}
	for _, out := range outs {
		if !settled[out.key()] {
			done.Lost = append(done.Lost, out)
		}
	}
	if want.N > 0 {
		done.CameRound = q.walk.took(&claim, want.N)
	}
	return done, nil
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

func (q *Queue) claimStatement(want Want, lease string) (string, pgx.NamedArgs) {
	args := q.o.Only.args()
	args["destination"], args["want"] = q.o.Destination, want.N
	args["lease"], args["duration"] = lease, q.o.Lease.Microseconds()
	if q.walk.next(want.Fresh) {
		args["from"], args["visits"] = q.walk.from, maxVisits
		return q.fullSQL, args
	}
	args["tenants"], args["dues"], args["ids"] = q.walk.marks()
	return q.markSQL, args
}

// A claim takes the oldest due rows of one tenant after the other, until it has what it wants; who
// gave some is last in line for the next claim.
//
// The rows are locked in a sub-select that runs once and hands their ids over as an array: so the
// limit holds under every plan, and the planner cannot scan the table. Nothing that a claim writes
// is in an index, so every claim is a HOT update.
//
// claimFullSQL finds the tenants by a loose scan over outbox_due, from @from on, at most @visits
// of them, and says which tenant comes next: null at the end of the walk.
const claimFullSQL = `
with recursive tenant as (
	(select tenant_id
	   from {schema}.outbox -- outbox_due
	  where destination = @destination
	    and finished_at is null
	    and tenant_id >= @from
	  order by tenant_id
	  limit 1)
	union all
	select (select n.tenant_id
	          from {schema}.outbox n -- outbox_due
	         where n.destination = @destination
	           and n.finished_at is null
	           and n.tenant_id > t.tenant_id
	         order by n.tenant_id
	         limit 1)
	  from tenant t
	 where t.tenant_id is not null),
visited as materialized (
	select tenant_id, '-infinity'::timestamptz as due, 0::bigint as id
	  from tenant
	 where tenant_id is not null
	 limit @visits),` + claimDueSQL + claimTakeSQL + `
select r.tenants, r.moment,
       (select n.tenant_id
          from {schema}.outbox n -- outbox_due
         where n.destination = @destination
           and n.finished_at is null
           and n.tenant_id > r.last
         order by n.tenant_id
         limit 1) as next_tenant, t.*
  from (select (select array_agg(tenant_id) from visited) as tenants,
               now() as moment,
               coalesce((select tenant_id from due offset @want - 1), (select max(tenant_id) from visited)) as last) r
  full join taken t on false`

// claimMarkedSQL visits the tenants that the last full walk found, each from its low-water mark
// on. Between two full walks that spares the entries of rows that are taken already, which a long
// transaction elsewhere keeps in the index.
const claimMarkedSQL = `
with visited as (
	select tenant_id, due, id
	  from unnest(@tenants::text[], @dues::timestamptz[], @ids::bigint[]) m(tenant_id, due, id)),` +
	claimDueSQL + claimTakeSQL + `
select null::text[] as tenants, r.moment, null::text as next_tenant, t.*
  from (select now() as moment) r
  full join taken t on false`

const claimDueSQL = `
due as materialized (
	select d.id, v.tenant_id
	  from visited v
	 cross join lateral (
		select o.id
		  from {schema}.outbox o -- outbox_due
		 where o.destination = @destination
		   and o.tenant_id = v.tenant_id
		   and o.finished_at is null
		   and coalesce(o.next_attempt_at, o.available_at) <= now()
		   and (coalesce(o.next_attempt_at, o.available_at), o.id) > (v.due, v.id)
		   and (o.lease_until is null or o.lease_until < now())/*only*/
		 order by coalesce(o.next_attempt_at, o.available_at), o.id
		 limit @want
		   for update skip locked) d
	 limit @want),`

const claimTakeSQL = `
taken as (
	update {schema}.outbox o
	   set status = 'in_progress',
	       attempts = least(o.attempts, 2147483646) + 1,
	       lease = @lease,
	       lease_until = clock_timestamp() + @duration::bigint * interval '1 microsecond',
	       last_attempt_at = clock_timestamp(),
	       updated_at = clock_timestamp()
	 where o.id = any (array (select id from due))
	returning o.id, coalesce(o.source_id, 0) as source_id, o.tenant_id, o.aggregate_type, o.aggregate_id,
	          o.event_type, o.schema_version, o.idempotency_key, o.headers::text,
	          case when pg_column_size(o.payload) > 2000 and octet_length(o.payload::text) > 65536
	               then null else o.payload::text end as payload,
	          case when octet_length(o.payload_bytes) <= 65536 then o.payload_bytes end as payload_bytes,
	          case when o.payload is null then octet_length(o.payload_bytes)
	               when pg_column_size(o.payload) > 2000 then octet_length(o.payload::text)
	               else 0 end as size,
	          o.payload is null as is_binary, o.attempts, o.created_at,
	          coalesce(o.next_attempt_at, o.available_at) as due)`

// payloadSQL reads what a claim left behind because it is large: a batch of such payloads would fill
// the memory.
const payloadSQL = `
select coalesce(convert_to(payload::text, 'UTF8'), payload_bytes)
  from {schema}.outbox
 where id = $1
   and lease = $2`

// Payload reads the payload of a claimed event that has it Deferred. It returns [ErrLeaseLost] when
// the event is not ours any more.
func (q *Queue) Payload(ctx context.Context, ev *Event) (payload []byte, err error) {
	err = q.store.inTx(ctx, queueLimits, func(tx pgx.Tx) error {
		return tx.QueryRow(ctx, q.bodySQL, ev.ID, ev.Lease).Scan(&payload)
	})
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return nil, ErrLeaseLost
	case err != nil:
		return nil, fmt.Errorf("payload: %w", err)
	}
	return payload, nil
}

// claimed is what a claim brought back.
type claimed struct {
	destination string
	lease       string

	events  []Event
	tenants []string  // a full walk's
	next    *string   // where a full walk goes on; nil at its end
	moment  time.Time // the database's
}

// scan reads one row about the walk and one per event; the full join has put them side by side.
func (c *claimed) scan(rows pgx.Rows) error {
	for rows.Next() {
		if isWalk := rows.RawValues()[1] != nil; isWalk {
			if err := rows.Scan(append([]any{&c.tenants, &c.moment, &c.next}, make([]any, eventColumns)...)...); err != nil {
				return err
			}
			continue
		}
		ev, err := scanEvent(rows)
		if err != nil {
			return err
		}
		ev.Destination, ev.Lease = c.destination, c.lease
		c.events = append(c.events, ev)
	}
	slices.SortFunc(c.events, func(a, b Event) int { // returning has no order
		return cmp.Or(a.Due.Compare(b.Due), cmp.Compare(a.ID, b.ID))
	})
	return rows.Err()
}

const eventColumns = 16

func scanEvent(rows pgx.Rows) (ev Event, err error) {
	var headers, binary []byte
	err = rows.Scan(nil, nil, nil,
		&ev.ID, &ev.SourceID, &ev.TenantID, &ev.AggregateType, &ev.AggregateID,
		&ev.Type, &ev.SchemaVersion, (*[16]byte)(&ev.Key), &headers,
		&ev.Payload, &binary, &ev.Size, &ev.Binary, &ev.Attempts, (*moment)(&ev.CreatedAt), (*moment)(&ev.Due))
	if err != nil {
		return ev, err
	}
	if ev.Binary {
		ev.Payload = binary
	}
	ev.Deferred = ev.Payload == nil
	ev.Size = max(ev.Size, len(ev.Payload))
	ev.Headers, ev.Invalid = decodeHeaders(headers)
	return ev, nil
}

// moment reads a time of PostgreSQL's, which may be infinite.
type moment time.Time

// ScanTimestamptz implements [pgtype.TimestamptzScanner].
func (m *moment) ScanTimestamptz(v pgtype.Timestamptz) error {
	switch v.InfinityModifier {
	case pgtype.Infinity:
		*m = moment(time.Date(9999, time.December, 31, 0, 0, 0, 0, time.UTC))
	case pgtype.NegativeInfinity:
		*m = moment(time.Date(1, time.January, 1, 0, 0, 0, 0, time.UTC))
	default:
		*m = moment(v.Time)
	}
	return nil
}

// decodeHeaders takes an object of scalars. Anything else cannot be sent, which is the row's
// trouble alone.
func decodeHeaders(text []byte) (map[string]string, string) {
	if string(text) == "{}" {
		return nil, ""
	}
	var raw map[string]any
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.UseNumber()
	if err := dec.Decode(&raw); err != nil || raw == nil {
		return nil, "headers is not an object"
	}
	headers := make(map[string]string, len(raw))
	for name, value := range raw {
		switch v := value.(type) {
		case nil:
		case string:
			headers[name] = v
		case json.Number, bool:
			headers[name] = fmt.Sprint(v)
		default:
			return nil, "a header is neither a string nor a number"
		}
	}
	return headers, ""
}

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
	returning o.id, o.destination, o.event_type, o.attempts, o.created_at,
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
	       (minute, worker, destination, event_type, outcome, error_kind, error_code, attempt, n, latency, age)
	select date_trunc('minute', now()), @slot::smallint, g.*
	  from (select destination, event_type, status, error_kind, error_code, least(attempts, 20)::smallint as attempt,
	               count(*), sum(latency) * interval '1 microsecond', sum(now() - least(greatest(created_at, now() - interval '1 year'), now()))
	          from done
	         where refund = 0 or status <> 'pending'
	         group by 1, 2, 3, 4, 5, 6
	        offset 0) g -- so that few groups are sorted, not many rows
	 order by destination, event_type, status, error_kind, error_code, attempt
	on conflict (minute, worker, destination, event_type, outcome, error_kind, error_code, attempt)
	do update set n = r.n + excluded.n, latency = r.latency + excluded.latency, age = r.age + excluded.age)
select id, lease from done`

func settleArgs(outs []Outcome, slot int16) pgx.NamedArgs {
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
		"slot": slot,
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
		_, err = tx.Exec(ctx, q.settle, settleArgs(sorted.free, q.slot))
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

// newLease is the worker's name, for people, and 64 random bits, the fence.
func newLease(worker string) string {
	var token [8]byte
	_, _ = rand.Read(token[:]) // never fails
	return worker + "/" + hex.EncodeToString(token[:])
}
