package outbox

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// Place is where a page of a listing ended.
type Place struct {
	ID    int64
	Ended time.Time // of that event; zero where the order is by id alone
}

// Page is a part of a listing.
type Page struct {
	Rows []Row
	Next *Place    // where the next page begins; nil = nowhere: this is the last
	Now  time.Time // by the database's clock
}

// narrowerMark is where a statement takes the condition that leads it to its index.
const narrowerMark = "/*narrower*/"

var listLimits = limits{statement: 5 * time.Second, lock: time.Second, reads: true}

// The statements of a listing.
const (
	// endedSQL is for finished events alone: outbox_graveyard, or outbox_done.
	endedSQL = `
select ` + rowColumns + `
  from {schema}.outbox o
 where o.finished_at is not null/*narrower*//*filter*/
 order by o.finished_at desc, o.id desc
 limit @limit`

	// recentSQL looks at the newest rows alone: outbox_pkey, read backwards. It names the columns, as a
	// reader's role may not read all.
	recentSQL = `
select ` + rowColumns + `
  from (select id, source_id, idempotency_key, status, event_type, schema_version, aggregate_type, aggregate_id, tenant_id,
               destination, attempts, created_at, available_at, next_attempt_at, last_attempt_at, finished_at, lease, lease_until,
               receipt, error, error_kind, error_code, origin
          from {schema}.outbox
         where id < @before
         order by id desc
         limit @window) o
 where true/*filter*/
 order by o.id desc
 limit @limit`

	// everySQL goes on from there through the whole table: outbox_pkey, or outbox_key and outbox_pkey
	// where the filter names keys or ids.
	everySQL = `
select ` + rowColumns + `
  from {schema}.outbox o
 where o.id < @before/*filter*/
 order by o.id desc
 limit @limit`

	// gatheredSQL gathers all that an index has and sorts it: outbox_due, outbox_aggregate or outbox_lag
	// for open events, one of these and outbox_done or outbox_graveyard for all. byBitmapSQL makes it
	// read each page of the table once, whatever the order of the index.
	byBitmapSQL = `
select pg_catalog.set_config('enable_indexscan', 'off', true),
       pg_catalog.set_config('enable_indexonlyscan', 'off', true),
       pg_catalog.set_config('max_parallel_workers_per_gather', '0', true)`

	gatheredSQL = `
with gathered as materialized (
	select o.id
	  from {schema}.outbox o
	 where o.id < @before/*narrower*//*filter*/)
select ` + rowColumns + `
  from {schema}.outbox o
 where o.id = any (array (select id from gathered order by id desc limit @limit))
 order by o.id desc`
)

// List returns the events of a filter, the newest first: by their end where only finished ones can
// match, by id else. It begins after a place, at the newest one when that is nil.
func (s *Store) List(ctx context.Context, f Filter, after *Place, limit int) (page Page, err error) {
	err = s.inTx(ctx, listLimits, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, byIndexSQL); err != nil {
			return err
		}
		if err := tx.QueryRow(ctx, nowSQL).Scan(&page.Now); err != nil {
			return err
		}
		page.Rows, err = s.list(ctx, tx, f, after, limit+1)
		return err
	})
	if err != nil {
		return Page{}, fmt.Errorf("list: %w", err)
	}
	if len(page.Rows) > limit {
		page.Rows = page.Rows[:limit]
		page.Next = f.place(page.Rows[limit-1])
	}
	return page, nil
}

// ByEnd reports whether a listing is in the order of the events' ends, since only finished ones can
// match.
func (f Filter) ByEnd() bool {
	return !f.FinishedBefore.IsZero() || len(f.Statuses) > 0 && !slices.ContainsFunc(f.Statuses, open)
}

// onlyOpen reports whether only open events can match.
func (f Filter) onlyOpen() bool {
	return len(f.Statuses) > 0 && !slices.ContainsFunc(f.Statuses, Status.Final)
}

// erred reports whether only events with an error can match.
func (f Filter) erred() bool { return len(f.ErrorKinds)+len(f.ErrorCodes) > 0 }

func open(s Status) bool { return !s.Final() }

func (f Filter) place(last Row) *Place {
	if f.ByEnd() {
		return &Place{last.ID, *last.FinishedAt}
	}
	return &Place{ID: last.ID}
}

func (s *Store) list(ctx context.Context, tx pgx.Tx, f Filter, after *Place, limit int) ([]Row, error) {
	if f.ByEnd() {
		return s.listEnded(ctx, tx, f, after, limit)
	}
	return s.listAll(ctx, tx, f, after, limit)
}

// windows are how many of the newest rows are looked at before an index is asked for all that
// match: most pages are found there, and most of the others cost little more.
var windows = []int{5_000, 50_000}

// listAll is in the order of ids.
func (s *Store) listAll(ctx context.Context, tx pgx.Tx, f Filter, after *Place, limit int) ([]Row, error) {
	args := f.args(pgx.NamedArgs{"limit": limit, "before": int64(math.MaxInt64)})
	if after != nil {
		args["before"] = after.ID
	}
	if len(f.IDs)+len(f.Keys) == 0 {
		for _, args["window"] = range windows {
			rows, err := collectRows(tx.Query(ctx, s.sql(f.narrow(recentSQL)), args))
			if err != nil || len(rows) == limit {
				return rows, err
			}
		}
	}
	settings, sql := f.allSQL()
	if _, err := tx.Exec(ctx, settings); err != nil {
		return nil, err
	}
	return collectRows(tx.Query(ctx, s.sql(sql), args))
}

// allSQL is the statement for all that match, and the settings that it wants. The condition that it
// adds follows from the filter and leads to an index: an event that had ended before a time was
// created before it, and what ended with an error has its kind.
func (f Filter) allSQL() (settings, sql string) {
	var narrower string
	if !f.Since.IsZero() {
		narrower += "\n   and (o.finished_at is null or o.finished_at >= @f_since)"
	}
	if f.erred() {
		narrower += "\n   and (o.finished_at is null or o.finished_at is not null and o.error_kind is not null)"
	}
	if f.onlyOpen() {
		narrower = "\n   and o.finished_at is null"
	}
	if narrower == "" || len(f.IDs)+len(f.Keys) > 0 {
		return byIndexSQL, f.narrow(everySQL)
	}
	return byBitmapSQL, f.narrow(strings.ReplaceAll(gatheredSQL, narrowerMark, narrower))
}

// fewSQL asks whether the table is so small that it matters little how it is read.
const fewSQL = `select pg_relation_size($1::text::regclass) < 64 * 1024 * 1024`

// listEnded is in the order of the events' ends. The index of those that did not arrive is small, but
// leaves out who has no kind of error, as only a person gives none: in a small table they are found
// all the same.
func (s *Store) listEnded(ctx context.Context, tx pgx.Tx, f Filter, after *Place, limit int) ([]Row, error) {
	few := false
	if err := tx.QueryRow(ctx, fewSQL, s.schema+".outbox").Scan(&few); err != nil {
		return nil, err
	}
	sql, args := f.endedSQL(after, few)
	args["limit"] = limit
	return collectRows(tx.Query(ctx, s.sql(sql), args))
}

func (f Filter) endedSQL(after *Place, few bool) (sql string, args pgx.NamedArgs) {
	args = f.args(nil)
	undelivered := len(f.Statuses) > 0 && !slices.Contains(f.Statuses, Delivered)
	var narrower string
	if f.erred() || undelivered && !few {
		narrower += "\n   and o.error_kind is not null"
	}
	if !f.Since.IsZero() {
		narrower += "\n   and o.finished_at >= @f_since"
	}
	if after != nil {
		narrower += "\n   and (o.finished_at, o.id) < (@ended::timestamptz, @before::bigint)"
		args["ended"], args["before"] = after.Ended, after.ID
	}
	return f.narrow(strings.ReplaceAll(endedSQL, narrowerMark, narrower)), args
}
