package outbox

import (
	"math"
	"time"
)

// Backoff is the delay before a retry: the base, doubled with every attempt, up to the cap.
// With 2s..5m that is 2s, 4s, 8s, 16s, 32s, 64s, 128s, 256s, 5m, 5m, …
type Backoff struct {
	Base time.Duration // before the second attempt; > 0
	Cap  time.Duration // never longer; ≥ Base
}

// Delay is the wait after the given attempt failed; attempts count from 1. It clamps before it
// multiplies: a shift such as time.Second<<34 is negative.
func (b Backoff) Delay(attempt int) time.Duration {
	d := b.Base
	for ; attempt > 1 && d < b.Cap; attempt-- {
		if d > b.Cap/2 {
			return b.Cap
		}
		d *= 2
	}
	return min(d, b.Cap)
}

// jittered spreads d over d·(1 ± jitter); roll is in [0, 1).
func jittered(d time.Duration, jitter, roll float64) time.Duration {
	return max(plus(d, float64(d)*jitter*(2*roll-1)), 0) // a float is not exact
}

// plus adds to d, which is not negative, as far as a Duration reaches.
func plus(d time.Duration, more float64) time.Duration {
	if more >= float64(math.MaxInt64-d) {
		return math.MaxInt64
	}
	return d + time.Duration(more)
}
