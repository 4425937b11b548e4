package outbox

import (
	"slices"
	"time"
)

// Reason says why an event does not move, or why it never will. The words are an interface.
type Reason string

// The reasons. Of an open event several may hold at once.
const (
	ReasonPurged      Reason = "purged"       // the row is gone, its history is there
	ReasonArchived    Reason = "archived"     // it has ended, and was moved to the archive
	ReasonDelivered   Reason = "delivered"    // it arrived
	ReasonFailed      Reason = "failed"       // its attempts are spent
	ReasonDeadLetter  Reason = "dead_letter"  // a person has to see to it
	ReasonDiscarded   Reason = "discarded"    // a person gave it up
	ReasonLeased      Reason = "leased"       // a worker has it
	ReasonFuture      Reason = "future"       // the producer wants it later
	ReasonBackingOff  Reason = "backing_off"  // between two attempts
	ReasonUnserved    Reason = "unserved"     // no dispatcher alive serves its destination
	ReasonUnrouted    Reason = "unrouted"     // no route has taken it, and no dispatcher does without
	ReasonPaused      Reason = "paused"       // its destination is, or its tenant there
	ReasonBreakerOpen Reason = "breaker_open" // its destination was refusing everything
	ReasonBlocked     Reason = "blocked"      // behind an earlier event of its aggregate
	ReasonLapsed      Reason = "lapsed"       // its worker died with it: due again
	ReasonDue         Reason = "due"          // it waits for its turn
)

// Facts are what an explanation goes by.
type Facts struct {
	Now      time.Time // by the database's clock
	ID       int64
	Row      *Row     // nil = purged
	Last     *Attempt // the last that is known; nil = none
	Notes    []Note   // what operators did to it
	Siblings []Row    // the same key at other destinations
	Place    Surround // of an open event
	Alike    Fellows  // of one with an error
	Root     *Facts   // the first open event of its aggregate, where that is in its way
	Behind   int64    // how many of its aggregate are before it, up to [MaxCount]
	Prior    int64    // the id of the last of these
	Redacted bool     // its payload was blanked: replay leaves it alone
}

// MaxCount is where the counting of events ends: more are told as so many or more.
const MaxCount = 5000

// Surround is how an open event's destination stands.
type Surround struct {
	Ordered     bool
	Breaker     string // closed, open, half_open
	BreakerAt   *time.Time
	Pauses      []Paused // of the destination, of its tenant there
	Serving     int      // dispatchers alive that serve it
	Dispatchers int      // dispatchers alive, whatever they serve
	HolderSeen  *time.Time
	Before      int64   // due earlier than it, up to MaxCount
	PerMinute   float64 // delivered there, over the last quarter of an hour
}

// HolderAlive reports whether a dispatcher of the name in the lease has been seen within [DeadAfter].
func (f *Facts) HolderAlive() bool {
	return f.Place.HolderSeen != nil && f.Now.Sub(*f.Place.HolderSeen) <= DeadAfter
}

// Fellows counts the events that have the same error: of an open event, those of its destination that
// wait for a retry, of one that ended, those that ended so.
type Fellows struct {
	Same   int64 // this one included
	Looked int64 // so many were looked at, up to MaxCount
}

// Explanation is why an event is where it is, and what happens next.
type Explanation struct {
	Reason Reason
	Also   []Reason   // what else is in the way
	NextAt *time.Time // when it goes on by itself; nil = nobody knows, or never
}

// Explain decides. It is a function of the facts alone.
//
// An event that is not due yet is explained by that, and what would be in its way then comes after;
// of one that is due, what takes a person comes first.
func (f *Facts) Explain() Explanation {
	if f.Row == nil {
		return Explanation{Reason: ReasonPurged}
	}
	if f.Row.ArchivedAt != nil {
		return Explanation{Reason: ReasonArchived}
	}
	if reason, ended := endings[f.Row.Status]; ended {
		return Explanation{Reason: reason}
	}
	if f.Row.Leased(f.Now) {
		return Explanation{Reason: ReasonLeased, NextAt: f.Row.LeaseUntil}
	}
	if f.Row.ErrorKind == KindUnrouted && f.Place.Serving == 0 {
		return Explanation{Reason: ReasonUnrouted, NextAt: f.Row.NextAttemptAt}
	}
	obstacles, next := f.obstacles()
	if due := f.Row.Due(); due.After(f.Now) {
		reason := ReasonFuture
		if f.Row.NextAttemptAt != nil && f.Row.Attempts > 0 {
			reason = ReasonBackingOff
		}
		return Explanation{Reason: reason, Also: obstacles, NextAt: later(&due, next, len(obstacles) == 0)}
	}
	if f.Row.LeaseUntil != nil {
		obstacles = append(obstacles, ReasonLapsed)
	}
	if len(obstacles) == 0 {
		return Explanation{Reason: ReasonDue, NextAt: f.turn()}
	}
	e := Explanation{Reason: obstacles[0], Also: obstacles[1:], NextAt: next}
	if e.Reason == ReasonLapsed {
		e.NextAt = f.turn()
	}
	return e
}

var endings = map[Status]Reason{
	Delivered: ReasonDelivered, Failed: ReasonFailed, DeadLetter: ReasonDeadLetter, Discarded: ReasonDiscarded,
}

// obstacles are what keeps a due event from being claimed, what takes a person first. next is when
// they are gone by themselves, nil where nobody knows.
func (f *Facts) obstacles() (all []Reason, next *time.Time) {
	p := f.Place
	switch {
	case p.Serving > 0:
	case f.Row.Destination == "" && p.Dispatchers > 0:
		all = append(all, ReasonUnrouted)
	default:
		all = append(all, ReasonUnserved)
	}
	if len(p.Pauses) > 0 {
		all = append(all, ReasonPaused)
	}
	if p.Breaker == "open" || p.Breaker == "half_open" {
		all = append(all, ReasonBreakerOpen)
	}
	if f.Root != nil {
		all = append(all, ReasonBlocked)
	}
	if !slices.Equal(all, []Reason{ReasonPaused}) {
		return all, nil
	}
	for _, pause := range p.Pauses {
		if pause.Until.IsZero() {
			return all, nil
		}
		next = later(next, &pause.Until, true)
	}
	return all, next
}

// later is the later of two times, nil unless both are known or one of them is all that counts.
func later(a, b *time.Time, alone bool) *time.Time {
	switch {
	case a == nil && alone:
		return b
	case b == nil && alone:
		return a
	case a == nil || b == nil:
		return nil
	case a.After(*b):
		return a
	}
	return b
}

// turn is when a due event comes to its turn by what its destination has delivered lately: an
// estimate. nil = nothing was delivered to go by, or too much is before it to be counted.
func (f *Facts) turn() *time.Time {
	switch {
	case f.Place.Before >= MaxCount:
		return nil
	case f.Place.Before == 0:
		return &f.Now
	case f.Place.PerMinute == 0:
		return nil
	}
	return new(f.Now.Add(time.Duration(float64(f.Place.Before) / f.Place.PerMinute * float64(time.Minute))))
}
