package outbox

import (
	"context"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// The pages are in the order of ids, due or not, so that the order of an aggregate holds behind the
// router: a future event keeps its place. Each tenant has an equal share of a page; the walk goes round.
//
// The statements that walk ask for the order of the index they name, with conditions that leave no part of it constant:
// so no other index has that order, and turnOfRoutersSQL has ruled out to sort. By statistics from when nothing was to
// be routed, any index looks as good as any other, and some would be read whole for each event.
const (
	routableSQL = `
with recursive tenant as (
	(select tenant_id
	   from {schema}.outbox -- outbox_unrouted
	  where destination = '' and finished_at is null and next_attempt_at is null/*start*/
	  order by tenant_id
	  limit 1)
	union all
	select n.tenant_id
	  from tenant t
	 cross join lateral (
		select tenant_id
		  from {schema}.outbox -- outbox_unrouted
		 where destination = '' and finished_at is null and next_attempt_at is null
		   and tenant_id > t.tenant_id/*end*/
		 order by tenant_id
		 limit 1) n),
turn as materialized (
	select tenant_id from tenant limit 1000)
select e.*
  from turn t
 cross join lateral (
	select id, tenant_id, aggregate_type, aggregate_id, event_type, schema_version, headers::text,
	       coalesce(lease_until >= clock_timestamp(), false) as leased
	  from {schema}.outbox -- outbox_unrouted
	 where destination = '' and finished_at is null and next_attempt_at is null
	   and tenant_id >= t.tenant_id
	   and tenant_id <= t.tenant_id
	 order by tenant_id, id
	 limit greatest(@limit / (select count(*) from turn), 1)) e
 limit @limit`

	// Between two of these, steps go on from where the last one has come to: what is routed already leaves entries in
	// the index, which a walk from the front passes one by one until they are vacuumed away.
	routableOnSQL = `
select e.*
  from unnest(@tenants::text[], @marks::bigint[]) t(tenant_id, mark)
 cross join lateral (
	select id, tenant_id, aggregate_type, aggregate_id, event_type, schema_version, headers::text,
	       coalesce(lease_until >= clock_timestamp(), false) as leased
	  from {schema}.outbox -- outbox_unrouted
	 where destination = '' and finished_at is null and next_attempt_at is null
	   and (tenant_id, id) > (t.tenant_id, t.mark)
	   and tenant_id <= t.tenant_id
	 order by tenant_id, id
	 limit greatest(@limit / cardinality(@tenants::text[]), 1)) e
 limit @limit`

	// An event can commit late, or be looked at again, behind a mark: then it comes before the younger ones of its
	// aggregate.
	olderSQL = `
select exists (
	select from unnest(@tenants::text[], @types::text[], @aggregates::text[], @marks::bigint[]) a(tenant_id, aggregate_type, aggregate_id, mark)
	 cross join lateral (
		select from {schema}.outbox o -- outbox_aggregate
		 where o.destination = ''
		   and o.tenant_id = a.tenant_id
		   and o.aggregate_type = a.aggregate_type
		   and o.aggregate_id = a.aggregate_id
		   and coalesce(o.source_id, o.id) <= a.mark
		   and o.id <= a.mark
		   and o.finished_at is null
		   and coalesce(o.next_attempt_at, 'infinity') = 'infinity'
		 order by coalesce(o.source_id, o.id)
		 limit 1) older)`

	routableAgainSQL = `
select id, tenant_id, aggregate_type, aggregate_id, event_type, schema_version, headers::text,
       coalesce(lease_until >= clock_timestamp(), false) as leased
  from {schema}.outbox -- outbox_due
 where destination = ''
   and finished_at is null
   and next_attempt_at is not null
   and coalesce(next_attempt_at, available_at) <= now()
 order by id + 0 -- by id alone, it would walk along outbox_pkey
 limit @limit`

	// Whoever else holds a row, a person at the desk or a dispatcher without routes, is not waited for. The conditions
	// are those of the walk, for rows that have changed since, so written that no index but that of the ids has them.
	lockRoutableSQL = `
select id
  from {schema}.outbox -- outbox_pkey
 where id = any (@ids)
   and destination || '' = ''
   and coalesce(finished_at, '-infinity') = '-infinity'
   and (lease_until is null or lease_until < clock_timestamp())
   for update skip locked`
)

// routable is an event to be routed; of the event only what routes look at is known.
type routable struct {
	Event
	leased bool
	again  bool // was looked at before, and stands outside of the walk
}

// routeMark is a place in the walk: of the tenant, all up to the id have been routed that had committed then.
type routeMark struct {
	tenant string
	id     int64
}

// looksFromMarks is how many steps may go on from marks before one looks at everything again: at new tenants, and at
// what has come up behind a mark.
const looksFromMarks = 15

// widest is how many times as far as usual a step looks that meets none but held events.
const widest = 64

// page returns events that may be routed now, locked. Those that somebody else holds, however many, do not hide what
// is behind them.
func (r *Router) page(ctx context.Context, tx pgx.Tx, limit int) ([]routable, error) {
	from, last := *r, 0
	for size := limit; ; size *= 8 {
		*r = from
		seen, err := r.look(ctx, tx, size)
		if err != nil || len(seen) == 0 {
			return nil, err
		}
		free, err := r.lock(ctx, tx, seen)
		if err != nil {
			return nil, err
		}
		if len(free) > 0 || len(seen) == last || size >= widest*limit {
			free = free[:min(len(free), limit)]
			r.marks = marksOf(seen, free)
			return free, nil
		}
		last = len(seen)
	}
}

// look returns events to be routed, held or not: from the marks on, as long as that gives some, or of all.
func (r *Router) look(ctx context.Context, tx pgx.Tx, limit int) ([]routable, error) {
	if len(r.marks) > 0 && r.looks < looksFromMarks {
		r.looks++
		page, err := r.goOn(ctx, tx, limit)
		if err != nil || len(page) > 0 {
			return page, err
		}
	}
	r.marks, r.looks = nil, 0
	return r.lookAll(ctx, tx, limit)
}

// goOn returns events from the marks on, or none if some aggregate has an older one behind them.
func (r *Router) goOn(ctx context.Context, tx pgx.Tx, limit int) ([]routable, error) {
	tenants, marks := make([]string, len(r.marks)), make([]int64, len(r.marks))
	at := map[string]int64{}
	for i, m := range r.marks {
		tenants[i], marks[i], at[m.tenant] = m.tenant, m.id, m.id
	}
	page, err := r.read(ctx, tx, routableOnSQL, pgx.NamedArgs{"tenants": tenants, "marks": marks, "limit": limit})
	if err != nil || len(page) == 0 {
		return nil, err
	}
	older, err := r.hasOlder(ctx, tx, page, at)
	if err != nil || older {
		return nil, err
	}
	return page, nil
}

// hasOlder reports whether events wait behind the marks of their tenants, of an aggregate that is in the page.
func (r *Router) hasOlder(ctx context.Context, tx pgx.Tx, page []routable, marks map[string]int64) (older bool, err error) {
	var (
		tenants, types, ids []string
		upto                []int64
		known               = map[aggregate]bool{}
	)
	for i := range page {
		if of := page[i].aggregate(); !known[of] {
			known[of] = true
			tenants, types, ids, upto = append(tenants, of.tenant), append(types, of.kind), append(ids, of.id), append(upto, marks[of.tenant])
		}
	}
	args := pgx.NamedArgs{"tenants": tenants, "types": types, "aggregates": ids, "marks": upto}
	err = tx.QueryRow(ctx, r.store.sql(olderSQL), args).Scan(&older)
	return older, err
}

// marksOf are the marks behind what is taken of a page; before what is not, they stay.
func marksOf(page, taken []routable) (marks []routeMark) {
	took := map[int64]bool{}
	for _, e := range taken {
		took[e.ID] = true
	}
	stays := false
	for _, e := range page {
		if e.again {
			continue
		}
		if n := len(marks); n == 0 || marks[n-1].tenant != e.TenantID {
			marks, stays = append(marks, routeMark{e.TenantID, e.ID - 1}), false
		}
		if stays = stays || !took[e.ID]; !stays {
			marks[len(marks)-1].id = e.ID
		}
	}
	return marks
}

// lookAll goes on with the walk over all tenants.
func (r *Router) lookAll(ctx context.Context, tx pgx.Tx, limit int) ([]routable, error) {
	page, err := r.walk(ctx, tx, r.begun, false, limit)
	if err == nil && len(page) < limit && r.begun {
		var before []routable
		before, err = r.walk(ctx, tx, false, true, limit-len(page))
		page = append(page, before...)
	}
	if err == nil && len(page) < limit && time.Since(r.looked) > lookAgain {
		r.looked = time.Now()
		var again []routable
		again, err = r.read(ctx, tx, routableAgainSQL, pgx.NamedArgs{"limit": limit - len(page)})
		for i := range again {
			again[i].again = true
		}
		page = append(page, again...)
	}
	if r.begun = len(page) > 0; err != nil || !r.begun {
		return nil, err
	}
	r.after = page[len(page)-1].TenantID
	return page, nil
}

// walk reads the shares of the tenants behind the place, or up to it, or of all.
func (r *Router) walk(ctx context.Context, tx pgx.Tx, behind, upto bool, limit int) ([]routable, error) {
	start, end := "", ""
	if behind {
		start = "\n	    and tenant_id > @after"
	}
	if upto {
		start, end = "\n	    and tenant_id <= @after", " and tenant_id <= @after"
	}
	sql := strings.NewReplacer("/*start*/", start, "/*end*/", end).Replace(routableSQL)
	return r.read(ctx, tx, sql, pgx.NamedArgs{"after": r.after, "limit": limit})
}

func (r *Router) read(ctx context.Context, tx pgx.Tx, sql string, args pgx.NamedArgs) ([]routable, error) {
	rows, err := tx.Query(ctx, r.store.sql(sql), args)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (e routable, err error) {
		var headers []byte
		err = row.Scan(&e.ID, &e.TenantID, &e.AggregateType, &e.AggregateID, &e.Type, &e.SchemaVersion, &headers, &e.leased)
		e.Headers, e.Invalid = decodeHeaders(headers)
		return e, err
	})
}

// lock returns those that nobody else holds. One that is held holds the later ones of its aggregate, as far as this
// page knows them.
func (r *Router) lock(ctx context.Context, tx pgx.Tx, page []routable) ([]routable, error) {
	rows, err := tx.Query(ctx, r.store.sql(lockRoutableSQL), pgx.NamedArgs{"ids": idsOf(page)})
	if err != nil {
		return nil, err
	}
	locked, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		return nil, err
	}
	mine := make(map[int64]bool, len(locked))
	for _, id := range locked {
		mine[id] = true
	}
	held := map[aggregate]bool{}
	var free []routable
	for i := range page {
		e := &page[i]
		of := e.aggregate()
		if held[of] = held[of] || e.leased || !mine[e.ID]; !held[of] {
			free = append(free, *e)
		}
	}
	return free, nil
}

func idsOf(page []routable) []int64 {
	ids := make([]int64, len(page))
	for i, e := range page {
		ids[i] = e.ID
	}
	return ids
}
