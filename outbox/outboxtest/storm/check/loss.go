package check

import (
	"slices"
	"time"

	"github.com/outboxctl/outboxctl/outbox/outboxtest/storm/history"
)

// judgeLoss looks for committed events that are nowhere, rows that went before they had ended, and rows that say
// delivered although no receiver took them.
func judgeLoss(s *story, v *verdict) {
	for i := range s.Writes {
		w := &s.Writes[i]
		if !s.committed(w) {
			continue
		}
		v.saw(1)
		if s.lives[w.ID] == nil && len(s.byKey[w.Key]) == 0 {
			v.wrong("event %s (id %d, committed by %s) is in no table and was never seen there", w.Key, w.ID, clock(w.Known))
		}
		s.judgeRouted(w, v)
	}
	for _, l := range s.ordered {
		s.judgeLeaving(l, v)
		s.judgeDelivered(l, v)
	}
}

// judgeRouted: an event that routes take has come to each of its destinations. One that is where it was written has not
// been routed at all, of which judgeRecovery tells.
func (s *story) judgeRouted(w *history.Write, v *verdict) {
	l := s.lives[w.ID]
	if l == nil || l.lastState() != nil && l.lastState().Dest == w.Dest && !ended(l.lastState()) {
		return
	}
	for _, dest := range w.To {
		v.saw(1)
		if !slices.ContainsFunc(s.byKey[w.Key], func(l *life) bool { return l.been(dest) }) && !s.unknown[dest] {
			v.wrong("event %s (id %d) was never at %q, to which it is routed", w.Key, w.ID, dest)
		}
	}
}

// judgeLeaving: a row leaves the table when it has ended, and to the archive when the purge said so.
func (s *story) judgeLeaving(l *life, v *verdict) {
	if len(l.steps) == 0 {
		return
	}
	last := l.steps[len(l.steps)-1]
	switch {
	case last.New != nil && l.row == nil:
		v.wrong("event %s (id %d) is gone, and no transaction has deleted it; it was %s at %s", l.key, l.id, last.New.Status, clock(last.At))
	case last.New != nil || last.Old == nil:
	case !ended(last.Old):
		v.wrong("event %s (id %d) was deleted by %s at %s while it was %s", l.key, l.id, last.App, clock(last.At), last.Old.Status)
	case l.row == nil && s.archives(last.App):
		v.wrong("event %s (id %d) was deleted by %s at %s and is not in the archive", l.key, l.id, last.App, clock(last.At))
	}
}

// archives reports whether a command purges into the archive.
func (s *story) archives(app string) bool {
	cmd := s.operators[app]
	return cmd != nil && slices.Contains(cmd.Args, "--archive")
}

// judgeDelivered: before a row says delivered, a receiver has taken it, under this claim or one before it.
func (s *story) judgeDelivered(l *life, v *verdict) {
	for i, st := range l.steps {
		if st.New == nil || st.New.Status != delivered || st.Old == nil || st.Old.Status == delivered || s.dests[st.New.Dest] == nil {
			continue
		}
		v.saw(1)
		if !l.takenBy(st.New.Dest, l.began(i), st.At) {
			v.wrong("event %s (id %d) says delivered to %q since %s, and no receiver had taken it by then", l.key, l.id, st.New.Dest, clock(st.At))
		}
	}
}

// began is when the epoch of a step began.
func (l *life) began(i int) time.Time {
	epoch := l.steps[i].epoch
	for i > 0 && l.steps[i-1].epoch == epoch {
		i--
	}
	return l.steps[i].At
}

// takenBy reports whether a request of the row was taken by a time. Receivers note that when the answer is out, so
// that what had come in by then counts.
func (l *life) takenBy(dest string, from, by time.Time) bool {
	return slices.ContainsFunc(l.requests, func(r *request) bool {
		return r.Dest == dest && taken2xx(r.Request) && !r.At.After(by) && !r.Done.Before(from)
	})
}

// taken2xx reports whether a receiver said that it took a request.
func taken2xx(r *history.Request) bool { return r.Accepted || r.Status/100 == 2 }

// clock prints a time of day: runs are shorter than one.
func clock(t time.Time) string {
	if t.IsZero() {
		return "never"
	}
	return t.UTC().Format("15:04:05.000")
}
