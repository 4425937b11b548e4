package main_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outboxctl/outboxctl/outbox/outboxtest"
)

// BenchmarkPeakMemory is the most memory that the real binary has had after 100,000 events with the
// default flags, one in sixteen of them answered with 500 first.
func BenchmarkPeakMemory(b *testing.B) {
	const events = 100_000
	r := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		if r.Header.Get("X-Outbox-Attempt") == "1" && r.Header.Get("X-Idempotency-Key")[0] == '0' {
			w.WriteHeader(http.StatusInternalServerError)
		}
	}))
	defer r.Close()
	for b.Loop() {
		url := outboxtest.URL(b)
		conn, err := pgx.Connect(context.Background(), url)
		if err != nil {
			b.Fatal(err)
		}
		_, err = conn.Exec(context.Background(), `insert into outbox (aggregate_type, aggregate_id, event_type, payload)
			select 'order', i::text, 'order.created', jsonb_build_object('n', i) from generate_series(1, $1) i`, events)
		if err != nil {
			b.Fatal(err)
		}
		p := startPlain(b, url, "dispatch", "--to", r.URL, "--allow-private", "--once", "--log-level", "error")
		if code := p.wait(5 * time.Minute); code != 0 {
			b.Fatalf("dispatch exits with %d", code)
		}
		peak := p.cmd.ProcessState.SysUsage().(*syscall.Rusage).Maxrss // in kB, on Linux
		b.ReportMetric(float64(peak)/1000, "MB")
		b.ReportMetric(0, "ns/op")
		_ = conn.Close(context.Background())
	}
}
