package outbox_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxctl/outboxctl/outbox"
	"github.com/outboxctl/outboxctl/outbox/outboxtest"
)

// BenchmarkClaimBesideStats is the p99 of claims of a hundred events, with the settle of the hundred before,
// while somebody looks at stats once a second, against that while nobody does: B73. Both are
// measured in turns. The aim is a ratio of 1.2 at most.
func BenchmarkClaimBesideStats(b *testing.B) {
	for b.Loop() {
		db := outboxtest.FilledCopy(b, deskSQL)
		stats(b, db) // the first one reads the disk
		var alone, beside []time.Duration
		for range rounds {
			alone = append(alone, claimTimes(b, db)...)
			stop := lookEverySecond(b, db)
			beside = append(beside, claimTimes(b, db)...)
			stop()
		}
		p99 := func(times []time.Duration) float64 {
			slices.Sort(times)
			return float64(times[len(times)*99/100].Microseconds()) / 1000
		}
		b.ReportMetric(p99(beside), "p99-ms")
		b.ReportMetric(p99(alone), "alone-p99-ms")
		b.ReportMetric(p99(beside)/p99(alone), "ratio")
		b.ReportMetric(0, "ns/op")
	}
}

// claimTimes are those of a claim every 20 ms, of new events that a claim has its fill of.
func claimTimes(b *testing.B, db *pgxpool.Pool) (times []time.Duration) {
	b.Helper()
	const claims, batch = 400, 100
	insert(b, db, claims*batch)
	q := newQueue(db)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	var outs []outbox.Outcome
	for turns := 0; len(times) < claims-10; turns++ { // a walk that ends finds less, and does not count
		if turns > 2*claims {
			b.Fatalf("%d of %d claims were full, want %d", len(times), turns, claims-10)
		}
		<-tick.C
		began := time.Now()
		done, err := q.Exchange(b.Context(), outs, outbox.Want{N: batch})
		if err != nil {
			b.Fatal(err)
		}
		if len(done.Events) == batch {
			times = append(times, time.Since(began))
		}
		outs = outcomes(done.Events, outbox.Delivered)
	}
	if _, err := q.Exchange(b.Context(), outs, outbox.Want{}); err != nil {
		b.Fatal(err)
	}
	return times
}

// lookEverySecond looks at stats until stop.
func lookEverySecond(b *testing.B, db *pgxpool.Pool) (stop func()) {
	ctx, cancel := context.WithCancel(b.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for ctx.Err() == nil {
			stats(b, db)
			select {
			case <-ctx.Done():
			case <-tick.C:
			}
		}
	})
	return func() { cancel(); wg.Wait() }
}
