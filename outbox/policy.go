package outbox

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// The limits of what is kept of an answer.
const (
	maxText       = 1024                   // bytes of receipt and error
	maxRetryAfter = 24 * time.Hour         // a destination cannot ask for more
	briefDelay    = 100 * time.Millisecond // after a connection that was closing
	briefAttempts = 2                      // later ones back off
)

// The error kinds that the core itself gives; sinks have their own.
const (
	KindShutdown = "shutdown" // cut off when the dispatcher stopped; keeps its attempt
	KindCrashed  = "crashed"  // claimed more often than allowed without an outcome
	KindInvalid  = "invalid"  // the row cannot be turned into a request
	KindOversize = "oversize" // the payload is larger than allowed
	KindTimeout  = "timeout"  // no answer within the request timeout
)

// Policy says what becomes of an event after an attempt. It is a value; see [Policy.Decide].
type Policy struct {
	MaxAttempts int            // failed when attempt number MaxAttempts or a later one fails; ≥ 1
	Backoff     Backoff        // between attempts
	Jitter      float64        // share by which a delay varies, 0..1
	MaxPayload  int            // bytes of a payload; a larger one is a dead letter, unsent; 0 = any
	Roll        func() float64 // in [0, 1); nil = math/rand

	Schedule  []time.Duration // instead of Backoff: the wait after each failed attempt, the last one for all further
	Permanent []int           // codes of answers that make a dead letter, whatever the sink thinks of them
	Retryable []int           // codes of answers to try again after, whatever the sink thinks of them
}

// DefaultPolicy is the ladder 2s, 4s, 8s … 5m with ±20 %, and ten attempts.
func DefaultPolicy() Policy {
	return Policy{MaxAttempts: 10, Backoff: Backoff{Base: 2 * time.Second, Cap: 5 * time.Minute}, Jitter: 0.2}
}

// Outcome is what one attempt made of one event: what a settle writes.
type Outcome struct {
	ID        int64
	Lease     string        // the fence: a settle under another lease changes nothing
	Status    Status        // Pending (retry or release) or a final one
	Delay     time.Duration // until the next attempt, when Pending
	Refund    bool          // nothing was sent: the attempt is given back
	Receipt   string        // what the destination said when it took the event
	Error     string        // what went wrong, at most 1 KB, never a payload
	ErrorKind string
	ErrorCode int           // also a receipt's code, so that answers can be counted
	Latency   time.Duration // of the sink's call
	Pause     time.Duration // that the destination asks for, for all events; 0 = none

	event *Event
}

// claimKey names one claim of one event: an event whose lease lapsed may come back to the worker
// that still holds an outcome of the earlier claim.
type claimKey struct {
	id    int64
	lease string
}

func (o Outcome) key() claimKey { return claimKey{o.ID, o.Lease} }

// released reports whether the event was given back unsent.
func (o Outcome) released() bool { return o.Refund && o.Status == Pending }

// keys is the set of the claims of outs; nil for none.
func keys(outs []Outcome) map[claimKey]bool {
	if len(outs) == 0 {
		return nil
	}
	set := make(map[claimKey]bool, len(outs))
	for _, out := range outs {
		set[out.key()] = true
	}
	return set
}

// Decide turns the answer of a sink into an outcome. It is a function of its arguments and of
// p.Roll alone.
//
// A retry waits for max(backoff, what the destination asked for), at most a day. Jitter varies the
// backoff both ways; upon what the destination asked for it only adds.
func (p Policy) Decide(ev *Event, r Receipt, err error) Outcome {
	out := Outcome{ID: ev.ID, Lease: ev.Lease, event: ev}
	if err == nil {
		out.Status, out.Receipt, out.ErrorCode = Delivered, clean(r.Text), r.Code
		return out
	}
	failure := p.overrule(diagnose(err))
	out.Error, out.ErrorKind, out.ErrorCode = clean(failure.Error()), clean(failure.Kind), failure.Code
	if out.Pause = max(failure.Pause, 0); out.Pause != Forever {
		out.Pause = min(out.Pause, maxRetryAfter)
	}
	switch {
	case failure.Verdict == VerdictPostpone:
		out.Status, out.Refund, out.Delay = Pending, true, max(failure.After, 0)
	case failure.Verdict == VerdictPermanent:
		out.Status = DeadLetter
	case ev.Attempts >= p.MaxAttempts:
		out.Status = Failed
	default:
		out.Status, out.Delay = Pending, p.delay(ev.Attempts, failure)
	}
	return out
}

// delay is the wait before the next attempt.
func (p Policy) delay(attempt int, e *DeliveryError) time.Duration {
	roll := rand.Float64
	if p.Roll != nil {
		roll = p.Roll
	}
	backoff := p.backoff(attempt)
	switch {
	case e.Verdict == VerdictSlow:
		backoff = p.longest(attempt)
	case e.Verdict == VerdictBrief && attempt <= briefAttempts:
		backoff = min(backoff, briefDelay)
	}
	wait := jittered(backoff, p.Jitter, roll())
	asked := min(e.After, maxRetryAfter)
	if asked <= 0 || wait >= asked {
		return wait
	}
	return min(plus(asked, float64(backoff)*p.Jitter*roll()), maxRetryAfter)
}

// backoff is the wait after a failed attempt, by the schedule or else by doubling.
func (p Policy) backoff(attempt int) time.Duration {
	if n := len(p.Schedule); n > 0 {
		return p.Schedule[min(max(attempt, 1), n)-1]
	}
	return p.Backoff.Delay(attempt)
}

// longest is the wait for what has to be mended by hand: the cap, as far as a schedule ever waits
// that long, and never less than the schedule says.
func (p Policy) longest(attempt int) time.Duration {
	if len(p.Schedule) == 0 {
		return p.Backoff.Cap
	}
	return max(p.backoff(attempt), min(p.Backoff.Cap, slices.Max(p.Schedule)))
}

// overrule puts the destination's own list of codes above the sink's verdict. Nothing was sent when
// that is a postponement.
func (p Policy) overrule(e *DeliveryError) *DeliveryError {
	switch {
	case e.Code == 0 || e.Verdict == VerdictPostpone:
	case slices.Contains(p.Permanent, e.Code):
		e.Verdict = VerdictPermanent
	case slices.Contains(p.Retryable, e.Code):
		e.Verdict = VerdictRetry
	}
	return e
}

// diagnose finds the sink's verdict in err, or makes a plain retry of it.
func diagnose(err error) *DeliveryError {
	failure := DeliveryError{Kind: "error", Err: err}
	if known, ok := errors.AsType[*DeliveryError](err); ok {
		failure = *known
	}
	if failure.Kind == "" {
		failure.Kind = "error"
	}
	if failure.Kind == "error" && errors.Is(err, context.DeadlineExceeded) {
		failure.Kind = KindTimeout
	}
	return &failure
}

// release gives an event back unsent: due at once, its attempt refunded.
func release(ev *Event) Outcome {
	return Outcome{ID: ev.ID, Lease: ev.Lease, event: ev, Status: Pending, Refund: true}
}

// cutOff is a delivery that the shutdown ended: whether it arrived is unknown, so the attempt
// counts, but it is due at once and never the one that makes the event failed.
func cutOff(ev *Event) Outcome {
	return Outcome{ID: ev.ID, Lease: ev.Lease, event: ev, Status: Pending, ErrorKind: KindShutdown,
		Error: "cut off when the dispatcher stopped"}
}

// bury ends an event that must not be sent; its attempt is given back.
func bury(ev *Event, kind, why string) Outcome {
	return Outcome{ID: ev.ID, Lease: ev.Lease, event: ev, Status: DeadLetter, Refund: true, ErrorKind: kind, Error: clean(why)}
}

// unsendable says how an event ends without being sent, if it must.
func (p Policy) unsendable(ev *Event) (Outcome, bool) {
	switch {
	case ev.Invalid != "":
		return bury(ev, KindInvalid, ev.Invalid), true
	case p.MaxPayload > 0 && ev.Size > p.MaxPayload:
		return bury(ev, KindOversize, fmt.Sprintf("the payload has %d bytes; max_payload is %d", ev.Size, p.MaxPayload)), true
	case ev.Attempts > p.MaxAttempts && ev.Attempts-ev.Shutdowns > p.MaxAttempts:
		return bury(ev, KindCrashed, fmt.Sprintf("claimed %d times without an outcome at the end", ev.Attempts)), true
	}
	return Outcome{}, false
}

// clean makes text from the wire fit for PostgreSQL and for a terminal: valid UTF-8, no NUL or
// other control characters, at most 1 KB.
func clean(s string) string {
	s = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s[:min(len(s), 4*maxText)], "\uFFFD"))
	if len(s) <= maxText {
		return s
	}
	cut := maxText
	for cut > 0 && !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut]
}
