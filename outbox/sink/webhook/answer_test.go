package webhook_test

import (
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/outboxctl/outboxctl/outbox"
	"github.com/outboxctl/outboxctl/outbox/sink/webhook"
)

func TestEveryStatusHasItsOutcome(t *testing.T) {
	t.Parallel()
	slow := []int{401, 403, 404, 407}
	permanent := []int{400, 405, 406, 410, 411, 413, 414, 415, 422, 431, 451, 501, 505}
	for status := 100; status < 1000; status++ {
		want := answer{outbox.VerdictRetry, "http", status, ""}
		switch {
		case status >= 200 && status <= 299:
			want = answer{}
		case status >= 300 && status <= 399:
			want.Verdict, want.Kind = outbox.VerdictSlow, "redirect"
		case slices.Contains(slow, status):
			want.Verdict = outbox.VerdictSlow
		case slices.Contains(permanent, status):
			want.Verdict = outbox.VerdictPermanent
		}
		if got := judged(webhook.Judge(status, http.Header{}, time.Time{})); got != want {
			t.Errorf("status %d = %+v, want %+v", status, got, want)
		}
	}
}

func judged(e *outbox.DeliveryError) answer {
	if e == nil {
		return answer{}
	}
	return answer{e.Verdict, e.Kind, e.Code, ""}
}

func TestReceiverCanAbortAMessageOrAskForNoMore(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		status int
		wish   string
		want   outbox.Verdict
	}{
		{"abort what would be retried", 500, "abort-message", outbox.VerdictPermanent},
		{"abort what would be slow", 404, "Abort-Message ", outbox.VerdictPermanent},
		{"disable waits like a wrong configuration", 503, "disable", outbox.VerdictSlow},
		{"disable does not save what is refused", 400, "disable", outbox.VerdictPermanent},
		{"an unknown wish changes nothing", 500, "later", outbox.VerdictRetry},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got := webhook.Judge(tt.status, http.Header{"Webhook-Delivery": {tt.wish}}, time.Time{})
			if got.Verdict != tt.want {
				t.Errorf("verdict = %v, want %v", got.Verdict, tt.want)
			}
		})
	}
	if got := webhook.Judge(204, http.Header{"Webhook-Delivery": {"abort-message"}}, time.Time{}); got != nil {
		t.Errorf("a 2xx with abort-message = %v, want delivered", got)
	}
}

func TestErrorSaysTheStatusAndNothingOfTheAnswer(t *testing.T) {
	t.Parallel()
	h := http.Header{"Set-Cookie": {"canary"}, "Retry-After": {"canary"}, "Webhook-Delivery": {"canary"}}
	for status, want := range map[int]string{
		503: "answered 503 Service Unavailable; unreadable retry-after ignored",
		422: "answered 422 Unprocessable Entity",
		799: "answered 799; unreadable retry-after ignored",
	} {
		if got := webhook.Judge(status, h, time.Time{}).Error(); got != want {
			t.Errorf("error = %q, want %q", got, want)
		}
	}
}

func TestReceiptHoldsStatusAndRequestID(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		header http.Header
		want   string
	}{
		{"none", http.Header{}, "202"},
		{"the usual one", http.Header{"X-Request-Id": {"req-7f3a", "other"}, "X-Correlation-Id": {"c"}}, "202 req-7f3a"},
		{"another name", http.Header{"X-Request-Id": {""}, "X-Correlation-Id": {"c-1"}}, "202 c-1"},
		{"too long to be one", http.Header{"X-Request-Id": {strings.Repeat("x", 129)}}, "202"},
		{"too odd to be one", http.Header{"X-Request-Id": {"a b\x1b[31m"}}, "202"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if got, want := webhook.Receipt(202, tt.header), (outbox.Receipt{Text: tt.want, Code: 202}); got != want {
				t.Errorf("receipt = %+v, want %+v", got, want)
			}
		})
	}
}

// B30
func TestRetryAfterIsReadInAllItsForms(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 1, 9, 30, 0, 600e6, time.UTC)
	date := http.Header{"Date": {"Sun, 01 Mar 2026 09:30:00 GMT"}}
	for _, tt := range []struct {
		name   string
		values []string
		header http.Header
		want   time.Duration
		err    error
	}{
		{name: "none"},
		{name: "seconds", values: []string{"7"}, want: 7 * time.Second},
		{name: "seconds among blanks", values: []string{" 7\t"}, want: 7 * time.Second},
		{name: "zero", values: []string{"0"}},
		{name: "the first counts", values: []string{"7", "9"}, want: 7 * time.Second},
		{name: "the first counts even if it is odd", values: []string{"soon", "9"}, err: webhook.ErrRetryAfter},
		{name: "a day", values: []string{"86400"}, want: 24 * time.Hour},
		{name: "more than a day", values: []string{"86401"}, want: 24 * time.Hour},
		{name: "more than 64 bits", values: []string{strings.Repeat("9", 400)}, want: 24 * time.Hour},
		{name: "more than 63 bits", values: []string{"18446744073709551615"}, want: 24 * time.Hour},
		{name: "IMF-fixdate", values: []string{"Sun, 01 Mar 2026 09:30:07 GMT"}, header: date, want: 7 * time.Second},
		{name: "RFC 850", values: []string{"Sunday, 01-Mar-26 09:30:07 GMT"}, header: date, want: 7 * time.Second},
		{name: "asctime", values: []string{"Sun Mar  1 09:30:07 2026"}, header: date, want: 7 * time.Second},
		{name: "a date by the receiver's own clock", values: []string{"Thu, 01 Jan 2015 00:00:07 GMT"},
			header: http.Header{"Date": {"Thu, 01 Jan 2015 00:00:00 GMT"}}, want: 7 * time.Second},
		{name: "a date without Date", values: []string{"Sun, 01 Mar 2026 09:30:07 GMT"}, want: 6400 * time.Millisecond},
		{name: "a date with an odd Date", values: []string{"Sun, 01 Mar 2026 09:30:07 GMT"},
			header: http.Header{"Date": {"today"}}, want: 6400 * time.Millisecond},
		{name: "a date in the past", values: []string{"Sun, 01 Mar 2026 09:29:00 GMT"}, header: date},
		{name: "a date in another year", values: []string{"Mon, 01 Mar 2027 09:30:07 GMT"}, header: date, want: 24 * time.Hour},
		{name: "a date in another zone", values: []string{"Sunday, 01-Mar-26 09:30:07 PST"}, err: webhook.ErrRetryAfter},
		{name: "empty", values: []string{""}, err: webhook.ErrRetryAfter},
		{name: "negative", values: []string{"-7"}, err: webhook.ErrRetryAfter},
		{name: "signed", values: []string{"+7"}, err: webhook.ErrRetryAfter},
		{name: "a fraction", values: []string{"7.5"}, err: webhook.ErrRetryAfter},
		{name: "hexadecimal", values: []string{"0x7"}, err: webhook.ErrRetryAfter},
		{name: "a list", values: []string{"7, 8"}, err: webhook.ErrRetryAfter},
		{name: "digits of another script", values: []string{"٧"}, err: webhook.ErrRetryAfter},
		{name: "a duration", values: []string{"7s"}, err: webhook.ErrRetryAfter},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			h := http.Header{}
			if tt.header != nil {
				h = tt.header.Clone()
			}
			if tt.values != nil {
				h["Retry-After"] = tt.values
			}
			got, err := webhook.RetryAfter(h, now)
			if got != tt.want || !errors.Is(err, tt.err) {
				t.Errorf("RetryAfter() = %v, %v, want %v, %v", got, err, tt.want, tt.err)
			}
		})
	}
}

func TestRetryAfterComesWithTheRefusal(t *testing.T) {
	t.Parallel()
	for status, want := range map[int]time.Duration{429: 7 * time.Second, 503: 7 * time.Second, 500: 7 * time.Second,
		404: 7 * time.Second, 400: 0} {
		got := webhook.Judge(status, http.Header{"Retry-After": {"7"}}, time.Now())
		if got.After != want {
			t.Errorf("%d: after %v, want %v", status, got.After, want)
		}
	}
	if err := webhook.Judge(503, http.Header{"Retry-After": {"soon"}}, time.Now()); !errors.Is(err, webhook.ErrRetryAfter) {
		t.Errorf("an unreadable Retry-After = %v, want it to be told from others", err)
	}
}

func FuzzRetryAfterStaysWithinADay(f *testing.F) {
	for _, seed := range []string{"7", " 7 ", "99999999999999999999", "-1", "Sun, 01 Mar 2026 09:30:07 GMT",
		"Sunday, 01-Mar-26 09:30:07 GMT", "Sun Mar  1 09:30:07 2026", "soon", ""} {
		f.Add(seed, "Sun, 01 Mar 2026 09:30:00 GMT")
	}
	f.Add("Sun, 01 Mar 9999 09:30:07 GMT", "Sun, 01 Mar 0000 09:30:07 GMT")
	f.Fuzz(func(t *testing.T, value, date string) {
		h := http.Header{"Retry-After": {value}, "Date": {date}}
		got, err := webhook.RetryAfter(h, time.Now())
		if got < 0 || got > 24*time.Hour || err != nil && got != 0 {
			t.Errorf("RetryAfter(%q, %q) = %v, %v", value, date, got, err)
		}
	})
}

func TestAnswersThatPauseTheDestination(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		status int
		header http.Header
		want   time.Duration
	}{
		{"too many requests", 429, http.Header{"Retry-After": {"60"}}, time.Minute},
		{"unavailable", 503, http.Header{"Retry-After": {"60"}}, time.Minute},
		{"too many requests, for how long?", 429, nil, 0},
		{"another status may ask for this event's time alone", 500, http.Header{"Retry-After": {"60"}}, 0},
		{"a time that cannot be read pauses nothing", 429, http.Header{"Retry-After": {"soon"}}, 0},
		{"gone", 410, http.Header{"Retry-After": {"60"}}, outbox.Forever},
		{"disable", 500, http.Header{"Webhook-Delivery": {"disable"}}, outbox.Forever},
		{"disable and later", 503, http.Header{"Webhook-Delivery": {"Disable"}, "Retry-After": {"60"}}, outbox.Forever},
		{"disable with a refusal", 400, http.Header{"Webhook-Delivery": {"disable"}}, outbox.Forever},
	} {
		if got := webhook.Judge(tt.status, tt.header, time.Now()).Pause; got != tt.want {
			t.Errorf("%s: pause %s, want %s", tt.name, got, tt.want)
		}
	}
}
