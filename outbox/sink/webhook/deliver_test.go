package webhook_test

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/outboxctl/outboxctl/outbox"
	"github.com/outboxctl/outboxctl/outbox/outboxtest"
	"github.com/outboxctl/outboxctl/outbox/sink/webhook"
)

func TestRequestIsTheDocumentedOne(t *testing.T) {
	t.Parallel()
	to := newReceiver(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Request-Id", "req-1")
		w.WriteHeader(http.StatusAccepted)
	})
	ev := sampleEvent()
	ev.Attempts = 3
	ev.Headers = map[string]string{"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
		"Tracestate": "a=b", "authorization": "forged", "x-signature": "forged", "content-type": "text/plain"}
	sink := newSink(t, webhook.Config{URL: strings.Replace(to.URL, "//", "//user:p%40ss@", 1) + "/hook?a=1",
		Secrets: []string{plain, whsec}, Version: "1.2.3", Headers: map[string]string{"x-team": "billing", "Host": "other.example"}})

	if got, want := deliver(t, sink, ev), (answer{Code: 202, Receipt: "202 req-1"}); got != want {
		t.Fatalf("Deliver() = %+v, want %+v", got, want)
	}
	got := to.only(t)
	if want := string(ev.AppendEnvelope(nil, time.Time{})); got.Body != want || got.Path != "/hook?a=1" {
		t.Errorf("%s got %s, want %s", got.Path, got.Body, want)
	}
	sent, err := strconv.ParseInt(got.Header.Get("webhook-timestamp"), 10, 64)
	if now := time.Now().Unix(); err != nil || sent < now-5 || sent > now {
		t.Errorf("webhook-timestamp = %d, want about %d", sent, now)
	}
	list := strings.Fields(got.Header.Get("webhook-signature"))
	if len(list) != 2 {
		t.Errorf("webhook-signature = %q, want one for each of two secrets", list)
	}
	for name, want := range map[string]string{
		"Accept-Encoding": "", "Authorization": "Basic dXNlcjpwQHNz", "Content-Type": "application/json",
		"Traceparent": ev.Headers["traceparent"], "Tracestate": "a=b", "User-Agent": "outboxctl/1.2.3",
		"Webhook-Id": ev.Key.String(), "X-Idempotency-Key": ev.Key.String(), "X-Outbox-Attempt": "3",
		"X-Outbox-Event-Type": "order.created", "X-Signature": hexMAC(plain, got.Body), "X-Team": "billing",
		"Content-Length": strconv.Itoa(len(got.Body)),
	} {
		if value := strings.Join(got.Header.Values(name), "|"); value != want {
			t.Errorf("%s = %q, want %q", name, value, want)
		}
	}
	if len(got.Header) != 14 {
		t.Errorf("%d headers arrived, want 14: %v", len(got.Header), got.Header)
	}
}

func hexMAC(secret, body string) string {
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write([]byte(body))
	return "sha256=" + hex.EncodeToString(mac.Sum(nil))
}

// B44
func TestSignatureIsOverTheBytesOnTheWire(t *testing.T) {
	t.Parallel()
	to := newReceiver(t, nil)
	sink := newSink(t, webhook.Config{URL: to.URL, Secrets: []string{whsec}})
	reference, err := standardwebhooks.NewWebhook(whsec)
	if err != nil {
		t.Fatal(err)
	}
	payloads := []string{`{"b": 1,  "a":"<&>"}`, `{"id":9007199254740993,"x":1.10,"e":1e2}`, `"строка é \u2028"`, `[]`, `null`,
		`"` + strings.Repeat("x", 1<<20) + `"`}
	for _, payload := range payloads {
		ev := sampleEvent()
		ev.Payload = []byte(payload)
		if got := deliver(t, sink, ev); got != delivered("200") {
			t.Fatalf("Deliver() = %+v", got)
		}
	}
	for i, got := range to.requests() {
		if !strings.HasSuffix(got.Body, `,"payload":`+payloads[i]+`}`) || !json.Valid([]byte(got.Body)) {
			t.Errorf("payload %d arrived changed: %.200s", i, got.Body)
		}
		if err := reference.Verify([]byte(got.Body), got.Header); err != nil {
			t.Errorf("the reference library refuses payload %d: %v", i, err)
		}
		if want := hexMAC(whsec, got.Body); got.Header.Get("X-Signature") != want {
			t.Errorf("payload %d: X-Signature = %s, want %s", i, got.Header.Get("X-Signature"), want)
		}
		if err := webhook.Verify(got.Header, []byte(got.Body), whsec); err != nil {
			t.Errorf("Verify() of payload %d = %v", i, err)
		}
	}
}

// B07
func TestEveryAttemptSendsTheSameBodyKeyAndID(t *testing.T) {
	t.Parallel()
	to := newReceiver(t, nil)
	sink := newSink(t, webhook.Config{URL: to.URL, Secrets: []string{plain}})
	ev := sampleEvent()
	for attempt := 1; attempt <= 2; attempt++ {
		ev.Attempts = attempt
		deliver(t, sink, ev)
	}
	got := to.requests()
	for _, name := range []string{"X-Idempotency-Key", "Webhook-Id", "X-Signature"} {
		if a, b := got[0].Header.Get(name), got[1].Header.Get(name); a != b || a == "" {
			t.Errorf("%s is %q, then %q", name, a, b)
		}
	}
	if got[0].Body != got[1].Body {
		t.Errorf("body %s, then %s", got[0].Body, got[1].Body)
	}
	if a, b := got[0].Header.Get("X-Outbox-Attempt"), got[1].Header.Get("X-Outbox-Attempt"); a != "1" || b != "2" {
		t.Errorf("attempts %s and %s, want 1 and 2", a, b)
	}
}

func TestBodyOfEachFormat(t *testing.T) {
	t.Parallel()
	raw := []byte{0, 0xff, 'x'}
	for _, tt := range []struct {
		name   string
		config webhook.Config
		change func(*outbox.Event)
		body   string
		typ    string
	}{
		{"payload", webhook.Config{Format: webhook.Payload}, nil, string(sampleEvent().Payload), "application/json"},
		{"payload of bytes", webhook.Config{Format: webhook.Payload},
			func(ev *outbox.Event) { ev.Binary, ev.Payload = true, raw }, string(raw), "application/octet-stream"},
		{"payload without a byte", webhook.Config{Format: webhook.Payload},
			func(ev *outbox.Event) { ev.Binary, ev.Payload = true, nil }, "", "application/octet-stream"},
		{"payload of the row's type", webhook.Config{Format: webhook.Payload, Headers: map[string]string{"Content-Type": "a/b"}},
			func(ev *outbox.Event) { ev.Headers = map[string]string{"content-type": "text/csv; charset=utf-8"} },
			string(sampleEvent().Payload), "text/csv; charset=utf-8"},
		{"payload of the configured type", webhook.Config{Format: webhook.Payload, Headers: map[string]string{"content-type": "a/b"}},
			func(ev *outbox.Event) { ev.Binary, ev.Payload = true, raw }, string(raw), "a/b"},
		{"a type that would forge a header", webhook.Config{Format: webhook.Payload},
			func(ev *outbox.Event) { ev.Headers = map[string]string{"content-type": "a/b\r\nX-Forged: 1"} },
			string(sampleEvent().Payload), "application/json"},
		{"envelope of the configured type", webhook.Config{Headers: map[string]string{"Content-Type": "application/vnd.x+json"}}, nil,
			string(sampleEvent().AppendEnvelope(nil, time.Time{})), "application/vnd.x+json"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			to := newReceiver(t, nil)
			tt.config.URL, tt.config.Secrets = to.URL, []string{plain}
			ev := sampleEvent()
			if tt.change != nil {
				tt.change(&ev)
			}
			if got := deliver(t, newSink(t, tt.config), ev); got != delivered("200") {
				t.Fatalf("Deliver() = %+v", got)
			}
			got := to.only(t)
			if typ := got.Header.Get("Content-Type"); got.Body != tt.body || typ != tt.typ || got.Header["X-Forged"] != nil {
				t.Errorf("got %q as %s, want %q as %s", got.Body, typ, tt.body, tt.typ)
			}
			if err := webhook.Verify(got.Header, []byte(got.Body), plain); err != nil {
				t.Errorf("Verify() = %v", err)
			}
		})
	}
}

func TestSentAtIsTheTimeOfThisAttempt(t *testing.T) {
	t.Parallel()
	to := newReceiver(t, nil)
	before := time.Now()
	deliver(t, newSink(t, webhook.Config{URL: to.URL, BodySentAt: true}), sampleEvent())
	var body struct {
		SentAt time.Time `json:"sent_at"`
	}
	if err := json.Unmarshal([]byte(to.only(t).Body), &body); err != nil {
		t.Fatal(err)
	}
	if body.SentAt.Before(before) || body.SentAt.After(time.Now()) {
		t.Errorf("sent_at = %v, want between %v and now", body.SentAt, before)
	}
}

// B46: odd rows are sent, and shape nothing but their own body.
func TestOddRowsAreSentWithoutForgingAHeader(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name      string
		typ       string
		wantType  string
		traceID   string
		wantTrace string
	}{
		{"a line break in the type", "order\r\nX-Forged: 1", "order%0D%0AX-Forged:%201", "", ""},
		{"letters of another script", "заказ", "%D0%B7%D0%B0%D0%BA%D0%B0%D0%B7", "", ""},
		{"a percent sign", "100%.reached", "100%25.reached", "", ""},
		{"not UTF-8", "\xff\x00", "%FF%00", "", ""},
		{"no type", "", "", "", ""},
		{"a type of 10 KB", strings.Repeat("x", 10_000), "", "", ""},
		{"a line break in traceparent", "a", "a", "00-1\r\nX-Forged: 1", ""},
		{"letters in traceparent", "a", "a", "é", ""},
		{"a traceparent of 10 KB", "a", "a", strings.Repeat("x", 10_000), ""},
		{"a blank in traceparent", "a", "a", "a b", "a b"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			to := newReceiver(t, nil)
			ev := sampleEvent()
			ev.Type, ev.AggregateID = tt.typ, strings.Repeat("é\r\n", 3000)
			ev.Headers = map[string]string{"traceparent": tt.traceID, "x-forged": "1", "a\r\nb": "c"}
			if got := deliver(t, newSink(t, webhook.Config{URL: to.URL}), ev); got != delivered("200") {
				t.Fatalf("Deliver() = %+v", got)
			}
			got := to.only(t)
			typ, trace := got.Header.Get("X-Outbox-Event-Type"), got.Header.Get("Traceparent")
			if typ != tt.wantType || trace != tt.wantTrace || got.Header["X-Forged"] != nil {
				t.Errorf("type %q, traceparent %q, want %q and %q in %v", typ, trace, tt.wantType, tt.wantTrace, got.Header)
			}
		})
	}
}

func TestEventWithoutPayloadIsRefusedUnsent(t *testing.T) {
	t.Parallel()
	to := newReceiver(t, nil)
	ev := sampleEvent()
	ev.Payload = nil
	want := answer{Verdict: outbox.VerdictPermanent, Kind: outbox.KindInvalid}
	if got := deliver(t, newSink(t, webhook.Config{URL: to.URL}), ev); got != want || len(to.requests()) != 0 {
		t.Errorf("Deliver() = %+v after %d requests, want %+v after none", got, len(to.requests()), want)
	}
}

func TestWithoutASecretNothingIsSigned(t *testing.T) {
	t.Parallel()
	to := newReceiver(t, nil)
	deliver(t, newSink(t, webhook.Config{URL: to.URL, Secrets: []string{""}}), sampleEvent())
	h := to.only(t).Header
	if h["X-Signature"] != nil || h["Webhook-Signature"] != nil {
		t.Errorf("signed with %v and %v", h["X-Signature"], h["Webhook-Signature"])
	}
	if got := h.Get("webhook-id"); got != sampleEvent().Key.String() {
		t.Errorf("webhook-id = %q, want the event's key", got)
	}
}

func TestSecretsAreReplacedWhileTheSinkRuns(t *testing.T) {
	t.Parallel()
	to := newReceiver(t, nil)
	sink := newSink(t, webhook.Config{URL: to.URL, Secrets: []string{plain}})
	deliver(t, sink, sampleEvent())
	if err := sink.SetSecrets([]string{whsec, plain}); err != nil {
		t.Fatal(err)
	}
	deliver(t, sink, sampleEvent())
	if err := sink.SetSecrets([]string{"whsec_!"}); err == nil {
		t.Error("SetSecrets() took a secret that is no key")
	}
	deliver(t, sink, sampleEvent())

	got := to.requests()
	for i, secrets := range [][]string{{plain}, {whsec, plain}, {whsec, plain}} {
		for _, secret := range secrets {
			if err := webhook.Verify(got[i].Header, []byte(got[i].Body), secret); err != nil {
				t.Errorf("request %d: %v", i, err)
			}
		}
		if want := hexMAC(secrets[0], got[i].Body); got[i].Header.Get("X-Signature") != want {
			t.Errorf("request %d is not signed by its first secret", i)
		}
	}
}

// B71
func TestErrorsHoldNeitherPayloadNorSecretNorAnswer(t *testing.T) {
	t.Parallel()
	ev := sampleEvent()
	ev.Payload = []byte(`"PAYLOADCANARY"`)
	for _, status := range []int{301, 400, 401, 410, 429, 500, 503} {
		to := newReceiver(t, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Set-Cookie", "COOKIECANARY")
			w.Header().Set("Location", "/LOCATIONCANARY")
			w.WriteHeader(status)
			w.Write([]byte("BODYCANARY "))
			r.Body.Close()
		})
		sink := newSink(t, webhook.Config{URL: strings.Replace(to.URL, "//", "//u:URLCANARY@", 1) + "/?QUERYCANARY",
			Secrets: []string{"SECRETCANARY"}, Headers: map[string]string{"X-A": "HEADERCANARY"}})
		_, err := sink.Deliver(context.Background(), ev)
		if err == nil || outboxtest.Secret("CANARY").In(err.Error()) != "" {
			t.Errorf("%d: %v", status, err)
		}
	}
	url := listen(t, reply("BODYCANARY\r\n\r\n"))
	_, err := newSink(t, webhook.Config{URL: url + "/?QUERYCANARY"}).Deliver(context.Background(), ev)
	if err == nil || outboxtest.Secret("CANARY").In(err.Error()) != "" {
		t.Errorf("garbage: %v", err)
	}
}

func TestTimeoutIsTheShorterOfTheCallersAndItsOwn(t *testing.T) {
	t.Parallel()
	url := listen(t, drip("HTTP/1.1 200 OK\r\nX: "))
	for name, tt := range map[string]struct{ own, callers time.Duration }{
		"its own":     {50 * time.Millisecond, time.Minute},
		"the callers": {time.Minute, 50 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), tt.callers)
			defer cancel()
			started := time.Now()
			_, err := newSink(t, webhook.Config{URL: url, Timeout: tt.own}).Deliver(ctx, sampleEvent())
			failure, _ := errors.AsType[*outbox.DeliveryError](err)
			if failure == nil || failure.Kind != outbox.KindTimeout || !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("Deliver() = %v, want a timeout", err)
			}
			if took := time.Since(started); took > 5*time.Second {
				t.Errorf("Deliver() took %s", took)
			}
		})
	}
}

func TestDeliveriesMayRunAtTheSameTime(t *testing.T) {
	t.Parallel()
	to := newReceiver(t, nil)
	sink := newSink(t, webhook.Config{URL: to.URL, Secrets: []string{plain, whsec}})
	done := make(chan error)
	const events = 200
	for i := range events {
		go func() {
			ev := sampleEvent()
			ev.Payload = bytes.Repeat([]byte{'1' + byte(i%9)}, 1+i)
			_, err := sink.Deliver(t.Context(), ev)
			done <- err
		}()
	}
	for range events {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	for _, got := range to.requests() {
		if err := webhook.Verify(got.Header, []byte(got.Body), whsec); err != nil {
			t.Errorf("Verify() = %v", err)
		}
		if got.Header.Get("X-Signature") != hexMAC(plain, got.Body) {
			t.Error("X-Signature is of another body")
		}
	}
}
