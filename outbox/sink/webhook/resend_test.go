package webhook_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http/httptest"
	"sync/atomic"
	"syscall"
	"testing"

	"net/http"

	"github.com/outboxctl/outboxctl/outbox"
	"github.com/outboxctl/outboxctl/outbox/sink/webhook"
)

// broken is a connection that fails its writes once it is told to.
type broken struct {
	net.Conn
	fail  *atomic.Int64 // writes that fail, on whatever connection
	after int           // bytes that go out before a write fails
}

func (b *broken) Write(p []byte) (int, error) {
	if b.fail.Add(-1) < 0 {
		return b.Conn.Write(p)
	}
	n, _ := b.Conn.Write(p[:min(b.after, len(p))])
	return n, syscall.EPIPE
}

func TestRequestThatNeverLeftAUsedConnectionIsSentOnceMore(t *testing.T) {
	t.Parallel()
	brief := answer{Verdict: outbox.VerdictBrief, Kind: "reset"}
	for _, tt := range []struct {
		name  string
		tls   bool
		first bool // fails on the first request, of a fresh connection
		fails int64
		after int
		want  answer
	}{
		{name: "nothing was written", fails: 1, want: delivered("200")},
		{name: "nothing was written, over TLS", tls: true, fails: 1, want: delivered("200")},
		{name: "a byte was written", fails: 1, after: 1, want: brief},
		{name: "a byte was written, over TLS", tls: true, fails: 1, after: 1, want: brief},
		{name: "nothing was written to a fresh connection", first: true, fails: 1, want: answer{Kind: "reset"}},
		{name: "nothing was written, twice", fails: 2, want: answer{Kind: "reset"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var whole atomic.Int64
			server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if _, err := io.Copy(io.Discard, r.Body); err == nil {
					whole.Add(1)
				}
			}))
			config := webhook.Config{}
			if tt.tls {
				server.StartTLS()
				config.CAFile = writePEM(t, server.Certificate().Raw)
			} else {
				server.Start()
			}
			t.Cleanup(server.Close)
			config.URL = server.URL
			sink := newSink(t, config)
			var fail atomic.Int64
			sink.WrapConns(func(c net.Conn) net.Conn { return &broken{c, &fail, tt.after} })

			want := int64(0)
			if !tt.first {
				deliver(t, sink, sampleEvent())
				want++
			}
			fail.Store(tt.fails)
			if got := deliver(t, sink, sampleEvent()); got != tt.want {
				t.Errorf("Deliver() = %+v, want %+v", got, tt.want)
			}
			if tt.want == delivered("200") {
				want++
			}
			if got := whole.Load(); got != want {
				t.Errorf("%d requests arrived, want %d", got, want)
			}
		})
	}
}

func TestLostConnectionMakesTheNextOnesUnshared(t *testing.T) {
	t.Parallel()
	var conns atomic.Int64
	url := listen(t, func(c net.Conn) {
		first := conns.Add(1) == 1
		for r := bufio.NewReader(c); readRequest(r); {
			fmt.Fprint(c, ok)
			if first {
				readRequest(r)
				return
			}
		}
	})
	sink := newSink(t, webhook.Config{URL: url})
	for i, want := range []answer{delivered("200"), {Verdict: outbox.VerdictBrief, Kind: "eof"}} {
		if got := deliver(t, sink, sampleEvent()); got != want {
			t.Fatalf("delivery %d = %+v, want %+v", i, got, want)
		}
	}
	before := conns.Load()
	for range 510 {
		deliver(t, sink, sampleEvent())
	}
	if got := conns.Load() - before; got != 501 {
		t.Errorf("510 requests after a lost connection took %d, want 500 of their own and one for the rest", got)
	}
}
