package outbox

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Change puts many events from one state into another at an operator's word; see [Store.Replay] and
// [Store.Discard].
//
// It walks along an index, a window at a time, and takes the events that its filter selects. Their
// rows are locked in the order of their ids, and it never waits for a lock while it has one: rows
// that others have locked are looked at again a little later, and are left and counted if they are
// locked still. So it is in nobody's deadlock. What it got is judged as it is then, and changed in
// one statement, which also notes in outbox_audit what it was.
type Change struct {
	store  *Store
	filter Filter
	before time.Time // events that ended later, or open ones created later, are not meant
	walks  []string  // one after the other
	judge  string    // what a rehearsal does
	write  string
	args   pgx.NamedArgs

	rate  float64 // of due times, per second; 0 = no spread
	until int64   // the steps end for now when so many are done; 0 = never
}

// The reasons why a change leaves events as they are.
const (
	SkipState     = "state"     // changed, purged or redone since it was selected
	SkipInFlight  = "in_flight" // a worker has a live lease of it, or of its aggregate where that has an order
	SkipRedacted  = "redacted"  // its payload was blanked: it is not what happened any more
	SkipDuplicate = "duplicate" // its key is there already
	SkipLocked    = "locked"    // by another session, for seconds
)

// cursor is how far a change has come.
type cursor struct {
	Walk   int       `json:"walk,omitempty"`
	Place  *place    `json:"place,omitempty"`     // nil = at the walk's start
	Locked []int64   `json:"locked,omitempty"`    // to be looked at again
	Looks  int       `json:"looks,omitempty"`     // at these
	Waited int       `json:"waited_ms,omitempty"` // for locks, all in all
	Due    time.Time `json:"due,omitzero"`        // of the next event, where they are spread
	Wave   int       `json:"wave,omitempty"`      // of a canary, from 1
	Sent   []int64   `json:"sent,omitempty"`      // in this wave
}

// place is one on a walk; what the walk's index does not have is empty.
type place struct {
	Destination string `json:"destination,omitempty"`
	Tenant      string `json:"tenant,omitempty"`
	At          string `json:"at,omitempty"`
	ID          int64  `json:"id"`
}

// The walks. Each returns a window of its index and which rows of it are selected: a filter that
// selects little does not make a statement long. Times travel as JSON has them, which keeps every
// digit and infinity and is read alike under every setting.
const (
	endedWalkSQL = `
select o.id, '', '', to_jsonb(o.finished_at) #>> '{}', coalesce(true/*filter*/, false)
  from (select o.*
          from {schema}.outbox o -- outbox_done
         where o.finished_at is not null/*buried*/
           and (o.finished_at, o.id) > (@at::text::timestamptz, @id::bigint)
           and o.finished_at < @before
         order by o.finished_at, o.id
         limit @window) o
 order by o.finished_at, o.id`

	// inGraveyardSQL has the walk go along outbox_graveyard, in which no delivered row is.
	inGraveyardSQL = `
           and o.error_kind is not null`

	openWalkSQL = `
select o.id, o.destination, o.tenant_id, to_jsonb(coalesce(o.next_attempt_at, o.available_at)) #>> '{}',
       coalesce(o.created_at < @before/*filter*/, false)
  from (select o.*
          from {schema}.outbox o -- outbox_due
         where o.finished_at is null
           and (o.destination, o.tenant_id, coalesce(o.next_attempt_at, o.available_at), o.id)
             > (@destination::text, @tenant::text, @at::text::timestamptz, @id::bigint)
         order by o.destination, o.tenant_id, coalesce(o.next_attempt_at, o.available_at), o.id
         limit @window) o
 order by o.destination, o.tenant_id, coalesce(o.next_attempt_at, o.available_at), o.id`

	namedWalkSQL = `
select o.id, '', '', '', true
  from {schema}.outbox o -- outbox_pkey or outbox_key
 where o.id > @id::bigint
   and coalesce(o.finished_at, o.created_at) < @before/*filter*/
 order by o.id
 limit @window`
)

// walksFor returns the walks that find what f can select.
func walksFor(f Filter) (walks []string) {
	if len(f.IDs)+len(f.Keys) > 0 {
		return []string{namedWalkSQL}
	}
	buried, ended, open := inGraveyardSQL, false, false
	for _, status := range f.Statuses {
		switch {
		case status == Delivered:
			ended, buried = true, ""
		case status.Final():
			ended = true
		default:
			open = true
		}
	}
	if ended {
		walks = append(walks, strings.ReplaceAll(endedWalkSQL, "/*buried*/", buried))
	}
	if open {
		walks = append(walks, openWalkSQL)
	}
	return walks
}

// foundSQL judges rows as they are now. With /*lock*/ filled it has locked them first, but for those
// that others have, and sees them as they were left. An aggregate is busy if one of its first
// thousand open events is leased, in a destination that keeps its order.
const foundSQL = `
with found as materialized (
	select o.id, o.status, o.attempts, o.tenant_id, o.aggregate_type, o.aggregate_id, o.destination, o.idempotency_key,
	       o.lease_until >= now() as leased,
	       o.headers ? 'redacted' as redacted,
	       coalesce(coalesce(o.finished_at, o.created_at) < @before/*filter*/, false) as meant
	  from {schema}.outbox o -- outbox_pkey
	 where o.id = any (@ids::bigint[])
	 order by o.id/*lock*/),
busy as materialized (
	select a.*
	  from (select distinct f.destination, f.tenant_id, f.aggregate_type, f.aggregate_id
	          from found f
	          join {schema}.outbox_destinations d on d.destination = f.destination and d.ordering = 'aggregate') a
	 where exists (
		select
		  from (select b.lease_until
		          from {schema}.outbox b -- outbox_aggregate
		         where b.destination = a.destination
		           and b.tenant_id = a.tenant_id
		           and b.aggregate_type = a.aggregate_type
		           and b.aggregate_id = a.aggregate_id
		           and b.finished_at is null
		         order by coalesce(b.source_id, b.id)
		         limit 1000) b
		 where b.lease_until >= now())),
judged as materialized (
	select f.*, case when not f.meant then 'state'
	                 when f.leased then 'in_flight'/*reasons*/ end as reason
	  from found f),
touched as materialized (
	select id, status, attempts, destination, null::bytea as payload_hash, row_number() over (order by id) - 1 as place
	  from judged
	 where reason is null)`

const (
	lockSQL = `
	   for update skip locked`

	judgedSQL = `
select id, coalesce(reason, ''), now()
  from judged`
)

// change returns one that is not composed yet. Who means pending events means those whose lease has
// lapsed, too, and wants to hear of those in flight.
func (s *Store) change(f Filter, before time.Time, args pgx.NamedArgs) *Change {
	if slices.Contains(f.Statuses, Pending) {
		f.Statuses = append(slices.Clone(f.Statuses), InProgress)
	}
	return &Change{store: s, filter: f, before: before, walks: walksFor(f), args: args}
}

// compose builds the statements of a change, from constants alone: reasons are branches of the
// judgement, update is what is done to the rows of touched.
func (c *Change) compose(reasons, update string) {
	for i, walk := range c.walks {
		c.walks[i] = c.store.sql(c.filter.narrow(walk))
	}
	found := strings.ReplaceAll(c.filter.narrow(foundSQL), "/*reasons*/", reasons)
	c.judge = c.store.sql(strings.ReplaceAll(found, "/*lock*/", "") + judgedSQL)
	c.write = c.store.sql(strings.ReplaceAll(found, "/*lock*/", lockSQL) +
		",\naudited as (" + auditSQL + "),\nchanged as (" + update + ")" + judgedSQL)
}

// Step returns the step that makes the change, for run.
func (c *Change) Step(run *Run) Step {
	return func(ctx context.Context, limit int) (n int, err error) {
		if err := c.rest(ctx, run); err != nil {
			return 0, err
		}
		for range 3 { // somebody may have inserted a key between our look and our move
			n, err = run.step(ctx, func(tx pgx.Tx, p *Progress) (int, error) { return c.step(ctx, tx, run, p, limit) })
			if pg, ok := errors.AsType[*pgconn.PgError](err); !ok || pg.Code != uniqueViolation {
				break
			}
		}
		return n, err
	}
}

const uniqueViolation = "23505"

func (c *Change) step(ctx context.Context, tx pgx.Tx, run *Run, p *Progress, limit int) (looked int, err error) {
	var at cursor
	if err := p.at(&at); err != nil {
		return 0, err
	}
	room := limit
	if c.until > 0 {
		room = int(min(c.until-p.Done, int64(limit)))
	}
	if room <= 0 {
		return 0, nil
	}
	if _, err := tx.Exec(ctx, byIndexSQL); err != nil {
		return 0, err
	}
	ids, looked, err := c.next(ctx, tx, &at, limit, room)
	if looked == 0 || err != nil {
		return 0, err
	}
	if c.rate > 0 && at.Due.IsZero() && !run.Rehearsal() {
		if at.Due, err = c.freeFrom(ctx, tx, run); err != nil {
			return 0, err
		}
	}
	if len(ids) > 0 {
		if err := c.change(ctx, tx, run, ids, &at, p); err != nil {
			return 0, err
		}
	}
	return looked, p.move(at)
}

// emptyWindows is how many windows a step looks through for an event that is selected.
const emptyWindows = 20

// next returns the events that come next, at most room of them, and how many rows it has looked at:
// none at the end.
func (c *Change) next(ctx context.Context, tx pgx.Tx, at *cursor, window, room int) (ids []int64, looked int, err error) {
	if len(at.Locked) > 0 {
		ids, at.Locked = at.Locked, nil
		return ids, len(ids), nil
	}
	for at.Walk < len(c.walks) && looked < emptyWindows*window {
		n := 0
		if ids, n, err = c.window(ctx, tx, at, window, room); err != nil {
			return nil, 0, err
		}
		looked += n
		if len(ids) > 0 {
			return ids, looked, nil
		}
		if n == 0 {
			at.Walk, at.Place = at.Walk+1, nil
		}
	}
	return nil, looked, nil
}

// window looks at the next rows of a walk, up to the last one that there is room for.
func (c *Change) window(ctx context.Context, tx pgx.Tx, at *cursor, size, room int) (ids []int64, looked int, err error) {
	from := place{At: "-infinity", ID: math.MinInt64}
	if at.Place != nil {
		from = *at.Place
	}
	rows, err := tx.Query(ctx, c.walks[at.Walk], c.filter.args(pgx.NamedArgs{
		"before": c.before, "window": size,
		"destination": from.Destination, "tenant": from.Tenant, "at": from.At, "id": from.ID,
	}))
	if err != nil {
		return nil, 0, err
	}
	defer rows.Close()
	for len(ids) < room && rows.Next() {
		var selected bool
		if err := rows.Scan(&from.ID, &from.Destination, &from.Tenant, &from.At, &selected); err != nil {
			return nil, 0, err
		}
		looked++
		if selected {
			ids = append(ids, from.ID)
		}
	}
	rows.Close()
	at.Place = &from
	return ids, looked, rows.Err()
}

// change judges the events, changes those that nothing speaks against, and counts.
func (c *Change) change(ctx context.Context, tx pgx.Tx, run *Run, ids []int64, at *cursor, p *Progress) error {
	args := c.filter.args(pgx.NamedArgs{
		"before": c.before, "ids": ids, "operation": run.ID, "due": at.Due, "gap": c.gap().Microseconds(),
	})
	for name, value := range c.args {
		args[name] = value
	}
	sql := c.write
	if run.Rehearsal() {
		sql = c.judge
	}
	rows, err := tx.Query(ctx, sql, args)
	if err != nil {
		return err
	}
	var id int64
	var reason string
	var now time.Time
	var done []int64
	found := make(map[int64]bool, len(ids))
	_, err = pgx.ForEachRow(rows, []any{&id, &reason, &now}, func() error {
		found[id] = true
		if reason == "" {
			done = append(done, id)
		} else {
			p.skip(reason, 1)
		}
		return nil
	})
	if err != nil {
		return err
	}
	p.Done += int64(len(done))
	if c.rate > 0 && len(done) > 0 {
		if at.Due.Before(now) {
			at.Due = now
		}
		at.Due = at.Due.Add(time.Duration(len(done)) * c.gap())
	}
	if c.until > 0 {
		at.Sent = append(at.Sent, done...)
	}
	return c.missed(ctx, tx, without(ids, found), at, p)
}

// gap is the time between two due times.
func (c *Change) gap() time.Duration {
	if c.rate <= 0 {
		return 0
	}
	return time.Duration(float64(time.Second) / c.rate)
}

func without(ids []int64, found map[int64]bool) (rest []int64) {
	for _, id := range ids {
		if !found[id] {
			rest = append(rest, id)
		}
	}
	return rest
}

// How long others' locks are waited for: 0.25 s, 0.5 s and 1 s in each window that has some, until it
// has been ten seconds in all.
const (
	lockLooks   = 3
	firstWait   = 250 * time.Millisecond
	lockedAtAll = 10 * time.Second
)

const thereSQL = `
select id
  from {schema}.outbox -- outbox_pkey
 where id = any ($1::bigint[])`

// missed tells the events that are gone from those that others have locked, which have another look
// or are left.
func (c *Change) missed(ctx context.Context, tx pgx.Tx, ids []int64, at *cursor, p *Progress) error {
	if len(ids) == 0 {
		at.Looks = 0
		return nil
	}
	rows, err := tx.Query(ctx, c.store.sql(thereSQL), ids)
	if err != nil {
		return err
	}
	locked, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		return err
	}
	p.skip(SkipState, int64(len(ids)-len(locked)))
	if len(locked) > 0 && at.Looks < lockLooks && at.Waited < int(lockedAtAll.Milliseconds()) {
		at.Waited += int((firstWait << at.Looks).Milliseconds())
		at.Locked, at.Looks = locked, at.Looks+1
		return nil
	}
	at.Looks = 0
	p.skip(SkipLocked, int64(len(locked)))
	return nil
}

// rest gives others time to let go of the rows that the last step found locked.
func (c *Change) rest(ctx context.Context, run *Run) error {
	var at cursor
	if err := run.Progress.at(&at); err != nil {
		return fmt.Errorf("rest: %w", err)
	}
	if len(at.Locked) == 0 {
		return nil
	}
	return wait(ctx, firstWait<<(at.Looks-1))
}
