package outbox

import (
	"context"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// Up to these numbers rows are counted one by one; beyond, a sample of the table's pages with about
// sampleOf rows stands for all.
const (
	exactOpen     = 500_000
	exactFinished = 100_000
	sampleOf      = 100_000
)

// Depth counts events: all of them, or those of one destination, event type or tenant.
type Depth struct {
	Name     string
	Status   map[Status]int64 // every status; the delivered of a name are not known where Stats.Estimated
	Due      int64            // open and past their time, in nobody's hands
	Lapsed   int64            // of these, held by a lease that has lapsed
	Retrying int64            // wait for their next attempt
	Future   int64            // wait for their first

	OldestDue        time.Duration // how long the oldest of Due has been due; 0 = none
	OldestLapsed     time.Duration // how long ago the first of Lapsed lapsed
	OldestInProgress time.Duration // how long ago the first of those that a live lease holds was claimed
	NextDue          time.Duration // until the next of Retrying and Future is due; 0 = there is none

	unrouted int64 // looked at by a router and wanted by no route
}

// Open is the number of events that are not finished.
func (d Depth) Open() int64 { return d.Status[Pending] + d.Status[InProgress] }

// Ranking is what has the most open events, in order.
type Ranking struct {
	Top []Depth
	Of  int // how many there are, with those that are not in Top
}

// sizeSQL estimates the table's rows as the planner does: its size now, with as many rows per page
// as the last analysis found. The other numbers are exact, or one more than is counted exactly.
const sizeSQL = `
select case when c.reltuples < 0 or c.relpages = 0 then -1
            else c.reltuples / c.relpages * (pg_relation_size(c.oid) / current_setting('block_size')::int) end::bigint,
       (select count(*)
          from (select from {schema}.outbox -- outbox_lag
                 where finished_at is null
                 limit @open + 1) o),
       (select count(*)
          from (select from {schema}.outbox -- outbox_done
                 where finished_at is not null
                 limit @finished + 1) f),
       (select count(*)
          from (select from {schema}.outbox -- outbox_graveyard
                 where finished_at is not null
                   and error_kind is not null
                 limit @finished + 1) g)
  from pg_class c
 where c.oid = @table::text::regclass`

// depthSQL reads each row that counts once, sums up cells first, and those by name then. A row's mark
// is the time that its state is about.
const (
	depthSQL = `
with part as (
/*open*/
union all
/*finished*/),
cell as (
	select destination, tenant_id, event_type, shadow, status, state, weight, count(*) * weight as n, min(mark) as mark
	  from part
	 group by destination, tenant_id, event_type, shadow, status, state, weight
	offset 0),
ranked as (
	select grouping(destination, tenant_id, event_type) as kind, coalesce(destination, tenant_id, event_type, '') as name, shadow,
	       coalesce(sum(n) filter (where status = 'pending'), 0) as pending,
	       coalesce(sum(n) filter (where status = 'in_progress'), 0) as in_progress,
	       coalesce(sum(n) filter (where status = 'delivered'), 0) as delivered,
	       coalesce(sum(n) filter (where status = 'failed'), 0) as failed,
	       coalesce(sum(n) filter (where status = 'dead_letter'), 0) as dead_letter,
	       coalesce(sum(n) filter (where status = 'discarded'), 0) as discarded,
	       coalesce(sum(n) filter (where state in ('due', 'lapsed')), 0) as due,
	       coalesce(sum(n) filter (where state = 'lapsed'), 0) as lapsed,
	       coalesce(sum(n) filter (where state = 'retrying'), 0) as retrying,
	       coalesce(sum(n) filter (where state = 'future'), 0) as future,
	       coalesce(sum(n) filter (where state = 'unrouted'), 0) as unrouted,
	       now() - min(mark) filter (where state in ('due', 'lapsed')) as oldest_due,
	       now() - min(mark) filter (where state = 'lapsed') as oldest_lapsed,
	       now() - min(mark) filter (where state = 'leased') as oldest_in_progress,
	       min(mark) filter (where state in ('retrying', 'future')) - now() as next_due,
	       row_number() over (partition by grouping(destination, tenant_id, event_type), shadow
	                              order by sum(n) filter (where state <> '') desc nulls last, sum(n) desc,
	                                       destination, tenant_id, event_type) as place,
	       count(*) over (partition by grouping(destination, tenant_id, event_type), shadow) as of
	  from cell
	 group by grouping sets ((destination, shadow), (tenant_id, shadow), (event_type, shadow), (shadow)))
select kind, name, shadow, pending::bigint, in_progress::bigint, delivered::bigint, failed::bigint, dead_letter::bigint, discarded::bigint,
       due::bigint, lapsed::bigint, retrying::bigint, future::bigint, unrouted::bigint,
       greatest(extract(epoch from oldest_due), 0)::float8, greatest(extract(epoch from oldest_lapsed), 0)::float8,
       greatest(extract(epoch from oldest_in_progress), 0)::float8, greatest(extract(epoch from next_due), 0)::float8, of
  from ranked
 where place <= case kind when @destinations then greatest(@top, 1000) else @top end
 order by kind, shadow, place`

	openSQL = `
	(select destination, tenant_id, event_type, origin like 'shadow%' as shadow, status, /*state*/, @open_weight::float8 as weight
	   from {schema}.outbox /*sample*/-- outbox_lag
	  where finished_at is null)`

	finishedSQL = `
	(select destination, tenant_id, event_type, origin like 'shadow%', status, '', null, 1
	   from {schema}.outbox -- outbox_done
	  where finished_at is not null)`

	graveyardSQL = `
	(select destination, tenant_id, event_type, origin like 'shadow%', status, '', null, @finished_weight::float8
	   from {schema}.outbox /*sample*/-- outbox_graveyard
	  where finished_at is not null
	    and error_kind is not null)`

	stateSQL = `
	        case when lease_until >= now() then 'leased'
	             when lease_until < now() then 'lapsed'
	             when destination = '' and error_kind = 'unrouted' then 'unrouted'
	             when coalesce(next_attempt_at, available_at) <= now() then 'due'
	             when next_attempt_at is null then 'future'
	             else 'retrying' end as state,
	        case when lease_until >= now() then last_attempt_at
	             else coalesce(lease_until, next_attempt_at, available_at) end as mark`

	// A share of the table's pages, in percent: its oldest or newest rows would not be like the rest.
	sampleSQL = `tablesample system (@percent) `
)

// depthStats counts what is there. If the finished rows are many, it counts those that did not
// arrive, whose index is small, and leaves the rest of the table's estimated rows to delivered.
func (s *Store) depthStats(ctx context.Context, tx pgx.Tx, look Look, st *Stats) error {
	var size, open, finished, buried int64
	err := tx.QueryRow(ctx, s.sql(sizeSQL), pgx.NamedArgs{
		"table": s.schema + ".outbox", "open": exactOpen, "finished": exactFinished,
	}).Scan(&size, &open, &finished, &buried)
	if err != nil {
		return err
	}
	st.Estimated, st.OpenEstimated = finished > exactFinished, open > exactOpen && size > 0
	args := pgx.NamedArgs{"top": look.Top, "destinations": byDestination, "open_weight": 1.0, "finished_weight": 1.0, "percent": 100.0}
	sampled := func(sql, weight string) string {
		args["percent"], args[weight] = min(100, 100*sampleOf/float64(size)), max(1, float64(size)/sampleOf)
		return strings.Replace(sql, "/*sample*/", sampleSQL, 1)
	}
	openPart, finishedPart := strings.Replace(openSQL, "/*state*/", stateSQL, 1), finishedSQL
	if st.OpenEstimated {
		openPart = sampled(openPart, "open_weight")
	}
	switch {
	case buried > exactFinished && size > 0:
		finishedPart = sampled(graveyardSQL, "finished_weight")
	case st.Estimated:
		finishedPart = graveyardSQL
	}
	sql := strings.NewReplacer("/*open*/", openPart, "/*finished*/", finishedPart).Replace(depthSQL)
	if _, err := tx.Exec(ctx, byPageSQL); err != nil {
		return err
	}
	if err := s.countDepth(ctx, tx, sql, args, st); err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, byIndexSQL); err != nil || !st.Estimated {
		return err
	}
	all := st.Depth.and(st.shadows)
	gone := all.Status[Failed] + all.Status[DeadLetter] + all.Status[Discarded]
	st.Status[Delivered] = max(max(size-all.Open(), finished)-gone, 0)
	return nil
}

// The kinds of depths in depthSQL's result, as grouping() numbers them.
const (
	byDestination = 0b011
	byTenant      = 0b101
	byEventType   = 0b110
	ofAll         = 0b111
)

func (s *Store) countDepth(ctx context.Context, tx pgx.Tx, sql string, args pgx.NamedArgs, st *Stats) error {
	rows, err := tx.Query(ctx, s.sql(sql), args)
	if err != nil {
		return err
	}
	st.Depth.Status = map[Status]int64{}
	for _, status := range Statuses() {
		st.Status[status] = 0
	}
	var kind, of int
	var name string
	var shadow bool
	counts := make([]int64, len(Statuses()))
	var due, lapsed, retrying, future, unrouted int64
	var oldestDue, oldestLapsed, oldestInProgress, nextDue float64
	into := []any{&kind, &name, &shadow}
	for i := range counts {
		into = append(into, &counts[i])
	}
	into = append(into, &due, &lapsed, &retrying, &future, &unrouted, &oldestDue, &oldestLapsed, &oldestInProgress, &nextDue, &of)
	_, err = pgx.ForEachRow(rows, into, func() error {
		d := Depth{
			Name: name, Status: map[Status]int64{}, Due: due, Lapsed: lapsed, Retrying: retrying, Future: future, unrouted: unrouted,
			OldestDue: seconds(oldestDue), OldestLapsed: seconds(oldestLapsed),
			OldestInProgress: seconds(oldestInProgress), NextDue: seconds(nextDue),
		}
		for i, status := range Statuses() {
			d.Status[status] = counts[i]
		}
		st.place(kind, of, d, shadow)
		return nil
	})
	return err
}

// place puts a depth where it belongs. That of shadow copies belongs to their destination alone.
func (st *Stats) place(kind, of int, d Depth, shadow bool) {
	switch {
	case kind == byDestination:
		at := st.destination(d.Name)
		at.Depth = at.Depth.and(d)
		if !shadow {
			at.judged.Depth = d
		}
	case shadow && kind == ofAll:
		st.shadows = d
	case shadow:
	case kind == byTenant:
		st.Tenants.Top, st.Tenants.Of = append(st.Tenants.Top, d), of
	case kind == byEventType:
		st.EventTypes.Top, st.EventTypes.Of = append(st.EventTypes.Top, d), of
	default:
		st.Depth, st.Unrouted = d, d.unrouted
	}
}

// and counts the events of both.
func (d Depth) and(o Depth) Depth {
	status := map[Status]int64{}
	for _, s := range Statuses() {
		status[s] = d.Status[s] + o.Status[s]
	}
	next := max(d.NextDue, o.NextDue)
	if d.NextDue > 0 && o.NextDue > 0 {
		next = min(d.NextDue, o.NextDue)
	}
	return Depth{
		Name: d.Name, Status: status, Due: d.Due + o.Due, Lapsed: d.Lapsed + o.Lapsed, Retrying: d.Retrying + o.Retrying,
		Future: d.Future + o.Future, unrouted: d.unrouted + o.unrouted, NextDue: next,
		OldestDue: max(d.OldestDue, o.OldestDue), OldestLapsed: max(d.OldestLapsed, o.OldestLapsed),
		OldestInProgress: max(d.OldestInProgress, o.OldestInProgress),
	}
}
