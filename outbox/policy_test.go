package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"pgregory.net/rapid"

	"github.com/outboxctl/outboxctl/outbox"
)

// plain is the default policy without jitter.
func plain() outbox.Policy {
	p := outbox.DefaultPolicy()
	p.Jitter = 0
	return p
}

// decided is an outcome in one line.
func decided(out outbox.Outcome) string {
	s := fmt.Sprintf("%s %s", out.Status, out.Delay)
	if out.Refund {
		s += " refund"
	}
	return strings.TrimSpace(fmt.Sprintf("%s [%s %d] %s%s", s, out.ErrorKind, out.ErrorCode, out.Receipt, out.Error))
}

func TestDecide(t *testing.T) {
	t.Parallel()
	oops := errors.New("oops")
	http := func(v outbox.Verdict, code int, after time.Duration) error {
		return &outbox.DeliveryError{Verdict: v, Kind: "http", Code: code, After: after, Err: oops}
	}
	for _, tt := range []struct {
		name    string
		attempt int
		receipt outbox.Receipt
		err     error
		want    string
	}{
		{"delivered", 1, outbox.Receipt{Text: "200 req-1", Code: 200}, nil, "delivered 0s [ 200] 200 req-1"},
		{"delivered beyond the last attempt", 11, outbox.Receipt{}, nil, "delivered 0s [ 0]"},
		{"a receipt beside an error", 1, outbox.Receipt{Text: "200"}, oops, "pending 2s [error 0] oops"},
		{"the first failure", 1, outbox.Receipt{}, oops, "pending 2s [error 0] oops"},
		{"the second", 2, outbox.Receipt{}, oops, "pending 4s [error 0] oops"},
		{"the last but one", 9, outbox.Receipt{}, oops, "pending 5m0s [error 0] oops"},
		{"the last", 10, outbox.Receipt{}, oops, "failed 0s [error 0] oops"},
		{"one beyond it", 11, outbox.Receipt{}, oops, "failed 0s [error 0] oops"},
		{"far beyond it", math.MaxInt32, outbox.Receipt{}, oops, "failed 0s [error 0] oops"},
		{"a kind and a code", 1, outbox.Receipt{}, http(outbox.VerdictRetry, 503, 0), "pending 2s [http 503] oops"},
		{"permanent", 1, outbox.Receipt{}, http(outbox.VerdictPermanent, 422, 0), "dead_letter 0s [http 422] oops"},
		{"permanent, the last", 10, outbox.Receipt{}, outbox.Permanent(oops), "dead_letter 0s [error 0] oops"},
		{"slow from the first retry", 1, outbox.Receipt{}, http(outbox.VerdictSlow, 401, 0), "pending 5m0s [http 401] oops"},
		{"slow, the last", 10, outbox.Receipt{}, outbox.Slow(oops), "failed 0s [error 0] oops"},
		{"brief, the first", 1, outbox.Receipt{}, outbox.Brief(oops), "pending 100ms [error 0] oops"},
		{"brief, the second", 2, outbox.Receipt{}, outbox.Brief(oops), "pending 100ms [error 0] oops"},
		{"brief, the third", 3, outbox.Receipt{}, outbox.Brief(oops), "pending 8s [error 0] oops"},
		{"brief, the last", 10, outbox.Receipt{}, outbox.Brief(oops), "failed 0s [error 0] oops"},
		{"asked for longer", 1, outbox.Receipt{}, outbox.RetryAfter(oops, time.Minute), "pending 1m0s [error 0] oops"},
		{"asked for shorter", 5, outbox.Receipt{}, outbox.RetryAfter(oops, time.Second), "pending 32s [error 0] oops"},
		{"asked for just as long", 1, outbox.Receipt{}, outbox.RetryAfter(oops, 2*time.Second), "pending 2s [error 0] oops"},
		{"asked for a day", 1, outbox.Receipt{}, outbox.RetryAfter(oops, 24*time.Hour), "pending 24h0m0s [error 0] oops"},
		{"asked for a century", 1, outbox.Receipt{}, outbox.RetryAfter(oops, 876000*time.Hour), "pending 24h0m0s [error 0] oops"},
		{"asked for the past", 1, outbox.Receipt{}, outbox.RetryAfter(oops, -time.Hour), "pending 2s [error 0] oops"},
		{"asked, the last", 10, outbox.Receipt{}, outbox.RetryAfter(oops, time.Minute), "failed 0s [error 0] oops"},
		{"slow and asked for longer", 1, outbox.Receipt{}, http(outbox.VerdictSlow, 401, time.Hour), "pending 1h0m0s [http 401] oops"},
		{"slow and asked for shorter", 1, outbox.Receipt{}, http(outbox.VerdictSlow, 401, time.Minute), "pending 5m0s [http 401] oops"},
		{"postponed", 1, outbox.Receipt{}, outbox.Postpone(time.Minute), "pending 1m0s refund [error 0] postponed for 1m0s"},
		{"postponed, the last", 10, outbox.Receipt{}, outbox.Postpone(time.Second), "pending 1s refund [error 0] postponed for 1s"},
		{"postponed into the past", 1, outbox.Receipt{}, outbox.Postpone(-time.Minute), "pending 0s refund [error 0] postponed for -1m0s"},
		{"wrapped", 1, outbox.Receipt{}, fmt.Errorf("send: %w", http(outbox.VerdictPermanent, 400, 0)), "dead_letter 0s [http 400] oops"},
		{"judged anew", 1, outbox.Receipt{}, outbox.Permanent(http(outbox.VerdictRetry, 418, 0)), "dead_letter 0s [http 418] oops"},
		{"a timeout", 1, outbox.Receipt{}, fmt.Errorf("send: %w", context.DeadlineExceeded), "pending 2s [timeout 0] send: context deadline exceeded"},
		{"a timeout of another kind", 1, outbox.Receipt{}, &outbox.DeliveryError{Kind: "dns", Err: context.DeadlineExceeded}, "pending 2s [dns 0] context deadline exceeded"},
		{"without a cause", 1, outbox.Receipt{}, &outbox.DeliveryError{Kind: "dns"}, "pending 2s [dns 0] dns"},
		{"an unknown verdict", 1, outbox.Receipt{}, &outbox.DeliveryError{Verdict: 99, Err: oops}, "pending 2s [error 0] oops"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			ev := &outbox.Event{ID: 7, Lease: "me/1", Attempts: tt.attempt}
			out := plain().Decide(ev, tt.receipt, tt.err)
			if got := decided(out); got != tt.want {
				t.Errorf("Decide() = %s, want %s", got, tt.want)
			}
			if out.ID != 7 || out.Lease != "me/1" {
				t.Errorf("Decide() is about event %d under lease %q, want 7 under me/1", out.ID, out.Lease)
			}
		})
	}
}

// Jitter varies the backoff both ways; upon what the destination asked for it only adds, and nothing
// at the ceiling.
func TestJitter(t *testing.T) {
	t.Parallel()
	const lowest, middle, highest = 0, 0.5, 1
	for _, tt := range []struct {
		name string
		roll float64
		err  error
		want time.Duration
	}{
		{"lowest", lowest, errors.New("oops"), 1600 * time.Millisecond},
		{"middle", middle, errors.New("oops"), 2 * time.Second},
		{"highest", highest, errors.New("oops"), 2400 * time.Millisecond},
		{"slow, lowest", lowest, outbox.Slow(errors.New("oops")), 4 * time.Minute},
		{"slow, highest", highest, outbox.Slow(errors.New("oops")), 6 * time.Minute},
		{"asked, lowest", lowest, outbox.RetryAfter(errors.New("oops"), time.Minute), time.Minute},
		{"asked, highest", highest, outbox.RetryAfter(errors.New("oops"), time.Minute), time.Minute + 400*time.Millisecond},
		{"asked for the backoff itself, lowest", lowest, outbox.RetryAfter(errors.New("oops"), 2*time.Second), 2 * time.Second},
		{"asked for less than the lowest", lowest, outbox.RetryAfter(errors.New("oops"), time.Second), 1600 * time.Millisecond},
		{"the ceiling, lowest", lowest, outbox.RetryAfter(errors.New("oops"), 24*time.Hour), 24 * time.Hour},
		{"the ceiling, highest", highest, outbox.RetryAfter(errors.New("oops"), 48*time.Hour), 24 * time.Hour},
		{"just below the ceiling, highest", highest, outbox.RetryAfter(errors.New("oops"), 24*time.Hour-100*time.Millisecond), 24 * time.Hour},
		{"postponed, highest", highest, outbox.Postpone(time.Minute), time.Minute},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			p := outbox.DefaultPolicy()
			p.Roll = func() float64 { return tt.roll }
			out := p.Decide(&outbox.Event{Attempts: 1}, outbox.Receipt{}, tt.err)
			if diff := out.Delay - tt.want; diff < -1 || diff > 1 {
				t.Errorf("the delay is %s, want %s", out.Delay, tt.want)
			}
		})
	}
}

func TestDelayIsWithinItsBounds(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		base := rapid.Int64Range(1, math.MaxInt64).Draw(t, "base")
		limit := rapid.Int64Range(base, math.MaxInt64).Draw(t, "cap")
		roll := rapid.Float64Range(0, 0.9999999999).Draw(t, "roll")
		checkDelay(t, outbox.Policy{
			MaxAttempts: math.MaxInt,
			Backoff:     outbox.Backoff{Base: time.Duration(base), Cap: time.Duration(limit)},
			Jitter:      rapid.Float64Range(0, 1).Draw(t, "jitter"),
			Roll:        func() float64 { return roll },
		}, rapid.IntRange(0, math.MaxInt32).Draw(t, "attempt"), &outbox.DeliveryError{
			Verdict: outbox.Verdict(rapid.IntRange(0, 2).Draw(t, "verdict")),
			After:   time.Duration(rapid.Int64().Draw(t, "after")),
		})
	})
}

// A policy without a roll of its own spreads its delays.
func TestDelaysAreSpread(t *testing.T) {
	t.Parallel()
	seen := map[time.Duration]bool{}
	for range 100 {
		out := outbox.DefaultPolicy().Decide(&outbox.Event{Attempts: 1}, outbox.Receipt{}, errors.New("oops"))
		if out.Delay < 1600*time.Millisecond || out.Delay > 2400*time.Millisecond {
			t.Fatalf("a delay of %s, want 2s ±20 %%", out.Delay)
		}
		seen[out.Delay] = true
	}
	if len(seen) < 90 {
		t.Errorf("%d different delays of 100", len(seen))
	}
}

func TestTextsAreFitForStoringAndShowing(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, text, want string }{
		{"plain", "500 internal server error", "500 internal server error"},
		{"empty", "", ""},
		{"other letters", "Ошибка сервера ✗", "Ошибка сервера ✗"},
		{"controls", "a\x00b\nc\td\x1b[31me\x7f", "a b c d [31me "},
		{"C1 controls", "a\u0085b\u009b31m", "a b 31m"},
		{"not UTF-8", "a\xffb\xc3", "a\uFFFDb\uFFFD"},
		{"1 KB", strings.Repeat("x", 1024), strings.Repeat("x", 1024)},
		{"more", strings.Repeat("x", 1<<20), strings.Repeat("x", 1024)},
		{"a rune across the end", strings.Repeat("x", 1023) + "é", strings.Repeat("x", 1023)},
		{"a longer one", strings.Repeat("x", 1022) + "🙂🙂", strings.Repeat("x", 1022)},
		{"replacements that grow", strings.Repeat("\xffx", 600), strings.Repeat("\uFFFDx", 256)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			out := plain().Decide(&outbox.Event{Attempts: 1}, outbox.Receipt{Text: tt.text}, nil)
			if out.Receipt != tt.want {
				t.Errorf("the receipt is %q, want %q", out.Receipt, tt.want)
			}
			if tt.text == "" {
				return
			}
			out = plain().Decide(&outbox.Event{Attempts: 1}, outbox.Receipt{}, &outbox.DeliveryError{Kind: tt.text, Err: errors.New(tt.text)})
			if out.Error != tt.want || out.ErrorKind != tt.want {
				t.Errorf("error and kind are %q and %q, want %q", out.Error, out.ErrorKind, tt.want)
			}
		})
	}
}

func TestTextsOfAnyBytesStayShortAndValid(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		text := string(rapid.SliceOfN(rapid.Byte(), 0, 6000).Draw(t, "text"))
		got := plain().Decide(&outbox.Event{Attempts: 1}, outbox.Receipt{Text: text}, nil).Receipt
		if len(got) > 1024 || !utf8.ValidString(got) || strings.ContainsRune(got, 0) {
			t.Errorf("the receipt is %q", got)
		}
	})
}

func TestVerdictsKeepTheirCause(t *testing.T) {
	t.Parallel()
	cause := errors.New("cause")
	for name, err := range map[string]error{
		"permanent": outbox.Permanent(cause), "slow": outbox.Slow(cause), "brief": outbox.Brief(cause),
		"retry after": outbox.RetryAfter(cause, time.Second), "twice": outbox.Slow(outbox.Permanent(cause)),
	} {
		if !errors.Is(err, cause) || err.Error() != "cause" {
			t.Errorf("%s: %v is not its cause", name, err)
		}
	}
}

func TestDecideBySchedule(t *testing.T) {
	t.Parallel()
	p := plain()
	p.Schedule = []time.Duration{5 * time.Second, 5 * time.Minute, 2 * time.Hour}
	oops := errors.New("oops")
	for _, tt := range []struct {
		attempt int
		err     error
		want    time.Duration
	}{
		{1, oops, 5 * time.Second},
		{2, oops, 5 * time.Minute},
		{3, oops, 2 * time.Hour},
		{4, oops, 2 * time.Hour}, // the last one stays
		{1, outbox.Slow(oops), 5 * time.Minute},
		{3, outbox.Slow(oops), 2 * time.Hour},
		{1, outbox.RetryAfter(oops, time.Minute), time.Minute},
	} {
		if got := p.Decide(&outbox.Event{Attempts: tt.attempt}, outbox.Receipt{}, tt.err).Delay; got != tt.want {
			t.Errorf("after attempt %d and %v: %s, want %s", tt.attempt, tt.err, got, tt.want)
		}
	}
	p.Schedule = []time.Duration{time.Second}
	if got := p.Decide(&outbox.Event{Attempts: 1}, outbox.Receipt{}, outbox.Slow(oops)).Delay; got != time.Second {
		t.Errorf("slow, with a schedule of 1s: %s, want the longest wait that the schedule knows", got)
	}
}

func TestDecideByTheDestinationsOwnCodes(t *testing.T) {
	t.Parallel()
	p := plain()
	p.Permanent, p.Retryable = []int{404, 503}, []int{422, 401}
	for _, tt := range []struct {
		verdict outbox.Verdict
		code    int
		want    string
	}{
		{outbox.VerdictSlow, 404, "dead_letter 0s [http 404] oops"},
		{outbox.VerdictRetry, 503, "dead_letter 0s [http 503] oops"},
		{outbox.VerdictPermanent, 422, "pending 2s [http 422] oops"},
		{outbox.VerdictSlow, 401, "pending 2s [http 401] oops"},
		{outbox.VerdictPermanent, 400, "dead_letter 0s [http 400] oops"},
		{outbox.VerdictPostpone, 503, "pending 0s refund [http 503] oops"},
	} {
		err := &outbox.DeliveryError{Verdict: tt.verdict, Kind: "http", Code: tt.code, Err: errors.New("oops")}
		if got := decided(p.Decide(&outbox.Event{Attempts: 1}, outbox.Receipt{}, err)); got != tt.want {
			t.Errorf("%d: %s, want %s", tt.code, got, tt.want)
		}
	}
}
