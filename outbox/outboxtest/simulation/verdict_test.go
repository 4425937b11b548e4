package simulation_test

import (
	"slices"
	"time"

	"github.com/outboxctl/outboxctl/outbox"
	"github.com/outboxctl/outboxctl/outbox/outboxtest/twin"
)

// What is promised of a whole simulation, as it is checked when all is over.

// finished reports whether every event has come to its end, or waits behind one that a person has to see to.
func (w *world) finished() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.wrong != "" {
		return true
	}
	return len(w.table.Rows) == w.plan.events && !slices.ContainsFunc(w.table.Rows, func(r *twin.Row) bool { return r.Open() && !w.isHeld(r) })
}

func (w *world) isHeld(r *twin.Row) bool {
	return w.plan.queue.Hold && !r.Leased(time.Now()) && w.table.Held(r.Aggregate(), r.Place())
}

func (w *world) judge() {
	for _, r := range w.table.Rows {
		if r.Open() && !w.isHeld(r) {
			w.fail(r.ID, "event %d is %s at the end", r.ID, r.Status)
		}
		w.countsRight(r)
		w.inTime(r)
	}
	for _, c := range w.claims {
		w.leavesNothing(c)
	}
	for _, p := range w.lives {
		p.keepsToRates()
		p.sparesTheReceiver()
		if p.err != nil && !p.dead && !p.killed && p.stoppedAt.Sub(w.began) > w.plan.heal+time.Minute {
			w.fail(0, "%s ended with %v", p, p.err)
		}
	}
}

// countsRight: attempts are the calls, and the claims whose worker died or never heard of them; an event is
// taken once while nothing fails.
func (w *world) countsRight(r *twin.Row) {
	var sent, unsent, taken int
	for _, c := range w.claims {
		switch {
		case c.id != r.ID:
		case c.call != nil && !(c.call.postponed() && c.settled):
			sent++
		case c.call == nil && !(c.settled && c.out.Refund):
			unsent++
		}
	}
	for _, made := range w.calls[r.ID] {
		if made.taken() {
			taken++
		}
	}
	switch {
	case r.Attempts != sent+unsent:
		w.fail(r.ID, "event %d has %d attempts after %d calls and %d claims without one", r.ID, r.Attempts, sent, unsent)
	case r.Status == outbox.Delivered && taken == 0:
		w.fail(r.ID, "event %d is delivered and was never taken", r.ID)
	case w.plan.calm && (taken > 1 || unsent > 0):
		w.fail(r.ID, "event %d was taken %d times, and claimed %d times for nothing, although nothing failed", r.ID, taken, unsent)
	}
}

// inTime: an event ends within lease + poll + 2s of the end of all faults, or of what it waited for: a retry's
// time, a pause, a breaker, the event before it, its turn under a rate.
func (w *world) inTime(r *twin.Row) {
	closed, ok := w.closed[r.ID]
	if !ok {
		return
	}
	from := w.began.Add(w.plan.heal + w.plan.timeout)
	for _, c := range w.claims {
		if c.id == r.ID && c.settled && c.out.Status.Final() {
			from = later(from, c.due)
		}
	}
	for _, at := range append([]time.Time{w.shut, w.paused[""], w.paused[r.TenantID]}, w.closedBefore(r)...) {
		from = later(from, at)
	}
	most := w.plan.queue.Lease + w.plan.poll + 2*time.Second + w.ofRates()
	if from.Sub(w.began) > w.plan.heal+w.plan.timeout+most { // no lease of the dead is left
		most -= w.plan.queue.Lease
	}
	if w.plan.once {
		most += w.plan.poll // nobody is there in between
	}
	if took := closed.Sub(from); took > most {
		w.fail(r.ID, "event %d ended %s after there was nothing in its way, it may take %s", r.ID, took, most)
	}
}

// closedBefore is when the earlier events of the aggregate ended.
func (w *world) closedBefore(r *twin.Row) (times []time.Time) {
	for _, other := range w.table.Rows {
		if w.plan.queue.Ordered && other.Aggregate() == r.Aggregate() && other.Place() < r.Place() {
			times = append(times, w.closed[other.ID])
		}
	}
	return times
}

// ofRates is how long limits keep events.
func (w *world) ofRates() (d time.Duration) {
	for _, rate := range []float64{w.plan.limits.Rate, w.plan.limits.Tenants.Rate} {
		if rate > 0 {
			d += time.Duration(2 * float64(w.plan.events) / rate * float64(time.Second))
		}
	}
	return d
}

// leavesNothing: what a dispatcher has claimed and lived to tell, it has told.
func (w *world) leavesNothing(c *claim) {
	gone := c.by.dead || c.by.killed || c.by.err != nil
	switch {
	case gone || !c.known || c.settled || c.lost:
	case c.call == nil:
		w.fail(c.id, "%s has claimed event %d and neither sent it nor given it back", c.by, c.id)
	default:
		w.fail(c.id, "%s has sent event %d and not said what came of it", c.by, c.id)
	}
}

// keepsToRates: in no time are more requests made than the rate and a burst allow.
func (p *process) keepsToRates() {
	p.keepsTo(p.plan.limits.Rate, p.starts, "")
	for tenant, starts := range p.tenants {
		p.keepsTo(p.plan.limits.Tenants.Rate, starts, " of tenant "+tenant)
	}
}

func (p *process) keepsTo(rate float64, starts []time.Time, of string) {
	if rate <= 0 {
		return
	}
	slices.SortFunc(starts, time.Time.Compare)
	burst := max(float64(int(rate/10)), 1)
	for i := range starts {
		for n := 1; i+n <= len(starts); n++ {
			took := starts[i+n-1].Sub(starts[i])
			if most := burst + rate*took.Seconds() + 0.001; float64(n) > most {
				p.fail(0, "%s made %d requests%s within %s, at a rate of %g/s", p, n, of, took, rate)
				return
			}
		}
	}
}

// sparesTheReceiver: a breaker keeps the requests of an outage to its limit, those on their way, and one for
// every cooldown.
func (p *process) sparesTheReceiver() {
	if !p.plan.breaks() {
		return
	}
	b := p.plan.limits.Breaker
	for _, o := range p.plan.outages {
		from, to := p.world.began.Add(o.from+p.plan.timeout), p.world.began.Add(o.to)
		n := 0
		for _, made := range p.allCalls() {
			switch {
			case made.began.Before(from) || !made.began.Before(to):
			case made.answer.err != nil && made.answer.verdict() == outbox.VerdictPermanent: // it works, then
				return
			default:
				n++
			}
		}
		most := b.Failures + p.plan.parallel + int(to.Sub(from)/b.Cooldown) + 1
		if n > most {
			p.fail(0, "%s made %d requests of a receiver that was out for %s, with a breaker after %d and for %s", p, n, to.Sub(from), b.Failures, b.Cooldown)
		}
	}
}

func (p *process) allCalls() (all []*call) {
	for _, calls := range p.calls {
		for _, made := range calls {
			if made.claim.by == p {
				all = append(all, made)
			}
		}
	}
	return all
}
