package outbox

import (
	"container/heap"
	"context"
	"math/rand/v2"
	"time"
)

// exchanged is what an exchange sends back to the loop.
type exchanged struct {
	Exchanged
	err     error
	began   time.Time
	offered []Outcome
	want    Want
}

// room is how many more events may be claimed. Every limit is asked here, before the claim, so that
// no claimed event waits for one.
func (l *loop) room() int {
	if l.stopping {
		return 0
	}
	n := l.BatchSize - l.unsent - l.sending - len(l.held)
	if l.MaxEvents > 0 {
		n = min(n, l.MaxEvents-l.summary.Sent-l.unsent)
	}
	return max(n, 0)
}

// share is how many events of one aggregate a claim may take: as many runs of that length as can be
// sent at once fill a batch, so that however many events one has, there is room for others.
func (l *loop) share() int { return max(l.BatchSize/l.Parallel, 1) }

// exchange starts an exchange with the source if one is called for: with the outcomes that are due
// to be settled and room for new events, or with the held ones alone.
func (l *loop) exchange() {
	now := time.Now()
	if l.exchanging || now.Before(l.troubleAt) {
		return
	}
	want := Want{N: l.room(), Run: l.share(), Fresh: l.fresh || l.idle}
	if now.Before(l.pollAt) && len(l.finished) == 0 {
		want.N = 0
	}
	switch {
	case len(l.held) > 0 && !now.Before(l.heldUntil):
		l.start(l.held, Want{})
		l.held = nil
	case l.settleNow(now), want.N > 0 && l.claimNow(now):
		if want = l.admit(want, now); want.N == 0 && len(l.finished) == 0 {
			return
		}
		l.start(l.finished, want)
		l.finished, l.lingerUntil = nil, time.Time{}
	}
}

// settleNow waits for company: half a batch, or a moment.
func (l *loop) settleNow(now time.Time) bool {
	return len(l.finished) > 0 &&
		(l.stopping || len(l.finished) >= (l.BatchSize+1)/2 || !now.Before(l.lingerUntil))
}

// claimNow is when deliverers could run dry.
func (l *loop) claimNow(now time.Time) bool {
	return len(l.ready) == 0 && l.sending < l.Parallel && !now.Before(l.pollAt)
}

func (l *loop) start(outs []Outcome, want Want) {
	l.exchanging = true
	l.woken = l.woken && want.N == 0
	ctx := context.WithoutCancel(l.work)
	l.wg.Go(func() {
		began := time.Now()
		done, err := l.Source.Exchange(ctx, outs, want)
		l.turns <- exchanged{done, err, began, outs, want}
	})
}

// settle takes an exchange's result in.
func (l *loop) settle(t exchanged) {
	l.exchanging = false
	l.report(t)
	l.claimed(t)
	l.pace(t)
}

// report tells the observer what is settled and puts aside what is not.
func (l *loop) report(t exchanged) {
	held, lost := keys(t.Held), keys(t.Lost)
	now := time.Now()
	for _, out := range t.offered {
		if held[out.key()] {
			continue
		}
		r := Report{Event: out.event, Outcome: out, Lost: lost[out.key()]}
		l.summary.count(r)
		if l.Once && out.Status == Pending && !r.Lost {
			heap.Push(&l.retries, now.Add(out.Delay))
		}
		if l.Observer.Settled != nil {
			l.Observer.Settled(r)
		}
	}
	l.putBack(t)
}

// putBack keeps what was not settled: with the next batch when the source was away, on its own when
// it alone was in the way.
func (l *loop) putBack(t exchanged) {
	switch {
	case len(t.Held) == 0:
	case t.err != nil:
		l.finished = append(t.Held, l.finished...)
		l.lingerUntil = time.Now()
	default:
		l.held = append(l.held, t.Held...)
		l.heldUntil = time.Now().Add(heldDelay)
	}
	l.tellRefusal(t.Refused)
}

// tellRefusal tells the observer once of outcomes that are refused, until none is held any more.
func (l *loop) tellRefusal(err error) {
	switch {
	case len(l.held) == 0:
		l.refusal = nil
	case err != nil && l.refusal == nil:
		l.refusal = err
		if l.Observer.Trouble != nil {
			l.Observer.Trouble(err)
		}
	}
}

func (l *loop) claimed(t exchanged) {
	until := t.began.Add(l.Lease)
	events := make([]leased, len(t.Events))
	for i := range t.Events {
		events[i] = leased{&t.Events[i], until}
	}
	l.ready = append(l.ready, l.runs(events)...)
	l.unsent += len(events)
	for _, ev := range events {
		l.count(ev.Event, 1, 0)
	}
	l.releasePaused()
}

// pace decides when to ask again.
func (l *loop) pace(t exchanged) {
	now := time.Now()
	if t.err != nil {
		l.stumble(t.err, now)
		return
	}
	if l.trouble > 0 || len(t.offered) > len(t.Held) {
		l.patience = time.Time{}
	}
	if l.trouble > 0 {
		l.trouble, l.failure = 0, nil
		if l.Observer.Recovered != nil {
			l.Observer.Recovered()
		}
	}
	if t.want.N == 0 {
		l.idle = false // what was settled may be what others waited for
		return
	}
	l.fresh = false
	l.idle = t.CameRound && len(t.Events) == 0 && !l.limited
	if len(t.Events)+len(t.offered) > 0 {
		l.poll = minPoll
	}
	switch {
	case !t.CameRound:
		l.pollAt, l.poll = time.Time{}, minPoll
	case len(t.Events) > 0:
		l.pollAt = now.Add(minPoll)
	default:
		l.pollAt = now.Add(jittered(l.poll, 0.1, rand.Float64()))
		l.poll = min(2*l.poll, l.PollInterval)
		if l.limited && l.next.Before(l.pollAt) && !l.next.IsZero() { // who had no room may have some then
			l.pollAt = notBefore(now.Add(minPoll), l.next)
		}
	}
	if l.woken {
		l.wake()
	}
}

// notBefore is t, or the earliest that it may be.
func notBefore(earliest, t time.Time) time.Time {
	if t.Before(earliest) {
		return earliest
	}
	return t
}

// stumble waits longer with every failure in a row.
func (l *loop) stumble(err error, now time.Time) {
	if l.trouble == 0 && l.Observer.Trouble != nil {
		l.Observer.Trouble(err)
	}
	l.failure, l.fresh, l.idle = err, true, false
	l.trouble = min(max(2*l.trouble, minTrouble), maxTrouble)
	l.troubleAt = now.Add(jittered(l.trouble, 0.1, rand.Float64()))
}
