package check

import (
	"slices"
	"time"

	"github.com/outboxctl/outboxctl/outbox/outboxtest/storm/history"
)

// maxIdle is how long a session of ours may be idle in a transaction, and maxBusy how long while others start anew or
// catch up, on a machine that has few cores for all of them.
const (
	maxIdle = 200 * time.Millisecond
	maxBusy = time.Second
)

// judgeSessions: nobody holds a transaction open and does nothing. A process that was stopped or died in the middle of
// one cannot help it, nor can one whose answers are held up on the wire, or that a busy machine gave no turn.
func judgeSessions(s *story, v *verdict) {
	v.saw(max(s.Looks, len(s.Sessions)))
	for _, x := range s.Sessions {
		p := s.process(x.App, x.At)
		if x.Since <= maxIdle || p != nil && p.Role != "dispatcher" && p.Role != "operator" || p == nil && s.operators[x.App] == nil {
			continue
		}
		from := x.At.Add(-x.Since - slack)
		if x.Since-s.starved(x.App, from, x.At) <= maxIdle {
			continue
		}
		if s.hurt(x.App, "", from, x.At, ofProcesses, ofDatabase) != nil || p != nil && !p.End.IsZero() && p.End.Before(x.At) {
			continue
		}
		if x.Since <= maxBusy && s.any(from, x.At) != nil {
			continue
		}
		if slices.ContainsFunc(s.Stalls, func(stall history.Stall) bool { return !stall.To.Before(from) && !stall.From.After(x.At) }) {
			continue
		}
		v.wrong("a session of %s was idle in a transaction for %s at %s, after: %s", x.App, x.Since.Round(time.Millisecond), clock(x.At), x.After)
	}
}
