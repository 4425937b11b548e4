package webhook_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/outboxctl/outboxctl/outbox"
	"github.com/outboxctl/outboxctl/outbox/sink/webhook"
)

func sampleEvent() outbox.Event {
	return outbox.Event{
		TenantID: "acme", AggregateType: "order", AggregateID: "7", Type: "order.created", SchemaVersion: 1,
		Key:     uuid.MustParse("0198a6d2-5a3c-7c11-9d0e-3f5a6b7c8d9e"),
		Payload: []byte(`{"b": 1, "a": "<&>", "id": 9007199254740993, "x": 1.10}`), ID: 42, Attempts: 1,
		CreatedAt: time.Date(2026, 3, 1, 9, 30, 0, 0, time.UTC),
	}
}

// newSink makes a sink that may talk to this machine.
func newSink(t *testing.T, c webhook.Config) *webhook.Sink {
	t.Helper()
	c.AllowPrivate = true
	s, err := webhook.New(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// answer is what became of a delivery, to compare whole.
type answer struct {
	Verdict outbox.Verdict
	Kind    string
	Code    int
	Receipt string
}

func delivered(receipt string) answer { return answer{Receipt: receipt, Code: http.StatusOK} }

func deliver(t *testing.T, s *webhook.Sink, ev outbox.Event) answer {
	t.Helper()
	got, err := s.Deliver(context.Background(), ev)
	if err == nil {
		return answer{Code: got.Code, Receipt: got.Text}
	}
	failure, ok := errors.AsType[*outbox.DeliveryError](err)
	if !ok {
		t.Fatalf("Deliver() = %v, want a DeliveryError", err)
	}
	return answer{failure.Verdict, failure.Kind, failure.Code, ""}
}

// wire is one request as it arrived.
type wire struct {
	Header http.Header
	Path   string
	Body   string
}

// receiver is a real HTTP server that remembers what it got.
type receiver struct {
	*httptest.Server
	mu  sync.Mutex
	got []wire
}

func (r *receiver) requests() []wire {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]wire(nil), r.got...)
}

// only returns the one request that came.
func (r *receiver) only(t *testing.T) wire {
	t.Helper()
	got := r.requests()
	if len(got) != 1 {
		t.Fatalf("%d requests arrived, want 1", len(got))
	}
	return got[0]
}

// newReceiver answers with handle; nil means 200.
func newReceiver(t *testing.T, handle http.HandlerFunc) *receiver {
	t.Helper()
	r := &receiver{}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, _ := io.ReadAll(req.Body)
		r.mu.Lock()
		r.got = append(r.got, wire{req.Header, req.URL.RequestURI(), string(body)})
		r.mu.Unlock()
		if handle != nil {
			handle(w, req)
		}
	}))
	t.Cleanup(r.Close)
	return r
}

// listen serves connections with bytes of the test's choice, each in a goroutine that ends with
// the test.
func listen(t *testing.T, serve func(c net.Conn)) (url string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var (
		mu   sync.Mutex
		open []net.Conn
		wg   sync.WaitGroup
	)
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			open = append(open, c)
			mu.Unlock()
			wg.Go(func() {
				defer c.Close()
				serve(c)
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		mu.Lock()
		for _, c := range open {
			c.Close()
		}
		mu.Unlock()
		wg.Wait()
	})
	return "http://" + l.Addr().String()
}

// readRequest reads one request whole, and reports whether there was one.
func readRequest(r *bufio.Reader) bool {
	req, err := http.ReadRequest(r)
	if err != nil {
		return false
	}
	_, err = io.Copy(io.Discard, req.Body)
	return err == nil
}

// reset closes a connection with RST instead of FIN.
func reset(c net.Conn) {
	c.(*net.TCPConn).SetLinger(0)
	c.Close()
}
