package outbox

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// History says from when on back what accompanies events goes, table by table. A zero time keeps all.
type History struct {
	Attempts time.Time // outbox_attempts, but for those of events that are open, failed or dead letters
	Rollup   time.Time // outbox_rollup and outbox_samples
	Record   time.Time // outbox_operations and outbox_audit; 90 days of them stay in any case
}

// purgeHistory lists the parts of a purge that remove it.
func (s *Store) purgeHistory(rehearsal bool, h History) (parts []purgePart) {
	if !h.Attempts.IsZero() {
		parts = append(parts, s.purgeAttempts(rehearsal, h.Attempts))
	}
	if !h.Rollup.IsZero() {
		parts = append(parts,
			s.purgeCounts(rehearsal, "rollup", purgeRollupSQL, countRollupSQL, h.Rollup),
			s.purgeCounts(rehearsal, "samples", purgeSamplesSQL, countSamplesSQL, h.Rollup))
	}
	if !h.Record.IsZero() {
		parts = append(parts, s.forget(rehearsal, h.Record))
	}
	return parts
}

func (p *Purged) count(table string, n int64) {
	if n == 0 {
		return
	}
	if p.History == nil {
		p.History = map[string]int64{}
	}
	p.History[table] += n
}

// purgeAttemptsSQL walks from the oldest row on. Ids are given in the order of time, nearly: the walk
// ends at the first page that reaches what is to stay, and a later purge takes the few behind it. The
// attempts of an event that somebody may still look into stay as long as it does, and so do those that
// tell whether an open one was ended by a crash.
const (
	purgeAttemptsSQL = `
with page as materialized (
	select ctid, id, event_id, at
	  from {schema}.outbox_attempts -- outbox_attempts_pkey
	 where id > @id::bigint
	 order by id
	 limit @limit),
old as materialized (
	select p.ctid
	  from page p
	 where p.at < @before::timestamptz
	   and not exists (
	     select from {schema}.outbox o -- outbox_pkey
	      where o.id = p.event_id
	        and o.status not in ('delivered', 'discarded'))),
gone as (/*gone*/)
select (select count(*) from gone), count(*) > 0 and min(at) < @before, coalesce(max(id), @id)
  from page`
	deleteAttemptsSQL = `
	delete from {schema}.outbox_attempts
	 where ctid = any (array (select ctid from old))
	returning 1`
)

func (s *Store) purgeAttempts(rehearsal bool, before time.Time) purgePart {
	gone := deleteAttemptsSQL
	if rehearsal {
		gone = `select from old`
	}
	sql := s.sql(strings.ReplaceAll(purgeAttemptsSQL, "/*gone*/", gone))
	return func(ctx context.Context, tx pgx.Tx, _ *Progress, c *purgeCursor, limit int) (int, error) {
		if _, err := tx.Exec(ctx, byIndexSQL); err != nil {
			return 0, err
		}
		var n int64
		var more bool
		err := tx.QueryRow(ctx, sql, pgx.NamedArgs{"id": c.ID, "limit": limit, "before": before}).Scan(&n, &more, &c.ID)
		if err != nil {
			return 0, fmt.Errorf("purge attempts: %w", err)
		}
		c.count("attempts", n)
		if !more {
			return 0, nil
		}
		return int(max(n, 1)), nil
	}
}

// The rollup goes from its oldest minute on. From the first step's minute the next one goes on, and
// does not read the dead entries of the index before it.
const (
	purgeRollupSQL = `
with old as materialized (
	select ctid, minute
	  from {schema}.outbox_rollup -- outbox_rollup_pkey
	 where minute >= @at::timestamptz
	   and minute < @before::timestamptz
	 order by minute
	 limit @limit),
gone as (
	delete from {schema}.outbox_rollup
	 where ctid = any (array (select ctid from old))
	returning 1)
select (select count(*) from gone), coalesce(max(minute), @at)
  from old`
	countRollupSQL = `
select count(*)
  from {schema}.outbox_rollup -- outbox_rollup_pkey
 where minute < @before::timestamptz`

	// The names of samples are few, and are found one after the other.
	purgeSamplesSQL = `
with recursive names as (
	(select name from {schema}.outbox_samples order by name limit 1) -- outbox_samples_name
	union all
	select (select s.name from {schema}.outbox_samples s where s.name > n.name order by s.name limit 1)
	  from names n
	 where n.name is not null),
gone as (
	delete from {schema}.outbox_samples
	 where ctid = any (array (
	   select s.ctid
	     from names n
	    cross join lateral (
	      select ctid
	        from {schema}.outbox_samples
	       where name = n.name
	         and at < @before::timestamptz
	       order by at
	       limit @limit) s
	    limit @limit))
	returning 1)
select count(*), @at::timestamptz
  from gone`
	countSamplesSQL = `
select count(*)
  from {schema}.outbox_samples -- outbox_samples_name
 where at < @before::timestamptz`
)

// purgeCounts removes the rows of a table by its time. A rehearsal counts them at once, by index.
func (s *Store) purgeCounts(rehearsal bool, table, purge, count string, before time.Time) purgePart {
	return func(ctx context.Context, tx pgx.Tx, _ *Progress, c *purgeCursor, limit int) (int, error) {
		if _, err := tx.Exec(ctx, byIndexSQL); err != nil {
			return 0, err
		}
		var n int64
		var err error
		args := pgx.NamedArgs{"at": c.At, "limit": limit, "before": before}
		if rehearsal {
			err = tx.QueryRow(ctx, s.sql(count), args).Scan(&n)
		} else {
			err = tx.QueryRow(ctx, s.sql(purge), args).Scan(&n, &c.At)
		}
		if err != nil {
			return 0, fmt.Errorf("purge %s: %w", table, err)
		}
		c.count(table, n)
		if rehearsal {
			return 0, nil
		}
		return int(n), nil
	}
}

// The record is written by operators and removed by the schema's owner alone, through a function that
// keeps the last 90 days of it.
const (
	forgetSQL = `
select operations, audit
  from {schema}.outbox_forget(@before::timestamptz, @limit::int)`

	countRecordSQL = `
select (select count(*) from {schema}.outbox_operations where heartbeat_at < @before::timestamptz),
       (select count(*) from {schema}.outbox_audit where at < @before::timestamptz)`
)

// forget removes the old end of the record of operations.
func (s *Store) forget(rehearsal bool, before time.Time) purgePart {
	sql := s.sql(forgetSQL)
	if rehearsal {
		sql = s.sql(countRecordSQL)
	}
	return func(ctx context.Context, tx pgx.Tx, _ *Progress, c *purgeCursor, limit int) (int, error) {
		var operations, audit int64
		err := tx.QueryRow(ctx, sql, pgx.NamedArgs{"before": before, "limit": limit}).Scan(&operations, &audit)
		if err != nil {
			return 0, fmt.Errorf("purge the record of operations: %w", err)
		}
		c.count("operations", operations)
		c.count("audit", audit)
		if rehearsal {
			return 0, nil
		}
		return int(operations + audit), nil
	}
}
