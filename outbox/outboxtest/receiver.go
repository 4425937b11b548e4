package outboxtest

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"testing"
	"time"
)

// Answer is what a [Receiver] does with a request. The zero value is an empty 200.
type Answer struct {
	Status    int           // 0 = 200
	Header    http.Header   // besides the usual ones
	Body      string        //
	Delay     time.Duration // before anything is sent
	Hang      bool          // send nothing until the client leaves
	Stall     bool          // send the headers and Body, but no end until the client leaves
	Raw       string        // send these bytes instead of an HTTP answer, and close
	Reset     bool          // send nothing and reset the connection
	HalfClose bool          // send nothing, close our half, and wait for the client to leave
}

// Request is one request as it came over the wire, with what was answered.
type Request struct {
	N       int       // 1 is the first
	At      time.Time // when it had come in whole
	Done    time.Time // when its answer was out; zero while it is open
	Method  string
	Path    string // with the query
	Header  http.Header
	Body    []byte
	Key     string // X-Idempotency-Key
	Attempt int    // X-Outbox-Attempt; 0 = none
	Remote  string // the client's address: the same for requests of one connection
	Err     error  // of reading the body: the client left before its end
	Answer  Answer
	Left    bool // the client left before it had its answer
}

// Receiver is a webhook receiver that records what comes in and answers as it is told. It is safe
// for concurrent use.
type Receiver struct {
	URL string

	answer  func(n int, r *Request) Answer
	server  *httptest.Server
	closing chan struct{}
	close   sync.Once

	mu       sync.Mutex
	requests []*Request
	changed  chan struct{} // closed and replaced when a request comes in or is done
}

// NewReceiver starts a receiver that lives until the test ends. The function is called for each
// request, several at a time when they come so, with its number from 1; nil answers all with 200.
func NewReceiver(t testing.TB, answer func(n int, r *Request) Answer) *Receiver {
	t.Helper()
	if answer == nil {
		answer = Always(Answer{})
	}
	v := &Receiver{answer: answer, closing: make(chan struct{}), changed: make(chan struct{})}
	v.server = httptest.NewServer(v)
	v.URL = v.server.URL
	t.Cleanup(v.Close)
	return v
}

// Always answers every request in the same way.
func Always(a Answer) func(int, *Request) Answer {
	return func(int, *Request) Answer { return a }
}

// Script answers the first request with the first answer and so on, and all beyond with the last.
func Script(answers ...Answer) func(int, *Request) Answer {
	return func(n int, _ *Request) Answer { return answers[min(n, len(answers))-1] }
}

// Close ends the receiver and with it every request that hangs. Connecting is refused from then on.
func (v *Receiver) Close() {
	v.close.Do(func() {
		close(v.closing)
		v.server.CloseClientConnections()
		v.server.Close()
	})
}

// Count returns how many requests came in.
func (v *Receiver) Count() int {
	v.mu.Lock()
	defer v.mu.Unlock()
	return len(v.requests)
}

// Requests returns the requests so far in the order in which they came in.
func (v *Receiver) Requests() []Request {
	v.mu.Lock()
	defer v.mu.Unlock()
	all := make([]Request, len(v.requests))
	for i, r := range v.requests {
		all[i] = *r
	}
	return all
}

// ByKey returns the requests so far by their event's key.
func (v *Receiver) ByKey() map[string][]Request {
	by := map[string][]Request{}
	for _, r := range v.Requests() {
		by[r.Key] = append(by[r.Key], r)
	}
	return by
}

// Wait returns when n requests have come in, and fails the test when that takes longer than d.
func (v *Receiver) Wait(t testing.TB, n int, d time.Duration) {
	t.Helper()
	v.WaitFor(t, d, func(all []Request) bool { return len(all) >= n })
}

// WaitFor returns when ok says so of the requests so far, and fails the test when that takes longer
// than d.
func (v *Receiver) WaitFor(t testing.TB, d time.Duration, ok func([]Request) bool) {
	t.Helper()
	deadline := time.After(d)
	for {
		v.mu.Lock()
		changed := v.changed
		v.mu.Unlock()
		all := v.Requests()
		if ok(all) {
			return
		}
		select {
		case <-changed:
		case <-deadline:
			t.Fatalf("outboxtest: after %s the receiver has %d requests, and not what was waited for", d, len(all))
		}
	}
}

// ServeHTTP records a request and answers it.
func (v *Receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	r := v.record(req)
	a := v.answer(r.N, r)
	left := v.give(w, req, a)
	v.mu.Lock()
	defer v.mu.Unlock()
	stored := v.requests[r.N-1]
	stored.Answer, stored.Left, stored.Done = a, left, time.Now()
	v.notify()
}

// record stores a request and returns a copy for the answering function, which may keep it.
func (v *Receiver) record(req *http.Request) *Request {
	var body bytes.Buffer
	_, err := io.Copy(&body, req.Body)
	attempt, _ := strconv.Atoi(req.Header.Get("X-Outbox-Attempt"))
	r := &Request{
		At:      time.Now(),
		Method:  req.Method,
		Path:    req.URL.RequestURI(),
		Header:  req.Header.Clone(),
		Body:    body.Bytes(),
		Key:     req.Header.Get("X-Idempotency-Key"),
		Attempt: attempt,
		Remote:  req.RemoteAddr,
		Err:     err,
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	r.N = len(v.requests) + 1
	v.requests = append(v.requests, r)
	v.notify()
	own := *r
	return &own
}

// notify wakes those that wait; mu is held.
func (v *Receiver) notify() {
	close(v.changed)
	v.changed = make(chan struct{})
}

// give sends an answer and reports whether the client left before it had it.
func (v *Receiver) give(w http.ResponseWriter, req *http.Request, a Answer) (left bool) {
	ctx := req.Context()
	if a.Delay > 0 && !v.pause(ctx, a.Delay) {
		return true
	}
	switch {
	case a.Hang:
		v.pause(ctx, 0)
		return true
	case a.Reset, a.HalfClose, a.Raw != "":
		v.takeOver(w, a)
		return false
	}
	for name, values := range a.Header {
		w.Header()[name] = values
	}
	w.WriteHeader(max(a.Status, http.StatusOK))
	io.WriteString(w, a.Body)
	if a.Stall {
		http.NewResponseController(w).Flush()
		v.pause(ctx, 0)
		return true
	}
	return false
}

// pause waits for d, for ever when d is 0, and reports whether the client is still there.
func (v *Receiver) pause(ctx context.Context, d time.Duration) bool {
	var over <-chan time.Time
	if d > 0 {
		over = time.After(d)
	}
	select {
	case <-over:
		return true
	case <-ctx.Done():
	case <-v.closing:
	}
	return false
}

// takeOver answers on the bare connection.
func (v *Receiver) takeOver(w http.ResponseWriter, a Answer) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer conn.Close()
	tcp := conn.(*net.TCPConn)
	switch {
	case a.Reset:
		tcp.SetLinger(0)
	case a.HalfClose:
		tcp.CloseWrite()
		v.drain(conn)
	default:
		io.WriteString(conn, a.Raw)
	}
}

// drain reads until the client leaves, or the receiver is closed.
func (v *Receiver) drain(conn net.Conn) {
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		io.Copy(io.Discard, conn)
	}()
	select {
	case <-gone:
	case <-v.closing:
		conn.Close()
		<-gone
	}
}
