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
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
)

func (q *Queue) claimStatement(want Want, lease string) (string, pgx.NamedArgs) {
	args := q.o.Only.args()
	n, retries := q.walk.turns.choose(want)
	args["destination"], args["want"] = q.o.Destination, n
	args["lease"], args["duration"] = lease, q.o.Lease.Microseconds()
	q.walk.asked = n
	full := false
	switch {
	case q.walk.turns.front && !q.walk.full && len(q.walk.tenants) > 0:
		args["tenants"], args["dues"], args["ids"] = q.walk.fronts()
	case q.walk.next(want.Fresh):
		full = true
		args["from"], args["visits"] = q.walk.from, maxVisits
	default:
		args["tenants"], args["dues"], args["ids"] = q.walk.marks()
	}
	if want.Rooms != nil {
		args["rooms"], args["each"] = want.Rooms.args(n)
	}
	kind := claimKind{full: full, rooms: want.Rooms != nil, fresh: q.walk.turns.fresh, share: retries < n && !q.walk.turns.fresh}
	if kind.share {
		args["retries"] = retries
	}
	return q.claimSQL[kind], args
}

// queueClaim adds a claim to a batch that has its transaction.
func (q *Queue) queueClaim(batch *pgx.Batch, want Want, c *claimed) {
	sql, args := q.claimStatement(want, c.lease)
	batch.Queue(inOrderSQL)
	batch.Queue(sql, args).Query(c.scan)
}

// inOrderSQL leaves a claim no plan but the walk along outbox_due. By statistics from when hardly a
// row was open, the planner would rather read all open rows and sort them, in every claim: with
// three hundred thousand that takes longer than a claim may.
const inOrderSQL = `select pg_catalog.set_config('enable_sort', 'off', true)`

// A claim takes the oldest due rows of one tenant after the other, until it has what it wants; who
// gave some is last in line for the next claim.
//
// The rows are locked in a sub-select that runs once and hands their ids over as an array: so the
// limit holds under every plan, and the planner cannot scan the table. Nothing that a claim writes
// is in an index, so every claim is a HOT update.
//
// claimFullSQL finds the tenants by a loose scan over outbox_due, from @from on, at most @visits
// of them, and says which tenant comes next: null at the end of the walk.
const claimFullSQL = tenantWalkSQL + `,
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
         limit 1) as next_tenant, /*left*/ as left_behind, t.*
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
select null::text[] as tenants, r.moment, null::text as next_tenant, /*left*/ as left_behind, t.*
  from (select now() as moment) r
  full join taken t on false`

const claimDueSQL = `
due as materialized (
	select d.id, v.tenant_id/*retry*/
	  from visited v
	 cross join lateral (
		select o.id/*is retry*/
		  from {schema}.outbox o -- outbox_due
		 where o.destination = @destination
		   and o.tenant_id = v.tenant_id
		   and o.finished_at is null
		   and coalesce(o.next_attempt_at, o.available_at) <= now()
		   and (coalesce(o.next_attempt_at, o.available_at), o.id) > (v.due, v.id)
		   and (o.lease_until is null or o.lease_until < now())/*fresh*//*types*/
		 order by coalesce(o.next_attempt_at, o.available_at), o.id
		 limit /*room*/
		   for update skip locked) d
	 where true/*tenants*/
	 limit @want),`

const claimTakeSQL = `
taken as (
	update {schema}.outbox o
	   set ` + leaseSQL + `
	 where o.id = any (array (/*chosen*/))
	returning ` + claimedColumnsSQL + `)`

// leaseSQL is what a claim makes of a row.
const leaseSQL = `status = 'in_progress',
	       attempts = least(o.attempts, 2147483646) + 1,
	       lease = @lease,
	       lease_until = clock_timestamp() + @duration::bigint * interval '1 microsecond',
	       last_attempt_at = clock_timestamp(),
	       updated_at = clock_timestamp()`

// claimedColumnsSQL is an event as a claim reads it. A payload that may be large stays behind: its text is not
// even looked at, which takes time by its size, unless it is stored in 8 KiB or less. Compression makes
// no more than 90 times that of it.
const claimedColumnsSQL = `o.id, coalesce(o.source_id, 0) as source_id, o.tenant_id, o.aggregate_type, o.aggregate_id,
	          o.event_type, o.schema_version, o.idempotency_key, o.headers::text,
	          case when pg_column_size(o.payload) <= 2000
	                 or pg_column_size(o.payload) <= 8192 and octet_length(o.payload::text) <= 65536
	               then o.payload::text end as payload,
	          case when octet_length(o.payload_bytes) <= 65536 then o.payload_bytes end as payload_bytes,
	          coalesce(octet_length(o.payload_bytes), 0) as size,
	          o.payload is null as is_binary, o.attempts, o.created_at,
	          coalesce(o.next_attempt_at, o.available_at) as due, o.origin like 'shadow%' as shadow`

// payloadSQL reads what a claim left behind because it is large: a batch of such payloads would fill
// the memory.
const payloadSQL = `
select coalesce(convert_to(payload::text, 'UTF8'), payload_bytes)
  from {schema}.outbox
 where id = $1
   and lease = $2`

// The answers of PostgreSQL that a payload gets whenever it is asked for.
const (
	programLimit  = "54000" // as a text it would be longer than 1 GB
	dataCorrupted = "XX001"
)

// Payload implements [Source].
func (q *Queue) Payload(ctx context.Context, ev *Event) (payload []byte, err error) {
	err = q.store.inTx(ctx, queueLimits, func(tx pgx.Tx) error {
		return tx.QueryRow(ctx, q.bodySQL, ev.ID, ev.Lease).Scan(&payload)
	})
	pg, answered := errors.AsType[*pgconn.PgError](err)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return nil, ErrLeaseLost
	case answered && (pg.Code == programLimit || pg.Code == dataCorrupted):
		return nil, fmt.Errorf("%w: PostgreSQL answers %s", ErrUnreadable, pg.Code)
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
	left    int64     // retries that were more than their share; 0 or less = none

	ids  []int64           // of an ordered claim, whose events are read apart
	stop stop              // likewise
	late func(*Event) bool // likewise: a later event of its aggregate was sent before
}

// scan reads one row about the walk and one per event; the full join has put them side by side.
func (c *claimed) scan(rows pgx.Rows) error {
	for rows.Next() {
		if isWalk := rows.RawValues()[1] != nil; isWalk {
			if err := rows.Scan(append([]any{&c.tenants, &c.moment, &c.next, &c.left}, make([]any, eventColumns)...)...); err != nil {
				return err
			}
			continue
		}
		ev, err := scanEvent(rows, walkColumns)
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

const walkColumns, eventColumns = 4, 17

// scanEvent reads an event from a row with other columns before it and more behind.
func scanEvent(rows pgx.Rows, before int, more ...any) (ev Event, err error) {
	var headers, binary []byte
	columns := append(make([]any, before, before+eventColumns+len(more)),
		&ev.ID, &ev.SourceID, &ev.TenantID, &ev.AggregateType, &ev.AggregateID,
		&ev.Type, &ev.SchemaVersion, (*[16]byte)(&ev.Key), &headers,
		&ev.Payload, &binary, &ev.Size, &ev.Binary, &ev.Attempts, (*moment)(&ev.CreatedAt), (*moment)(&ev.Due), &ev.Shadow)
	if err := rows.Scan(append(columns, more...)...); err != nil {
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

// moment reads a time of PostgreSQL's, which may be infinite or before our era.
type moment time.Time

// ScanTimestamptz implements [pgtype.TimestamptzScanner].
func (m *moment) ScanTimestamptz(v pgtype.Timestamptz) error {
	switch {
	case v.InfinityModifier == pgtype.Infinity, v.Time.Year() > 9999:
		*m = moment(time.Date(9999, time.December, 31, 0, 0, 0, 0, time.UTC))
	case v.InfinityModifier == pgtype.NegativeInfinity, v.Time.Year() < 1:
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

// withToken is a worker's name, for people, and 64 random bits, which make a lease a fence and a
// heartbeat's row its own.
func withToken(worker string) string {
	var token [8]byte
	_, _ = rand.Read(token[:]) // never fails
	return worker + "/" + hex.EncodeToString(token[:])
}
