package check

import (
	"strings"
	"time"

	"github.com/outboxctl/outboxctl/outbox/outboxtest/storm/history"
)

// stopped reports whether some dispatcher ended as it was told to.
func stopped(s *story) bool {
	for i := range s.Processes {
		if p := &s.Processes[i]; p.Role == "dispatcher" && inPeace(p) {
			return true
		}
	}
	return false
}

func inPeace(p *history.Process) bool { return p.How == "exit 0" && !p.End.IsZero() }

// judgeStops: a dispatcher that says it has stopped in order has settled all that it knew of.
func judgeStops(s *story, v *verdict) {
	for i := range s.Processes {
		if p := &s.Processes[i]; p.Role == "dispatcher" && inPeace(p) {
			v.saw(1)
		}
	}
	for _, l := range s.ordered {
		for _, c := range l.claims {
			p := s.process(c.app, c.at)
			if p == nil || p.Role != "dispatcher" || !inPeace(p) || c.how == settled || c.at.After(p.End) || !c.over().After(p.End) {
				continue
			}
			if c.request == nil && s.hurt(c.app, c.dest, c.at.Add(-20*time.Second), p.End, ofDatabase) != nil {
				continue // it cannot have known of a claim whose answer was lost
			}
			v.wrong("event %s (id %d) was leased by %s from %s on, which stopped in order (%s) at %s and left it so",
				l.key, l.id, c.app, clock(c.at), strings.TrimSpace(p.How), clock(p.End))
		}
	}
}
