package webhook

import (
	"bytes"
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync/atomic"

	"github.com/outboxctl/outboxctl/outbox"
)

// waryRequests is how many requests get a connection of their own after one was lost on a used connection.
// A receiver that closes connections soon after its answers loses no more than that share of them.
const waryRequests = 500

// send makes one attempt's request, and makes it once more when the first never left: see
// [trip.unsent].
func (s *Sink) send(ctx context.Context, h http.Header, body []byte) (*http.Response, error) {
	resp, t, err := s.roundTrip(ctx, h, body)
	if err != nil && ctx.Err() == nil && t.unsent(err) {
		resp, t, err = s.roundTrip(ctx, h, body)
	}
	if err == nil {
		return resp, nil
	}
	failure := t.failure(ctx, err)
	if failure.Verdict == outbox.VerdictBrief && !t.shared() {
		s.wary.Store(waryRequests)
		s.transport.CloseIdleConnections()
	}
	return nil, failure
}

// roundTrip uses the transport without a client on top: no redirects, no cookies, and errors that
// do not quote the URL. The body is never [http.NoBody] and there is no GetBody: with either,
// net/http would send a request with an idempotency key again by itself.
func (s *Sink) roundTrip(ctx context.Context, h http.Header, body []byte) (*http.Response, *trip, error) {
	t := new(trip)
	req := s.base.WithContext(httptrace.WithClientTrace(ctx, t.trace()))
	req.Header, req.ContentLength = h, int64(len(body))
	req.Body = io.NopCloser(bytes.NewReader(body))
	req.Close = s.wary.Load() > 0 && s.wary.Add(-1) >= 0
	resp, err := s.transport.RoundTrip(req)
	return resp, t, err
}

// conn counts what was written to it, to tell a request that never left from one that may have
// arrived.
type conn struct {
	net.Conn
	writes atomic.Int64
}

// maxAlert is longer than a TLS alert, which closing a connection writes, and shorter than any
// request of ours.
const maxAlert = 100

// Write counts writes of which at least a byte went out and that can hold a request.
func (c *conn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	if n > 0 && len(p) > maxAlert {
		c.writes.Add(1)
	}
	return n, err
}

// trip watches one request on its connection.
type trip struct {
	conn     net.Conn // nil until there is one
	reused   bool
	before   int64 // writes on the connection before the request
	answered atomic.Bool
}

// trace is what net/http calls as the request goes; the answer's first byte from a goroutine of
// its own.
func (t *trip) trace() *httptrace.ClientTrace {
	return &httptrace.ClientTrace{
		GotConn: func(info httptrace.GotConnInfo) {
			t.conn, t.reused, t.before = info.Conn, info.Reused, writes(info.Conn)
		},
		GotFirstResponseByte: func() { t.answered.Store(true) },
	}
}

// unsent reports whether a request that failed had not begun to be written to a connection that an
// earlier one had used: the receiver closed it in the meantime and has seen nothing. On HTTP/2
// net/http itself starts anew what was never written, unless it had taken the body in hand.
func (t *trip) unsent(err error) bool {
	return t.dying() && !t.shared() && writes(t.conn) == t.before || strings.Contains(err.Error(), "cannot rewind body")
}

// shared reports whether other requests use the connection too: it is HTTP/2.
func (t *trip) shared() bool {
	tc, ok := t.conn.(*tls.Conn)
	return ok && tc.ConnectionState().NegotiatedProtocol == "h2"
}

// dying reports whether the request went out on a connection that the receiver may have been
// closing already: an earlier request had used it, and no byte of an answer came.
func (t *trip) dying() bool { return t.reused && !t.answered.Load() }

func writes(c net.Conn) int64 {
	if tc, ok := c.(*tls.Conn); ok {
		c = tc.NetConn()
	}
	if counted, ok := c.(*conn); ok {
		return counted.writes.Load()
	}
	return -1
}
