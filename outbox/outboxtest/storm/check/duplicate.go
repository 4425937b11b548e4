package check

import (
	"fmt"
	"slices"
	"time"
)

// judgeDuplicates: what a receiver has taken comes again only for a reason that lies outside the program. How much a
// death repeats is bounded by what a process may have claimed, of which judgeLimits is the judge. An operator's replay
// begins a new epoch, in which the first request repeats nothing.
func judgeDuplicates(s *story, v *verdict) {
	repeats := map[repeat]int{}
	for _, l := range s.ordered {
		byEpoch := map[int][]*request{}
		for _, r := range l.requests {
			if s.dests[r.Dest] == nil {
				continue
			}
			epoch := 0
			if r.claim != nil {
				epoch = r.claim.epoch
			}
			byEpoch[epoch] = append(byEpoch[epoch], r)
		}
		for _, all := range byEpoch {
			s.judgeRepeats(all, repeats, v)
		}
		if len(byEpoch) > 1 {
			s.duplicates["replay"] += l.replayed(byEpoch)
		}
	}
	for why, n := range repeats {
		if !why.end.IsZero() {
			s.worst = max(s.worst, n)
		}
	}
}

// replayed counts the epochs that began after one in which the row had been taken.
func (l *life) replayed(byEpoch map[int][]*request) (n int) {
	takenBefore := false
	for epoch := range l.steps[len(l.steps)-1].epoch + 1 {
		if takenBefore && len(byEpoch[epoch]) > 0 {
			n++
		}
		takenBefore = takenBefore || slices.ContainsFunc(byEpoch[epoch], func(r *request) bool { return taken2xx(r.Request) })
	}
	return n
}

// judgeRepeats looks at the requests of a row in an epoch, which are in the order in which they came.
func (s *story) judgeRepeats(all []*request, repeats map[repeat]int, v *verdict) {
	var first *request
	for _, r := range all {
		v.saw(1)
		if first != nil && r.Began.After(first.At) {
			s.judgeRepeat(first, r, repeats, v)
		}
		if taken2xx(r.Request) && !r.At.IsZero() {
			first = r
		}
	}
}

// repeat is what made requests come again.
type repeat struct {
	why  string
	app  string
	dest string
	end  time.Time // of the process, or of what stopped it
}

func (s *story) judgeRepeat(first, again *request, repeats map[repeat]int, v *verdict) {
	why, ok := s.reason(first, again)
	if s.Setup.Control && s.stalled(first.Began, again.Began) >= maxStall {
		s.void = append(s.void, fmt.Sprintf("the machine stood still while request %d had its answer on the way: no run for a control", first.N))
		return
	}
	if ok && !s.Setup.Control {
		s.duplicates[why.why]++
		repeats[why]++
		return
	}
	text := fmt.Sprintf("request %d of event %s (id %d, attempt %d) was taken at %q by %s, and request %d (attempt %d) came at %s",
		first.N, first.Key, first.life.id, first.Attempt, first.Dest, clock(first.At), again.N, again.Attempt, clock(again.Began))
	if ok {
		v.wrong("%s: nothing may come twice in a control run", text)
		return
	}
	s.duplicates["unexplained"]++
	v.wrong("%s: %s", text, why.why)
}

// maxStall is how long a machine may stand still while an answer is on its way, in a run that shall have no faults.
const maxStall = 100 * time.Millisecond

// stalled is how long the machine stood still between two times.
func (s *story) stalled(from, to time.Time) (all time.Duration) {
	for _, stall := range s.Stalls {
		if !stall.To.Before(from) && !stall.From.After(to) {
			all += stall.To.Sub(stall.From)
		}
	}
	return all
}

// reason finds why a request came again after one that was taken. If there is none, it says how things stood.
func (s *story) reason(first, again *request) (repeat, bool) {
	c := first.claim
	if c == nil {
		return repeat{why: "no claim is behind the first"}, s.any(first.Began.Add(-s.Setup.Lease), again.Began) != nil
	}
	at := repeat{app: c.app, dest: c.dest}
	if a := again.claim; a != nil && a != c && a.n < c.n {
		at.why = "delayed"
		return at, s.hurt(a.app, a.dest, a.at, again.Began, ofProcesses, ofWire, ofDatabase) != nil
	}
	switch c.how {
	case settled:
		return s.reasonOfSettled(first, at)
	case taken, gone:
		at.why = "the row was taken from its claim"
		return at, false
	}
	return s.reasonOfLapsed(first, again, at)
}

// reasonOfSettled: the sender settled something else, for it had not seen the answer.
func (s *story) reasonOfSettled(first *request, at repeat) (repeat, bool) {
	c := first.claim
	st := c.end.New
	switch {
	case st.Status == delivered:
		at.why = "its claim was settled as delivered"
		return at, false
	case c.refunded:
		at.why = "given back" // which judgeAttempts has a word about
		return at, true
	case st.Kind == "http", st.Kind == "redirect":
		at.why = "answered otherwise" // and judgeAnswers about this
		return at, true
	case st.Kind == "shutdown":
		at.why = "stop"
		p := s.process(c.app, c.at)
		return at, p != nil && !p.End.IsZero() || s.hurt(c.app, c.dest, first.Began, c.end.At, ofProcesses) != nil
	}
	at.why = "answer lost"
	lost := first.Left || first.Behaviour != "" && first.Behaviour != "ok" ||
		s.Setup.Destinations != nil && first.Done.Sub(first.Began) >= s.timeout(c.dest)-slack ||
		s.hurt(c.app, c.dest, first.Began.Add(-slack), c.end.At, ofWire, ofProcesses) != nil || s.readLate(first)
	return at, lost
}

// readLate reports whether the sender starved through half of a request's timeout: then it need not have read in time
// what was answered in time.
func (s *story) readLate(r *request) bool {
	timeout := s.timeout(r.Dest)
	return timeout > 0 && s.starved(r.claim.app, r.Began.Add(-timeout), r.claim.end.At) >= timeout/2
}

func (s *story) timeout(dest string) time.Duration {
	if d := s.dests[dest]; d != nil {
		return d.RequestTimeout
	}
	return 0
}

// reasonOfLapsed: nothing was settled under the first one's lease. Either its process died, or it was stopped, or it
// could not reach the table.
func (s *story) reasonOfLapsed(first, again *request, at repeat) (repeat, bool) {
	c := first.claim
	if end, yes := s.died(c, c.over()); yes && end.Before(again.Began) {
		at.why, at.end = "death", end
		return at, s.hurt(c.app, c.dest, c.at, end.Add(slack), ofProcesses, ofDatabase) != nil
	}
	if f := s.suspended(c.app, c.at, again.Began); f != nil {
		at.why, at.end = "stop", f.End
		return at, true
	}
	at.why = "lease lost"
	return at, s.hurt(c.app, c.dest, c.at, again.Began, ofDatabase, ofProcesses) != nil || s.starved(c.app, c.at, again.Began) >= s.Setup.Lease/2
}
