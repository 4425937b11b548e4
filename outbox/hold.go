package outbox

import (
	"slices"
	"time"
)

// inHand is what a gate is asked about.
func (l *loop) inHand() InHand {
	return InHand{Hand: Hand{Waiting: l.unsent, Sending: l.sending}, Retries: l.again, Tenants: l.hands}
}

// count keeps a gate's view of what is in hand: how many events more of ev's kind wait, or are being
// sent.
func (l *loop) count(ev *Event, waiting, sending int) {
	if l.Gate == nil {
		return
	}
	if ev.Attempts > 1 {
		l.again += waiting + sending
	}
	h := l.hands[ev.TenantID]
	h.Waiting += waiting
	h.Sending += sending
	if h == (Hand{}) {
		delete(l.hands, ev.TenantID)
		return
	}
	l.hands[ev.TenantID] = h
}

// admit cuts what is wanted down to what pauses and limits allow. When that is nothing, it puts the
// next look off until more may be allowed.
func (l *loop) admit(want Want, now time.Time) Want {
	if want.N == 0 {
		return want
	}
	if l.unpaused(now) {
		want.Fresh = true // nothing is known any more of what is due
	}
	a := Everything()
	switch {
	case l.standing.For > 0:
		a = Admission{Next: l.stoodAt.Add(l.standing.For)}
	case l.Gate != nil:
		a = l.Gate.Admit(l.inHand())
	}
	l.shut, l.limited, l.next = a.Shut, a.Rooms.full(), a.Next
	want.N, want.Share, want.Rooms = min(want.N, a.N), a.Share, a.Rooms.without(l.standing.Tenants)
	if want.N == 0 {
		l.idle = false
		l.pollAt = a.Next
		if a.Next.IsZero() {
			l.pollAt = now.Add(l.PollInterval)
		}
	}
	return want
}

// record tells the gate that ev is about to be sent, or what became of it.
func (l *loop) record(ev *Event, out *Outcome) {
	if l.Gate != nil && l.Gate.Record(ev, out) {
		l.shut = true
		l.releaseReady()
	}
	if out != nil && out.Pause > 0 {
		l.ask(Hold{For: out.Pause, Reason: out.Error})
	}
}

// ask begins a pause that the destination has asked for, unless a longer one is in force.
func (l *loop) ask(h Hold) {
	now := time.Now()
	s := l.standing.after(now.Sub(l.stoodAt))
	if h.For <= s.For+time.Second && (s.For > 0 || h.For <= 0) {
		return
	}
	l.asked++
	s.For, s.Reason = h.For, h.Reason
	if l.Observer.Asked != nil {
		l.Observer.Asked(h)
	}
	l.take(s, now)
}

// stand takes in what the board says. A pause that was asked for here and that the board has not heard
// of yet goes on.
func (l *loop) stand(s Standing) {
	now := time.Now()
	if own := l.standing.after(now.Sub(l.stoodAt)); s.heard < l.asked && own.For > s.For {
		s.For, s.Reason = own.For, own.Reason
	}
	l.take(s, now)
}

// take makes s how things stand: what is claimed and paused goes back, and what is not paused any
// more is looked for.
func (l *loop) take(s Standing, now time.Time) {
	l.standing, l.stoodAt = s, now
	l.releasePaused()
	if s.For == 0 {
		l.pollAt, l.fresh, l.idle = time.Time{}, true, false
	}
	if l.Observer.Stands != nil {
		l.Observer.Stands(s)
	}
}

// unpaused ends the pauses whose time is over, and reports whether there were any.
func (l *loop) unpaused(now time.Time) bool {
	s := l.standing.after(now.Sub(l.stoodAt))
	if (s.For > 0) == (l.standing.For > 0) && len(s.Tenants) == len(l.standing.Tenants) {
		return false
	}
	l.standing, l.stoodAt = s, now
	if l.Observer.Stands != nil {
		l.Observer.Stands(s)
	}
	return true
}

// releasePaused gives back what is unsent and must not be sent now.
func (l *loop) releasePaused() {
	if l.stopping || l.shut || l.standing.For > 0 {
		l.releaseReady()
		return
	}
	if len(l.standing.Tenants) == 0 {
		return
	}
	isPaused := func(r run) bool {
		if len(r) == 0 || l.standing.Tenants[r[0].TenantID] == 0 {
			return false
		}
		l.giveBack(r)
		return true
	}
	l.ready = slices.DeleteFunc(l.ready, isPaused)
	for key, r := range l.behind {
		if isPaused(r) {
			delete(l.behind, key)
		}
	}
}

// Why a run of [Dispatcher.Once] left work behind.
const (
	heldByBreaker = "the breaker is open"
	heldByPause   = "the destination is paused"
	heldByTenant  = "a tenant is paused"
)

// keptOff reports whether there is nothing to wait for in a run that ends: the breaker is open, or a
// pause lasts longer than it would wait for a retry.
func (l *loop) keptOff() bool {
	l.summary.Held = ""
	switch {
	case l.shut:
		l.summary.Held = heldByBreaker
	case l.standing.after(time.Since(l.stoodAt)).For > l.Wait:
		l.summary.Held = heldByPause
		if l.standing.Reason != "" {
			l.summary.Held += ": " + l.standing.Reason
		}
	default:
		if len(l.standing.Tenants) > 0 {
			l.summary.Held = heldByTenant
		}
		return false
	}
	return true
}
