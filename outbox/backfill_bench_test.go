package outbox_test

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxctl/outboxctl/outbox"
	"github.com/outboxctl/outboxctl/outbox/outboxtest"
)

// backfillSQL is the desk's outbox with orders beside it, none of which has an event.
const backfillSQL = deskSQL + `;
create table orders (id bigint primary key, customer_id text, amount_cents int, currency text, status text, created_at timestamptz not null);
insert into orders select i, 'c-' || i % 7, i * 37 % 10000, 'EUR', 'new', now() - interval '40 days' + i * interval '15 seconds'
  from generate_series(10000001, 10200000) i;
create index orders_created on orders (created_at, id)`

// BenchmarkBackfill makes the events of 100,000 orders beside 2 million events, against one bare
// INSERT … SELECT of as many, with a random key and nothing to look at.
func BenchmarkBackfill(b *testing.B) {
	for b.Loop() {
		db := outboxtest.FilledCopy(b, backfillSQL)
		spec := orderCreated()
		spec.AggregateID, spec.Payload = outbox.Field{Column: "id"}, []outbox.PayloadField{
			{Name: "order_id", Column: "id"}, {Name: "customer_id", Column: "customer_id"},
			{Name: "amount_cents", Column: "amount_cents"}, {Name: "currency", Column: "currency"},
		}
		next := 10_000_000
		id := func(n int) time.Time {
			return query[time.Time](b, db, `select created_at from orders where id = $1`, n)
		}
		compare(b, "bare",
			func() float64 {
				spec.Since, spec.Until = id(next+1), id(next+33_334)
				next += 33_333
				began := time.Now()
				n := backfillBy(b, db, spec, 1000).Done
				return float64(n) / time.Since(began).Seconds()
			},
			func() float64 {
				next += 33_333
				return bareRate(b, db, next-33_332, next)
			})
	}
}

func bareRate(b *testing.B, db *pgxpool.Pool, from, to int) float64 {
	b.Helper()
	began := time.Now()
	exec(b, db, `
insert into outbox (aggregate_type, aggregate_id, event_type, headers, payload, origin)
select 'order', id::text, 'order.created', jsonb_build_object('occurred_at', created_at),
       jsonb_build_object('order_id', id, 'customer_id', customer_id, 'amount_cents', amount_cents, 'currency', currency), 'backfill:0'
  from orders where id between $1 and $2
 order by created_at, id`, from, to)
	return float64(to-from+1) / time.Since(began).Seconds()
}
