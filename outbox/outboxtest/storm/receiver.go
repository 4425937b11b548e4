package storm

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/outboxctl/outboxctl/outbox/outboxtest/storm/history"
)

// What a receiver does beside 200. A number is the answer's code.
const (
	behaveOK        = "ok"
	behaveHang      = "hang"      // no answer until the client leaves
	behaveSlow      = "slow"      // 200, when the client has just left
	behaveDrip      = "drip"      // 200 at once, and a body that takes for ever
	behaveHuge      = "huge"      // 200 and a mebibyte
	behaveRedirect  = "redirect"  // 307 to a place where nobody must come
	behaveReset     = "reset"     // no answer, the connection is reset
	behaveHalfClose = "halfclose" // no answer, only this side's half is closed
	behaveFollowed  = "followed"  // of requests that came to the place where nobody must come
)

// elsewhere is where redirects lead.
const elsewhere = "/elsewhere"

// behaviour is what a receiver does with a share of its requests for a while.
type behaviour struct {
	name       string
	share      float64
	retryAfter int // seconds; 0 = not said
	tally      *tally
	over       context.Context
}

// receiver is one destination's. It records all that comes.
type receiver struct {
	dest    history.Destination
	run     *run
	url     string // past its wire
	addr    string // of the server itself
	server  *http.Server
	numbers *numbers
	mood    atomic.Pointer[behaviour] // nil = ok
}

// numbers are shared by all receivers of a run.
type numbers struct{ come, whole atomic.Int64 }

func (r *run) newReceiver(d history.Destination, n *numbers) (*receiver, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	v := &receiver{dest: d, run: r, addr: l.Addr().String(), numbers: n}
	v.server = &http.Server{Handler: v}
	go v.server.Serve(l) // until close
	return v, nil
}

func (v *receiver) close() { v.server.Close() }

// ServeHTTP records a request and answers it as the receiver's mood is.
func (v *receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	q := history.Request{ID: fmt.Sprintf("%s-%d", v.dest.Name, v.numbers.come.Add(1)), Dest: v.dest.Name, Began: time.Now(), Conn: req.RemoteAddr}
	var body bytes.Buffer
	_, err := io.Copy(&body, req.Body)
	q.N = v.numbers.whole.Add(1)
	v.read(&q, req.Header, body.Bytes())
	switch m := v.chosen(q.N); {
	case err != nil:
		q.Behaviour, q.Left = behaveOK, true
	case req.URL.Path == elsewhere:
		q.At, q.Behaviour = time.Now(), behaveFollowed
		w.WriteHeader(http.StatusOK)
	case m == nil:
		q.At, q.Behaviour = time.Now(), behaveOK
		v.answer(w, req, &q, nil)
	default:
		q.At, q.Behaviour = time.Now(), m.name
		m.tally.count(q.ID, 0)
		v.answer(w, req, &q, m)
	}
	q.Left = q.Left || req.Context().Err() != nil
	q.Accepted = q.Accepted && !q.Left
	if q.Accepted || q.Status >= 300 {
		w.(http.Flusher).Flush()
	}
	q.Done = time.Now()
	add(&v.run.book, &v.run.book.h.Requests, q)
}

// chosen is the mood that request n meets; nil is ok. The same seed chooses the same numbers.
func (v *receiver) chosen(n int64) *behaviour {
	m := v.mood.Load()
	if m == nil || rand.New(rand.NewPCG(v.run.plan.Seed, uint64(n))).Float64() >= m.share {
		return nil
	}
	return m
}

// read takes from a request what a judge needs.
func (v *receiver) read(q *history.Request, h http.Header, body []byte) {
	q.Key, q.WebhookID = h.Get("X-Idempotency-Key"), h.Get("Webhook-Id")
	if q.WebhookID == q.Key {
		q.WebhookID = q.Key // one string for both
	}
	q.Attempt, _ = strconv.Atoi(h.Get("X-Outbox-Attempt"))
	q.Signed, q.Hmac = v.run.vault.verify(v.dest.Name, h, body)
	q.Body = sum(body)
	if rest, ok := after(body, `"sequence":"`); ok {
		digits, _, _ := bytes.Cut(rest, []byte(`"`))
		q.Sequence, _ = strconv.ParseInt(string(digits), 10, 64)
	}
	if rest, ok := after(body, `,"payload":`); ok && len(rest) > 0 {
		q.Payload = sum(rest[:len(rest)-1]) // without the envelope's brace
	}
}

// after is what follows the first of a text. Inside of a JSON string no quote is bare, so that it is found nowhere else.
func after(body []byte, text string) ([]byte, bool) {
	_, rest, ok := bytes.Cut(body, []byte(text))
	return rest, ok
}

func sum(b []byte) string {
	s := sha256.Sum256(b)
	return hex.EncodeToString(s[:])
}

// answer does what a mood wants; nil is ok.
func (v *receiver) answer(w http.ResponseWriter, req *http.Request, q *history.Request, m *behaviour) {
	w.Header().Set("X-Request-Id", q.ID)
	name := behaveOK
	if m != nil {
		name = m.name
	}
	switch name {
	case behaveOK:
		q.Left = !pause(req.Context(), nil, time.Duration(q.N%10)*time.Millisecond)
		v.status(w, q, http.StatusOK)
	case behaveHang:
		q.Left = !pause(req.Context(), m.over, 2*v.dest.RequestTimeout)
		v.drop(w, 0)
	case behaveSlow:
		q.Left = !pause(req.Context(), nil, v.dest.RequestTimeout+200*time.Millisecond)
		v.status(w, q, http.StatusOK)
	case behaveDrip:
		v.status(w, q, http.StatusOK)
		v.drip(w, req, m)
	case behaveHuge:
		v.status(w, q, http.StatusOK)
		w.Write(make([]byte, 1<<20))
	case behaveRedirect:
		w.Header().Set("Location", v.url+elsewhere)
		v.status(w, q, http.StatusTemporaryRedirect)
	case behaveReset:
		v.drop(w, 0)
	case behaveHalfClose:
		v.drop(w, v.dest.RequestTimeout)
	default:
		if m.retryAfter > 0 {
			w.Header().Set("Retry-After", strconv.Itoa(m.retryAfter))
			q.Wait = time.Duration(m.retryAfter) * time.Second
		}
		code, _ := strconv.Atoi(name)
		v.status(w, q, code)
	}
}

func (v *receiver) status(w http.ResponseWriter, q *history.Request, code int) {
	if q.Left {
		return
	}
	w.WriteHeader(code)
	w.(http.Flusher).Flush()
	q.Status, q.Accepted = code, code < 300
}

// drip sends a byte now and then, until the client leaves.
func (v *receiver) drip(w http.ResponseWriter, req *http.Request, m *behaviour) {
	for range 20 {
		if _, err := w.Write([]byte{'.'}); err != nil {
			return
		}
		w.(http.Flusher).Flush()
		if !pause(req.Context(), m.over, 100*time.Millisecond) {
			return
		}
	}
}

// drop ends the connection without an answer: at once by a reset, or with its own half closed for a while.
func (v *receiver) drop(w http.ResponseWriter, halfFor time.Duration) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer conn.Close()
	tcp := conn.(*net.TCPConn)
	if halfFor == 0 {
		tcp.SetLinger(0)
		return
	}
	tcp.CloseWrite()
	tcp.SetReadDeadline(time.Now().Add(halfFor))
	io.Copy(io.Discard, tcp)
}

// pause waits for d and reports whether ctx still lasts. It ends early with over, which may be nil.
func pause(ctx, over context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	var done <-chan struct{}
	if over != nil {
		done = over.Done()
	}
	select {
	case <-t.C:
		return true
	case <-done:
		return true
	case <-ctx.Done():
		return false
	}
}
