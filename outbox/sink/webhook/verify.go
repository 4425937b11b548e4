package webhook

import (
	"crypto/hmac"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// DefaultTolerance is how far webhook-timestamp may be from the receiver's clock, either way.
const DefaultTolerance = 5 * time.Minute

// What [Verify] and [VerifyBody] find wrong with a request.
var (
	// ErrNoSecret means that the receiver gave no secret, so nothing can be verified.
	ErrNoSecret = errors.New("no secret to verify with")
	// ErrUnsigned means that a signature header is missing.
	ErrUnsigned = errors.New("signature header missing")
	// ErrMismatch means that no signature fits the body under any of the secrets.
	ErrMismatch = errors.New("no signature matches")
	// ErrTimestamp means that webhook-timestamp is not a number of seconds.
	ErrTimestamp = errors.New("webhook-timestamp is not a number of seconds")
	// ErrStale means a signature that fits, made too long ago or too far ahead: a replay, or clocks
	// that differ.
	ErrStale = errors.New("webhook-timestamp is too far from now")
)

// Verify tells whether a request comes from someone who knows one of the secrets, unchanged and
// sent within [DefaultTolerance] of now. The body must be the bytes as they were read, before any
// decoding. A request that passes has an id (webhook-id) that is worth remembering: an event may
// arrive more than once.
//
// It checks webhook-signature (Standard Webhooks), which covers id, time and body. X-Signature does
// not count here, since it covers the body alone: who captured a request could send it again for
// ever. A receiver that knows only that scheme uses [VerifyBody].
func Verify(h http.Header, body []byte, secrets ...string) error {
	return Verifier{Secrets: secrets}.Verify(h, body)
}

// Verifier is [Verify] with a tolerance and a clock of one's own.
type Verifier struct {
	Secrets   []string         // any of them may fit; keep the old one while it is being replaced
	Tolerance time.Duration    // 0 means DefaultTolerance
	Now       func() time.Time // nil means time.Now
}

// Verify is as the function [Verify]. It compares in constant time, and looks at the time only when
// the signature fits.
func (v Verifier) Verify(h http.Header, body []byte) error {
	keys, err := v.keys()
	if err != nil {
		return err
	}
	id, timestamp, list := h.Get(headerID), h.Get(headerTimestamp), h.Values(headerList)
	if id == "" || timestamp == "" || len(list) == 0 {
		return ErrUnsigned
	}
	want := make([]string, len(keys))
	for i, key := range keys {
		want[i] = key.signList(id, timestamp, body)
	}
	if !anyEqual(strings.Fields(strings.Join(list, " ")), want) {
		return ErrMismatch
	}
	return v.fresh(timestamp)
}

// VerifyBody checks X-Signature: that the body comes unchanged from someone who knows one of the
// secrets. It says nothing about when, so a captured request passes again; prefer [Verify]. While
// the sender replaces its secret it signs with the new one only.
func VerifyBody(h http.Header, body []byte, secrets ...string) error {
	keys, err := Verifier{Secrets: secrets}.keys()
	if err != nil {
		return err
	}
	got := h.Values(headerSignature)
	if len(got) == 0 {
		return ErrUnsigned
	}
	want := make([]string, len(keys))
	for i, key := range keys {
		want[i] = key.signBody(body)
	}
	if !anyEqual(got, want) {
		return ErrMismatch
	}
	return nil
}

func (v Verifier) keys() (signer, error) {
	keys, err := newSigner(v.Secrets)
	if err == nil && len(keys) == 0 {
		return nil, ErrNoSecret
	}
	return keys, err
}

func (v Verifier) fresh(timestamp string) error {
	seconds, err := strconv.ParseInt(timestamp, 10, 64)
	if err != nil {
		return ErrTimestamp
	}
	now, tolerance := time.Now(), v.Tolerance
	if v.Now != nil {
		now = v.Now()
	}
	if tolerance == 0 {
		tolerance = DefaultTolerance
	}
	sent := time.Unix(seconds, 0)
	if sent.Before(now.Add(-tolerance)) || sent.After(now.Add(tolerance)) {
		return ErrStale
	}
	return nil
}

// anyEqual compares every pair, so that its time tells nothing but their number.
func anyEqual(got, want []string) bool {
	found := false
	for _, g := range got {
		for _, w := range want {
			found = hmac.Equal([]byte(g), []byte(w)) || found
		}
	}
	return found
}
