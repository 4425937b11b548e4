package outbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// A purge that archives deletes and inserts in one statement, and compares the counts. The partitions
// of the months that a step is about are made before, in the same transaction; where they are there
// already that costs a look.
const (
	prepareArchiveSQL = `
select {schema}.outbox_archive_prepare(array (
	select distinct date_trunc('month', finished_at, 'UTC')
	  from (select o.finished_at
	          from {schema}.outbox o -- /*source*/
	           and o.finished_at < @before::timestamptz
	           and (o.finished_at, o.id) > (@at::timestamptz, @id::bigint)
	         order by o.finished_at, o.id
	         limit @limit) page))`

	keepEventsSQL = `
	insert into {schema}.outbox_archive
	       (` + archiveColumns + `)
	select ` + archiveColumns + `
	  from gone
	returning 1`

	archiveColumns = `id, source_id, tenant_id, aggregate_type, aggregate_id, event_type, schema_version, idempotency_key, destination,
	       headers, payload, payload_bytes, status, attempts, available_at, next_attempt_at, last_attempt_at, finished_at, created_at,
	       updated_at, receipt, error, error_kind, error_code, origin`
)

// Partition is a part of the archive: the events that ended in a month.
type Partition struct {
	Name     string
	From, To time.Time // when its events ended, To excluded
	Bytes    int64     // with its indexes
	Rows     int64
	About    bool // Rows is an estimate
}

// partitionsSQL reads bounds as partitionsForm has PostgreSQL print them. A default partition, and one
// without an end, has no age.
const (
	partitionsForm = `select set_config('datestyle', 'ISO', true), set_config('timezone', 'UTC', true)`

	partitionsSQL = `
select c.relname, m[1]::timestamptz, m[2]::timestamptz, pg_total_relation_size(c.oid), greatest(c.reltuples, 0)::bigint, true
  from pg_inherits i
  join pg_class c on c.oid = i.inhrelid
 cross join regexp_match(pg_get_expr(c.relpartbound, c.oid), '^FOR VALUES FROM \(''(.*)''\) TO \(''(.*)''\)$') m
 where i.inhparent = @archive::text::regclass
   and m[2]::timestamptz <= @before::timestamptz
 order by 2`

	// countedUpTo bounds a count; what is more is estimated.
	countedUpTo = 1_000_000

	partitionCountSQL = `
select count(*)
  from (select
          from {schema}.outbox_archive -- the partition's own primary key
         where finished_at >= $1
           and finished_at < $2
         limit $3) r`
)

// Partitions returns those of the archive whose events all ended before a time, the oldest first.
func (s *Store) Partitions(ctx context.Context, before time.Time) (all []Partition, err error) {
	l := operationLimits
	l.reads = true
	err = s.inTx(ctx, l, func(tx pgx.Tx) error {
		if all, err = s.partitions(ctx, tx, before); err != nil {
			return err
		}
		for i, p := range all {
			var n int64
			if err := tx.QueryRow(ctx, s.sql(partitionCountSQL), p.From, p.To, countedUpTo+1).Scan(&n); err != nil {
				return err
			}
			if n <= countedUpTo || n > p.Rows {
				all[i].Rows, all[i].About = n, n > countedUpTo
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("the archive's partitions: %w", err)
	}
	return all, nil
}

func (s *Store) partitions(ctx context.Context, tx pgx.Tx, before time.Time) ([]Partition, error) {
	if _, err := tx.Exec(ctx, partitionsForm); err != nil {
		return nil, err
	}
	rows, err := tx.Query(ctx, partitionsSQL, pgx.NamedArgs{"archive": s.schema + ".outbox_archive", "before": before})
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[Partition])
}

// Dropping a partition locks the whole archive for a moment. Whoever reads or fills it queues behind
// one that waits, so it gives up soon, and comes again.
const (
	dropPatience = `select set_config('lock_timeout', '500ms', true)`

	dropPartitionSQL = `select {schema}.outbox_archive_drop(@name, @before)`
)

// DropArchive returns the steps that drop the partitions whose events all ended before a time, one
// each. A rehearsal counts them; see also [Store.Partitions].
func (s *Store) DropArchive(run *Run, before time.Time) Step {
	return func(ctx context.Context, _ int) (int, error) {
		return run.step(ctx, func(tx pgx.Tx, p *Progress) (int, error) {
			all, err := s.partitions(ctx, tx, before)
			if err != nil {
				return 0, fmt.Errorf("the archive's partitions: %w", err)
			}
			if run.Rehearsal() {
				p.Done = int64(len(all))
				return 0, nil
			}
			if len(all) == 0 {
				return 0, nil
			}
			if _, err := tx.Exec(ctx, dropPatience); err != nil {
				return 0, err
			}
			var dropped bool
			err = tx.QueryRow(ctx, s.sql(dropPartitionSQL), pgx.NamedArgs{"name": all[0].Name, "before": before}).Scan(&dropped)
			if err == nil && !dropped {
				err = errors.New("it is not there any more")
			}
			if err != nil {
				return 0, fmt.Errorf("drop %s: %w", all[0].Name, err)
			}
			p.Done++
			return 1, nil
		})
	}
}
