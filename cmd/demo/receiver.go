package main

import (
	"encoding/json"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/outboxctl/outboxctl/outbox/sink/webhook"
)

const (
	failing     = 0.2   // share of requests that get a 500
	slow        = 0.03  // share that take most of a second
	halfAt      = 100   // the taken order that is not answered
	oddCurrency = "DEM" // what the receiver cannot take
)

// receiver is a partner's endpoint: correct where it matters, and as unreliable as they are.
type receiver struct {
	url    string
	secret string
	half   chan struct{} // closed when half the work is done
	server *http.Server
	down   atomic.Bool // answers 503
	well   atomic.Bool // does not fail any more
	serves sync.WaitGroup

	mu sync.Mutex
	tally
}

// tally is what the receiver remembers.
type tally struct {
	requests   int
	forged     int             // requests whose signature does not fit
	failed     int             // requests that got a 500
	duplicates int             // requests for an order taken before
	keys       map[string]bool // of the events taken
	taken      map[int64]int   // by order: how often it was booked; more than once is a mistake
	refused    map[int64]bool  // orders that got a 422
}

func newReceiver(secret string) (*receiver, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	r := &receiver{
		url: "http://" + listener.Addr().String() + "/orders", secret: secret, half: make(chan struct{}),
		tally: tally{keys: map[string]bool{}, taken: map[int64]int{}, refused: map[int64]bool{}},
	}
	r.server = &http.Server{Handler: r}
	r.serves.Go(func() { r.server.Serve(listener) }) // until close
	return r, nil
}

func (r *receiver) close() {
	r.server.Close()
	r.serves.Wait()
}

// ServeHTTP takes an order: first who sent it, then whether it is new, and only then what it says.
func (r *receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, req.Body, 1<<20))
	if err != nil {
		return // the sender left
	}
	if err := r.verify(req.Header, body); err != nil {
		http.Error(w, err.Error(), http.StatusUnauthorized)
		return
	}
	if r.down.Load() {
		http.Error(w, "down for maintenance", http.StatusServiceUnavailable)
		return
	}
	work()
	if r.fails() {
		http.Error(w, "out of order", http.StatusInternalServerError)
		return
	}
	status, half := r.take(req.Header.Get("X-Idempotency-Key"), body)
	if half {
		close(r.half)
		<-req.Context().Done() // the sender dies before it hears of its success
	}
	w.WriteHeader(status)
}

// recover ends the outage, and whatever made the receiver fail before.
func (r *receiver) recover() {
	r.well.Store(true)
	r.down.Store(false)
}

// verify checks both signatures. One of them would do.
func (r *receiver) verify(h http.Header, body []byte) error {
	err := errors.Join(webhook.Verify(h, body, r.secret), webhook.VerifyBody(h, body, r.secret))
	r.mu.Lock()
	defer r.mu.Unlock()
	r.requests++
	if err != nil {
		r.forged++
	}
	return err
}

// work is what a receiver does before it answers.
func work() {
	pause := 5*time.Millisecond + rand.N(20*time.Millisecond)
	if rand.Float64() < slow {
		pause += 800 * time.Millisecond
	}
	time.Sleep(pause)
}

func (r *receiver) fails() bool {
	if r.well.Load() || rand.Float64() >= failing {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failed++
	return true
}

// take books the order, unless its event's key is known: then it has been booked before, and the
// answer is the same. It tells when it was the one half way.
func (r *receiver) take(key string, body []byte) (status int, half bool) {
	var event struct{ Payload order }
	if err := json.Unmarshal(body, &event); err != nil {
		return http.StatusBadRequest, false
	}
	o := event.Payload
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.keys[key]:
		r.duplicates++
		return http.StatusOK, false
	case o.Currency == oddCurrency:
		r.refused[o.ID] = true
		return http.StatusUnprocessableEntity, false
	}
	r.keys[key] = true
	r.taken[o.ID]++
	return http.StatusOK, len(r.keys) == halfAt
}

// remembered is for when no sender is left.
func (r *receiver) remembered() tally {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.tally
}
