package check

import (
	"time"

	"github.com/outboxctl/outboxctl/outbox/outboxtest/storm/history"
)

// judgeLeases: a claim takes what is free, for as long as configured, and its requests begin before its end. What
// begins later was on its way already: it was held up by the wire, or by a stop of its process between its last
// look at the clock and the first byte, which can happen to as many as are sent at once.
func judgeLeases(s *story, v *verdict) {
	late := map[lateness]int{}
	for _, l := range s.ordered {
		for _, st := range l.steps {
			if !claims(st.Transition) {
				continue
			}
			v.saw(1)
			s.judgeClaim(l, st, v)
		}
		for _, r := range l.requests {
			if r.claim != nil {
				v.saw(1)
				s.judgeUnleased(r, late, v)
			}
		}
	}
}

func (s *story) judgeClaim(l *life, st step, v *verdict) {
	if old := st.Old; old != nil && old.Lease != "" && !deref(old.LeaseUntil).Before(st.At) {
		v.wrong("event %s (id %d) was claimed by %s at %s, and the lease %s lasted until %s",
			l.key, l.id, st.App, clock(st.At), old.Lease, clock(*old.LeaseUntil))
	}
	if s.Setup.Lease <= 0 || s.dests[st.New.Dest] == nil {
		return
	}
	if lasts := deref(st.New.LeaseUntil).Sub(st.At); lasts > s.Setup.Lease+tick {
		v.wrong("event %s (id %d) was claimed by %s at %s for %s; a lease lasts %s", l.key, l.id, st.App, clock(st.At), lasts, s.Setup.Lease)
	}
}

// lateness is one reason for requests that began without a lease.
type lateness struct {
	fault *history.Fault
	app   string
	dest  string
}

func (s *story) judgeUnleased(r *request, late map[lateness]int, v *verdict) {
	c := r.claim
	if !r.Began.After(c.over().Add(slack)) {
		return
	}
	if s.hurt(c.app, c.dest, c.at, r.Began, ofWire) != nil {
		return
	}
	f := s.suspended(c.app, c.at, r.Began)
	why := lateness{f, c.app, c.dest}
	if late[why]++; f != nil && late[why] <= s.parallel(c.dest) {
		return
	}
	v.wrong("request %d of event %s (id %d, attempt %d) came at %s, %s after %s had no lease of it any more",
		r.N, r.Key, r.life.id, r.Attempt, clock(r.Began), r.Began.Sub(c.over()).Round(time.Millisecond), c.app)
}

// suspended finds a fault that stopped a process for a while between two times.
func (s *story) suspended(app string, from, to time.Time) *history.Fault {
	return s.hurt(app, "", from, to, []string{"stop"})
}

func (s *story) parallel(dest string) int {
	if d := s.dests[dest]; d != nil {
		return d.Parallel
	}
	return 1
}
