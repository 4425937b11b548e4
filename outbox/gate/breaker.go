package gate

import (
	"errors"
	"time"

	"github.com/sony/gobreaker/v2"

	"github.com/outboxctl/outboxctl/outbox"
)

// Breaker is a circuit breaker's settings. It opens when either condition is met.
type Breaker struct {
	Failures int           // in a row; 0 = does not count
	Ratio    float64       // of failures among the requests of the last minute, 20 at least; 0 = does not count
	Cooldown time.Duration // from opening until one event is tried; > 0
}

// State is a breaker's, spelled as in outbox_destinations.
type State string

// The states of a breaker.
const (
	Closed   State = "closed"    // events flow
	Open     State = "open"      // nothing is claimed
	HalfOpen State = "half_open" // one event is tried
)

// Change is a breaker's step from one state to another.
type Change struct {
	From, To State
	For      time.Duration // with To Open: the cooldown
	Failure  string        // with To Open: the last one, in the words of the outcome
}

const (
	window      = time.Minute
	part        = 5 * time.Second // of the window that is forgotten at once
	minRequests = 20
)

// breaker keeps off a destination that does not work. Nothing is claimed while it is open; then one
// event at a time is tried, the oldest due of the tenant whose turn it is.
//
// A destination works if it takes events or refuses them for what they are. Every failure that is to
// be retried counts against it, also a wrong secret (401), as it would meet all other events, too.
type breaker struct {
	circuit *gobreaker.TwoStepCircuitBreaker[struct{}]
	pending map[*outbox.Event]func(error) // of the events being sent
	cool    time.Duration
	until   time.Time // the end of the cooldown
	failure string
}

var _ outbox.Gate = (*breaker)(nil)

func newBreaker(b Breaker, changed func(Change)) *breaker {
	g := &breaker{pending: map[*outbox.Event]func(error){}, cool: b.Cooldown}
	settings := gobreaker.Settings{
		MaxRequests: 1,
		Timeout:     b.Cooldown,
		ReadyToTrip: func(c gobreaker.Counts) bool {
			return b.Failures > 0 && int(c.ConsecutiveFailures) >= b.Failures ||
				b.Ratio > 0 && answered(c) >= minRequests && float64(c.TotalFailures) >= b.Ratio*float64(answered(c))
		},
		IsExcluded: func(err error) bool { return errors.Is(err, errUnsaid) },
		OnStateChange: func(_ string, from, to gobreaker.State) {
			change := Change{From: states[from], To: states[to]}
			if to == gobreaker.StateOpen {
				g.until = later(b.Cooldown)
				change.For, change.Failure = b.Cooldown, g.failure
			}
			if changed != nil {
				changed(change)
			}
		},
	}
	if b.Ratio > 0 {
		settings.Interval, settings.BucketPeriod = window, part
	}
	g.circuit = gobreaker.NewTwoStepCircuitBreaker[struct{}](settings)
	return g
}

var states = map[gobreaker.State]State{
	gobreaker.StateClosed: Closed, gobreaker.StateOpen: Open, gobreaker.StateHalfOpen: HalfOpen,
}

// Admit implements [outbox.Gate].
func (g *breaker) Admit(h outbox.InHand) outbox.Admission {
	a := outbox.Everything()
	switch g.circuit.State() {
	case gobreaker.StateOpen:
		// The circuit half-opens after the instant, not at it.
		a.N, a.Shut, a.Next = 0, true, g.until.Add(time.Millisecond)
	case gobreaker.StateHalfOpen: // requests from before may still be under way: their word counts no more
		a.N = max(1-h.Waiting-tried(g.circuit.Counts()), 0)
	}
	return a
}

// answered counts the requests that said something, tried also those that may yet.
func answered(c gobreaker.Counts) int { return int(c.TotalSuccesses) + int(c.TotalFailures) }
func tried(c gobreaker.Counts) int    { return int(c.Requests) - int(c.TotalExclusions) }

// What an outcome says about its destination, where that is not that it works.
var (
	errFailed = errors.New("failed")
	errUnsaid = errors.New("says nothing")
)

// Record implements [outbox.Gate].
func (g *breaker) Record(ev *outbox.Event, out *outbox.Outcome) (shut bool) {
	if out == nil {
		done, err := g.circuit.Allow()
		if err == nil {
			g.pending[ev] = done
		}
		return false
	}
	done, ok := g.pending[ev]
	if !ok {
		return false
	}
	delete(g.pending, ev)
	err := verdict(out)
	if err == errFailed {
		g.failure = out.Error
	}
	done(err)
	return g.circuit.State() == gobreaker.StateOpen
}

func verdict(out *outbox.Outcome) error {
	switch {
	case out.Refund, out.ErrorKind == outbox.KindShutdown:
		return errUnsaid
	case out.Status == outbox.Pending, out.Status == outbox.Failed:
		return errFailed
	}
	return nil
}
