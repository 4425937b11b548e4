package outbox

import (
	"cmp"
	"container/heap"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"
)

// Source hands out events and takes back what became of them.
type Source interface {
	// Exchange settles outs and claims up to want.N due events, in one round trip. It never
	// loses an outcome: what is not settled for sure is in the result's Held, with and without
	// an error. It may change the order of outs. The caller has one exchange under way at a time.
	Exchange(ctx context.Context, outs []Outcome, want Want) (Exchanged, error)

	// Payload returns the payload of a claimed event that has it Deferred, ErrLeaseLost when the
	// event is not ours any more, or ErrUnreadable when no attempt will ever read it. It is safe for
	// concurrent use, also with Exchange.
	Payload(ctx context.Context, ev *Event) ([]byte, error)
}

// ErrLeaseLost says that another worker has taken an event over, or that it is gone.
var ErrLeaseLost = errors.New("lease lost")

// ErrUnreadable says that the source cannot give a payload out, whenever it is asked.
var ErrUnreadable = errors.New("the payload cannot be read")

// Want is what a loop asks of its source.
type Want struct {
	N     int  // events at most; 0 = none, settle only
	Fresh bool // look from the very start, for late commits and lapsed leases too
}

// Exchanged is the result of an exchange. Every outcome that was offered and is in neither Lost
// nor Held is settled.
type Exchanged struct {
	Events    []Event   // claimed, in order of due time and id; their leases began after the call did
	Lost      []Outcome // not ours any more: nothing was changed
	Held      []Outcome // not settled, to be offered again
	Refused   error     // why some of Held were refused, not just locked; nil = none was
	CameRound bool      // the source has looked everywhere and has no more than Events
}

// Report tells an observer what became of one attempt, once that is settled or lost.
type Report struct {
	Event   *Event
	Outcome Outcome
	Lost    bool // another worker took the event over; the outcome changed nothing
}

// Observer is told what a dispatcher does. Its functions are called one at a time, by the loop, and
// must not block. Nil ones are left out.
type Observer struct {
	Settled   func(Report) // an attempt has its outcome
	Trouble   func(error)  // the source fails, once per outage, or refuses an outcome
	Recovered func()       // the source answers again
	Turned    func()       // the loop goes on: once a second at least, unless the source hangs or every delivery does
}

// Dispatcher delivers one destination's events: one loop that owns all state and never waits for a
// single delivery. Its fields must not change while it runs.
type Dispatcher struct {
	Source Source
	Sink   Sink
	Policy Policy

	BatchSize      int           // claimed and unsettled events at most; ≥ 1
	Parallel       int           // of these being sent at most; ≥ 1
	Lease          time.Duration // of a claim; ≥ RequestTimeout + 2s
	RequestTimeout time.Duration // of one delivery
	PollInterval   time.Duration // between claims when there is nothing to do
	Grace          time.Duration // for deliveries in flight after the stop

	Once      bool          // end when nothing is due
	Wait      time.Duration // with Once: wait for retries of this run that are due within it
	MaxEvents int           // end after that many events were sent; 0 = no limit

	Observer Observer
}

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

// Run delivers until stop is done, or with Once until nothing is due. After stop it claims no more,
// gives unsent events back, leaves those being sent Grace to end, and settles all results; when
// kill is done it cuts that short. The error is the source's, when results could not be settled
// or, with Once, when it cannot be reached.
func (d *Dispatcher) Run(stop, kill context.Context) (Summary, error) {
	l := newLoop(d, stop)
	err := l.run(stop, kill)
	l.close(kill.Err() == nil)
	l.summary.end()
	return l.summary, err
}

// leased is an event with the end of its lease on our own monotonic clock.
type leased struct {
	*Event
	until time.Time
}

// exchanged is what an exchange sends back to the loop.
type exchanged struct {
	Exchanged
	err     error
	began   time.Time
	offered []Outcome
	want    Want
}

// loop is the state of one run. Only the goroutine in run touches it.
type loop struct {
	*Dispatcher
	summary Summary

	ready    []leased  // claimed, not sent
	sending  int       // being sent
	finished []Outcome // to be settled
	held     []Outcome // to be settled, but locked by somebody: offered on their own
	retries  dueTimes  // of this run, with Once

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
	fresh       bool          // the next claim looks from the very start
	idle        bool          // the last exchange found nothing due and left nothing undone

	stopping bool
	patience time.Time // after it, a loop that ends gives up on results that it cannot write
	failure  error     // of the last exchange
	refusal  error     // of some held outcome
}

func newLoop(d *Dispatcher, stop context.Context) *loop {
	l := &loop{
		Dispatcher: d,
		jobs:       make(chan leased, d.Parallel),
		results:    make(chan Outcome, d.Parallel),
		turns:      make(chan exchanged, 1),
		poll:       minPoll,
		fresh:      true,
	}
	l.summary.begin()
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
		case <-timer.C:
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

// room is how many more events may be claimed. Every limit is asked here, before the claim, so that
// no claimed event waits for one.
func (l *loop) room() int {
	if l.stopping {
		return 0
	}
	n := l.BatchSize - len(l.ready) - l.sending - len(l.held)
	if l.MaxEvents > 0 {
		n = min(n, l.MaxEvents-l.summary.Sent-len(l.ready))
	}
	return max(n, 0)
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

// exchange starts an exchange with the source if one is called for: with the outcomes that are due
// to be settled and room for new events, or with the held ones alone.
func (l *loop) exchange() {
	now := time.Now()
	if l.exchanging || now.Before(l.troubleAt) {
		return
	}
	want := Want{N: l.room(), Fresh: l.fresh || l.idle}
	if now.Before(l.pollAt) && len(l.finished) == 0 {
		want.N = 0
	}
	switch {
	case len(l.held) > 0 && !now.Before(l.heldUntil):
		l.start(l.held, Want{})
		l.held = nil
	case l.settleNow(now), want.N > 0 && l.claimNow(now):
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
	for i := range t.Events {
		l.ready = append(l.ready, leased{&t.Events[i], until})
	}
	if l.stopping {
		l.releaseReady()
	}
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
		return
	}
	l.fresh = false
	l.idle = t.CameRound && len(t.Events) == 0
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
	}
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
	if l.idle && len(l.retries) > 0 {
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

// stop ends claiming and gives back what is unsent.
func (l *loop) stop() {
	l.stopping = true
	l.releaseReady()
}

func (l *loop) releaseReady() {
	for _, ev := range l.ready {
		l.conclude(release(ev.Event))
	}
	l.ready = nil
}

// done reports whether the run is over.
func (l *loop) done() bool {
	switch {
	case l.exchanging || l.sending > 0:
		return false
	case l.ending() && l.stuck():
		return l.outOfPatience()
	case l.undone() > 0:
		return false
	case l.stopping:
		return true
	case l.MaxEvents > 0 && l.summary.Sent >= l.MaxEvents:
		return true
	}
	return l.Once && l.idle && !l.awaited()
}

// ending reports whether the loop will not wait for ever for others.
func (l *loop) ending() bool { return l.stopping || l.Once }

// undone is how many claimed events are not settled, those being sent left out.
func (l *loop) undone() int { return len(l.ready) + len(l.finished) + len(l.held) }

// stuck reports whether only others can get the loop on: the source is away, or all that is left
// are outcomes that it does not take.
func (l *loop) stuck() bool {
	return l.failure != nil || len(l.held) > 0 && len(l.held) == l.undone()
}

// outOfPatience reports whether a loop that is stuck has waited long enough for its results to be
// written. Without any there is nothing to wait for.
func (l *loop) outOfPatience() bool {
	if l.undone() > 0 && l.patience.IsZero() {
		l.patience = time.Now().Add(lastSettles)
	}
	if l.undone() > 0 && time.Now().Before(l.patience) {
		return false
	}
	l.giveUp(l.undone(), errLocked)
	return true
}

// Why results are not written, when the source has not said it.
var (
	errLocked = errors.New("their rows are locked by others")
	errKilled = errors.New("no time left")
)

// giveUp leaves what is undone to the leases: they lapse. A stop with nothing undone is a clean one,
// whatever the source's state.
func (l *loop) giveUp(undone int, why error) {
	switch {
	case undone > 0:
		l.failure = fmt.Errorf("%d results not written, their events will be sent again: %w", undone, cmp.Or(l.failure, l.refusal, why))
	case l.stopping:
		l.failure = nil
	}
}

// awaited reports whether a retry of this run is due soon enough to stay for.
func (l *loop) awaited() bool {
	now := time.Now()
	for len(l.retries) > 0 && !now.Before(l.retries[0]) {
		heap.Pop(&l.retries)
		l.pollAt, l.idle = time.Time{}, false // look for it once more
	}
	return !l.idle || len(l.retries) > 0 && l.retries[0].Sub(now) <= l.Wait
}

// kill cuts deliveries off and settles what is known, without much patience.
func (l *loop) kill() {
	l.cut()
	giveUp := time.After(killWait)
	for l.sending > 0 || l.exchanging || l.undone() > 0 {
		l.exchange()
		select {
		case out := <-l.results:
			l.finish(out)
		case t := <-l.turns:
			l.settle(t)
		case <-time.After(l.sleep()):
		case <-giveUp:
			l.giveUp(l.sending+l.undone(), errKilled)
			return
		}
	}
}

// dueTimes is a heap, the earliest first.
type dueTimes []time.Time

func (h dueTimes) Len() int           { return len(h) }
func (h dueTimes) Less(i, j int) bool { return h[i].Before(h[j]) }
func (h dueTimes) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *dueTimes) Push(x any)        { *h = append(*h, x.(time.Time)) }
func (h *dueTimes) Pop() any {
	old := *h
	last := old[len(old)-1]
	*h = old[:len(old)-1]
	return last
}
