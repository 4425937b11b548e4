package outbox

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// Purge says which finished events go, and what goes with them. Open events never do.
type Purge struct {
	Filter  Filter // with FinishedBefore; no statuses = the delivered ones
	Archive bool   // they are kept, in outbox_archive
	History History
}

// Purged is what a purge has removed, or, as a rehearsal, would remove, beside its count of events.
type Purged struct {
	History map[string]int64 `json:"history,omitempty"` // rows of the tables that History names
	Bytes   int64            `json:"bytes,omitempty"`   // of the events' rows, about; counted by rehearsals
	Oldest  time.Time        `json:"oldest,omitzero"`   // when the first event ended; zero = there was none
	Newest  time.Time        `json:"newest,omitzero"`
}

// purgeCursor is how far a purge has come: in the list of its parts, and within one.
type purgeCursor struct {
	Part int       `json:"part"`
	At   time.Time `json:"at,omitzero"`
	ID   int64     `json:"id,omitempty"`
	Purged
}

// purgePart removes about limit rows and counts them; none means that the part is done.
type purgePart func(ctx context.Context, tx pgx.Tx, p *Progress, c *purgeCursor, limit int) (n int, err error)

// Purge returns the steps that remove events, in the order of their ends, and then what is too old of
// their history. Events that somebody else has locked are skipped, "locked". It panics without
// FinishedBefore: a purge has an age.
func (s *Store) Purge(run *Run, what Purge) Step {
	if what.Filter.FinishedBefore.IsZero() {
		panic("outbox: a purge without an age")
	}
	if len(what.Filter.Statuses) == 0 {
		what.Filter.Statuses = []Status{Delivered}
	}
	parts := append([]purgePart{s.purgeEvents(run.Rehearsal(), what.Filter, what.Archive)}, s.purgeHistory(run.Rehearsal(), what.History)...)
	return func(ctx context.Context, limit int) (int, error) {
		return run.step(ctx, func(tx pgx.Tx, p *Progress) (n int, err error) {
			var c purgeCursor
			if err := p.at(&c); err != nil {
				return 0, err
			}
			for c.Part < len(parts) {
				if n, err = parts[c.Part](ctx, tx, p, &c, limit); err != nil {
					return 0, err
				}
				if n > 0 {
					break
				}
				c = purgeCursor{Part: c.Part + 1, Purged: c.Purged}
			}
			return n, p.move(c)
		})
	}
}

// Purged reads what a purge's progress says beside its count.
func (p Progress) Purged() (Purged, error) {
	var c purgeCursor
	err := p.at(&c)
	return c.Purged, err
}

// purgeEventsSQL looks at the next events in the order of an index, wanted or not, so that a step is
// short whatever the filter, and takes those that are wanted and free. A row that changes between the
// look and its lock is judged again. What it finds in the index of an earlier step's rows it does not
// see: the cursor is behind them.
const (
	purgeEventsSQL = `
with page as materialized (
	select o.ctid, o.finished_at, o.id, /*size*/ as size, coalesce(true/*filter*/, false) as wanted
	  from {schema}.outbox o -- /*source*/
	   and o.finished_at < @before::timestamptz
	   and (o.finished_at, o.id) > (@at::timestamptz, @id::bigint)
	 order by o.finished_at, o.id
	 limit @limit),
gone as (/*gone*/),
kept as (/*kept*/)
select p.*, g.n, k.n, coalesce(l.finished_at, @at), coalesce(l.id, @id)
  from (select count(*), count(*) filter (where wanted), coalesce(sum(size) filter (where wanted), 0)::bigint,
               min(finished_at) filter (where wanted), max(finished_at) filter (where wanted)
          from page) p
 cross join (select count(*) as n from gone) g
 cross join (select count(*) as n from kept) k
  left join (select finished_at, id from page order by finished_at desc, id desc limit 1) l on true`

	// What did not arrive is little beside what did, and has an index of its own; the few that are
	// named by id or key are found by that.
	fromDone = `outbox_done
	 where o.finished_at is not null`
	fromGraveyard = `outbox_graveyard
	 where o.finished_at is not null
	   and o.error_kind is not null`
	fromList = `outbox_pkey or outbox_key
	 where o.finished_at is not null/*filter*/`

	deleteEventsSQL = `
	delete from {schema}.outbox d
	 where d.ctid = any (array (
	   select o.ctid
	     from {schema}.outbox o
	    where o.ctid = any (array (select ctid from page where wanted))
	      and o.finished_at is not null/*filter*/
	      for update skip locked))
	returning d.*`
	rehearseEventsSQL = `select from page where wanted`

	// eventSizeSQL is that of a row as it is stored, compressed and moved out or not.
	eventSizeSQL = `160 + coalesce(pg_column_size(o.payload), 0) + coalesce(pg_column_size(o.payload_bytes), 0) + pg_column_size(o.headers)
	         + octet_length(o.tenant_id) + octet_length(o.aggregate_type) + octet_length(o.aggregate_id) + octet_length(o.event_type)
	         + coalesce(octet_length(o.receipt), 0) + coalesce(octet_length(o.error), 0)`
)

func (s *Store) purgeEvents(rehearsal bool, f Filter, archive bool) purgePart {
	size, gone, kept := "0", deleteEventsSQL, `select from gone`
	switch {
	case rehearsal:
		size, gone = eventSizeSQL, rehearseEventsSQL
	case archive:
		kept = keepEventsSQL
	}
	source, listed := f.source()
	fill := func(text string) string {
		words := strings.NewReplacer("/*source*/", source, "/*size*/", size, "/*gone*/", gone, "/*kept*/", kept)
		return s.sql(f.narrow(words.Replace(text)))
	}
	sql, prepare := fill(purgeEventsSQL), fill(prepareArchiveSQL)
	return func(ctx context.Context, tx pgx.Tx, p *Progress, c *purgeCursor, limit int) (int, error) {
		if !listed {
			if _, err := tx.Exec(ctx, byIndexSQL); err != nil {
				return 0, err
			}
		}
		var seen, wanted, size, n, kept int64
		var oldest, newest *time.Time
		args := f.args(pgx.NamedArgs{"before": f.FinishedBefore, "at": c.At, "id": c.ID, "limit": limit})
		if archive && !rehearsal {
			if _, err := tx.Exec(ctx, prepare, args); err != nil {
				return 0, fmt.Errorf("prepare the archive: %w", err)
			}
		}
		err := tx.QueryRow(ctx, sql, args).Scan(&seen, &wanted, &size, &oldest, &newest, &n, &kept, &c.At, &c.ID)
		if err == nil && kept != n {
			err = fmt.Errorf("of %d events %d arrived in the archive: a trigger or a rule is in the way", n, kept)
		}
		if err != nil {
			return 0, fmt.Errorf("purge events: %w", err)
		}
		p.Done += n
		p.skip("locked", wanted-n)
		c.add(size, oldest, newest)
		return int(min(seen, max(wanted, 1))), nil // looking alone costs no rate
	}
}

// source says which index leads to the finished events that f may select, and whether f lists them.
func (f Filter) source() (sql string, listed bool) {
	if len(f.IDs)+len(f.Keys) > 0 {
		return fromList, true
	}
	for _, status := range f.Statuses {
		if status == Delivered {
			return fromDone, false
		}
	}
	return fromGraveyard, false
}

func (p *Purged) add(size int64, oldest, newest *time.Time) {
	p.Bytes += size
	if oldest != nil && p.Oldest.IsZero() {
		p.Oldest = oldest.UTC()
	}
	if newest != nil {
		p.Newest = newest.UTC()
	}
}

const pastRateSQL = `
select coalesce((
	select done / extract(epoch from ended_at - started_at)
	  from {schema}.outbox_operations
	 where command = $1
	   and coalesce(filter->>'mode', '') = $2
	   and done >= 1000
	   and ended_at > started_at
	 order by id desc
	 limit 1), 0)::float8`

// PastRate returns how many events per second the last run of a command changed that did it in the same
// mode, one that is too small to tell left out; 0 = there was none.
func (s *Store) PastRate(ctx context.Context, command, mode string) (rate float64, err error) {
	err = s.inTx(ctx, statsLimits, func(tx pgx.Tx) error {
		return tx.QueryRow(ctx, s.sql(pastRateSQL), command, mode).Scan(&rate)
	})
	if err != nil {
		return 0, fmt.Errorf("the rate of the last %s: %w", command, err)
	}
	return rate, nil
}

// Vacuuming is what PostgreSQL does about the dead rows of the outbox.
type Vacuuming struct {
	Auto bool          // autovacuum works on the table
	Last time.Duration // since the last vacuum, by whomever; 0 = there was none
}

const vacuumingSQL = `
select current_setting('autovacuum')::bool
         and coalesce((select option_value::bool from pg_options_to_table(c.reloptions) where option_name = 'autovacuum_enabled'), true),
       coalesce(extract(epoch from now() - greatest(t.last_vacuum, t.last_autovacuum)), 0)::float8
  from pg_class c
  left join pg_stat_all_tables t on t.relid = c.oid
 where c.oid = $1::text::regclass`

// Vacuuming returns who clears away what a purge has left.
func (s *Store) Vacuuming(ctx context.Context) (v Vacuuming, err error) {
	var seconds float64
	err = s.inTx(ctx, statsLimits, func(tx pgx.Tx) error {
		return tx.QueryRow(ctx, vacuumingSQL, s.schema+".outbox").Scan(&v.Auto, &seconds)
	})
	if errors.Is(err, pgx.ErrNoRows) {
		err = nil
	}
	v.Last = time.Duration(seconds * float64(time.Second))
	if err != nil {
		return v, fmt.Errorf("the state of autovacuum: %w", err)
	}
	return v, nil
}
