package check

import (
	"slices"
	"time"

	"github.com/outboxctl/outboxctl/outbox/outboxtest/storm/history"
)

// judgeRecovery: each row ends soon after it is due, or after the run has healed, whichever comes later. It may wait
// longer for those before it in its aggregate, for a pause that its receiver has asked for, for the rate, and for a
// breaker's cooldown.
func judgeRecovery(s *story, v *verdict) {
	if s.Healed.IsZero() {
		return
	}
	var took []time.Duration
	q := s.newQueues()
	for _, l := range q.inTurn() {
		st := l.lastState()
		if st == nil || s.dests[st.Dest] == nil && ended(st) || q.waitsForAPerson(l) {
			continue
		}
		last := l.steps[len(l.steps)-1]
		from := s.free(l, q)
		if ended(st) {
			q.end(l, last.At)
			if last.At.Before(from) {
				continue // it was over when the run healed
			}
			took = append(took, last.At.Sub(from))
		}
		v.saw(1)
		s.judgeEnd(l, last, from, v)
	}
	s.recovery = percentile(took, 0.99)
}

func (s *story) judgeEnd(l *life, last step, from time.Time, v *verdict) {
	by, end := from.Add(s.budget(last.New.Dest, l.tenant)), s.Ended
	if ended(last.New) {
		end = last.At
	}
	if end.After(by) { // what there was no processor for could not be faster
		by = by.Add(s.waited(history.Runner, from, end))
	}
	switch {
	case ended(last.New) && end.After(by):
		v.wrong("event %s (id %d) became %s at %s, %s after it could go on at %s",
			l.key, l.id, last.New.Status, clock(last.At), last.At.Sub(from).Round(time.Millisecond), clock(from))
	case !ended(last.New) && end.After(by):
		v.wrong("event %s (id %d) is %s at the end (%s) in attempt %d, and could go on from %s on",
			l.key, l.id, last.New.Status, clock(s.Ended), last.New.Attempts, clock(from))
	}
}

// budget is how long after that a row of a tenant may take.
func (s *story) budget(dest, tenant string) time.Duration {
	most := s.Setup.Lease + s.Setup.PollInterval + 2*time.Second
	d := s.dests[dest]
	if d == nil { // it waits for a router
		return most
	}
	if d.Breaker > 0 {
		most += d.Cooldown
	}
	if d.Rate > 0 { // and all that was due at once
		most += time.Duration(float64(s.backlog(post{dest: dest})) / d.Rate * float64(time.Second))
	}
	if d.TenantRate > 0 {
		most += time.Duration(float64(s.backlog(post{dest: dest, tenant: tenant})) / d.TenantRate * float64(time.Second))
	}
	return most
}

// backlog is how many rows of a destination, or of a tenant there, were open when the run healed.
func (s *story) backlog(at post) int {
	if s.backlogs == nil {
		s.backlogs = map[post]int{}
		for _, l := range s.ordered {
			if st := l.at(s.Healed); st != nil && !ended(st) {
				s.backlogs[post{dest: st.Dest}]++
				s.backlogs[post{dest: st.Dest, tenant: l.tenant}]++
			}
		}
	}
	return s.backlogs[at]
}

// free is from when on nothing but the program kept a row from its end: the run had healed, the row was there, and
// it was due.
func (s *story) free(l *life, q *queues) time.Time {
	from := s.Healed
	later := func(t time.Time) {
		if t.After(from) {
			from = t
		}
	}
	if l.write != nil {
		later(l.write.Known)
	}
	for i, st := range l.steps {
		if st.New == nil || ended(st.New) || st.New.Lease != "" || released(st) {
			continue
		}
		if i+1 == len(l.steps) || l.steps[i+1].At.After(s.Healed) {
			later(st.At)
			later(dueOf(st.New))
		}
	}
	dest := l.lastState().Dest
	later(s.paused(dest))
	later(q.last[l.aggregate(dest)])
	return from
}

// released reports whether a row was given back unsent: that puts nothing off.
func released(st step) bool {
	return st.Old != nil && st.Old.Lease != "" && st.New.Attempts < st.Old.Attempts
}

// paused is until when a destination's receivers have asked for a pause.
func (s *story) paused(dest string) time.Time {
	if s.pauses == nil {
		s.pauses = map[string]time.Time{}
		for _, r := range s.Requests {
			if until := r.Done.Add(min(r.Wait, maxRetryAfter)); (r.Status == 429 || r.Status == 503) && r.Wait > 0 && until.After(s.pauses[r.Dest]) {
				s.pauses[r.Dest] = until
			}
		}
	}
	return s.pauses[dest]
}

// queues know of the aggregates of ordered destinations when their last row ended, and which have failed for good.
type queues struct {
	s    *story
	last map[aggregate]time.Time
	held map[aggregate]int64 // the sequence of the first that nobody may pass
}

func (s *story) newQueues() *queues {
	q := &queues{s: s, last: map[aggregate]time.Time{}, held: map[aggregate]int64{}}
	for _, l := range s.ordered {
		st := l.lastState()
		if st == nil || st.Status != failed && st.Status != dead || s.dests[st.Dest] == nil || !s.dests[st.Dest].Hold {
			continue
		}
		of := l.aggregate(st.Dest)
		if first, ok := q.held[of]; !ok || l.sequence < first {
			q.held[of] = l.sequence
		}
	}
	return q
}

// inTurn are the rows in the order in which those of an aggregate take turns.
func (q *queues) inTurn() []*life {
	all := slices.Clone(q.s.ordered)
	slices.SortStableFunc(all, func(a, b *life) int { return int(a.sequence - b.sequence) })
	return all
}

func (q *queues) end(l *life, at time.Time) {
	dest := l.lastState().Dest
	if of := l.aggregate(dest); q.s.dests[dest].Ordered && at.After(q.last[of]) {
		q.last[of] = at
	}
}

// waitsForAPerson reports whether a row is behind one that has failed for good.
func (q *queues) waitsForAPerson(l *life) bool {
	st := l.lastState()
	first, held := q.held[l.aggregate(st.Dest)]
	return held && first < l.sequence && !ended(st)
}

func (l *life) aggregate(dest string) aggregate { return aggregate{dest, l.tenant, l.kind, l.agg} }

// lastState is nil of a row that is gone.
func (l *life) lastState() *history.State {
	if len(l.steps) == 0 {
		return nil
	}
	return l.steps[len(l.steps)-1].New
}

func percentile(all []time.Duration, p float64) time.Duration {
	if len(all) == 0 {
		return 0
	}
	slices.Sort(all)
	return all[min(int(p*float64(len(all))), len(all)-1)]
}
