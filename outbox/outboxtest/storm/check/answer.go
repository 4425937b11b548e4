package check

import (
	"strings"

	"github.com/outboxctl/outboxctl/outbox/outboxtest/storm/history"
)

// judgeAnswers compares what a row says of an answer with the answer that its receiver gave, and with what docs say
// becomes of it.
func judgeAnswers(s *story, v *verdict) {
	for _, l := range s.ordered {
		for _, c := range l.claims {
			if d := s.dests[c.dest]; d != nil && c.how == settled {
				v.saw(1)
				judgeAnswer(c, d, v)
			}
		}
	}
}

func judgeAnswer(c *claim, d *history.Destination, v *verdict) {
	st, r := c.end.New, c.request
	answered := st.Kind == "http" || st.Kind == "redirect"
	if st.Status == delivered || !answered || c.refunded {
		return
	}
	switch want := becomes(r, st, d); {
	case r == nil:
		v.wrong("event %s (id %d) says since %s that attempt %d was answered with %d, and no such request came in",
			c.life.key, c.life.id, clock(c.end.At), c.attempt, st.Code)
	case st.Code != r.Status:
		v.wrong("event %s (id %d) says since %s that attempt %d was answered with %d; request %d got %d",
			c.life.key, c.life.id, clock(c.end.At), c.attempt, st.Code, r.N, r.Status)
	case st.Status != want:
		v.wrong("event %s (id %d) is %s since %s after attempt %d was answered with %d (request %d); it should be %s",
			c.life.key, c.life.id, st.Status, clock(c.end.At), c.attempt, st.Code, r.N, want)
	}
}

// becomes is the status of an event after an answer that did not take it.
func becomes(r *request, st *history.State, d *history.Destination) string {
	switch {
	case r == nil:
		return ""
	case permanent(r.Status), strings.Contains(r.Behaviour, "abort"):
		return dead
	case st.Attempts >= d.MaxAttempts:
		return failed
	}
	return pending
}

// permanent reports whether an answer says that the event will never be taken.
func permanent(status int) bool {
	switch status {
	case 400, 405, 406, 410, 411, 413, 414, 415, 422, 431, 451, 501, 505:
		return true
	}
	return false
}
