package check

import (
	"math"
	"slices"
	"time"

	"github.com/outboxctl/outboxctl/outbox/outboxtest/storm/history"
)

// post is where limits hold: a life of a process, at a destination, and for one tenant where that is what is limited.
type post struct {
	app    string
	began  time.Time
	dest   string
	tenant string
}

// span is how long something counted; end is excluded.
type span struct {
	from, to time.Time
	what     *claim
}

// judgeLimits counts what each process had claimed and what it had on the wire, at every moment.
func judgeLimits(s *story, v *verdict) {
	claimed, sent, ofTenant := map[post][]span{}, map[post][]span{}, map[post][]span{}
	began := map[post][]time.Time{} // of a destination, and of each tenant there
	for _, l := range s.ordered {
		for _, c := range l.claims {
			d := s.dests[c.dest]
			if d == nil {
				continue
			}
			v.saw(1)
			at := s.post(c)
			if known(c) {
				claimed[at] = append(claimed[at], span{c.at, s.until(c), c})
			}
			if r := c.request; r != nil {
				wire := span{r.Began, s.sender(r, d), c}
				sent[at] = append(sent[at], wire)
				began[at] = append(began[at], r.Began)
				if at.tenant = l.tenant; at.tenant != "" {
					began[at] = append(began[at], r.Began)
				}
				ofTenant[at] = append(ofTenant[at], wire)
			}
		}
	}
	for at, spans := range claimed {
		s.judgeSpans(at, spans, s.dests[at.dest].BatchSize, "claimed and unsettled", "batch_size", v)
	}
	for at, spans := range sent {
		s.judgeSpans(at, spans, s.dests[at.dest].Parallel, "on the wire", "parallel", v)
	}
	for at, spans := range ofTenant {
		s.judgeSpans(at, spans, s.dests[at.dest].TenantParallel, "of tenant "+at.tenant+" on the wire", "its limit", v)
	}
	for at, times := range began {
		if at.tenant == "" {
			s.judgeRate(at, times, s.dests[at.dest].Rate, "", v)
		} else {
			s.judgeRate(at, times, s.dests[at.dest].TenantRate, " of tenant "+at.tenant, v)
		}
	}
}

func (s *story) post(c *claim) post {
	at := post{app: c.app, dest: c.dest}
	if p := s.process(c.app, c.at); p != nil {
		at.began = p.Began
	}
	return at
}

// known reports whether who made a claim knows of it: the answer to a claim can get lost, and its rows wait for the
// end of their lease then.
func known(c *claim) bool { return c.how == settled || c.request != nil }

// until is when a claim was over, at the latest with its process.
func (s *story) until(c *claim) time.Time {
	end := c.over()
	if p := s.process(c.app, c.at); p != nil && !p.End.IsZero() && p.End.Before(end) {
		return p.End
	}
	return end
}

// sender is until when a request certainly was on the sender's hands.
func (s *story) sender(r *request, d *history.Destination) time.Time {
	end := r.Began.Add(d.RequestTimeout)
	for _, t := range []time.Time{r.Done, s.until(r.claim)} {
		if !t.IsZero() && t.Before(end) {
			end = t
		}
	}
	return end.Add(-answering)
}

// judgeSpans finds the moment at which most of the spans counted.
func (s *story) judgeSpans(at post, spans []span, limit int, what, name string, v *verdict) {
	if limit <= 0 {
		return
	}
	var ends []time.Time
	slices.SortFunc(spans, func(a, b span) int { return a.from.Compare(b.from) })
	for _, sp := range spans {
		if sp.to.After(sp.from) {
			ends = append(ends, sp.to)
		}
	}
	slices.SortFunc(ends, time.Time.Compare)
	most, when, n, over := 0, time.Time{}, 0, 0
	for _, sp := range spans {
		if !sp.to.After(sp.from) {
			continue
		}
		for over < len(ends) && !ends[over].After(sp.from) {
			over++
		}
		if n++; n-over > most {
			most, when = n-over, sp.from
		}
	}
	if most > limit {
		v.wrong("%s had %d events %s at %q at %s; %s is %d", at.app, most, what, at.dest, clock(when), name, limit)
	}
}

// judgeRate: in no second are there more requests than the rate and a burst, which is a tenth of it. Requests take more
// and less time to arrive; a quarter of a second is allowed for that.
func (s *story) judgeRate(at post, times []time.Time, rate float64, whose string, v *verdict) {
	if rate <= 0 {
		return
	}
	limit := int(rate*(time.Second+slack).Seconds()+max(math.Floor(rate/10), 1)) + 1
	slices.SortFunc(times, time.Time.Compare)
	from := 0
	for i, t := range times {
		for t.Sub(times[from]) >= time.Second {
			from++
		}
		if n := i - from + 1; n > limit && s.hurt(at.app, at.dest, times[from].Add(-s.timeout(at.dest)), t, ofWire, []string{"stop"}) == nil {
			v.wrong("%s sent %d requests%s to %q in the second before %s; the rate is %g/s", at.app, n, whose, at.dest, clock(t), rate)
			return
		}
	}
}
