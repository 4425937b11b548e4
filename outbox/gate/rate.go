package gate

import (
	"math"
	"time"

	"golang.org/x/time/rate"

	"github.com/outboxctl/outboxctl/outbox"
)

// bucket is a token bucket that is emptied by sending, not by claiming: what is claimed and unsent
// has its tokens still in it, and what goes back unsent has cost none. So no more is sent in any
// second than the rate and a burst, which is a tenth of that.
type bucket struct {
	limiter *rate.Limiter
	worth   int // tokens that are worth a claim: half a burst
}

func newBucket(perSecond float64) *bucket {
	burst := burstOf(perSecond)
	return &bucket{rate.NewLimiter(rate.Limit(perSecond), burst), max(burst/2, 1)}
}

// burstOf is what a tenth of a second allows, at least one.
func burstOf(perSecond float64) int {
	return int(min(max(math.Floor(perSecond/10), 1), 1<<30))
}

// room is how many events may be claimed beside those that wait, and if none may, how long until
// some may.
func (b *bucket) room(waiting int) (n int, wait time.Duration) {
	tokens := b.limiter.Tokens() - float64(waiting)
	// A token that has just dripped in may be short of 1 by rounding.
	if n = int(tokens + 1e-6); n >= b.worth {
		return n, 0
	}
	missing := (float64(b.worth) - tokens) / float64(b.limiter.Limit())
	return 0, time.Duration(min(math.Ceil(missing*1e9), float64(math.MaxInt64/2)))
}

// full reports whether the bucket is like a new one.
func (b *bucket) full() bool { return b.limiter.Tokens() >= float64(b.limiter.Burst()) }

// take takes the token of a request. It may go below zero, where a claim brought more than was asked
// for.
func (b *bucket) take() { b.limiter.ReserveN(time.Now(), 1) }

// rateGate keeps a destination's requests to a rate.
type rateGate struct{ bucket *bucket }

var _ outbox.Gate = (*rateGate)(nil)

func newRate(perSecond float64) *rateGate { return &rateGate{newBucket(perSecond)} }

// Admit implements [outbox.Gate].
func (g *rateGate) Admit(h outbox.InHand) outbox.Admission {
	a := outbox.Everything()
	n, wait := g.bucket.room(h.Waiting)
	if a.N = n; n == 0 {
		a.Next = later(wait)
	}
	return a
}

// Record implements [outbox.Gate].
func (g *rateGate) Record(_ *outbox.Event, out *outbox.Outcome) bool {
	if out == nil {
		g.bucket.take()
	}
	return false
}
