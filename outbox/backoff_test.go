package outbox_test

import (
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/outboxctl/outboxctl/outbox"
)

func TestBackoffLadder(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name    string
		backoff outbox.Backoff
		want    []time.Duration // seconds
	}{
		{"the default", outbox.DefaultPolicy().Backoff, []time.Duration{2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300}},
		{"base is cap", outbox.Backoff{Base: 7 * time.Second, Cap: 7 * time.Second}, []time.Duration{7, 7, 7}},
		{"a cap between two steps", outbox.Backoff{Base: 3 * time.Second, Cap: 20 * time.Second}, []time.Duration{3, 6, 12, 20, 20}},
		{"a cap on a step", outbox.Backoff{Base: 5 * time.Second, Cap: 20 * time.Second}, []time.Duration{5, 10, 20, 20}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var got []time.Duration
			for attempt := range tt.want {
				got = append(got, tt.backoff.Delay(attempt+1)/time.Second)
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("Delay() = %d seconds, want %d", got, tt.want)
			}
		})
	}
}

func TestBackoffNeverOverflows(t *testing.T) {
	t.Parallel()
	const long = time.Duration(math.MaxInt64)
	for _, tt := range []struct {
		name    string
		backoff outbox.Backoff
		attempt int
		want    time.Duration
	}{
		{"the 30th attempt", outbox.DefaultPolicy().Backoff, 30, 5 * time.Minute},
		{"the 2^31st attempt", outbox.DefaultPolicy().Backoff, math.MaxInt32, 5 * time.Minute},
		{"as many as there can be", outbox.Backoff{Base: 1, Cap: long}, math.MaxInt, long},
		{"a huge cap, 34 doublings", outbox.Backoff{Base: time.Second, Cap: long}, 35, long},
		{"a huge cap, 33 doublings", outbox.Backoff{Base: time.Second, Cap: long}, 34, time.Second << 33},
		{"a huge base", outbox.Backoff{Base: long, Cap: long}, 2, long},
		{"a base just over half", outbox.Backoff{Base: long/2 + 1, Cap: long}, 2, long},
		{"no attempt yet", outbox.DefaultPolicy().Backoff, 0, 2 * time.Second},
		{"a negative attempt", outbox.DefaultPolicy().Backoff, math.MinInt, 2 * time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if got := tt.backoff.Delay(tt.attempt); got != tt.want {
				t.Errorf("Delay(%d) = %s, want %s", tt.attempt, got, tt.want)
			}
		})
	}
}

// Whatever the numbers: a delay is between base and cap and no shorter than the one before.
func TestBackoffGrowsFromBaseToCap(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		base := time.Duration(rapid.Int64Range(1, math.MaxInt64).Draw(t, "base"))
		b := outbox.Backoff{Base: base, Cap: time.Duration(rapid.Int64Range(int64(base), math.MaxInt64).Draw(t, "cap"))}
		attempt := rapid.IntRange(1, math.MaxInt32).Draw(t, "attempt")
		got, next := b.Delay(attempt), b.Delay(attempt+1)
		if got < b.Base || got > b.Cap || next < got {
			t.Errorf("%+v: Delay(%d) = %d, then %d", b, attempt, got, next)
		}
	})
}

// FuzzDelay looks for numbers with which a retry would be at once, in the past or never.
func FuzzDelay(f *testing.F) {
	f.Add(int64(2*time.Second), int64(5*time.Minute), 1, 0.2, 0.5, int64(0), 0)
	f.Add(int64(1), int64(math.MaxInt64), math.MaxInt32, 1.0, 0.999999999, int64(math.MaxInt64), 1)
	f.Add(int64(math.MaxInt64), int64(math.MaxInt64), 1, 1.0, 0.999999999, int64(1), 0)
	f.Add(int64(math.MaxInt64), int64(math.MaxInt64), 9, 1.0, 0.0, int64(24*time.Hour), 2)
	f.Fuzz(func(t *testing.T, base, limit int64, attempt int, jitter, roll float64, after int64, verdict int) {
		if base <= 0 || limit < base || !(jitter >= 0 && jitter <= 1) || !(roll >= 0 && roll < 1) {
			t.Skip("not a policy")
		}
		p := outbox.Policy{MaxAttempts: math.MaxInt, Backoff: outbox.Backoff{Base: time.Duration(base), Cap: time.Duration(limit)},
			Jitter: jitter, Roll: func() float64 { return roll }}
		checkDelay(t, p, attempt, &outbox.DeliveryError{Verdict: outbox.Verdict(verdict & 3), After: time.Duration(after)})
	})
}

// checkDelay checks the delay of a retry against its bounds.
func checkDelay(t interface {
	Helper()
	Errorf(string, ...any)
}, p outbox.Policy, attempt int, e *outbox.DeliveryError) {
	t.Helper()
	if e.Verdict == outbox.VerdictPermanent {
		return
	}
	out := p.Decide(&outbox.Event{ID: 1, Attempts: attempt}, outbox.Receipt{}, e)
	backoff := p.Backoff.Delay(attempt)
	switch {
	case e.Verdict == outbox.VerdictSlow:
		backoff = p.Backoff.Cap
	case e.Verdict == outbox.VerdictBrief && attempt <= 2:
		backoff = min(backoff, 100*time.Millisecond)
	}
	asked := max(0, min(e.After, 24*time.Hour))
	least := max(asked, backoff-spread(backoff, p.Jitter))
	most := max(plus(backoff, spread(backoff, p.Jitter)), min(plus(asked, spread(backoff, p.Jitter)), 24*time.Hour))
	inexact := 1 + backoff>>50 // as floats are
	if out.Status != outbox.Pending || out.Refund || out.Delay < max(least-inexact, 0) || out.Delay > plus(most, inexact) {
		t.Errorf("%+v, attempt %d, %+v: %s after %d, want pending after %d to %d", p, attempt, e, out.Status, out.Delay, least, most)
	}
}

// spread is how far jitter moves a delay, at most.
func spread(d time.Duration, jitter float64) time.Duration {
	return time.Duration(min(float64(d)*jitter, float64(math.MaxInt64/1024*1024)))
}

// plus adds without overflow.
func plus(a, b time.Duration) time.Duration {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}
