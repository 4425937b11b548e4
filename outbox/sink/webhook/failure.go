package webhook

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"syscall"

	"github.com/outboxctl/outboxctl/outbox"
)

// finding is what is known of a request that got no answer, in our own words. What the transport
// says may quote the URL or the receiver.
type finding struct {
	verdict outbox.Verdict
	kind    string
	text    string
}

// cause prints as the finding and unwraps to what was behind it.
type cause struct {
	text string
	err  error
}

func (c *cause) Error() string { return c.text }
func (c *cause) Unwrap() error { return c.err }

// failure turns the transport's error into the sink's.
func (t *trip) failure(ctx context.Context, err error) *outbox.DeliveryError {
	f := t.find(ctx, err)
	if ctx.Err() != nil {
		err = ctx.Err() // the transport returns the context's cause instead
	}
	return &outbox.DeliveryError{Verdict: f.verdict, Kind: f.kind, Err: &cause{f.text, err}}
}

// find names a failure, the most telling kind first.
func (t *trip) find(ctx context.Context, err error) finding {
	if errors.Is(ctx.Err(), context.Canceled) {
		return finding{kind: "canceled", text: "given up by the caller"}
	}
	if blocked, ok := errors.AsType[*blockedError](err); ok {
		return finding{outbox.VerdictSlow, "blocked", "not dialled: " + blocked.Error()}
	}
	if dns, ok := errors.AsType[*net.DNSError](err); ok {
		return lookupFinding(dns)
	}
	if kind, text := tlsFailure(err); kind != "" {
		return finding{outbox.VerdictSlow, "tls:" + kind, text}
	}
	if timeout, ok := errors.AsType[net.Error](err); ctx.Err() != nil || ok && timeout.Timeout() {
		return t.timeout()
	}
	return t.broken(err)
}

func lookupFinding(err *net.DNSError) finding {
	if err.IsNotFound {
		return finding{kind: "dns", text: "no such host: " + err.Name}
	}
	return finding{kind: "dns", text: "host could not be looked up: " + err.Name}
}

func (t *trip) timeout() finding {
	if t.conn == nil {
		return finding{kind: outbox.KindTimeout, text: "no connection in time"}
	}
	return finding{kind: outbox.KindTimeout, text: "no answer in time"}
}

// broken names the failure of a connection. One that may have been closing already when the request
// was written to it says little about the receiver: the event is sent again in a moment.
func (t *trip) broken(err error) finding {
	f := finding{kind: "protocol", text: "the answer is not HTTP, or its headers are too large"}
	switch text := err.Error(); {
	case errors.Is(err, syscall.ECONNREFUSED):
		return finding{kind: "refused", text: "connection refused"}
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
		return finding{kind: "unreachable", text: "no route to the host"}
	case isAny(err, syscall.ECONNRESET, syscall.EPIPE, syscall.ECONNABORTED, net.ErrClosed),
		strings.Contains(text, "http2: client connection"), strings.Contains(text, "stream error: "):
		f = finding{kind: "reset", text: "connection broke before the answer was complete"}
	case isAny(err, io.EOF, io.ErrUnexpectedEOF), strings.Contains(text, "server closed idle connection"),
		strings.Contains(text, "GOAWAY"), strings.Contains(text, "cannot rewind body"):
		f = finding{kind: "eof", text: "connection closed before the answer was complete"}
	case t.conn == nil:
		return finding{kind: "connect", text: "no connection"}
	}
	if t.shared() && !aboutOneStream(err) || !t.shared() && t.dying() && f.kind != "protocol" {
		f.verdict = outbox.VerdictBrief
	}
	return f
}

// aboutOneStream tells an HTTP/2 error that belongs to its request from one that ended the connection
// for all that used it, by whatever came in on it for one of them. A refused stream is of the second
// kind: the receiver has not looked at it.
func aboutOneStream(err error) bool {
	text := err.Error()
	return strings.Contains(text, "stream error: ") && !strings.Contains(text, "REFUSED_STREAM")
}

func isAny(err error, targets ...error) bool {
	for _, target := range targets {
		if errors.Is(err, target) {
			return true
		}
	}
	return false
}
