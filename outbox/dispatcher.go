package outbox

import (
	"context"
	"errors"
	"time"
)

// Source hands out events and takes back what became of them.
type Source interface {
	// Exchange settles outs and claims up to want.N due events, in one round trip. It never
	// loses an outcome: what is not settled for sure is in the result's Held, with and without
	// an error. It may change the order of outs. The caller has one exchange under way at a time.
	Exchange(ctx context.Context, outs []Outcome, want Want) (Exchanged, error)

	// Payload returns the payload of a claimed event that has it Deferred, ErrLeaseLost when the
	// event is not ours any more, or ErrUnreadable when no attempt will ever read it. It is safe for
	// concurrent use, also with Exchange.
	Payload(ctx context.Context, ev *Event) ([]byte, error)
}

// ErrLeaseLost says that another worker has taken an event over, or that it is gone.
var ErrLeaseLost = errors.New("lease lost")

// ErrUnreadable says that the source cannot give a payload out, whenever it is asked.
var ErrUnreadable = errors.New("the payload cannot be read")

// Want is what a loop asks of its source.
type Want struct {
	N     int    // events at most; 0 = none, settle only
	Run   int    // of one aggregate at most, where its events are ordered; ≥ 1
	Share *Share // of retries; nil = any
	Rooms *Rooms // of the tenants; nil = none has a limit
	Fresh bool   // look from the very start, for late commits and lapsed leases too
}

// Exchanged is the result of an exchange. Every outcome that was offered and is in neither Lost
// nor Held is settled.
type Exchanged struct {
	Events    []Event   // claimed, in the order to send them; their leases began after the call did
	Lost      []Outcome // not ours any more: nothing was changed
	Held      []Outcome // not settled, to be offered again
	Refused   error     // why some of Held were refused, not just locked; nil = none was
	CameRound bool      // the source has looked everywhere and has no more than Events
}

// Report tells an observer what became of one attempt, once that is settled or lost.
type Report struct {
	Event   *Event
	Outcome Outcome
	Lost    bool // another worker took the event over; the outcome changed nothing
}

// Observer is told what a dispatcher does. Its functions are called one at a time, by the loop, and
// must not block. Nil ones are left out.
type Observer struct {
	Settled   func(Report)   // an attempt has its outcome
	Trouble   func(error)    // the source fails, once per outage, or refuses an outcome
	Recovered func()         // the source answers again
	Stands    func(Standing) // a pause has begun, changed or ended
	Asked     func(Hold)     // the destination wants a pause
	Turned    func()         // the loop goes on: once a second at least, unless the source hangs or every delivery does
}

// Dispatcher delivers one destination's events: one loop that owns all state and never waits for a
// single delivery. Its fields must not change while it runs.
type Dispatcher struct {
	Source Source
	Sink   Sink
	Policy Policy

	Ordering Ordering // as that of Source
	OnDead   OnDead   // likewise

	Gate      Gate            // limits what is claimed; nil = nothing does
	Standings <-chan Standing // what is paused, as it changes; nil = nothing ever is

	BatchSize      int           // claimed and unsettled events at most; ≥ 1
	Parallel       int           // of these being sent at most; ≥ 1
	Lease          time.Duration // of a claim; ≥ RequestTimeout + 2s
	RequestTimeout time.Duration // of one delivery
	PollInterval   time.Duration // between claims when there is nothing to do
	Grace          time.Duration // for deliveries in flight after the stop

	Once      bool          // end when nothing is due
	Wait      time.Duration // with Once: wait for retries of this run that are due within it
	MaxEvents int           // end after that many events were sent; 0 = no limit

	Woken <-chan struct{} // there may be news: the loop need not wait for its next poll; nil = nobody says

	Observer Observer
}

// Run delivers until stop is done, or with Once until nothing is due. After stop it claims no more,
// gives unsent events back, leaves those being sent Grace to end, and settles all results; when
// kill is done it cuts that short. The error is the source's, when results could not be settled
// or, with Once, when it cannot be reached.
func (d *Dispatcher) Run(stop, kill context.Context) (Summary, error) {
	l := newLoop(d, stop)
	err := l.run(stop, kill)
	l.close(kill.Err() == nil)
	l.summary.end()
	return l.summary, err
}
