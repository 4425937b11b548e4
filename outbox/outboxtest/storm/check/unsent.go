package check

import "time"

// judgeUnsent: of an attempt that was counted, given back by nobody, and of which no request came in, something outside
// the program is the reason. So attempts are no more than calls and what died with those who claimed.
func (s *story) judgeUnsent(l *life, v *verdict) {
	for _, c := range l.claims {
		if c.request != nil || c.refunded || s.dests[c.dest] == nil || c.how != settled && c.how != reclaimed {
			continue
		}
		v.saw(1)
		if s.cannotArrive(c) {
			continue
		}
		v.wrong("attempt %d of event %s (id %d) was counted at %s by %s, and nothing was sent: %s",
			c.attempt, l.key, l.id, clock(c.at), c.app, unsent(c))
	}
}

// cannotArrive finds what kept a claim's request from its receiver: the wire, the receiver, or the end of the process.
// What nobody ended can have lost the table, too.
func (s *story) cannotArrive(c *claim) bool {
	from, to := c.at.Add(-s.timeout(c.dest)), c.over()
	if s.hurt(c.app, c.dest, from, to.Add(slack), ofProcesses, ofWire) != nil {
		return true
	}
	if c.how == reclaimed && s.hurt(c.app, c.dest, from, to, ofDatabase) != nil {
		return true
	}
	return s.starved(c.app, from, to) >= s.patience(c)
}

// patience is for how long a process may wait for a processor before what it had claimed comes too late.
func (s *story) patience(c *claim) time.Duration {
	if c.how == reclaimed {
		return s.Setup.Lease / 2
	}
	return s.timeout(c.dest) / 2
}

// unsent says how such a claim ended.
func unsent(c *claim) string {
	if c.how == reclaimed {
		return "its lease lapsed at " + clock(c.until)
	}
	return "it became " + c.end.New.Status + " at " + clock(c.end.At) + " (" + reasonOf(c.end.New) + ")"
}
