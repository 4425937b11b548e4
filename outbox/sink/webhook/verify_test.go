package webhook_test

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/outboxctl/outboxctl/outbox/sink/webhook"
)

const (
	whsec = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	plain = "a plain secret, longer than 24 bytes"
)

func TestSignatureIsTheSpecificationsVector(t *testing.T) {
	t.Parallel()
	h := http.Header{}
	err := webhook.Sign(h, "msg_p5jXN8AQM9LWM0D4loKWxJek", time.Unix(1614265330, 0), []byte(`{"test": 2432232314}`), whsec)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := h.Get("webhook-signature"), "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="; got != want {
		t.Errorf("webhook-signature = %s, want %s", got, want)
	}
	// openssl dgst -sha256 -hmac whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw: the secret's own bytes.
	if got, want := h.Get("X-Signature"), "sha256=80ec8a89ce3cd22133a1066caecb4d04fea7467657c8514d717ec42c38a5c94c"; got != want {
		t.Errorf("X-Signature = %s, want %s", got, want)
	}
}

// signed is a request's headers at a moment that the verifiers of these tests take for now.
func signed(t *testing.T, body string, secrets ...string) http.Header {
	t.Helper()
	h := http.Header{}
	if err := webhook.Sign(h, "evt_1", sentAt, []byte(body), secrets...); err != nil {
		t.Fatal(err)
	}
	return h
}

var sentAt = time.Date(2026, 3, 1, 9, 30, 0, 0, time.UTC)

func TestVerify(t *testing.T) {
	t.Parallel()
	const body = `{"a": "<&>"}`
	for _, tt := range []struct {
		name    string
		signers []string
		change  func(h http.Header)
		body    string
		later   time.Duration
		known   []string
		want    error
		body2   error // of VerifyBody
	}{
		{name: "what was signed", known: []string{whsec}},
		{name: "a plain secret", signers: []string{plain}, known: []string{plain}},
		{name: "the sender has two, the receiver the old", signers: []string{plain, whsec}, known: []string{whsec},
			body2: webhook.ErrMismatch},
		{name: "the receiver has two", known: []string{plain, whsec}},
		{name: "another secret", known: []string{plain}, want: webhook.ErrMismatch, body2: webhook.ErrMismatch},
		{name: "another body", body: `{"a":"<&>"}`, known: []string{whsec}, want: webhook.ErrMismatch, body2: webhook.ErrMismatch},
		{name: "another id", change: func(h http.Header) { h.Set("webhook-id", "evt_2") }, known: []string{whsec},
			want: webhook.ErrMismatch},
		{name: "another time", change: func(h http.Header) { h.Set("webhook-timestamp", "1") }, known: []string{whsec},
			want: webhook.ErrMismatch},
		{name: "no id", change: func(h http.Header) { h.Del("webhook-id") }, known: []string{whsec}, want: webhook.ErrUnsigned},
		{name: "no time", change: func(h http.Header) { h.Del("webhook-timestamp") }, known: []string{whsec}, want: webhook.ErrUnsigned},
		{name: "X-Signature alone can be replayed", change: func(h http.Header) { h.Del("webhook-signature") },
			known: []string{whsec}, want: webhook.ErrUnsigned},
		{name: "webhook-signature alone", change: func(h http.Header) { h.Del("X-Signature") }, known: []string{whsec},
			body2: webhook.ErrUnsigned},
		{name: "another version of the scheme", known: []string{whsec}, change: func(h http.Header) {
			h.Set("webhook-signature", strings.Replace(h.Get("webhook-signature"), "v1,", "v2,", 1))
		}, want: webhook.ErrMismatch},
		{name: "among others", known: []string{whsec}, change: func(h http.Header) {
			h.Set("webhook-signature", "v1a,xyz  v1, "+h.Get("webhook-signature")+" v1,AAAA")
		}},
		{name: "in a header of its own", known: []string{whsec}, change: func(h http.Header) {
			h["Webhook-Signature"] = []string{"v1,AAAA", h.Get("webhook-signature")}
		}},
		{name: "empty signatures", known: []string{whsec}, change: func(h http.Header) {
			h.Set("webhook-signature", "v1,")
			h.Set("X-Signature", "sha256=")
		}, want: webhook.ErrMismatch, body2: webhook.ErrMismatch},
		{name: "just in time", later: 5 * time.Minute, known: []string{whsec}},
		{name: "too late", later: 5*time.Minute + time.Second, known: []string{whsec}, want: webhook.ErrStale},
		{name: "just ahead", later: -5 * time.Minute, known: []string{whsec}},
		{name: "too far ahead", later: -5*time.Minute - time.Second, known: []string{whsec}, want: webhook.ErrStale},
		{name: "no secret", known: nil, want: webhook.ErrNoSecret, body2: webhook.ErrNoSecret},
		{name: "an empty secret", known: []string{""}, want: webhook.ErrNoSecret, body2: webhook.ErrNoSecret},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if tt.signers == nil {
				tt.signers = []string{whsec}
			}
			h, got := signed(t, body, tt.signers...), body
			if tt.change != nil {
				tt.change(h)
			}
			if tt.body != "" {
				got = tt.body
			}
			v := webhook.Verifier{Secrets: tt.known, Now: func() time.Time { return sentAt.Add(tt.later) }}
			if err := v.Verify(h, []byte(got)); !errors.Is(err, tt.want) {
				t.Errorf("Verify() = %v, want %v", err, tt.want)
			}
			if err := webhook.VerifyBody(h, []byte(got), tt.known...); !errors.Is(err, tt.body2) {
				t.Errorf("VerifyBody() = %v, want %v", err, tt.body2)
			}
		})
	}
}

func TestVerifyTakesTheReceiversClock(t *testing.T) {
	t.Parallel()
	h := http.Header{}
	if err := webhook.Sign(h, "evt_1", time.Now(), []byte("x"), whsec); err != nil {
		t.Fatal(err)
	}
	if err := webhook.Verify(h, []byte("x"), whsec); err != nil {
		t.Errorf("Verify() = %v", err)
	}
	strict := webhook.Verifier{Secrets: []string{whsec}, Tolerance: time.Second, Now: func() time.Time { return time.Now().Add(5 * time.Second) }}
	if err := strict.Verify(h, []byte("x")); !errors.Is(err, webhook.ErrStale) {
		t.Errorf("Verify() with a second's tolerance = %v, want ErrStale", err)
	}
}

func TestSignedTimestampThatIsNoNumberIsRefused(t *testing.T) {
	t.Parallel()
	mac := hmac.New(sha256.New, []byte(plain))
	mac.Write([]byte("evt_1.today.x"))
	h := http.Header{"Webhook-Id": {"evt_1"}, "Webhook-Timestamp": {"today"},
		"Webhook-Signature": {"v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))}}
	if err := webhook.Verify(h, []byte("x"), plain); !errors.Is(err, webhook.ErrTimestamp) {
		t.Errorf("Verify() = %v, want ErrTimestamp", err)
	}
}

func TestSecretThatCannotBeAKeyIsRefused(t *testing.T) {
	t.Parallel()
	for _, bad := range []string{"whsec_", "whsec_not base64", "whsec_abc"} {
		err := webhook.Verify(http.Header{}, nil, plain, bad)
		if err == nil || err.Error() != "secret 2: what follows whsec_ is not base64" {
			t.Errorf("Verify() with %q = %v, want an error that names it by number", bad, err)
		}
	}
}

// The reference library and ours must never disagree on a signature.
func FuzzVerifyAgreesWithTheReference(f *testing.F) {
	good := http.Header{}
	if err := webhook.Sign(good, "evt_1", sentAt, []byte("body"), whsec); err != nil {
		f.Fatal(err)
	}
	stamp := strconv.FormatInt(sentAt.Unix(), 10)
	f.Add("evt_1", stamp, good.Get("webhook-signature"), []byte("body"))
	f.Add("evt_1", stamp, "v1,AAAA "+good.Get("webhook-signature"), []byte("body"))
	f.Add("evt_1", "x", "v1,", []byte(""))
	f.Add("", "", "", []byte(nil))
	reference, err := standardwebhooks.NewWebhook(whsec)
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, id, timestamp, list string, body []byte) {
		h := http.Header{"Webhook-Id": {id}, "Webhook-Timestamp": {timestamp}, "Webhook-Signature": {list}}
		now := sentAt
		if seconds, err := strconv.ParseInt(timestamp, 10, 64); err == nil {
			now = time.Unix(seconds, 0)
		}
		ours := webhook.Verifier{Secrets: []string{whsec}, Now: func() time.Time { return now }}.Verify(h, body)
		theirs := reference.VerifyIgnoringTimestamp(body, h)
		if ours == nil && theirs != nil {
			t.Errorf("ours takes id %q, time %q, list %q, which the reference refuses: %v", id, timestamp, list, theirs)
		}
		if again := webhook.Sign(h, id, now, body, whsec); again != nil || reference.VerifyIgnoringTimestamp(body, h) != nil && id != "" {
			t.Errorf("the reference refuses our signature of id %q", id)
		}
	})
}
