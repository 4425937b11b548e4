package webhook

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/outboxctl/outboxctl/outbox"
)

// The limits of what is read of an answer's body, which says nothing that counts. It is read at all
// so that the connection can serve the next request.
const (
	maxAnswer = 64 << 10
	drainTime = 50 * time.Millisecond
)

// Sink delivers events to one URL.
type Sink struct {
	target    target
	format    Format
	sentAt    bool
	timeout   time.Duration
	fixed     http.Header   // of every request
	base      *http.Request // what else all requests share
	jsonType  []string      // Content-Type, unless the row names another
	bytesType []string
	signer    atomic.Pointer[signer]
	dialer    *net.Dialer
	transport *http.Transport
	wary      atomic.Int64 // requests to come that use no connection twice
}

var _ outbox.Sink = (*Sink)(nil)

// New makes a sink, or says which setting is wrong. It opens no connection.
func New(c Config) (*Sink, error) {
	c = c.withDefaults()
	if err := c.check(); err != nil {
		return nil, err
	}
	guard := newGuard(c.AllowPrivate)
	to, err := parseTarget(c.URL, guard)
	if err != nil {
		return nil, err
	}
	fixed, err := c.fixedHeader()
	if err != nil {
		return nil, err
	}
	conf, err := c.tlsConfig()
	if err != nil {
		return nil, err
	}
	proxy, err := c.proxyURL()
	if err != nil {
		return nil, err
	}
	if proxy != nil { // it alone is dialled, and often stands inside
		guard = newGuard(true)
	}
	dialer := &net.Dialer{Timeout: c.Timeout, Control: control(guard)}
	s := &Sink{target: to, format: c.Format, sentAt: c.BodySentAt, timeout: c.Timeout, fixed: fixed,
		dialer: dialer, transport: newTransport(c, conf, dialer)}
	if proxy != nil {
		s.transport.Proxy = http.ProxyURL(proxy)
	}
	s.prepare()
	if err := s.SetSecrets(c.Secrets); err != nil {
		return nil, err
	}
	return s, nil
}

// prepare takes out of the fixed header what differs between requests, and what net/http wants
// elsewhere.
func (s *Sink) prepare() {
	if s.target.basic != "" && s.fixed["Authorization"] == nil {
		s.fixed["Authorization"] = []string{s.target.basic}
	}
	s.jsonType, s.bytesType = []string{"application/json"}, []string{"application/octet-stream"}
	if configured := s.fixed["Content-Type"]; configured != nil {
		s.jsonType, s.bytesType = configured, configured
	}
	s.base = &http.Request{Method: http.MethodPost, URL: s.target.url, Host: s.fixed.Get("Host"),
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1}
	delete(s.fixed, "Content-Type")
	delete(s.fixed, "Host")
}

// SetSecrets replaces the secrets for every delivery that begins after it. When one of them cannot
// be used, the old ones stay.
func (s *Sink) SetSecrets(secrets []string) error {
	next, err := newSigner(secrets)
	if err == nil {
		s.signer.Store(&next)
	}
	return err
}

// Warnings lists what works but should be looked at, a line each.
func (s *Sink) Warnings() []string {
	var lines []string
	secrets := *s.signer.Load()
	if len(secrets) == 0 {
		lines = append(lines, "no secret: requests are not signed, so receivers cannot tell who sent them")
	}
	for i, one := range secrets {
		if one.size < shortSecret {
			lines = append(lines, fmt.Sprintf("secret %d has %d bytes; %d or more are safe", i+1, one.size, shortSecret))
		}
	}
	if s.target.exposed() {
		lines = append(lines, "plain http to "+s.target.url.Host+": everyone on the way can read the events; use https")
	}
	return lines
}

// String shows where the sink delivers to, without password and query.
func (s *Sink) String() string { return s.target.String() }

// Close lets go of idle connections. The sink can still be used.
func (s *Sink) Close() error {
	s.transport.CloseIdleConnections()
	return nil
}

// Deliver sends ev once. It is delivered when the answer's headers are complete and say 2xx,
// whatever becomes of the answer's body.
func (s *Sink) Deliver(ctx context.Context, ev outbox.Event) (outbox.Receipt, error) {
	if len(ev.Payload) == 0 && !ev.Binary {
		return outbox.Receipt{}, &outbox.DeliveryError{Verdict: outbox.VerdictPermanent, Kind: outbox.KindInvalid,
			Err: errors.New("the event has no payload")}
	}
	if deadline, ok := ctx.Deadline(); !ok || time.Until(deadline) > s.timeout {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, s.timeout)
		defer cancel()
	}
	now := time.Now()
	body := s.body(ev, now)
	ev.Payload = nil // which the body holds: a large one is not kept twice
	resp, err := s.send(ctx, s.header(ev, body, now), body)
	if err != nil {
		return outbox.Receipt{}, err
	}
	defer drain(resp.Body)
	if refusal := judge(resp.StatusCode, resp.Header, time.Now()); refusal != nil {
		return outbox.Receipt{}, refusal
	}
	return receipt(resp.StatusCode, resp.Header), nil
}

// drain reads the rest of a small and prompt answer, so that its connection is used again, and
// closes any other's.
func drain(body io.ReadCloser) {
	defer body.Close()
	if body == http.NoBody {
		return
	}
	late := time.AfterFunc(drainTime, func() { body.Close() })
	defer late.Stop()
	io.CopyN(io.Discard, body, maxAnswer+1)
}
