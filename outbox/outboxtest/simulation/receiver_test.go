package simulation_test

import (
	"errors"
	"time"

	"github.com/outboxctl/outboxctl/outbox"
)

// answer is what the receiver makes of a call.
type answer struct {
	after time.Duration
	err   *outbox.DeliveryError // nil = it has taken the event
}

const never = 1000 * time.Hour

// verdictOf is how an answer is to be judged.
func (a answer) verdict() outbox.Verdict { return a.err.Verdict }

func refusal(v outbox.Verdict, code int) *outbox.DeliveryError {
	return &outbox.DeliveryError{Verdict: v, Kind: "http", Code: code, Err: errors.New("answered")}
}

// answerTo draws the answer to the n-th call for an event that begins now.
func (w *world) answerTo(id int64, n int) answer {
	p, at := w.plan, w.at()
	r := p.dice(ofCall, uint64(id), uint64(n))
	quick := between(r, time.Millisecond, 20*time.Millisecond)
	if at < p.heal {
		quick = between(r, time.Millisecond, p.slow)
	}
	switch w.fate[id] {
	case alwaysRefused:
		return answer{quick, refusal(outbox.VerdictPermanent, 422)}
	case alwaysFailing:
		return answer{quick, refusal(outbox.VerdictRetry, 503)}
	}
	if w.isOut(at) {
		if p.rejected {
			return answer{quick, refusal(outbox.VerdictSlow, 401)}
		}
		return answer{quick, refusal(outbox.VerdictRetry, 503)}
	}
	if at >= p.heal || r.IntN(100) >= p.failing {
		if at < p.heal && r.IntN(10) == 0 {
			quick = between(r, 0, p.timeout*11/10) // sometimes too late
		}
		return answer{after: quick}
	}
	return badAnswer(p, r.IntN(20), quick, between(r, 0, 10*time.Second))
}

func badAnswer(p *plan, roll int, quick, some time.Duration) answer {
	a := answer{quick, refusal(outbox.VerdictRetry, 500)}
	switch {
	case roll < 2:
		a = answer{never, nil}
	case roll < 4:
		a.err.After = some
	case roll < 5:
		a.err.After, a.err.Pause = some, some
	case roll < 7:
		a.err.Verdict = outbox.VerdictSlow
	case roll < 9:
		a.err.Verdict = outbox.VerdictBrief
	case roll < 11:
		a.err.Verdict, a.err.After = outbox.VerdictPostpone, some
	case roll < 12:
		a.err.Verdict = outbox.VerdictPermanent
	case roll < 13:
		a.after = p.timeout - time.Millisecond
	}
	return a
}

func (w *world) isOut(at time.Duration) bool {
	for _, o := range w.plan.outages {
		if o.holds(at) {
			return true
		}
	}
	return false
}

// call is a request as the receiver saw it.
type call struct {
	claim  *claim
	began  time.Time
	ended  time.Time // zero = it is under way
	answer answer
	cut    error // the end of its context came first
}

// taken reports whether the receiver has the event and said so.
func (c *call) taken() bool { return !c.ended.IsZero() && c.cut == nil && c.answer.err == nil }

// postponed reports whether nothing was sent, by the answer.
func (c *call) postponed() bool {
	return c.cut == nil && c.answer.err != nil && c.answer.verdict() == outbox.VerdictPostpone
}
