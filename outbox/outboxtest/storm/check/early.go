package check

import "time"

// tick is what a time loses on its way through PostgreSQL, which keeps microseconds.
const tick = 10 * time.Microsecond

// judgeEarly: a claim comes when its row is due, and a request after that.
func judgeEarly(s *story, v *verdict) {
	for _, l := range s.ordered {
		for _, c := range l.claims {
			v.saw(1)
			if c.at.Add(tick).Before(c.due) {
				v.wrong("event %s (id %d) was claimed by %s at %s, %s before it was due at %s",
					l.key, l.id, c.app, clock(c.at), c.due.Sub(c.at), clock(c.due))
			}
		}
		for _, r := range l.requests {
			s.judgeEarlyRequest(r, v)
		}
	}
}

// judgeEarlyRequest: one that has a claim came after that. Without one, the producer's wish still counts, unless an
// operator has put the event back since.
func (s *story) judgeEarlyRequest(r *request, v *verdict) {
	v.saw(1)
	w := r.life.write
	if w == nil || !r.Began.Add(tick).Before(w.Due) || r.claim != nil && r.claim.epoch > 0 {
		return
	}
	if r.claim != nil && r.claim.at.Before(r.claim.due) {
		return // told by its claim
	}
	v.wrong("request %d of event %s (id %d) came at %s, %s before it was due at %s",
		r.N, r.Key, r.life.id, clock(r.Began), w.Due.Sub(r.Began), clock(w.Due))
}
