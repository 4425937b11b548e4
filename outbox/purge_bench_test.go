package outbox_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxctl/outboxctl/outbox"
	"github.com/outboxctl/outboxctl/outbox/outboxtest"
)

// purgeRate purges at the command's pace what ended longer ago than age, and returns events per
// second.
func purgeRate(b *testing.B, db *pgxpool.Pool, age time.Duration, archive bool) float64 {
	b.Helper()
	ctx := context.Background()
	store := outbox.NewStore(db, "public")
	run, err := store.Begin(ctx, outbox.Operation{Command: "purge", Planned: -1})
	if err != nil {
		b.Fatal(err)
	}
	began := time.Now()
	step := store.Purge(run, outbox.Purge{Filter: outbox.Filter{FinishedBefore: ago(b, db, age)}, Archive: archive})
	if err := outbox.Drain(ctx, step, outbox.Pace{Batch: 5000, Share: 0.5}, nil); err != nil {
		b.Fatal(err)
	}
	rate := float64(run.Progress.Done) / time.Since(began).Seconds()
	if err := run.End(ctx, ""); err != nil {
		b.Fatal(err)
	}
	return rate
}

// bareDeleteRate does the same with the delete that everybody would write.
func bareDeleteRate(b *testing.B, db *pgxpool.Pool, age time.Duration) float64 {
	b.Helper()
	began, total := time.Now(), int64(0)
	for {
		tag, err := db.Exec(context.Background(), `
delete from outbox
 where id in (select id from outbox
               where finished_at < now() - $1::interval and status = 'delivered'
               order by finished_at, id limit 5000)`, age)
		if err != nil {
			b.Fatal(err)
		}
		if tag.RowsAffected() == 0 {
			return float64(total) / time.Since(began).Seconds()
		}
		total += tag.RowsAffected()
	}
}

// BenchmarkPurge deletes half a million events of an outbox of 2.1 million, then archives 300,000, against
// a bare batched delete of as many.
func BenchmarkPurge(b *testing.B) {
	for b.Loop() {
		db := outboxtest.FilledCopy(b, deskSQL)
		purge := purgeRate(b, db, 30*day, false)
		bare := bareDeleteRate(b, db, 20*day)
		archive := purgeRate(b, db, 14*day, true)
		b.ReportMetric(purge, "rows/s")
		b.ReportMetric(archive, "archived/s")
		b.ReportMetric(bare, "bare-rows/s")
		b.ReportMetric(purge/bare, "of-bare")
		b.ReportMetric(0, "ns/op")
	}
}

// BenchmarkPurgeBesideDelivery delivers while a million events (ten times the load) are purged at the
// command's pace, against the same table without a purge.
func BenchmarkPurgeBesideDelivery(b *testing.B) {
	for b.Loop() {
		db, url := outboxtest.DB(b), receiver(b)
		compare(b, "alone",
			func() float64 { return rateBesidePurge(b, db, newWebhook(b, url, best)) },
			func() float64 { return dispatchRate(b, db, load(), best, newWebhook(b, url, best)) })
	}
}

// rateBesidePurge is the rate of deliveries, the first of which lets the purge begin.
func rateBesidePurge(b *testing.B, db *pgxpool.Pool, sink outbox.Sink) float64 {
	exec(b, db, `insert into outbox (aggregate_type, aggregate_id, event_type, payload, status, finished_at)
		select 'order', i::text, 'order.created', '{"n": 1}', 'delivered', now() - interval '40 days' + i * interval '1 second'
		  from generate_series(1, $1::int) i`, 10*load())
	store := outbox.NewStore(db, "public")
	run, err := store.Begin(context.Background(), outbox.Operation{Command: "purge", Planned: -1})
	if err != nil {
		b.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	step := store.Purge(run, outbox.Purge{Filter: outbox.Filter{FinishedBefore: ago(b, db, 20*day)}})
	var begin sync.Once
	var purge sync.WaitGroup
	first := sinkFunc(func(deliver context.Context, ev outbox.Event) (outbox.Receipt, error) {
		begin.Do(func() {
			purge.Go(func() {
				began := time.Now()
				if err := outbox.Drain(ctx, step, outbox.Pace{Batch: 5000, Share: 0.5}, nil); err != nil && !errors.Is(err, context.Canceled) {
					b.Error(err)
				}
				b.Logf("purged %d events beside it, %.0f/s", run.Progress.Done, float64(run.Progress.Done)/time.Since(began).Seconds())
			})
		})
		return sink.Deliver(deliver, ev)
	})
	rate := dispatchRate(b, db, load(), best, first)
	stop()
	purge.Wait()
	return rate
}
