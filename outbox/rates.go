package outbox

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// rateSQL weighs the oldest minute of a window with the part of it that is inside.
const rateSQL = `
select w.name,
       coalesce(sum(r.n * least(1, extract(epoch from r.minute + interval '1 minute' - (now() - w.span)) / 60)), 0)::float8
         / (extract(epoch from w.span) / 60)::float8
  from (values ('1m', interval '1 minute'), ('5m', interval '5 minutes'), ('15m', interval '15 minutes'), ('shadows', interval '5 minutes')) w(name, span)
  left join {schema}.outbox_rollup r -- outbox_rollup_pkey
    on r.minute > now() - w.span - interval '1 minute'
   and r.outcome = 'delivered'
   and r.shadow = (w.name = 'shadows')
 group by w.name, w.span`

func (s *Store) rateStats(ctx context.Context, tx pgx.Tx, _ Look, st *Stats) (err error) {
	st.Delivered, err = s.perMinute(ctx, tx, rateSQL)
	st.shadowsDelivered = st.Delivered["shadows"]
	delete(st.Delivered, "shadows")
	return err
}

// createdSQL finds the first event of each window by halving the ids in between: they are in the order
// of created_at, but for the length of a transaction. It counts ids, also those that were used up by a
// transaction that rolled back.
const createdSQL = `
with recursive ends as materialized (
	select (select id from {schema}.outbox order by id limit 1) as oldest, -- outbox_pkey
	       (select id from {schema}.outbox order by id desc limit 1) as newest),
probe(name, span, lo, hi, first) as (
	select w.name, w.span, oldest - 1, newest + 1, newest + 1 -- up to lo events are older, from hi on they are not
	  from (values ('1m', interval '1 minute'), ('5m', interval '5 minutes'), ('15m', interval '15 minutes')) w(name, span), ends
	union all
	select p.name, p.span,
	       case when found.older then least(found.id, p.hi - 1) else p.lo end,
	       case when found.older then p.hi else p.mid end,
	       case when found.older then p.first else found.id end
	  from (select name, span, lo, hi, first, lo + (hi - lo) / 2 as mid
	          from probe
	         where hi - lo > 1) p
	 cross join lateral (
		select o.id, o.created_at < now() - p.span as older
		  from {schema}.outbox o -- outbox_pkey
		 where o.id >= p.mid
		 order by o.id
		 limit 1) found)
select p.name, coalesce((ends.newest + 1 - min(p.first)) / (extract(epoch from p.span) / 60), 0)::float8
  from probe p, ends
 group by p.name, p.span, ends.newest`

func (s *Store) createdStats(ctx context.Context, tx pgx.Tx, _ Look, st *Stats) (err error) {
	st.Created, err = s.perMinute(ctx, tx, createdSQL)
	return err
}

// perMinute returns rates by the name of their window.
func (s *Store) perMinute(ctx context.Context, tx pgx.Tx, sql string) (map[string]float64, error) {
	rows, err := tx.Query(ctx, s.sql(sql))
	if err != nil {
		return nil, err
	}
	rates := map[string]float64{}
	var name string
	var rate float64
	_, err = pgx.ForEachRow(rows, []any{&name, &rate}, func() error {
		rates[name] = rate
		return nil
	})
	return rates, err
}
