package outbox

import (
	"context"
	"errors"
	"slices"
	"time"
)

// leased is an event with the end of its lease on our own monotonic clock.
type leased struct {
	*Event
	until time.Time
}

// run is what is sent one event after the other, all under one lease: events of one aggregate that
// follow each other. Where there is no order, each event is a run of its own.
type run []leased

// runs divides what was claimed, which is in the order to send it.
func (l *loop) runs(events []leased) (runs []run) {
	for from := 0; from < len(events); {
		to := from + 1
		for l.Ordering == OrderingAggregate && to < len(events) && events[to].aggregate() == events[from].aggregate() {
			to++
		}
		runs = append(runs, events[from:to:to])
		from = to
	}
	return runs
}

// send hands claimed events to the deliverers as far as there are free ones.
func (l *loop) send() {
	for l.sending < l.Parallel && len(l.ready) > 0 {
		r := l.ready[0]
		l.ready = l.ready[1:]
		l.advance(r)
	}
}

// advance sends the first event of a run. One that has too little of its lease left is given back
// instead; one that cannot be sent at all ends here, and the next may have its turn.
func (l *loop) advance(r run) {
	for len(r) > 0 {
		ev := r[0]
		r = r[1:]
		l.unsent--
		l.count(ev.Event, -1, 0)
		out, never := l.Policy.unsendable(ev.Event)
		if !never && time.Until(ev.until) >= l.RequestTimeout+leaseMargin {
			l.hand(ev, r)
			return
		}
		if !never {
			out = release(ev.Event)
		}
		l.conclude(out)
		if !l.OnDead.goesOn(out) {
			l.giveBack(r)
			return
		}
	}
}

// hand gives an event to a deliverer; the rest of its run waits.
func (l *loop) hand(ev leased, rest run) {
	if len(rest) > 0 {
		l.behind[claimKey{ev.ID, ev.Lease}] = rest
	}
	l.sending++
	l.count(ev.Event, 0, 1)
	l.record(ev.Event, nil)
	l.moved = time.Now()
	l.summary.Sent++
	l.jobs <- ev // has room for all deliverers
}

// deliverAll is a deliverer: it sends one event after the other.
func (l *loop) deliverAll() {
	for ev := range l.jobs {
		l.results <- l.deliver(ev)
	}
}

// deliver sends one event and decides what became of it. The request ends before the lease does.
func (l *loop) deliver(ev leased) Outcome {
	began := time.Now()
	deadline := began.Add(l.RequestTimeout)
	if last := ev.until.Add(-leaseMargin / 2); deadline.After(last) {
		deadline = last
	}
	ctx, cancel := context.WithDeadline(l.work, deadline)
	defer cancel()
	event, early := l.whole(ctx, ev.Event)
	if early != nil {
		return *early
	}
	receipt, err := l.Sink.Deliver(ctx, event)
	out := l.Policy.Decide(ev.Event, receipt, err)
	if err != nil && l.work.Err() != nil && errors.Is(err, context.Canceled) {
		out = cutOff(ev.Event)
	}
	out.Latency = time.Since(began)
	return out
}

// whole is the event with its payload, or what becomes of one that is not sent: its attempt is
// given back.
func (l *loop) whole(ctx context.Context, ev *Event) (Event, *Outcome) {
	if !ev.Deferred {
		return *ev, nil
	}
	payload, err := l.Source.Payload(ctx, ev)
	if err != nil {
		out := l.unread(ev, err)
		return Event{}, &out
	}
	ev.Size = len(payload) // the claim did not know it
	if out, never := l.Policy.unsendable(ev); never {
		return Event{}, &out
	}
	event := *ev
	event.Payload, event.Deferred = payload, false
	return event, nil
}

// unread is the outcome of an event whose payload was not read. One that takes as long as a request
// may is not asked for at once again: it may well take as long the next time.
func (l *loop) unread(ev *Event, err error) Outcome {
	switch {
	case errors.Is(err, ErrUnreadable):
		return bury(ev, KindInvalid, err.Error())
	case l.work.Err() != nil:
		return release(ev)
	case errors.Is(err, context.DeadlineExceeded):
		return l.Policy.Decide(ev, Receipt{}, Postpone(l.Policy.Backoff.Cap))
	}
	return l.Policy.Decide(ev, Receipt{}, Postpone(time.Second))
}

func (l *loop) finish(out Outcome) {
	l.sending--
	l.count(out.event, 0, -1)
	l.moved = time.Now()
	l.conclude(out)
	rest, waits := l.behind[out.key()]
	switch delete(l.behind, out.key()); {
	case !waits:
	case l.OnDead.goesOn(out):
		l.ready = slices.Insert(l.ready, 0, l.fitting(rest, out.Latency)) // back to back
	default:
		l.giveBack(rest)
	}
	l.record(out.event, &out)
}

// fitting gives the end of a run back that its lease will not cover, if each event takes as long as
// the last one did.
func (l *loop) fitting(r run, took time.Duration) run {
	fit := 0
	if left := time.Until(r[0].until) - l.RequestTimeout - leaseMargin; left >= 0 {
		fit = min(len(r), 1+int(left/max(took, 1)))
	}
	l.giveBack(r[fit:])
	return r[:fit]
}

// drainResults takes what else has finished, so that the loop turns once for all of them.
func (l *loop) drainResults() {
	for range l.Parallel {
		select {
		case out := <-l.results:
			l.finish(out)
		default:
			return
		}
	}
}

// conclude puts an outcome in line for the next settle.
func (l *loop) conclude(out Outcome) {
	l.finished = append(l.finished, out)
	if l.lingerUntil.IsZero() {
		l.lingerUntil = time.Now().Add(linger)
	}
}

// releaseReady gives back what is unsent.
func (l *loop) releaseReady() {
	for _, r := range l.ready {
		l.giveBack(r)
	}
	for _, r := range l.behind {
		l.giveBack(r)
	}
	l.ready = nil
	clear(l.behind)
}

// giveBack releases a run unsent, together with the outcome that is the reason for it.
func (l *loop) giveBack(r run) {
	for _, ev := range r {
		l.count(ev.Event, -1, 0)
		l.conclude(release(ev.Event))
	}
	l.unsent -= len(r)
}
