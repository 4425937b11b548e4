package outbox

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// Overtaken says of how many aggregates a later event was delivered than one that a change selects.
type Overtaken struct {
	Aggregates int  // that were overtaken
	Looked     int  // aggregates that were looked at
	Cut        bool // there may be more: it was looked at a part of the events or of the deliveries
}

// No index leads from an aggregate to what was delivered, so the look is at the first events that are
// selected and at the newest deliveries since they were created, and no longer than a few seconds.
const (
	overtakenEvents     = 10_000
	overtakenDeliveries = 200_000
)

var overtakenLimits = limits{statement: 3 * time.Second, lock: time.Second, reads: true}

const overtakenSQL = `
with selected as materialized (
	select destination, tenant_id, aggregate_type, aggregate_id, min(coalesce(source_id, id)) as place, min(created_at) as since
	  from {schema}.outbox -- outbox_pkey
	 where id = any (@ids::bigint[])
	 group by destination, tenant_id, aggregate_type, aggregate_id),
recent as materialized (
	select destination, tenant_id, aggregate_type, aggregate_id, coalesce(source_id, id) as place, status
	  from {schema}.outbox -- outbox_done
	 where finished_at is not null
	   and finished_at >= (select min(since) from selected)
	 order by finished_at desc
	 limit @deliveries)
select (select count(*)
          from selected s
         where exists (select
                         from recent r
                        where r.status = 'delivered'
                          and r.destination = s.destination
                          and r.tenant_id = s.tenant_id
                          and r.aggregate_type = s.aggregate_type
                          and r.aggregate_id = s.aggregate_id
                          and r.place > s.place)),
       (select count(*) from selected),
       (select count(*) from recent) >= @deliveries`

// Overtaken looks once, whatever the number of events. Where it ran out of time it found nothing and
// says that it was cut.
func (c *Change) Overtaken(ctx context.Context) (o Overtaken, err error) {
	err = c.store.inTx(ctx, overtakenLimits, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, byIndexSQL); err != nil {
			return err
		}
		ids, more, err := c.first(ctx, tx, overtakenEvents)
		if err != nil || len(ids) == 0 {
			return err
		}
		err = tx.QueryRow(ctx, c.store.sql(overtakenSQL), pgx.NamedArgs{"ids": ids, "deliveries": overtakenDeliveries}).
			Scan(&o.Aggregates, &o.Looked, &o.Cut)
		o.Cut = o.Cut || more
		return err
	})
	if timedOut(err) {
		return Overtaken{Cut: true}, nil
	}
	if err != nil {
		return o, fmt.Errorf("look for later deliveries: %w", err)
	}
	return o, nil
}

// first returns the first n events that are selected, and whether there may be more.
func (c *Change) first(ctx context.Context, tx pgx.Tx, n int) (ids []int64, more bool, err error) {
	var at cursor
	for began := time.Now(); len(ids) < n && time.Since(began) < overtakenLimits.statement; {
		next, looked, err := c.next(ctx, tx, &at, n, n-len(ids))
		if err != nil {
			return nil, false, err
		}
		if looked == 0 {
			return ids, false, nil
		}
		ids = append(ids, next...)
	}
	return ids, true, nil
}
