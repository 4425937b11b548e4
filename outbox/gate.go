package outbox

import (
	"math"
	"time"
)

// Gate limits what a loop claims: every limit is asked before the claim, so that no claimed event
// waits for one and no attempt is burned. The loop calls its methods one at a time; they must not
// block.
type Gate interface {
	// Admit says how much more may be claimed now, beside what is in hand.
	Admit(h InHand) Admission

	// Record is told of every event that is about to be sent, with a nil out, and then of what became
	// of it. It reports whether what is claimed and unsent must not be sent any more.
	Record(ev *Event, out *Outcome) (shut bool)
}

// NoLimit is as many events as anybody asks for.
const NoLimit = math.MaxInt

// Hand counts events that are claimed and have not come back: those that wait to be sent, and those
// being sent.
type Hand struct{ Waiting, Sending int }

// InHand is what a loop has claimed and not brought to an end.
type InHand struct {
	Hand
	Retries int             // of both, those with an attempt before this one
	Tenants map[string]Hand // only those that have any; not to be changed or kept
}

// Admission is how much more may be claimed.
type Admission struct {
	N     int       // events at most
	Share *Share    // of retries among them; nil = any
	Rooms *Rooms    // of the tenants; nil = no tenant has a limit
	Shut  bool      // the destination is not to be bothered at all, until Next
	Next  time.Time // when more may be admitted, should nothing else happen; zero = then neither
}

// Everything is what a gate without a limit admits.
func Everything() Admission { return Admission{N: NoLimit} }

// And is the smaller of both in everything, to be asked about again when either may have grown.
func (a Admission) And(b Admission) Admission {
	a.N = min(a.N, b.N)
	a.Share, a.Rooms = a.Share.and(b.Share), a.Rooms.and(b.Rooms)
	a.Shut = a.Shut || b.Shut
	if a.Next.IsZero() || !b.Next.IsZero() && b.Next.Before(a.Next) {
		a.Next = b.Next
	}
	return a
}
