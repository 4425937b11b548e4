package simulation_test

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/outboxctl/outboxctl/outbox"
	"github.com/outboxctl/outboxctl/outbox/gate"
)

// process is one life of a dispatcher, from its start to a stop or a crash. It stands between the dispatcher
// and the world: what a process that has crashed still does, nobody sees, and one that is suspended hears
// nothing.
type process struct {
	*world
	number, life int

	exchanges int
	dead      bool      // since it crashed
	stoppedAt time.Time // zero = nobody told it to
	killed    bool
	frozen    time.Time // until then it is suspended

	hand     map[key]*claim // known and not offered
	undone   map[key]*claim // known and not settled or lost, as far as it has heard
	sending  int
	starts   []time.Time            // of its calls
	tenants  map[string][]time.Time // likewise, by tenant
	breaker  gate.State
	changed  time.Time
	probes   int // calls in this half-open state that said something, or may
	standing outbox.Standing
	told     time.Time
	heard    map[string]time.Time // on the board, last
	asked    window               // in which it is to pause by itself, a second less than the receiver wants: another may be in force

	board chan outbox.Standing
	woken chan struct{}
	stop  context.CancelFunc
	kill  context.CancelFunc
	ended chan struct{}
	err   error
	sum   outbox.Summary
}

var (
	_ outbox.Source = (*process)(nil)
	_ outbox.Sink   = (*process)(nil)
)

// String names it in the trace.
func (p *process) String() string { return fmt.Sprintf("%c%d", 'A'+p.number, p.life) }

// start begins a life.
func (w *world) start(number, life int, wg *sync.WaitGroup) *process {
	p := &process{
		world: w, number: number, life: life, hand: map[key]*claim{}, undone: map[key]*claim{}, tenants: map[string][]time.Time{},
		breaker: gate.Closed, board: make(chan outbox.Standing, 1), woken: make(chan struct{}, 1), ended: make(chan struct{}),
	}
	var stop, kill context.Context
	stop, p.stop = context.WithCancel(context.Background())
	kill, p.kill = context.WithCancel(context.Background())
	w.mu.Lock()
	w.lives = append(w.lives, p)
	w.note(0, "%s starts", p)
	p.tell()
	w.mu.Unlock()
	d := p.dispatcher()
	wg.Go(func() {
		sum, err := d.Run(stop, kill)
		w.mu.Lock()
		defer w.mu.Unlock()
		p.sum, p.err = sum, err
		if !p.dead {
			w.note(0, "%s has ended: %v", p, err)
		}
		close(p.ended)
	})
	return p
}

func (p *process) dispatcher() *outbox.Dispatcher {
	plan := p.plan
	policy := plan.policy
	policy.Roll = p.roller()
	d := &outbox.Dispatcher{
		Source: p, Sink: p, Policy: policy, Gate: gate.New(plan.limits, p.change), Standings: p.board,
		BatchSize: plan.batch, Parallel: plan.parallel, Lease: plan.queue.Lease, RequestTimeout: plan.timeout,
		PollInterval: plan.poll, Grace: plan.grace, Once: plan.once, Wait: 3 * time.Second,
		Observer: outbox.Observer{Asked: p.ask},
	}
	if plan.queue.Ordered {
		d.Ordering = outbox.OrderingAggregate
	}
	if plan.queue.Hold {
		d.OnDead = outbox.OnDeadHold
	}
	if plan.woken {
		d.Woken = p.woken
	}
	return d
}

// roller rolls for the policy, which asks from many goroutines.
func (p *process) roller() func() float64 {
	var mu sync.Mutex
	r := p.plan.dice(ofRoll, uint64(p.number), uint64(p.life))
	return func() float64 {
		mu.Lock()
		defer mu.Unlock()
		return r.Float64()
	}
}

// thaw waits until the process is not suspended any more.
func (p *process) thaw() {
	for {
		p.mu.Lock()
		wait := time.Until(p.frozen)
		p.mu.Unlock()
		if wait <= 0 {
			return
		}
		time.Sleep(wait)
	}
}

// Exchange implements [outbox.Source].
func (p *process) Exchange(_ context.Context, outs []outbox.Outcome, want outbox.Want) (outbox.Exchanged, error) {
	p.mu.Lock()
	if p.dead {
		p.mu.Unlock()
		return outbox.Exchanged{Held: outs}, errAway
	}
	p.exchanges++
	p.offers(outs)
	p.wants(want)
	t := p.troubleOf(p)
	p.mu.Unlock()
	p.thaw()
	time.Sleep(t.before)
	p.mu.Lock()
	done, mine, err := p.exchange(p, t, outs, want)
	p.mu.Unlock()
	if len(done.Held) > 0 && err == nil {
		time.Sleep(500 * time.Millisecond) // for a lock
	}
	time.Sleep(t.after)
	p.thaw()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.dead {
		return outbox.Exchanged{Held: outs}, errAway
	}
	p.hears(outs, done, mine, err)
	if err != nil {
		p.note(0, "%s: exchange fails", p)
	}
	return done, err
}

// hears is the reply of an exchange.
func (p *process) hears(outs []outbox.Outcome, done outbox.Exchanged, mine []*claim, err error) {
	held := map[key]bool{}
	for _, out := range done.Held {
		held[key{out.ID, out.Lease}] = true
	}
	for _, out := range outs {
		k := key{out.ID, out.Lease}
		if p.claims[k].waits = held[k] && err == nil; !held[k] {
			p.claims[k].sure = true
			delete(p.undone, k)
		}
	}
	for _, c := range mine {
		c.known = true
		p.hand[c.key], p.undone[c.key] = c, c
	}
}

// Payload implements [outbox.Source].
func (p *process) Payload(ctx context.Context, ev *outbox.Event) ([]byte, error) {
	p.mu.Lock()
	c := p.claims[key{ev.ID, ev.Lease}]
	c.unread, c.handed = true, time.Now()
	r := p.plan.dice(ofPayload, uint64(ev.ID), uint64(ev.Attempts), uint64(p.number), uint64(p.exchanges))
	faulty, fate := p.faulty() && !p.plan.calm, p.fate[ev.ID]
	p.mu.Unlock()
	wait := between(r, 0, 10*time.Millisecond)
	if faulty && r.IntN(8) == 0 {
		wait = never
	}
	select {
	case <-ctx.Done():
		return nil, fmt.Errorf("payload: %w", ctx.Err())
	case <-time.After(wait):
	}
	switch {
	case fate == unreadable:
		return nil, outbox.ErrUnreadable
	case faulty && r.IntN(4) == 0:
		return nil, errAway
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.table.Row(ev.ID).Lease != ev.Lease {
		return nil, outbox.ErrLeaseLost
	}
	return []byte("{}"), nil
}

// Deliver implements [outbox.Sink].
func (p *process) Deliver(ctx context.Context, ev outbox.Event) (outbox.Receipt, error) {
	p.mu.Lock()
	if p.dead {
		p.mu.Unlock()
		return outbox.Receipt{}, context.Canceled
	}
	c := p.sends(ctx, ev)
	p.mu.Unlock()
	timer := time.NewTimer(c.answer.after)
	defer timer.Stop()
	var cut error
	select {
	case <-timer.C:
	case <-ctx.Done():
		cut = ctx.Err()
	}
	p.mu.Lock()
	p.answered(c, cut)
	p.mu.Unlock()
	if cut != nil { // those that ended together come back one after the other
		time.Sleep(between(p.plan.dice(ofCall, uint64(ev.ID), uint64(ev.Attempts), 1), 1, time.Millisecond))
	}
	p.thaw()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sending--
	c.claim.back = true
	switch {
	case cut != nil:
		return outbox.Receipt{}, fmt.Errorf("post: %w", cut)
	case c.answer.err != nil:
		if wants := c.answer.err.Pause - time.Second; p.at()+wants > p.asked.to && wants > 0 {
			p.asked = window{p.at(), p.at() + wants}
		}
		return outbox.Receipt{}, c.answer.err
	}
	return outbox.Receipt{Text: "200", Code: 200}, nil
}

// change is told by the breaker.
func (p *process) change(c gate.Change) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.breaker, p.changed, p.probes = c.To, time.Now(), 0
	if c.To == gate.Open {
		p.shut = later(p.shut, time.Now().Add(c.For))
	}
	if !p.dead {
		p.note(0, "%s: breaker %s", p, c.To)
	}
}

// ask is told by the dispatcher that has been asked for a pause: it writes it on the board.
func (p *process) ask(h outbox.Hold) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.dead {
		return
	}
	p.paused[""] = later(p.paused[""], time.Now().Add(h.For))
	p.note(0, "%s: the receiver wants a pause of %s", p, h.For)
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// tell has a process read the board, which is silent about what it has said before.
func (p *process) tell() {
	now := time.Now()
	inForce := maps.Clone(p.paused)
	maps.DeleteFunc(inForce, func(_ string, until time.Time) bool { return !until.After(now) })
	if !p.told.IsZero() && maps.Equal(inForce, p.heard) {
		return
	}
	p.heard = inForce
	s := outbox.Standing{For: max(p.paused[""].Sub(now), 0)}
	for tenant, until := range p.paused {
		if tenant == "" || !until.After(now) {
			continue
		}
		if s.Tenants == nil {
			s.Tenants = map[string]time.Duration{}
		}
		s.Tenants[tenant] = until.Sub(now)
	}
	select {
	case <-p.board:
	default:
	}
	p.standing, p.told = s, now
	p.standing.Tenants = maps.Clone(s.Tenants)
	p.board <- s
}

// isPaused reports whether the process knows for sure that a tenant is paused, or, with all, everything.
func (p *process) isPaused(tenant string, all bool, now time.Time) bool {
	at := now.Sub(p.world.began)
	if p.asked.from < at && at < p.asked.to {
		return true
	}
	if !p.told.Before(now) { // it may be hearing of it
		return false
	}
	if now.Before(p.told.Add(p.standing.For)) {
		return true
	}
	return !all && now.Before(p.told.Add(p.standing.Tenants[tenant]))
}

// read has the processes look at the board, each in its time.
func (w *world) read(number int, over <-chan struct{}) {
	r := w.plan.dice(ofNews, uint64(number))
	for {
		select {
		case <-over:
			return
		case <-time.After(between(r, w.plan.poll/2, w.plan.poll)):
		}
		w.mu.Lock()
		for _, p := range w.lives {
			if p.number == number && !p.dead && !p.hasEnded() {
				p.tell()
			}
		}
		w.mu.Unlock()
	}
}

func (p *process) hasEnded() bool {
	select {
	case <-p.ended:
		return true
	default:
		return false
	}
}

// operate begins the pauses.
func (w *world) operate() {
	for _, o := range w.plan.pauses {
		go func() {
			time.Sleep(o.from)
			w.mu.Lock()
			defer w.mu.Unlock()
			w.paused[o.tenant] = later(w.paused[o.tenant], w.began.Add(o.to))
			w.note(0, "paused until %s: %q", o.to, o.tenant)
		}()
	}
}

// live starts a dispatcher again and again, whatever befalls it, until it is over.
func (w *world) live(number int, over <-chan struct{}, wg *sync.WaitGroup) {
	r := w.plan.dice(ofLife, uint64(number))
	for life := 0; ; life++ {
		p := w.start(number, life, wg)
		if w.until(p, r, over) {
			return
		}
		select {
		case <-over:
			return
		case <-time.After(w.pauseOf(r)):
		}
	}
}

// pauseOf is how long a dispatcher is not there.
func (w *world) pauseOf(r *rand.Rand) time.Duration {
	if w.plan.once {
		return between(r, 0, w.plan.poll)
	}
	return w.within(between(r, 0, 6*time.Second))
}

// until lets a process live until something ends it, and reports whether that is the end of all.
func (w *world) until(p *process, r *rand.Rand, over <-chan struct{}) (last bool) {
	for {
		next := never
		if w.plan.mishaps && !w.plan.calm {
			rest := 25 * time.Second
			if w.plan.restless {
				rest = 4 * time.Second
			}
			if next = between(r, time.Second, rest); w.at()+next >= w.plan.heal {
				next = never
			}
		}
		select {
		case <-p.ended:
			return false
		case <-over:
			w.end(p)
			return true
		case <-time.After(next):
		}
		if w.mishap(p, r) {
			return false
		}
	}
}

// mishap does something to a process, and reports whether that was its end.
func (w *world) mishap(p *process, r *rand.Rand) (fatal bool) {
	kind, long, short := r.IntN(4), between(r, 0, 2*w.plan.queue.Lease), between(r, 0, 3*time.Second)
	w.mu.Lock()
	switch kind {
	case 0:
		p.frozen = time.Now().Add(w.within(long))
		w.note(0, "%s is suspended for %s", p, time.Until(p.frozen))
		w.mu.Unlock()
		return false
	case 1:
		p.crash()
		w.mu.Unlock()
		return true
	}
	p.stopped("told to stop")
	w.mu.Unlock()
	if kind == 3 {
		time.Sleep(short)
		w.mu.Lock()
		p.killed = true
		w.note(0, "%s is told again", p)
		p.kill()
		w.mu.Unlock()
	}
	w.awaitEnd(p)
	return true
}

func (p *process) crash() {
	p.dead = true
	p.note(0, "%s crashes", p)
	p.kill()
}

func (p *process) stopped(how string) {
	p.stoppedAt = time.Now()
	p.note(0, "%s is %s", p, how)
	p.stop()
}

// end stops a process when all is over.
func (w *world) end(p *process) {
	w.mu.Lock()
	p.stopped("stopped")
	if w.wrong != "" {
		p.crash()
	}
	w.mu.Unlock()
	w.awaitEnd(p)
}

// awaitEnd allows for the grace, for the patience with a table that is away, and for an exchange under way.
func (w *world) awaitEnd(p *process) {
	most := w.plan.grace + 10*time.Second + 45*time.Second + 2*w.plan.queue.Lease
	select {
	case <-p.ended:
	case <-time.After(most):
		w.mu.Lock()
		w.fail(0, "%s has not ended %s after its stop", p, most)
		p.crash()
		w.mu.Unlock()
	}
}
