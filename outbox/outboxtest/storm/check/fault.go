package check

import (
	"strings"
	"time"

	"github.com/outboxctl/outboxctl/outbox/outboxtest/storm/history"
)

// The sorts of faults, by what they can be the reason of.
var (
	ofProcesses = []string{"kill", "crash", "stop", "term"}
	ofDatabase  = []string{"postgres", "frozen", "terminate", "lock", "snapshot", "connections", "wire"}
	ofWire      = []string{"wire", "receiver"}
)

// slack is what two clock readings around one thing can differ by when two cores serve everybody.
const slack = 250 * time.Millisecond

// sort is the first word of a fault's kind: crash:after-claim is a crash.
func sort(f *history.Fault) string {
	word, _, _ := strings.Cut(f.Kind, ":")
	return word
}

// is reports whether a fault is of one of the sorts.
func is(f *history.Fault, sorts []string) bool {
	for _, s := range sorts {
		if sort(f) == s {
			return true
		}
	}
	return false
}

// overlaps reports whether a fault was in force at some time from from to to.
func overlaps(f *history.Fault, from, to time.Time) bool {
	end := f.End
	if end.Before(f.Began) {
		end = f.Began
	}
	return !f.Began.After(to) && !end.Before(from)
}

// hits reports whether a fault of a process is of this one.
func hits(f *history.Fault, app string) bool {
	return f.Target == app || f.Target == "" || strings.HasPrefix(f.Target, app+" ")
}

// concerns reports whether a process can suffer from a fault at a destination: from one of its own, of its wire, of its
// sessions, of the destination's receiver or wire, and of the server as a whole. A session that is frozen may hold what
// others wait for.
func concerns(f *history.Fault, app, dest string) bool {
	_, name, _ := strings.Cut(f.Target, " ")
	switch sort(f) {
	case "kill", "crash", "stop", "term":
		return hits(f, app)
	case "wire":
		return name == app || name == dest
	case "receiver":
		return name == dest
	case "terminate":
		return name == "of "+app
	}
	return true
}

// hurt finds a fault that a process could have suffered from at a destination, at some time from from to to; "" is none
// in particular.
func (s *story) hurt(app, dest string, from, to time.Time, sorts ...[]string) *history.Fault {
	for _, some := range sorts {
		for i := range s.Faults {
			f := &s.Faults[i]
			if is(f, some) && overlaps(f, from, to) && concerns(f, app, dest) {
				return f
			}
		}
	}
	return nil
}

// any finds a fault of whatever sort.
func (s *story) any(from, to time.Time) *history.Fault {
	for i := range s.Faults {
		if overlaps(&s.Faults[i], from, to) {
			return &s.Faults[i]
		}
	}
	return nil
}

// died is when the process that made a claim ended, if it did not outlive a time and nobody told it to stop in peace.
func (s *story) died(c *claim, before time.Time) (end time.Time, yes bool) {
	p := s.process(c.app, c.at)
	if p == nil || p.End.IsZero() || p.End.After(before) {
		return time.Time{}, false
	}
	return p.End, true
}
