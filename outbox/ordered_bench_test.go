package outbox_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxctl/outboxctl/outbox"
	"github.com/outboxctl/outboxctl/outbox/outboxtest"
)

// BenchmarkOrdered delivers events of a thousand aggregates in order, against the same events without
// one. The aim is a ratio of 0.6 at least.
func BenchmarkOrdered(b *testing.B) {
	for b.Loop() {
		db, url := outboxtest.DB(b), receiver(b)
		compare(b, "unordered",
			func() float64 { return thousandRate(b, db, load(), url, outbox.OrderingAggregate) },
			func() float64 { return thousandRate(b, db, load(), url, outbox.OrderingNone) })
	}
}

// thousandRate is how many events a second of a thousand aggregates are delivered.
func thousandRate(b *testing.B, db *pgxpool.Pool, n int, url string, ordering outbox.Ordering) float64 {
	fill(b, db, 0)
	exec(b, db, `insert into outbox (aggregate_type, aggregate_id, event_type, payload)
		select 'order', (i % 1000)::text, 'order.changed', jsonb_build_object('n', i) from generate_series(1, $1::int) i`, n)
	exec(b, db, `vacuum analyze outbox`)
	d := newDispatcher(db, newWebhook(b, url, best))
	d.BatchSize, d.Parallel, d.PollInterval, d.Ordering = best.batch, best.parallel, 2*time.Second, ordering
	d.Source = outbox.NewStore(db, "public").Queue(outbox.QueueOptions{
		Worker: "test", Lease: d.Lease, MaxAttempts: d.Policy.MaxAttempts, PollInterval: d.PollInterval, Ordering: ordering,
	})
	began := time.Now()
	summary, err := d.Run(b.Context(), context.Background())
	if err != nil || summary.Delivered != n {
		b.Fatalf("Run() delivered %d of %d: %v", summary.Delivered, n, err)
	}
	return float64(n) / time.Since(began).Seconds()
}

// BenchmarkOrderedClaimBesideHotAggregate is the time of claims of a hundred events, with the settle of the
// hundred before, beside an aggregate of 100,000 whose head waits for its retry. The aim is 50 ms at most.
func BenchmarkOrderedClaimBesideHotAggregate(b *testing.B) {
	for b.Loop() {
		db := outboxtest.DB(b)
		hot(b, db, 100_000)
		q := newQueue(db, ordered)
		var times []time.Duration
		var outs []outbox.Outcome
		for range 10 {
			began := time.Now()
			done := take(b, q, outs, 100, 10)
			times = append(times, time.Since(began))
			outs = outcomes(done.Events, outbox.Delivered)
		}
		slices.Sort(times)
		b.ReportMetric(float64(times[len(times)/2].Microseconds())/1000, "median-ms")
		b.ReportMetric(float64(times[len(times)-1].Microseconds())/1000, "slowest-ms")
		b.ReportMetric(0, "ns/op")
	}
}
