package check

import "github.com/outboxctl/outboxctl/outbox/outboxtest/storm/history"

// judgeMaxAttempts: an event has failed when its last attempt did, not before; it is retried only while it has attempts
// left, and sent only then. What a shutdown cut off counts neither way.
func judgeMaxAttempts(s *story, v *verdict) {
	for _, l := range s.ordered {
		shutdowns := 0
		for _, c := range l.claims {
			d := s.dests[c.dest]
			if d == nil || d.MaxAttempts <= 0 {
				continue
			}
			v.saw(1)
			s.judgeSpent(c, d, shutdowns, v)
			if c.how == settled && c.end.New.Kind == "shutdown" && !c.refunded {
				shutdowns++
			}
		}
	}
}

func (s *story) judgeSpent(c *claim, d *history.Destination, shutdowns int, v *verdict) {
	l := c.life
	if r := c.request; r != nil && c.attempt-shutdowns > d.MaxAttempts && s.hurt(c.app, c.dest, c.at.Add(-slack), r.Began, ofDatabase) == nil {
		v.wrong("event %s (id %d) was sent at %s as attempt %d of %d", l.key, l.id, clock(r.Began), c.attempt, d.MaxAttempts)
	}
	if c.how != settled {
		return
	}
	switch st := c.end.New; {
	case st.Status == failed && st.Attempts < d.MaxAttempts:
		v.wrong("event %s (id %d) failed at %s after %d of %d attempts", l.key, l.id, clock(c.end.At), st.Attempts, d.MaxAttempts)
	case st.Status == pending && !c.refunded && st.Kind != "shutdown" && st.Attempts >= d.MaxAttempts:
		v.wrong("event %s (id %d) is to be retried since %s after %d of %d attempts (%s)", l.key, l.id, clock(c.end.At), st.Attempts, d.MaxAttempts, st.Kind)
	case st.Status == dead && st.Kind == "crashed" && c.attempt-shutdowns <= d.MaxAttempts:
		v.wrong("event %s (id %d) was given up at %s as crashed in attempt %d of %d", l.key, l.id, clock(c.end.At), c.attempt, d.MaxAttempts)
	}
}
