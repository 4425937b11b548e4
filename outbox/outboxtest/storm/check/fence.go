package check

// judgeFence: who ends a claim is who made it, as long as its lease lives; and a row that was delivered has in its
// receipt the request of its last attempt.
func judgeFence(s *story, v *verdict) {
	for _, l := range s.ordered {
		for _, c := range l.claims {
			if c.end == nil {
				continue
			}
			v.saw(1)
			if c.how == taken && !c.until.Before(c.end.At) {
				v.wrong("event %s (id %d) was leased by %s until %s, and %s made it %s at %s",
					l.key, l.id, c.app, clock(c.until), c.end.App, c.end.New.Status, clock(c.end.At))
			}
			if c.how == settled && c.end.New.Status == delivered {
				s.judgeReceipt(l, c, v)
			}
		}
	}
}

func (s *story) judgeReceipt(l *life, c *claim, v *verdict) {
	named := requestOf(c.end.New.Receipt)
	if named == "" || s.dests[c.dest] == nil {
		return
	}
	v.saw(1)
	r := s.requests[named]
	switch {
	case r == nil:
		v.wrong("event %s (id %d) was delivered at %s with the receipt %q, and no receiver had such a request",
			l.key, l.id, clock(c.end.At), c.end.New.Receipt)
	case r.Key != l.key || r.Dest != c.dest:
		v.wrong("event %s (id %d) was delivered at %s with the receipt %q, which is of event %s at %q",
			l.key, l.id, clock(c.end.At), c.end.New.Receipt, r.Key, r.Dest)
	case r.Attempt != c.attempt:
		v.wrong("event %s (id %d) was delivered at %s as attempt %d with the receipt of attempt %d (request %d)",
			l.key, l.id, clock(c.end.At), c.attempt, r.Attempt, r.N)
	}
}
