package check

import (
	"slices"

	"github.com/outboxctl/outboxctl/outbox/outboxtest/storm/history"
)

// judgeFinal: what has ended changes by an operator's command alone. The copy of a dead letter may begin anew when its
// original ends once more.
func judgeFinal(s *story, v *verdict) {
	endings := s.deaths()
	for _, l := range s.ordered {
		for _, st := range l.steps {
			if st.Old == nil || !ended(st.Old) {
				continue
			}
			v.saw(1)
			if same(st.Old, st.New) || s.operator(st.App) || s.begunByDeath(l, st, endings) {
				continue
			}
			after := "deleted it"
			if st.New != nil {
				after = "made it " + st.New.Status
			}
			v.wrong("event %s (id %d) was %s, and %s %s at %s without an operator's command", l.key, l.id, st.Old.Status, st.App, after, clock(st.At))
		}
		judgeLifecycle(l, v)
	}
}

// same reports whether nothing that counts has changed of a row that has ended.
func same(a, b *history.State) bool {
	return b != nil && a.Status == b.Status && a.Finished.Equal(deref(b.Finished)) && a.Attempts == b.Attempts && a.Dest == b.Dest
}

// deaths are the transactions in which events became failed or dead letters, by what they have in common with their
// copies.
func (s *story) deaths() map[uint64][]string {
	all := map[uint64][]string{}
	for _, l := range s.ordered {
		for _, st := range l.steps {
			if st.New != nil && st.Old != nil && !ended(st.Old) && (st.New.Status == failed || st.New.Status == dead) {
				all[st.Xid] = append(all[st.Xid], l.key)
			}
		}
	}
	return all
}

func (s *story) begunByDeath(l *life, st step, deaths map[uint64][]string) bool {
	return st.New != nil && st.New.Status == pending && slices.Contains(deaths[st.Xid], l.key)
}

// judgeLifecycle: a row goes from one state to another only as it is drawn in docs/design.md.
func judgeLifecycle(l *life, v *verdict) {
	for _, st := range l.steps {
		if st.New == nil || st.Old == nil || ended(st.Old) {
			continue
		}
		v.saw(1)
		final := st.New.Status == delivered || st.New.Status == failed || st.New.Status == dead
		if final && st.Old.Status != inProgress {
			v.wrong("event %s (id %d) became %s at %s without being claimed: it was %s", l.key, l.id, st.New.Status, clock(st.At), st.Old.Status)
		}
	}
}
