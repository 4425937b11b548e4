package outbox

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Sink delivers events to one destination.
//
// Deliver sends ev once and returns when the destination has answered or ctx is done. It returns
// a nil error only if the destination has taken the event over. Any other error means a retry by
// policy, unless it is one of [Permanent], [Slow], [RetryAfter], [Brief] or [Postpone]. It must be
// safe for concurrent use, must not keep ev, and must not put payloads or secrets into errors.
type Sink interface {
	Deliver(ctx context.Context, ev Event) (Receipt, error)
}

// Receipt is what a destination said when it took an event.
type Receipt struct {
	Text string // for a person: "200 req-7f3a"; at most 1 KB is kept
	Code int    // the destination's own code, such as an HTTP status; 0 = none
}

// Verdict is a sink's opinion of a failed delivery. The zero value is a retry by policy.
type Verdict int

// The verdicts a [DeliveryError] can carry.
const (
	VerdictRetry     Verdict = iota // may well work later
	VerdictBrief                    // a connection that was dying already: again in a moment
	VerdictSlow                     // a mistake of configuration that hits every event: retry at the cap
	VerdictPermanent                // this event will never be taken
	VerdictPostpone                 // nothing was sent: give the attempt back
)

// DeliveryError is an error of a [Sink] with what the core needs to know about it.
type DeliveryError struct {
	Verdict Verdict
	Kind    string        // error_kind: a short word such as timeout, dns, http; "" becomes "error"
	Code    int           // error_code: the destination's own code, such as an HTTP status; 0 = none
	After   time.Duration // not before; 0 = the policy alone decides
	Pause   time.Duration // no event at all is wanted for so long; 0 = they are, [Forever] = until somebody resumes it
	Err     error
}

// Error says what happened, for the column error.
func (e *DeliveryError) Error() string {
	if e.Err == nil {
		return e.Kind
	}
	return e.Err.Error()
}

// Unwrap returns the cause.
func (e *DeliveryError) Unwrap() error { return e.Err }

// Permanent marks err as one that no retry will mend: the event becomes a dead letter.
func Permanent(err error) error { return judged(err, VerdictPermanent, 0) }

// Slow marks err as a mistake of configuration rather than of the event (a wrong secret, an
// expired certificate): it is retried at the backoff's cap from the first time on.
func Slow(err error) error { return judged(err, VerdictSlow, 0) }

// Brief marks err as the fault of a connection that was closing: the first two such attempts are
// made again within a moment, later ones by policy.
func Brief(err error) error { return judged(err, VerdictBrief, 0) }

// RetryAfter marks err as retried no sooner than after d, when the policy says sooner.
func RetryAfter(err error, d time.Duration) error { return judged(err, VerdictRetry, d) }

// Postpone says that nothing was sent and that the event is to be tried again after d. The attempt
// is given back.
func Postpone(d time.Duration) error {
	return judged(fmt.Errorf("postponed for %s", d), VerdictPostpone, d)
}

// judged keeps kind and code of err when it carries them.
func judged(err error, v Verdict, after time.Duration) error {
	e := &DeliveryError{Verdict: v, After: after, Err: err}
	if known, ok := errors.AsType[*DeliveryError](err); ok {
		e.Kind, e.Code, e.Err = known.Kind, known.Code, known.Err
	}
	return e
}
