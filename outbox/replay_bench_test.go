package outbox_test

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxctl/outboxctl/outbox"
	"github.com/outboxctl/outboxctl/outbox/outboxtest"
)

// BenchmarkReplay puts a hundred thousand failed events back among two million delivered ones,
// against one bare update of as many rows in batches of the same size.
func BenchmarkReplay(b *testing.B) {
	for b.Loop() {
		db := outboxtest.FilledCopy(b, deskSQL)
		compare(b, "update",
			func() float64 { return replayRate(b, db, load()) },
			func() float64 { return bareUpdateRate(b, db, load()) })
	}
}

// buryBench leaves n failed events, the only ones, in a table without dead rows of the round before.
func buryBench(b *testing.B, db *pgxpool.Pool, n int) {
	b.Helper()
	exec(b, db, `delete from outbox where id > 2100000`)
	exec(b, db, `truncate outbox_audit`)
	bury(b, db, n)
	exec(b, db, `vacuum analyze outbox`)
	exec(b, db, `checkpoint`)
}

func replayRate(b *testing.B, db *pgxpool.Pool, n int) float64 {
	b.Helper()
	buryBench(b, db, n)
	r := failed(b, db)
	began := time.Now()
	made := replay(b, db, r, 1000)
	took := time.Since(began)
	if made.Progress.Done != int64(n) {
		b.Fatalf("replayed %d of %d: %v", made.Progress.Done, n, made.Progress.Skipped)
	}
	return float64(n) / took.Seconds()
}

func bareUpdateRate(b *testing.B, db *pgxpool.Pool, n int) float64 {
	b.Helper()
	buryBench(b, db, n)
	first := query[int64](b, db, `select min(id) from outbox where status = 'failed'`)
	began := time.Now()
	for from := first; from < first+int64(n); from += 1000 {
		exec(b, db, `update outbox set status = 'pending', attempts = 0, available_at = now(), finished_at = null, error_kind = null
			where id >= $1 and id < $1 + 1000`, from)
	}
	return float64(n) / time.Since(began).Seconds()
}

// BenchmarkRehearsal counts what a replay of as many would do.
func BenchmarkRehearsal(b *testing.B) {
	db := desk(b)
	change := outbox.NewStore(db, "public").Replay(outbox.Replay{
		Filter: outbox.Filter{Statuses: []outbox.Status{outbox.Failed, outbox.DeadLetter}}, Before: time.Now(),
	})
	var n int64
	began := time.Now()
	for b.Loop() {
		n += rehearse(b, db, change, 1000).Done
	}
	b.ReportMetric(float64(n)/time.Since(began).Seconds(), "events/s")
	b.ReportMetric(0, "ns/op")
}
