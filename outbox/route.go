package outbox

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Router gives events without a destination those that the routes say: the row itself goes to the
// first, and each further one gets a copy with the same key and a state of its own. Its methods are
// for one goroutine.
type Router struct {
	Routes Routes
	Routed func(destinations []string) // is told after a step who has news; nil = nobody is

	store  *Store
	begun  bool        // the walk is on its way
	after  string      // then, the tenant visited last: the next one begins behind it
	marks  []routeMark // of the tenants that the last step has met
	looks  int         // steps that went on from marks, since one looked at all
	looked time.Time   // when events that no route wanted were looked at last
}

// Router returns a router of the store by these routes.
func (s *Store) Router(routes Routes) *Router { return &Router{Routes: routes, store: s} }

// KindUnrouted is the error_kind of an open event that no route wants.
const KindUnrouted = "unrouted"

// ShadowOrigin begins the origin of the copies that shadow routes make: what becomes of them touches no
// event.
const ShadowOrigin = "shadow"

const (
	unroutedFor = time.Minute      // an event that no route wants is left alone
	lookAgain   = 10 * time.Second // between looks for those whose time has come again
)

var routeLimits = limits{statement: 15 * time.Second, lock: time.Second, idle: dispatchIdle}

// Step routes up to limit events and returns how many it has looked at. While another process's
// router is at work it returns [ErrBusy].
func (r *Router) Step(ctx context.Context, limit int) (n int, err error) {
	var b routing
	before := *r
	err = r.store.inTx(ctx, routeLimits, func(tx pgx.Tx) error {
		if err := r.takeTurn(ctx, tx); err != nil {
			return err
		}
		page, err := r.page(ctx, tx, limit)
		if err != nil || len(page) == 0 {
			return err
		}
		copied, err := r.copies(ctx, tx, page)
		if err != nil {
			return err
		}
		b = r.decide(page, copied)
		n = b.size()
		return r.apply(ctx, tx, &b)
	})
	if err != nil {
		*r = before
		return 0, fmt.Errorf("route: %w", err)
	}
	if r.Routed != nil && len(b.destinations) > 0 {
		r.Routed(b.news())
	}
	return n, nil
}

// turnOfRoutersSQL lets one router work at a time. It does not wait: who holds the lock does the work.
// What a step finds it looks up row by row: for a page of a small table, or of one that was small when it
// was analysed, the planner would read all of it, several times.
const turnOfRoutersSQL = `
select pg_catalog.pg_try_advisory_xact_lock(pg_catalog.hashtextextended($1, 0)),
       pg_catalog.set_config('enable_hashjoin', 'off', true),
       pg_catalog.set_config('enable_mergejoin', 'off', true),
       pg_catalog.set_config('enable_seqscan', 'off', true),
       pg_catalog.set_config('enable_sort', 'off', true),
       pg_catalog.set_config('enable_incremental_sort', 'off', true)`

func (r *Router) takeTurn(ctx context.Context, tx pgx.Tx) error {
	var mine bool
	err := tx.QueryRow(ctx, turnOfRoutersSQL, r.store.schema+" outboxctl router").Scan(&mine, nil, nil, nil, nil, nil)
	if err == nil && !mine {
		err = ErrBusy
	}
	return err
}

// routing is what is to be done with a page, as arrays of SQL.
type routing struct {
	unwanted []int64 // no route takes them

	ids          []int64
	destinations []string // of each of ids, its new one

	copied  []int64 // originals
	copies  []string
	origins []string

	meant   []int64 // originals of shadow copies that real routes now lead to
	meantTo []string
}

func (b *routing) size() int { return len(b.unwanted) + len(b.ids) }

// news are the destinations that have something new.
func (b *routing) news() []string {
	all := append(slices.Clone(b.destinations), b.copies...)
	slices.Sort(all)
	return slices.Compact(all)
}

func (b *routing) copyTo(id int64, origin string, destinations ...string) {
	for _, name := range destinations {
		b.copied, b.copies, b.origins = append(b.copied, id), append(b.copies, name), append(b.origins, origin)
	}
}

// copiesSQL finds what events have been copied to already: shadows, as a rule.
const copiesSQL = `
select o.id, c.destination, c.origin like 'shadow%' as shadow
  from {schema}.outbox o -- outbox_pkey
  join {schema}.outbox c -- outbox_key
    on c.idempotency_key = o.idempotency_key
   and c.source_id = coalesce(o.source_id, o.id)
 where o.id = any (@ids)
   and c.id <> o.id`

// copied is an event and a destination that has a copy of it.
type copied struct {
	id          int64
	destination string
}

// copies reports of each copy that is there whether it is a shadow.
func (r *Router) copies(ctx context.Context, tx pgx.Tx, page []routable) (have map[copied]bool, err error) {
	rows, err := tx.Query(ctx, r.store.sql(copiesSQL), pgx.NamedArgs{"ids": idsOf(page)})
	if err != nil {
		return nil, err
	}
	have = map[copied]bool{}
	var c copied
	var shadow bool
	_, err = pgx.ForEachRow(rows, []any{&c.id, &c.destination, &shadow}, func() error {
		have[c] = shadow
		return nil
	})
	return have, err
}

// decide gives each row to the first destination that has no copy of it. If all have one there is
// nothing left for the row to do: it ends as its own duplicate. A shadow copy that serves a real route is a
// shadow no more, for what becomes of it is now what becomes of the event.
func (r *Router) decide(page []routable, have map[copied]bool) (b routing) {
	for i := range page {
		ev := &page[i].Event
		to := r.Routes.Match(ev)
		b.copyTo(ev.ID, ShadowOrigin, to.Shadow...)
		if len(to.To) == 0 {
			b.unwanted = append(b.unwanted, ev.ID)
			continue
		}
		own := 0
		for n, name := range slices.Backward(to.To) {
			shadow, there := have[copied{ev.ID, name}]
			if !there {
				own = n
			}
			if shadow {
				b.meant, b.meantTo = append(b.meant, ev.ID), append(b.meantTo, name)
			}
		}
		b.ids, b.destinations = append(b.ids, ev.ID), append(b.destinations, to.To[own])
		b.copyTo(ev.ID, "", slices.Delete(slices.Clone(to.To), own, own+1)...)
	}
	return b
}

const (
	// Copies keep the order of their originals. One that is there already stays as it is.
	copySQL = `
insert into {schema}.outbox
       (source_id, tenant_id, aggregate_type, aggregate_id, event_type, schema_version, idempotency_key, destination,
        headers, payload, payload_bytes, available_at, created_at, origin)
select coalesce(o.source_id, o.id), o.tenant_id, o.aggregate_type, o.aggregate_id, o.event_type, o.schema_version,
       o.idempotency_key, c.destination, o.headers, o.payload, o.payload_bytes, o.available_at, o.created_at, c.origin
  from unnest(@ids::bigint[], @destinations::text[], @origins::text[]) c(id, destination, origin)
  join {schema}.outbox o on o.id = c.id -- outbox_pkey
 order by coalesce(o.source_id, o.id), c.destination
    on conflict (idempotency_key, destination) do nothing`

	meantSQL = `
update {schema}.outbox c
   set origin = '', updated_at = clock_timestamp()
  from unnest(@ids::bigint[], @destinations::text[]) v(id, destination)
  join {schema}.outbox o on o.id = v.id -- outbox_pkey
 where c.idempotency_key = o.idempotency_key -- outbox_key
   and c.destination = v.destination
   and c.source_id = coalesce(o.source_id, o.id)
   and c.origin like 'shadow%'`

	// A key that the destination has already would break the index: those rows, few if any, are left for
	// duplicateSQL.
	sendSQL = `
update {schema}.outbox o
   set destination = v.destination, next_attempt_at = null, status = 'pending', lease = null, lease_until = null,
       error = case when o.error_kind = 'unrouted' then null else o.error end, error_kind = nullif(o.error_kind, 'unrouted'),
       updated_at = clock_timestamp()
  from unnest(@ids::bigint[], @destinations::text[]) v(id, destination)
 where o.id = v.id -- outbox_pkey
   and not exists (
	select from {schema}.outbox c -- outbox_key
	 where c.idempotency_key = o.idempotency_key
	   and c.destination = v.destination)`

	duplicateSQL = `
update {schema}.outbox o
   set status = 'discarded', lease = null, lease_until = null, finished_at = clock_timestamp(), updated_at = clock_timestamp(),
       error_kind = 'duplicate', error_code = null,
       error = 'event ' || c.id || ' has the same key at destination "' || v.destination || '"'
  from unnest(@ids::bigint[], @destinations::text[]) v(id, destination),
       {schema}.outbox c -- outbox_key
 where o.id = v.id -- outbox_pkey
   and o.destination = ''
   and c.idempotency_key = o.idempotency_key
   and c.destination = v.destination`

	unwantedSQL = `
update {schema}.outbox
   set next_attempt_at = clock_timestamp() + @pause::bigint * interval '1 microsecond', status = 'pending', lease = null,
       lease_until = null, error = 'no route matches', error_kind = @kind, error_code = null, updated_at = clock_timestamp()
 where id = any (@ids) -- outbox_pkey`

	// One notification a batch and destination, for those who listen.
	newsSQL = `select pg_notify($1, d) from unnest($2::text[]) d`
)

// apply writes a batch. A row's own copies are made first, while it is without a destination itself.
func (r *Router) apply(ctx context.Context, tx pgx.Tx, b *routing) error {
	var batch pgx.Batch
	queue := func(sql string, used int, args pgx.NamedArgs) {
		if used > 0 {
			batch.Queue(r.store.sql(sql), args)
		}
	}
	to := pgx.NamedArgs{"ids": b.ids, "destinations": b.destinations}
	queue(meantSQL, len(b.meant), pgx.NamedArgs{"ids": b.meant, "destinations": b.meantTo})
	queue(copySQL, len(b.copied), pgx.NamedArgs{"ids": b.copied, "destinations": b.copies, "origins": b.origins})
	sent := 0
	if len(b.ids) > 0 {
		batch.Queue(r.store.sql(sendSQL), to).Exec(func(tag pgconn.CommandTag) error {
			sent = int(tag.RowsAffected())
			return nil
		})
	}
	queue(unwantedSQL, len(b.unwanted), pgx.NamedArgs{"ids": b.unwanted, "pause": unroutedFor.Microseconds(), "kind": KindUnrouted})
	if names := b.news(); len(names) > 0 {
		batch.Queue(newsSQL, r.store.Channel(), names)
	}
	err := tx.SendBatch(ctx, &batch).Close()
	if err == nil && sent < len(b.ids) {
		_, err = tx.Exec(ctx, r.store.sql(duplicateSQL), to)
	}
	return err
}

const unlookedSQL = `
select exists (select
                 from {schema}.outbox -- outbox_unrouted
                where destination = ''
                  and finished_at is null
                  and next_attempt_at is null)`

// Waits reports whether there are events that no router has looked at.
func (r *Router) Waits(ctx context.Context) (waits bool, err error) {
	err = r.store.inTx(ctx, statsLimits, func(tx pgx.Tx) error { return tx.QueryRow(ctx, r.store.sql(unlookedSQL)).Scan(&waits) })
	if err != nil {
		return false, fmt.Errorf("what waits for a router: %w", err)
	}
	return waits, nil
}

// reviewSQL makes events that were looked at due for another look.
const reviewSQL = `
update {schema}.outbox
   set next_attempt_at = null, updated_at = clock_timestamp()
 where id = any (array (
	select id
	  from {schema}.outbox -- outbox_due
	 where destination = ''
	   and finished_at is null
	   and next_attempt_at is not null
	   and (lease_until is null or lease_until < clock_timestamp())
	 limit @limit
	   for update skip locked))`

// Review is a step that makes events which no route wanted due for another look: for when routes
// have changed.
func (r *Router) Review(ctx context.Context, limit int) (n int, err error) {
	err = r.store.inTx(ctx, routeLimits, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, r.store.sql(reviewSQL), pgx.NamedArgs{"limit": limit})
		n = int(tag.RowsAffected())
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("look at unrouted events again: %w", err)
	}
	return n, nil
}
