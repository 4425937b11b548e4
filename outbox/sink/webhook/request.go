package webhook

import (
	"fmt"
	"maps"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/outboxctl/outboxctl/outbox"
)

const maxValue = 1 << 10 // bytes of a row's text that travel in one header

func (s *Sink) body(ev outbox.Event, now time.Time) []byte {
	switch {
	case s.format == Payload:
		return ev.Payload
	case s.sentAt:
		return ev.AppendEnvelope(nil, now)
	}
	return ev.AppendEnvelope(nil, time.Time{})
}

// header builds one request's headers. They are assigned under their canonical names: net/http then
// has nothing to look up.
func (s *Sink) header(ev outbox.Event, body []byte, now time.Time) http.Header {
	h := make(http.Header, len(s.fixed)+10)
	maps.Copy(h, s.fixed)
	key := ev.Key.String()
	h["X-Idempotency-Key"] = []string{key}
	h["X-Outbox-Attempt"] = []string{strconv.Itoa(ev.Attempts)}
	if len(ev.Type) <= maxValue {
		h["X-Outbox-Event-Type"] = []string{escape(ev.Type)}
	}
	h["Content-Type"] = s.contentType(ev)
	s.signer.Load().sign(h, key, now, body)
	for _, name := range [...]string{"Traceparent", "Tracestate"} {
		if value := rowHeader(ev, name); value != "" {
			h[name] = []string{value}
		}
	}
	return h
}

func (s *Sink) contentType(ev outbox.Event) []string {
	if s.format == Payload {
		if value := rowHeader(ev, "Content-Type"); value != "" {
			return []string{value}
		}
		if ev.Binary {
			return s.bytesType
		}
	}
	return s.jsonType
}

// rowHeader finds a header of the row in lower case, as they are documented, or as HTTP writes
// them. A value that cannot travel does not: what a row holds must never shape a request.
func rowHeader(ev outbox.Event, canonical string) string {
	if len(ev.Headers) == 0 {
		return ""
	}
	value, ok := ev.Headers[strings.ToLower(canonical)]
	if !ok {
		value = ev.Headers[canonical]
	}
	if len(value) > maxValue || !isPrintable(value) {
		return ""
	}
	return value
}

// escape writes bytes that are not visible ASCII, and %, as %XX.
func escape(s string) string {
	if isVisible(s) && !strings.Contains(s, "%") {
		return s
	}
	var b strings.Builder
	for i := range len(s) {
		if c := s[i]; c > ' ' && c <= '~' && c != '%' {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	return b.String()
}
