package gate

import "github.com/outboxctl/outboxctl/outbox"

// share leaves retries a part of the slots while fresh events wait: a failing part of the events, or
// an outage's aftermath, must not take the others' place. What one kind does not use the other may.
type share struct{ slots, parallel int }

var _ outbox.Gate = share{}

func newShare(part float64, parallel int) share {
	return share{max(int(part*float64(parallel)), 1), parallel}
}

// Admit implements [outbox.Gate].
func (g share) Admit(h outbox.InHand) outbox.Admission {
	a := outbox.Everything()
	a.Share = &outbox.Share{Retries: max(g.slots-h.Retries, 0), Alone: max(g.parallel-h.Waiting-h.Sending, 0)}
	return a
}

// Record implements [outbox.Gate].
func (share) Record(*outbox.Event, *outbox.Outcome) bool { return false }
