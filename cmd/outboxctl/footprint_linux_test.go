package main_test

import (
	"crypto/tls"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// plain builds outboxctl without the race detector, whose memory would be measured too.
var plain = sync.OnceValues(func() (string, error) {
	file := filepath.Join(buildDir, "outboxctl-plain")
	if out, err := exec.Command("go", "build", "-o", file, ".").CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build: %w: %s", err, out)
	}
	return file, nil
})

// startPlain is startWith for the plain binary.
func startPlain(t testing.TB, url string, args ...string) *process {
	t.Helper()
	file, err := plain()
	if err != nil {
		t.Fatal(err)
	}
	return startFile(t, file, []string{"DATABASE_URL=" + url}, args...)
}

// peak is the most memory that a running process has had, in MB.
func peak(t *testing.T, p *process) int {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`(?m)^VmHWM:\s+(\d+) kB`).FindSubmatch(status)
	if m == nil {
		t.Fatalf("no VmHWM in %s", status)
	}
	kb, _ := strconv.Atoi(string(m[1]))
	return kb / 1024
}

// B38: whatever receivers answer, a dispatcher stays small.
func TestHugeAnswersDoNotFillTheMemory(t *testing.T) {
	t.Parallel()
	const limit, each = 150, 20
	block := make([]byte, 1<<20)
	answers := map[string]http.HandlerFunc{
		"endless": func(w http.ResponseWriter, _ *http.Request) {
			for {
				if _, err := w.Write(block); err != nil {
					return
				}
			}
		},
		"bomb": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			w.Write(block)
		},
		"headers": func(w http.ResponseWriter, _ *http.Request) {
			for i := range 1000 {
				w.Header().Set(fmt.Sprint("X-", i), strings.Repeat("x", 2000))
			}
		},
		"hang": func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
	}
	for name, http2 := range map[string]bool{"HTTP/1.1": false, "HTTP/2": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url, db := database(t)
			events := 0
			for name := range answers {
				if name == "headers" && http2 { // they break the connection, for the others too
					continue
				}
				insert(t, db, name, each)
				events += each
			}
			to := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				io.Copy(io.Discard, r.Body)
				answers[r.Header.Get("X-Outbox-Event-Type")](w, r)
			}))
			dir := t.TempDir()
			cert := filepath.Join(dir, "cert.pem")
			to.TLS = &tls.Config{Certificates: []tls.Certificate{writeCertificate(t, cert, filepath.Join(dir, "key.pem"))}}
			to.EnableHTTP2, to.Config.ErrorLog = http2, log.New(io.Discard, "", 0)
			to.StartTLS()
			t.Cleanup(to.Close)

			p := startPlain(t, url, "dispatch", "--to", to.URL, "--ca-file", cert, "--allow-private",
				"--parallel", "50", "--batch-size", "200", "--request-timeout", "2s", "--backoff", "1h..2h")
			eventually(t, "each event is tried", func() bool {
				return query[int](t, db, `select count(*) from outbox where attempts > 0 and lease is null`) == events
			})
			if mb := peak(t, p); mb > limit {
				t.Errorf("the dispatcher has had %d MB, want at most %d", mb, limit)
			} else {
				t.Logf("the dispatcher has had %d MB", mb)
			}
			p.stop()
			if n := count(t, db, "delivered"); n == 0 {
				t.Error("no event is delivered, though many an answer begins with 200")
			}
		})
	}
}

// B47: large payloads are read when they are sent, not when they are claimed.
func TestLargePayloadsDoNotFillTheMemory(t *testing.T) {
	t.Parallel()
	const limit, size = 300, 8 << 20
	events := 24
	if long {
		events = 256
	}
	url, db := database(t)
	execute(t, db, `insert into outbox (aggregate_type, aggregate_id, event_type, payload)
		select 'file', i::text, 'file.added', to_jsonb(repeat(md5(i::text), $1 / 32)) from generate_series(1, $2::int / 2) i`, size, events)
	execute(t, db, `insert into outbox (aggregate_type, aggregate_id, event_type, payload_bytes)
		select 'file', i::text, 'file.added', convert_to(repeat(md5(i::text), $1 / 32), 'UTF8') from generate_series(1, $2::int / 2) i`, size, events)
	var (
		mu      sync.Mutex
		arrived int64
	)
	to := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		n, _ := io.Copy(io.Discard, r.Body)
		mu.Lock()
		defer mu.Unlock()
		arrived += n
	}))
	defer to.Close()
	began := time.Now()
	p := startPlain(t, url, "dispatch", "--to", to.URL, "--allow-private", "--batch-size", "256", "--parallel", "4", "--request-timeout", "20s")
	for deadline := time.Now().Add(10 * patience); count(t, db, "delivered") < events; time.Sleep(100 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d of %d events are delivered", count(t, db, "delivered"), events)
		}
	}
	mb := peak(t, p)
	p.stop()
	if mb > limit {
		t.Errorf("the dispatcher has had %d MB, want at most %d", mb, limit)
	}
	t.Logf("%d MB of payloads in %s, the dispatcher has had %d MB", arrived>>20, time.Since(began).Round(time.Millisecond), mb)
	if arrived < int64(events*size) {
		t.Errorf("%d bytes arrived, want more than those of the payloads, %d", arrived, events*size)
	}
	if n := query[int](t, db, `select max(attempts) from outbox`); n != 1 {
		t.Errorf("some event took %d attempts, want 1", n)
	}
}

// B67: a dispatcher that follows the log keeps nothing of a huge transaction, whether that commits or not.
func TestHugeTransactionsDoNotFillTheMemory(t *testing.T) {
	t.Parallel()
	const limit = 150
	n := 20_000
	if long {
		n = 300_000
	}
	_, url, db := logical(t)
	var arrived, invented atomic.Int64
	to := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		arrived.Add(1)
		if r.Header.Get("X-Outbox-Event-Type") == "order.aborted" {
			invented.Add(1)
		}
	}))
	defer to.Close()
	p := startPlain(t, url, "dispatch", "--to", to.URL, "--allow-private", "--wake", "wal", "--poll-interval", "60s",
		"--batch-size", "1000", "--parallel", "32", "--log-level", "warn")
	followed(t, db, 1)
	const bigSQL = `insert into outbox (aggregate_type, aggregate_id, event_type, payload)
		select 'order', i::text, $1, jsonb_build_object('text', repeat(md5(i::text), 32)) from generate_series(1, $2::int) i`
	began := time.Now()
	aborted, committed := begin(t, db), begin(t, db)
	for event, tx := range map[string]pgx.Tx{"order.aborted": aborted, "order.created": committed} {
		if _, err := tx.Exec(t.Context(), bigSQL, event, n); err != nil {
			t.Fatal(err)
		}
	}
	if err := aborted.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	commit(t, committed)
	took := time.Since(began)
	for deadline := time.Now().Add(10 * patience); arrived.Load() < int64(n); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d of %d events have arrived", arrived.Load(), n)
		}
	}
	drained := time.Now()
	insert(t, db, "order.small", 1)
	for arrived.Load() <= int64(n) && time.Since(drained) < patience {
		time.Sleep(time.Millisecond)
	}
	after := time.Since(drained)
	allDelivered(t, db, n+1)
	mb := peak(t, p)
	p.stop()
	t.Logf("%d rows of 1 kB committed and as many rolled back in %s, all delivered %s after that, the next event %s after it; the dispatcher has had %d MB",
		n, took.Round(time.Millisecond), drained.Sub(began.Add(took)).Round(time.Millisecond), after.Round(time.Millisecond), mb)
	if mb > limit {
		t.Errorf("the dispatcher has had %d MB, want at most %d", mb, limit)
	}
	if got := invented.Load(); got != 0 {
		t.Errorf("%d requests for events that were rolled back", got)
	}
}
