package check

import (
	"cmp"
	"slices"
	"time"

	"github.com/outboxctl/outboxctl/outbox/outboxtest/storm/history"
)

// ordered reports whether the run has ordered destinations that were used.
func ordered(s *story) bool {
	return slices.ContainsFunc(s.Setup.Destinations, func(d history.Destination) bool {
		return d.Ordered && slices.ContainsFunc(s.Requests, func(r history.Request) bool { return r.Dest == d.Name })
	})
}

// aggregate is whose events wait for each other.
type aggregate struct{ dest, tenant, kind, id string }

// judgeOrder judges three things: that a claim passes over no earlier event of its aggregate and takes none beside a
// live lease; that of a run, which is what one claim took of an aggregate, one event is sent after the other;
// and that no two of an aggregate are on the wire at once.
func judgeOrder(s *story, v *verdict) {
	byAggregate := map[aggregate][]*life{}
	for _, l := range s.ordered {
		if l.agg == "" {
			continue
		}
		for _, dest := range l.dests() {
			if d := s.dests[dest]; d != nil && d.Ordered {
				of := aggregate{dest, l.tenant, l.kind, l.agg}
				byAggregate[of] = append(byAggregate[of], l)
			}
		}
	}
	for of, lives := range byAggregate {
		slices.SortFunc(lives, func(a, b *life) int { return int(a.sequence - b.sequence) })
		s.judgeClaimsOf(of, lives, v)
		s.judgeRunsOf(of, lives, v)
		s.judgeOverlapOf(of, lives, v)
	}
}

// dests are the destinations that the row was at.
func (l *life) dests() (all []string) {
	for _, st := range l.steps {
		if dest := destOf(st.Transition); !slices.Contains(all, dest) {
			all = append(all, dest)
		}
	}
	return all
}

// moment is a transition of an aggregate's row.
type moment struct {
	step
	life *life
}

// standing is how an aggregate stands at some moment of its history.
type standing struct {
	s      *story
	of     aggregate
	open   []*life                  // in the order of sequence
	leases map[*life]*history.State // of those that are leased
	held   map[*life]bool           // failed for good, and not replayed or discarded since
	since  map[*life]time.Time      // when an open row was visible to everybody; zero = not known
	judged map[string]bool          // leases
}

// judgeClaimsOf replays the transitions of an aggregate.
func (s *story) judgeClaimsOf(of aggregate, lives []*life, v *verdict) {
	var all []moment
	for _, l := range lives {
		for _, st := range l.steps {
			all = append(all, moment{st, l})
		}
	}
	slices.SortFunc(all, func(a, b moment) int { return cmp.Compare(a.N, b.N) })
	at := standing{s: s, of: of, leases: map[*life]*history.State{}, held: map[*life]bool{}, since: map[*life]time.Time{}, judged: map[string]bool{}}
	for i, m := range all {
		if claims(m.Transition) && m.New.Dest == of.dest && !at.judged[m.New.Lease] {
			v.saw(1)
			at.judged[m.New.Lease] = true
			at.judge(m, all[i:], v)
		}
		at.move(m)
	}
}

// move takes a transition in.
func (a *standing) move(m moment) {
	delete(a.leases, m.life)
	delete(a.held, m.life)
	here := m.New != nil && m.New.Dest == a.of.dest
	i, was := slices.BinarySearchFunc(a.open, m.life, func(x, y *life) int { return int(x.sequence - y.sequence) })
	switch is := here && !ended(m.New); {
	case is && !was:
		a.open = slices.Insert(a.open, i, m.life)
		a.since[m.life] = a.s.visible(m)
	case was && !is:
		a.open = slices.Delete(a.open, i, i+1)
	}
	if here && m.New.Lease != "" {
		a.leases[m.life] = m.New
	}
	if here && (m.New.Status == failed || m.New.Status == dead) && m.New.Kind != "" && m.New.Kind != discarded {
		a.held[m.life] = true
	}
}

// visible is a time from which everybody sees a transition; zero = it is not known. Producers say when their commits
// were answered; of others the session's next transaction tells.
func (s *story) visible(m moment) time.Time {
	known := s.ended[m.i]
	if w := m.life.write; w != nil && m.Old == nil && !w.Known.IsZero() && (known.IsZero() || w.Known.Before(known)) {
		known = w.Known
	}
	return known
}

// beside is how many open events of an aggregate a claim looks through for a live lease; docs/guarantees.md says so.
const beside = 1000

// judge looks at a claim, which may have taken several rows: those of its lease in rest.
func (a *standing) judge(m moment, rest []moment, v *verdict) {
	mine, last := map[*life]bool{}, m.life
	for _, n := range rest {
		if n.Xid == m.Xid && claims(n.Transition) && n.New.Lease == m.New.Lease {
			mine[n.life] = true
			if n.life.sequence > last.sequence {
				last = n.life
			}
		}
		if n.At.Sub(m.At) > time.Minute {
			break
		}
	}
	for _, l := range a.open {
		if l.sequence >= last.sequence {
			break
		}
		if !mine[l] && a.seen(l, m.At) {
			v.wrong("event %s (id %d, sequence %d) was claimed by %s at %s before %s (id %d, sequence %d) of the same aggregate %s:%s, which was open",
				last.key, last.id, last.sequence, m.App, clock(m.At), l.key, l.id, l.sequence, a.of.kind, a.of.id)
			break
		}
	}
	for l, st := range a.leases {
		if !mine[l] && st.Lease != m.New.Lease && !deref(st.LeaseUntil).Before(m.At) && len(a.open) < beside {
			v.wrong("event %s (id %d) was claimed by %s at %s while %s (id %d) of the same aggregate %s:%s was leased until %s",
				m.life.key, m.life.id, m.App, clock(m.At), l.key, l.id, a.of.kind, a.of.id, clock(deref(st.LeaseUntil)))
			break
		}
	}
	a.judgeHeld(m, last, v)
}

// seen reports whether a claim must have seen an open row: it was there long enough before the statement began.
func (a *standing) seen(l *life, at time.Time) bool {
	since, took := a.since[l], 3*time.Second
	if a.s.any(at.Add(-15*time.Second), at) != nil {
		took = 15 * time.Second // statements may be stopped while they run
	}
	return !since.IsZero() && since.Add(took).Before(at)
}

// judgeHeld: with on_dead hold, nothing passes an event that failed for good.
func (a *standing) judgeHeld(m moment, last *life, v *verdict) {
	if d := a.s.dests[a.of.dest]; !d.Hold {
		return
	}
	for l := range a.held {
		if l.sequence < last.sequence {
			v.wrong("event %s (id %d, sequence %d) was claimed by %s at %s although %s (id %d, sequence %d) of the same aggregate %s:%s has failed for good",
				last.key, last.id, last.sequence, m.App, clock(m.At), l.key, l.id, l.sequence, a.of.kind, a.of.id)
			return
		}
	}
}

// judgeRunsOf: under one lease, an event is sent when those before it were sent and did not fail.
func (s *story) judgeRunsOf(of aggregate, lives []*life, v *verdict) {
	runs := map[string][]*claim{}
	for _, l := range lives {
		for _, c := range l.claims {
			if c.dest == of.dest {
				runs[c.lease] = append(runs[c.lease], c)
			}
		}
	}
	for _, run := range runs {
		for i := 1; i < len(run); i++ {
			if run[i].request != nil {
				v.saw(1)
				s.judgeFollower(of, run[i-1], run[i], v)
			}
		}
	}
}

// judgeFollower: c was sent, behind head.
func (s *story) judgeFollower(of aggregate, head, c *claim, v *verdict) {
	r, h := c.request, head.request
	hold := s.dests[of.dest].Hold
	why := ""
	switch {
	case h != nil && h.Began.After(r.Began):
		why = "was sent after it"
	case h != nil && h.Status != 0 && !h.Left && head.heard() && r.Began.Before(h.Done.Add(-answering)):
		why = "was not answered yet"
	case head.how == settled && head.end.New.Status == pending:
		why = "was not delivered and will be sent again"
	case head.how == settled && hold && head.end.New.Status != delivered:
		why = "was not delivered"
	case head.how == settled || h != nil:
		return
	case s.hurt(c.app, c.dest, head.at, r.Began, ofWire) != nil:
		return
	default:
		why = "was not sent"
	}
	v.wrong("event %s (id %d, sequence %d) was sent at %s, and %s (id %d, sequence %d) before it in the same run of aggregate %s:%s %s",
		c.life.key, c.life.id, c.life.sequence, clock(r.Began), head.life.key, head.life.id, head.life.sequence, of.kind, of.id, why)
}

// judgeOverlapOf: of two requests of an aggregate one was answered before the other began, unless who sent it had
// lost its lease or its life by then.
func (s *story) judgeOverlapOf(of aggregate, lives []*life, v *verdict) {
	var all []*request
	for _, l := range lives {
		for _, r := range l.requests {
			if r.Dest == of.dest && r.claim != nil {
				all = append(all, r)
			}
		}
	}
	slices.SortFunc(all, func(a, b *request) int { return a.Began.Compare(b.Began) })
	var a *request // the one that was on the wire longest
	for _, b := range all {
		if a != nil {
			v.saw(1)
			s.judgeOverlap(of, a, b, v)
		}
		if a == nil || b.Done.After(a.Done) {
			a = b
		}
	}
}

func (s *story) judgeOverlap(of aggregate, a, b *request, v *verdict) {
	switch _, gone := s.died(a.claim, b.Began); {
	case a.life == b.life, a.claim.lease == b.claim.lease, gone:
		return
	case !a.claim.held(b.Began), !a.claim.heard(), a.Status == 0, a.Left, !b.Began.Before(a.Done.Add(-answering)):
		return
	}
	v.wrong("event %s (id %d) was sent at %s while %s (id %d) of the same aggregate %s:%s was on the wire from %s to %s",
		b.Key, b.life.id, clock(b.Began), a.Key, a.life.id, of.kind, of.id, clock(a.Began), clock(a.Done))
}

// answering is how much later than the sender a receiver may think that its answer is out.
const answering = 100 * time.Millisecond

// heard reports whether who made the claim has had the answer to its request, as far as is known.
func (c *claim) heard() bool {
	return c.how != settled || c.end.New.Status == delivered || c.end.New.Code != 0 && c.end.New.Code == c.request.Status
}

// held reports whether the claim was in force at a time.
func (c *claim) held(at time.Time) bool { return !at.Before(c.at) && at.Before(c.over()) }
