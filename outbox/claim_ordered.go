package outbox

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// claimTurnSQL makes the ordered claims of a destination take turns; $1 is schema, purpose and destination.
// It is a statement of its own, before the claim, whose snapshot then has every earlier claim's leases.
const claimTurnSQL = `select pg_advisory_xact_lock(hashtextextended($1, 0))`

// An ordered claim visits aggregates, not rows: a loose scan over outbox_aggregate, from one to the next,
// however many open events each has. Of one whose head, its first open event, is due it takes that and the
// due events that follow it without a gap, up to @run of them; unless any of its first thousand
// open events holds a live lease, for then one is being sent. A head that failed before comes
// alone: if it fails again, whatever came with it would only be given back.
//
// The pieces are where to look: a tenant's aggregates behind one place and up to another. The claim
// ends when it has @want events or has made @visits visits, and says where; with both, it
// does no more by a backlog than without one. The first two steps are read from as far as the third has
// need of them, which keeps a claim that is soon satisfied from visiting more.
//
// A row that somebody has locked ends the run before it. The rows to lock are asked for their status, not
// for their end, so that no index of open rows looks like a way to find them.
const claimOrderedSQL = `
with piece as (
	select n, tenant_id, after_type, after_id, until_type, until_id
	  from unnest(@tenants::text[], @after_types::text[], @after_ids::text[], @until_types::text[], @until_ids::text[])
	  with ordinality p(tenant_id, after_type, after_id, until_type, until_id, n)),
visited as (
	select p.n, p.tenant_id, v.aggregate_type, v.aggregate_id
	  from piece p
	 cross join lateral (
		with recursive hop as (
			(select o.aggregate_type, o.aggregate_id
			   from {schema}.outbox o -- outbox_aggregate
			  where o.destination = @destination
			    and o.tenant_id = p.tenant_id
			    and o.finished_at is null
			    and (o.aggregate_type, o.aggregate_id) > (p.after_type, p.after_id)
			  order by o.aggregate_type, o.aggregate_id
			  limit 1)
			union all
			select n.aggregate_type, n.aggregate_id
			  from hop h
			 cross join lateral (
				select o.aggregate_type, o.aggregate_id
				  from {schema}.outbox o -- outbox_aggregate
				 where o.destination = @destination
				   and o.tenant_id = p.tenant_id
				   and o.finished_at is null
				   and (o.aggregate_type, o.aggregate_id) > (h.aggregate_type, h.aggregate_id)
				 order by o.aggregate_type, o.aggregate_id
				 limit 1) n
			 where p.until_type is null
			    or (h.aggregate_type, h.aggregate_id) < (p.until_type, p.until_id))
		select aggregate_type, aggregate_id
		  from hop
		 where p.until_type is null
		    or (aggregate_type, aggregate_id) <= (p.until_type, p.until_id)) v
	 limit @visits),
run as (
	select v.n, v.tenant_id, v.aggregate_type, v.aggregate_id, r.id, r.place
	  from visited v
	 cross join lateral (
		select ` + isDueSQL + ` as due, o.error_kind is null as unhurt
		  from {schema}.outbox o -- outbox_aggregate
		 where ` + ofAggregateSQL + `
		 order by coalesce(o.source_id, o.id)
		 limit 1) head/*held*/
	 cross join lateral (
		select w.id, w.place, bool_and(w.due) over (order by w.place) as leading
		  from (select o.id, coalesce(o.source_id, o.id) as place, ` + isDueSQL + `/*types*//*unheld*/ as due
		          from {schema}.outbox o -- outbox_aggregate
		         where ` + ofAggregateSQL + `
		         order by coalesce(o.source_id, o.id)
		         limit case when head.unhurt then @run::int else 1 end) w) r
	 where case when head.due then not exists (
			select
			  from (select o.lease_until
			          from {schema}.outbox o -- outbox_aggregate
			         where ` + ofAggregateSQL + `
			         order by coalesce(o.source_id, o.id)
			         limit @beside) b
			 where b.lease_until >= statement_timestamp()) else false end
	   and r.leading
	 limit @want),
locked as materialized (
	select o.id
	  from {schema}.outbox o
	 where o.id = any (array (select id from run))
	   and o.status in ('pending', 'in_progress')
	   and ` + isDueSQL + `
	   for update skip locked),
mine as (
	select m.id
	  from (select r.id, bool_and(l.id is not null) over (partition by r.tenant_id, r.aggregate_type, r.aggregate_id order by r.place) as leading/*nth*/
	          from run r
	          left join locked l on l.id = r.id) m
	 where m.leading/*roomy*/),
taken as (
	update {schema}.outbox o
	   set ` + leaseSQL + `
	 where o.id = any (array (select id from mine))
	returning o.id),
last as (
	(select n, aggregate_type, aggregate_id, true as satisfied from run offset @want - 1)
	union all
	(select n, aggregate_type, aggregate_id, false from visited offset @visits - 1)
	limit 1)
select coalesce((select array_agg(id) from taken), '{}'), coalesce(l.n, 0)::int, coalesce(l.aggregate_type, ''), coalesce(l.aggregate_id, ''),
       coalesce(l.satisfied, false)
  from (select) one
  left join last l on true`

const (
	isDueSQL = `coalesce(o.next_attempt_at, o.available_at) <= statement_timestamp()
		   and (o.lease_until is null or o.lease_until < statement_timestamp())`

	ofAggregateSQL = `o.destination = @destination
		   and o.tenant_id = v.tenant_id
		   and o.aggregate_type = v.aggregate_type
		   and o.aggregate_id = v.aggregate_id
		   and o.finished_at is null`
)

// holdSQL finds the first event of an aggregate that failed for good and that nobody has replayed or
// discarded since, and lets none pass it.
const (
	holdSQL = `
	  left join lateral (
		select coalesce(o.source_id, o.id) as place
		  from {schema}.outbox o -- outbox_held
		 where o.destination = @destination
		   and o.tenant_id = v.tenant_id
		   and o.aggregate_type = v.aggregate_type
		   and o.aggregate_id = v.aggregate_id
		   and o.finished_at is not null
		   and o.error_kind is not null
		   and o.error_kind <> 'discarded'
		   and o.status in ('failed', 'dead_letter')
		 order by coalesce(o.source_id, o.id)
		 limit 1) held on true`
	unheldSQL = `
		   and (held.place is null or coalesce(o.source_id, o.id) < held.place)`
)

// holding puts these conditions into an ordered claim, which does without them otherwise.
func (o OnDead) holding(sql string) string {
	hold, unheld := "", ""
	if o == OnDeadHold {
		hold, unheld = holdSQL, unheldSQL
	}
	return strings.NewReplacer("/*held*/", hold, "/*unheld*/", unheld).Replace(sql)
}

// maxBeside is how many open events of an aggregate a claim looks through for a live lease. So many
// lower ids would have to commit while a later event is being sent, for two to be sent at once.
const maxBeside = 1000

// openTenantsSQL finds the tenants that have open events, from @from on.
const openTenantsSQL = tenantWalkSQL + `
select tenant_id
  from tenant
 where tenant_id is not null
 limit @visits`

// claimedSQL reads the events that a claim has taken. It is not the claim that returns them: a worker
// which is suspended before it has read them would, by what does not fit on the way, keep the
// claim from its end and all others from their turn. A first sight is that of an event that nobody has
// had in hand before.
const claimedSQL = `
select ` + claimedColumnsSQL + `,
       o.attempts = 1 and o.next_attempt_at is null and o.origin not like '%replay:%' as first_sight
  from {schema}.outbox o
 where o.id = any ($1::bigint[])
   and o.lease = $2`

func (q *Queue) orderedArgs(want Want, lease string) pgx.NamedArgs {
	args := q.o.Only.args()
	args["destination"], args["lease"], args["duration"] = q.o.Destination, lease, q.o.Lease.Microseconds()
	args["want"], args["run"] = want.N, min(max(want.Run, 1), maxBeside)
	args["visits"], args["beside"] = maxVisits, maxBeside
	args["tenants"], args["after_types"], args["after_ids"], args["until_types"], args["until_ids"] = q.round.pieces(want.Rooms)
	if want.Rooms != nil {
		args["rooms"], args["each"] = want.Rooms.args(want.N)
	}
	return args
}

// queueOrdered adds an ordered claim to a batch that has its transaction.
func (q *Queue) queueOrdered(batch *pgx.Batch, want Want, c *claimed) {
	args := q.orderedArgs(want, c.lease)
	batch.Queue(claimTurnSQL, q.turn)
	batch.Queue(inOrderSQL)
	if from, lists := q.round.lists(want.Fresh); lists {
		named := pgx.NamedArgs{"destination": q.o.Destination, "from": from, "visits": maxVisits}
		batch.Queue(q.tenantsSQL, named).Query(func(rows pgx.Rows) (err error) {
			c.tenants, err = pgx.CollectRows(rows, pgx.RowTo[string])
			return err
		})
	}
	batch.Queue(q.orderedSQL[want.Rooms != nil], args).QueryRow(func(row pgx.Row) error {
		return row.Scan(&c.ids, &c.stop.piece, &c.stop.at.kind, &c.stop.at.id, &c.stop.satisfied)
	})
}

// readClaimed reads the events of an ordered claim that has ended.
func (q *Queue) readClaimed(ctx context.Context, conn *pgxpool.Conn, c *claimed) error {
	var batch pgx.Batch
	begin(&batch, queueLimits)
	batch.Queue(q.claimedSQL, c.ids, c.lease).Query(c.scanOrdered)
	batch.Queue(commitSQL)
	return conn.SendBatch(ctx, &batch).Close()
}

// scanOrdered reads events, aggregate by aggregate.
func (c *claimed) scanOrdered(rows pgx.Rows) error {
	for rows.Next() {
		var first bool
		ev, err := scanEvent(rows, 0, &first)
		if err != nil {
			return err
		}
		ev.Destination, ev.Lease = c.destination, c.lease
		ev.Late = first && c.late(&ev)
		c.events = append(c.events, ev)
	}
	slices.SortFunc(c.events, func(a, b Event) int {
		return cmp.Or(cmp.Compare(a.TenantID, b.TenantID), cmp.Compare(a.AggregateType, b.AggregateType),
			cmp.Compare(a.AggregateID, b.AggregateID), cmp.Compare(a.Sequence(), b.Sequence()))
	})
	return rows.Err()
}
