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

// BenchmarkBackfill makes the events of 100,000 orders beside 2 million events, all of which are
// looked at first, against one bare INSERT … SELECT of as many, with a random key and nothing to look
// at. The look alone is gather-ms.
func BenchmarkBackfill(b *testing.B) {
	for b.Loop() {
		db := outboxtest.FilledCopy(b, backfillSQL)
		spec := orderCreated()
		spec.Payload = []outbox.PayloadField{
			{Name: "order_id", Column: "id"}, {Name: "customer_id", Column: "customer_id"},
			{Name: "amount_cents", Column: "amount_cents"}, {Name: "currency", Column: "currency"},
		}
		spec.Until = query[time.Time](b, db, `select created_at from orders where id = 10100001`)
		began := time.Now()
		if err := newBackfill(b, outbox.NewStore(db, "public"), spec).Gather(b.Context()); err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(float64(time.Since(began).Milliseconds()), "gather-ms")
		began = time.Now()
		ours := float64(backfillBy(b, db, spec, 1000).Done) / time.Since(began).Seconds()
		bare := bareRate(b, db, 10_100_001, 10_200_000)
		b.ReportMetric(ours, "events/s")
		b.ReportMetric(bare, "bare/s")
		b.ReportMetric(ours/bare, "ratio")
		b.ReportMetric(0, "ns/op")
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
