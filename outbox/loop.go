package outbox

import (
	"context"
	"sync"
	"time"
)

// The rhythm of the loop.
const (
	minPoll     = 10 * time.Millisecond  // after the first empty claim; doubles from there
	linger      = 10 * time.Millisecond  // an outcome waits this long for company
	minTrouble  = 100 * time.Millisecond // after the first failed exchange; doubles from there
	maxTrouble  = 2 * time.Second
	heldDelay   = time.Second      // before an outcome whose row is locked is offered again
	leaseMargin = time.Second      // an event is sent only with RequestTimeout and this left
	pulse       = time.Second      // between turns, for an observer who wants to see them
	killWait    = 2 * time.Second  // for sinks to return after the second signal
	lastSettles = 10 * time.Second // for results when the source is away at the end
)

// loop is the state of one run. Only the goroutine in run touches it.
type loop struct {
	*Dispatcher
	summary Summary

	ready    []run            // claimed, none of each being sent
	behind   map[claimKey]run // claimed, to be sent after one that is being sent
	unsent   int              // events in both
	sending  int              // events being sent
	finished []Outcome        // to be settled
	held     []Outcome        // to be settled, but locked by somebody: offered on their own
	hands    map[string]Hand  // claimed and not finished by tenant, with a Gate
	again    int              // of these, those that were sent before
	retries  dueTimes         // of this run, with Once

	jobs    chan leased
	results chan Outcome
	turns   chan exchanged
	wg      sync.WaitGroup
	work    context.Context // of deliveries; ends when they are cut off
	cut     context.CancelFunc

	moved       time.Time // when a delivery began or ended last
	exchanging  bool
	lingerUntil time.Time // when finished outcomes are settled at the latest; zero = none
	pollAt      time.Time // the next claim, when there is nothing to do
	poll        time.Duration
	heldUntil   time.Time
	trouble     time.Duration // the last wait after a failed exchange; 0 = none
	troubleAt   time.Time     // no exchange before
	woken       bool          // there may be news that the exchange under way does not see
	fresh       bool          // the next claim looks from the very start
	idle        bool          // the last exchange found nothing due and left nothing undone

	standing Standing // what is paused, as of stoodAt
	stoodAt  time.Time
	asked    int       // pauses that the destination has asked for
	shut     bool      // the gate lets nothing be sent
	limited  bool      // some tenant had no room in the last claim
	next     time.Time // when the gate may admit more; zero = not by time

	stopping bool
	patience time.Time // after it, a loop that ends gives up on results that it cannot write
	failure  error     // of the last exchange
	refusal  error     // of some held outcome
}

func newLoop(d *Dispatcher, stop context.Context) *loop {
	l := &loop{
		Dispatcher: d,
		behind:     map[claimKey]run{},
		hands:      map[string]Hand{},
		jobs:       make(chan leased, d.Parallel),
		results:    make(chan Outcome, d.Parallel),
		turns:      make(chan exchanged, 1),
		poll:       minPoll,
		fresh:      true,
	}
	l.summary.begin()
	select {
	case s := <-l.Standings:
		l.stand(s)
	default:
	}
	l.work, l.cut = context.WithCancel(context.WithoutCancel(stop))
	for range d.Parallel {
		l.wg.Go(l.deliverAll)
	}
	return l
}

// close ends the deliverers and waits for them, unless there is no time for that.
func (l *loop) close(wait bool) {
	l.cut()
	close(l.jobs)
	if wait {
		l.wg.Wait()
	}
}

func (l *loop) run(stop, kill context.Context) error {
	var grace <-chan time.Time
	stopped := stop.Done()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		if l.Observer.Turned != nil {
			l.Observer.Turned()
		}
		l.send()
		l.exchange()
		if l.done() {
			return l.failure
		}
		timer.Reset(l.sleep())
		select {
		case out := <-l.results:
			l.finish(out)
			l.drainResults()
		case t := <-l.turns:
			l.settle(t)
		case s := <-l.Standings:
			l.stand(s)
		case <-timer.C:
		case <-l.Woken:
			l.wake()
		case <-stopped:
			stopped = nil
			grace = time.After(l.Grace)
			l.stop()
		case <-grace:
			l.cut()
		case <-kill.Done():
			l.stop()
			l.kill()
			return l.failure
		}
	}
}

// wake lets the next claim be made at once.
func (l *loop) wake() { l.woken, l.pollAt, l.poll = true, time.Time{}, minPoll }

// sleep is how long nothing will happen by itself.
func (l *loop) sleep() time.Duration {
	const forever = time.Hour
	if l.exchanging {
		return forever
	}
	wait := forever
	until := func(t time.Time) { wait = min(wait, time.Until(t)) }
	if len(l.finished) > 0 {
		until(l.lingerUntil)
	}
	if len(l.held) > 0 {
		until(l.heldUntil)
	}
	if l.room() > 0 && len(l.ready) == 0 && l.sending < l.Parallel {
		until(l.pollAt)
	}
	if l.idle && len(l.retries) > 0 && l.sending == 0 && l.undone() == 0 { // nothing else keeps the run from its end
		until(l.retries[0])
	}
	if wait < forever {
		wait = max(wait, time.Until(l.troubleAt))
	}
	if l.Observer.Turned != nil && !l.overdue() {
		wait = min(wait, pulse)
	}
	return max(wait, 0)
}

// overdue reports whether deliveries are under way and none has come back for longer than each may
// take: their sink does not keep to its deadline.
func (l *loop) overdue() bool {
	return l.sending > 0 && time.Since(l.moved) > l.RequestTimeout+leaseMargin
}
