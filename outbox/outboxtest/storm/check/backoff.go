package check

import (
	"slices"
	"strconv"
	"time"

	"github.com/outboxctl/outboxctl/outbox/outboxtest/storm/history"
)

// The longest wait that a destination can ask for, and the shortest retry, which follows a connection that was closing.
const (
	maxRetryAfter = 24 * time.Hour
	brief         = 100 * time.Millisecond
	briefAttempts = 2
)

// failing reports whether some receiver failed in the run.
func failing(s *story) bool {
	return slices.ContainsFunc(s.Requests, func(r history.Request) bool { return r.Status/100 == 5 })
}

// judgeBackoff: the wait that a settle writes is within its bounds.
func judgeBackoff(s *story, v *verdict) {
	for _, l := range s.ordered {
		for _, c := range l.claims {
			d := s.dests[c.dest]
			if d == nil || c.how != settled || c.refunded || c.end.New.Status != pending || c.end.New.Kind == "shutdown" || c.end.New.Next == nil {
				continue
			}
			v.saw(1)
			s.judgeWait(c, d, v)
		}
	}
}

func (s *story) judgeWait(c *claim, d *history.Destination, v *verdict) {
	st := c.end.New
	wait := st.Next.Sub(c.end.At)
	least, most := bounds(d, st, c.request)
	early := least - slack - s.starved(c.app, c.at, c.end.At) // a row may be written a little before its trigger runs
	if wait >= early && wait <= most+tick || wait < early && wait > least-time.Minute && s.hurt(c.app, c.dest, c.end.At.Add(-time.Minute), c.end.At, ofDatabase) != nil {
		return
	}
	v.wrong("event %s (id %d) waits %s after attempt %d (%s, settled at %s); it should be %s to %s",
		c.life.key, c.life.id, wait, st.Attempts, reasonOf(st), clock(c.end.At), least, most)
}

// bounds are those of the wait after an attempt that failed.
func bounds(d *history.Destination, st *history.State, r *request) (least, most time.Duration) {
	backoff := doubled(d.Base, d.Cap, st.Attempts)
	if slow(st) {
		backoff = d.Cap
	}
	spread := time.Duration(float64(backoff) * d.Jitter)
	least, most = backoff-spread, backoff+spread
	if (st.Kind == "reset" || st.Kind == "eof") && st.Attempts <= briefAttempts {
		least = min(least, brief-time.Duration(float64(brief)*d.Jitter))
	}
	if r != nil && r.Wait > 0 && st.Code == r.Status {
		asked := min(r.Wait, maxRetryAfter)
		least, most = max(least, asked), max(most, min(asked+spread, maxRetryAfter))
	}
	return least, most
}

// doubled is the base, doubled with every attempt, up to the cap.
func doubled(base, most time.Duration, attempt int) time.Duration {
	for ; attempt > 1 && base < most; attempt-- {
		base *= 2
	}
	return min(base, most)
}

// slow reports whether a failure is one that is mended by hand.
func slow(st *history.State) bool {
	switch st.Code {
	case 401, 403, 404, 407:
		return true
	}
	return st.Kind == "redirect" || st.Kind == "blocked" || len(st.Kind) > 4 && st.Kind[:4] == "tls:"
}

func reasonOf(st *history.State) string {
	if st.Code == 0 {
		return st.Kind
	}
	return st.Kind + " " + strconv.Itoa(st.Code)
}
