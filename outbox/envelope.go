package outbox

import (
	"bytes"
	"encoding/base64"
	"slices"
	"strconv"
	"time"
	"unicode/utf8"
)

const (
	microseconds = "2006-01-02T15:04:05.000000Z07:00" // RFC 3339 as fine as PostgreSQL keeps time
	envelopeSize = 320                                // of the names, the keys and the times
)

// AppendEnvelope appends the event as the JSON object that consumers get:
//
//	{"event_id":"…","idempotency_key":"…","sequence":"42","event_type":"order.created",
//	 "schema_version":1,"aggregate_type":"order","aggregate_id":"7","tenant_id":"acme",
//	 "created_at":"2026-03-01T09:30:00.000000Z","payload":…}
//
// tenant_id is there when it is not empty, sent_at (RFC 3339, nanoseconds) when sentAt is not
// zero, and payload_base64 takes the place of payload when the event is Binary. The payload's bytes
// are its own: nothing is parsed and written anew, so numbers, <>& and the order of keys stay.
// Without sentAt the bytes are the same for every attempt. Strings that are not UTF-8 get U+FFFD.
func (e Event) AppendEnvelope(dst []byte, sentAt time.Time) []byte {
	size := len(e.Payload)
	if e.Binary {
		size = base64.StdEncoding.EncodedLen(size)
	}
	dst = slices.Grow(dst, envelopeSize+len(e.Type)+len(e.AggregateType)+len(e.AggregateID)+len(e.TenantID)+size)
	key := e.Key.String()
	dst = append(append(dst, `{"event_id":"`...), key...)
	dst = append(append(dst, `","idempotency_key":"`...), key...)
	dst = strconv.AppendInt(append(dst, `","sequence":"`...), e.Sequence(), 10)
	dst = appendString(append(dst, `","event_type":`...), e.Type)
	dst = strconv.AppendInt(append(dst, `,"schema_version":`...), int64(max(e.SchemaVersion, 1)), 10)
	dst = appendString(append(dst, `,"aggregate_type":`...), e.AggregateType)
	dst = appendString(append(dst, `,"aggregate_id":`...), e.AggregateID)
	if e.TenantID != "" {
		dst = appendString(append(dst, `,"tenant_id":`...), e.TenantID)
	}
	dst = e.CreatedAt.UTC().AppendFormat(append(dst, `,"created_at":"`...), microseconds)
	if !sentAt.IsZero() {
		dst = sentAt.UTC().AppendFormat(append(dst, `","sent_at":"`...), time.RFC3339Nano)
	}
	return append(e.appendPayload(append(dst, `",`...)), '}')
}

func (e Event) appendPayload(dst []byte) []byte {
	if !e.Binary {
		return append(append(dst, `"payload":`...), e.Payload...)
	}
	dst = base64.StdEncoding.AppendEncode(append(dst, `"payload_base64":"`...), e.Payload)
	return append(dst, '"')
}

// AppendLine appends the envelope as one line of NDJSON. Line breaks between the tokens of a
// payload become blanks; inside strings JSON has none, and jsonb prints none at all.
func (e Event) AppendLine(dst []byte) []byte {
	from := len(dst)
	dst = e.AppendEnvelope(dst, time.Time{})
	if bytes.ContainsAny(dst[from:], "\r\n") {
		for i, c := range dst[from:] {
			if c == '\n' || c == '\r' {
				dst[from+i] = ' '
			}
		}
	}
	return append(dst, '\n')
}

// appendString appends s as a JSON string. Unlike encoding/json it leaves <, > and & alone.
func appendString(dst []byte, s string) []byte {
	dst = append(dst, '"')
	from := 0
	for i := 0; i < len(s); {
		size, plain := plainRune(s[i:])
		if !plain {
			dst = appendEscape(append(dst, s[from:i]...), s[i])
			from = i + size
		}
		i += size
	}
	return append(append(dst, s[from:]...), '"')
}

// plainRune measures the first rune of s and says whether JSON takes it as it is.
func plainRune(s string) (size int, plain bool) {
	if c := s[0]; c < utf8.RuneSelf {
		return 1, c >= ' ' && c != '"' && c != '\\'
	}
	r, size := utf8.DecodeRuneInString(s)
	return size, r != utf8.RuneError || size > 1
}

func appendEscape(dst []byte, c byte) []byte {
	const hex = "0123456789abcdef"
	switch {
	case c == '"' || c == '\\':
		return append(dst, '\\', c)
	case c == '\n':
		return append(dst, `\n`...)
	case c >= utf8.RuneSelf:
		return append(dst, `\ufffd`...)
	}
	return append(dst, '\\', 'u', '0', '0', hex[c>>4], hex[c&0xf])
}
