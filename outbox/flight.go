package outbox

import (
	"context"
	"errors"
	"time"
)

// leased is an event with the end of its lease on our own monotonic clock.
type leased struct {
	*Event
	until time.Time
}

// send hands claimed events to the deliverers as far as there are free ones. What has too little of
// its lease left is given back instead; what cannot be sent at all ends here.
func (l *loop) send() {
	sent := 0
	for _, ev := range l.ready {
		if l.sending == l.Parallel {
			break
		}
		sent++
		if out, never := l.Policy.unsendable(ev.Event); never {
			l.conclude(out)
			continue
		}
		if time.Until(ev.until) < l.RequestTimeout+leaseMargin {
			l.conclude(release(ev.Event))
			continue
		}
		l.sending++
		l.moved = time.Now()
		l.summary.Sent++
		l.jobs <- ev // has room for all deliverers
	}
	l.ready = l.ready[sent:]
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
	l.moved = time.Now()
	l.conclude(out)
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

func (l *loop) releaseReady() {
	for _, ev := range l.ready {
		l.conclude(release(ev.Event))
	}
	l.ready = nil
}
