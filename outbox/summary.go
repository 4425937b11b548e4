package outbox

import (
	"math/bits"
	"time"
)

// Summary is what a run did.
type Summary struct {
	Sent      int // calls of the sink
	Delivered int
	Retried   int // attempts that failed and will be made again
	Failed    int // events whose attempts are spent
	Dead      int // dead letters
	Shadows   int // of Failed and Dead, copies that shadow routes made
	Released  int // claimed, not sent, given back
	Lost      int // outcomes that changed nothing because the lease was lost
	Late      int // events sent after a later one of their aggregate, for they could not be seen before
	Took      time.Duration
	Held      string    // why work was left that could not be done now: a pause, an open breaker; "" = nothing was in the way
	Latency   Histogram // of the deliveries that succeeded

	began time.Time
}

func (s *Summary) begin() { s.began = time.Now() }
func (s *Summary) end()   { s.Took = time.Since(s.began) }

func (s *Summary) count(r Report) {
	if r.Event != nil && r.Event.Late && !r.Outcome.Refund {
		s.Late++
	}
	out := r.Outcome
	if r.Event != nil && r.Event.Shadow && !r.Lost && (out.Status == Failed || out.Status == DeadLetter) {
		s.Shadows++
	}
	switch {
	case r.Lost:
		s.Lost++
	case out.Status == Delivered:
		s.Delivered++
		s.Latency.Add(out.Latency)
	case out.Status == Failed:
		s.Failed++
	case out.Status == DeadLetter:
		s.Dead++
	case out.Refund:
		s.Released++
	default:
		s.Retried++
	}
}

// Rate is the deliveries per second of the run.
func (s *Summary) Rate() float64 {
	if s.Took <= 0 {
		return 0
	}
	return float64(s.Delivered) / s.Took.Seconds()
}

// Histogram counts durations in buckets that are at most an eighth wider than their start. The zero
// value is empty.
type Histogram struct {
	n       int
	buckets [64 * 8]int
}

// Add counts d; a negative one counts as zero.
func (h *Histogram) Add(d time.Duration) {
	h.n++
	h.buckets[bucket(uint64(max(d, 0)))]++
}

// Quantile is a duration that the share q of all is not above, or 0 when nothing was counted.
func (h *Histogram) Quantile(q float64) time.Duration {
	rank := int(q*float64(h.n) + 0.5)
	for i, n := range h.buckets {
		if rank -= n; n > 0 && rank <= 0 {
			return time.Duration(bucketStart(i))
		}
	}
	return 0
}

// bucket is eight per power of two: the place of the highest bit, then the next three bits.
func bucket(v uint64) int {
	if v < 8 {
		return int(v)
	}
	exp := bits.Len64(v) - 4
	return exp*8 + int(v>>exp)
}

func bucketStart(i int) uint64 {
	if i < 16 {
		return uint64(i)
	}
	exp := i/8 - 1
	return uint64(i%8+8) << exp
}
