package check

import "time"

// maxIdle is how long a session of ours may be idle in a transaction.
const maxIdle = 200 * time.Millisecond

// judgeSessions: nobody holds a transaction open and does nothing. A process that was stopped or died in the middle of
// one cannot help it, nor can one whose answers are held up on the wire.
func judgeSessions(s *story, v *verdict) {
	v.saw(max(s.Looks, len(s.Sessions)))
	for _, x := range s.Sessions {
		p := s.process(x.App, x.At)
		if x.Since <= maxIdle || p != nil && p.Role != "dispatcher" && p.Role != "operator" || p == nil && s.operators[x.App] == nil {
			continue
		}
		from := x.At.Add(-x.Since - slack)
		if s.hurt(x.App, from, x.At, ofProcesses, ofDatabase) != nil || p != nil && !p.End.IsZero() && p.End.Before(x.At) {
			continue
		}
		v.wrong("a session of %s was idle in a transaction for %s at %s", x.App, x.Since.Round(time.Millisecond), clock(x.At))
	}
}
