package check

import (
	"slices"

	"github.com/outboxctl/outboxctl/outbox/outboxtest/storm/history"
)

// judgeAttempts: a claim adds one attempt and nothing else adds any; one is taken away only with a claim that sent
// nothing; there are never more requests than claims that kept their attempt, and never fewer without a reason. What was
// given back, or claimed once and sent twice, is a request too many.
func judgeAttempts(s *story, v *verdict) {
	for _, l := range s.ordered {
		for _, st := range l.steps {
			if st.Old != nil && st.New != nil && !ended(st.Old) && !anew(st.Transition) {
				v.saw(1)
				judgeCount(l, st, v)
			}
		}
		s.judgeRequests(l, v)
		s.judgeUnsent(l, v)
	}
	for _, r := range s.strays {
		if s.dests[r.Dest] != nil && len(s.byKey[r.Key]) > 0 && !s.unknown[r.Dest] {
			v.wrong("request %d of event %s came at %q at %s, where the event never was", r.N, r.Key, r.Dest, clock(r.Began))
		}
	}
}

// judgeCount looks at the attempts of an open row.
func judgeCount(l *life, st step, v *verdict) {
	more := st.New.Attempts - st.Old.Attempts
	want := "which changes no attempts"
	switch {
	case claims(st.Transition):
		if more == 1 {
			return
		}
		want = "a claim, which counts one attempt"
	case more == 0:
		return
	case more == -1 && st.Old.Lease != "" && st.New.Lease == "":
		return
	}
	v.wrong("event %s (id %d) went from %d attempts to %d at %s by %s: %s to %s, %s",
		l.key, l.id, st.Old.Attempts, st.New.Attempts, clock(st.At), st.App, st.Old.Status, st.New.Status, want)
}

// tried is one attempt of a row at a destination: its number says nothing of which epoch it is of.
type tried struct {
	dest string
	n    int
}

// judgeRequests: by the time of the k-th request of an attempt, k claims have counted it.
func (s *story) judgeRequests(l *life, v *verdict) {
	counted := map[tried][]*claim{}
	for _, c := range l.claims {
		if !c.refunded {
			counted[tried{c.dest, c.attempt}] = append(counted[tried{c.dest, c.attempt}], c)
		}
	}
	seen := map[tried]int{}
	for _, r := range l.requests {
		if s.dests[r.Dest] == nil {
			continue
		}
		v.saw(1)
		of := tried{r.Dest, r.Attempt}
		seen[of]++
		if seen[of] > made(counted[of], r.Request) {
			v.wrong("request %d of event %s (id %d) came at %s as attempt %d, and %s", r.N, r.Key, l.id, clock(r.Began), r.Attempt, uncounted(l, r))
		}
	}
}

// made counts the claims that were made before a request.
func made(all []*claim, r *history.Request) (n int) {
	for _, c := range all {
		if !c.at.After(r.Began) {
			n++
		}
	}
	return n
}

// uncounted says why a request has no attempt.
func uncounted(l *life, r *request) string {
	same := func(c *claim) bool { return c.attempt == r.Attempt && c.dest == r.Dest && !c.at.After(r.Began) }
	switch i := slices.IndexFunc(l.claims, same); {
	case i < 0:
		return "no claim before it was that attempt"
	case slices.ContainsFunc(l.claims, func(c *claim) bool { return same(c) && c.refunded }):
		return "that attempt was given back as not sent"
	}
	return "that attempt had been sent before"
}
