package simulation_test

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/outboxctl/outboxctl/outbox"
	"github.com/outboxctl/outboxctl/outbox/gate"
	"github.com/outboxctl/outboxctl/outbox/outboxtest/twin"
)

// plan is what a seed makes of a simulation: everything that happens in it is drawn from here, by names
// and numbers of what it happens to and not by the order of calls, so that a seed means the same again.
type plan struct {
	seed uint64
	calm bool // nothing goes wrong but what the receiver answers

	events, tenants, aggregates, processes int
	heal                                   time.Duration // when faults end

	queue     twin.Queue
	batch     int
	parallel  int
	timeout   time.Duration
	poll      time.Duration
	grace     time.Duration
	policy    outbox.Policy
	limits    gate.Limits
	once      bool
	woken     bool
	roundTrip time.Duration
	slow      time.Duration // what a call takes at most, before all is healed

	trouble  int      // of a hundred exchanges, so many go wrong
	mishaps  bool     // processes crash, stop and are suspended
	restless bool     // and that all the time
	away     []window // of the table
	outages  []window // of the receiver
	rejected bool     // then with 401, not 503
	pauses   []pause
	failing  int // of a hundred answers, so many are bad
	poison   bool
}

// window is a time from the start on.
type window struct{ from, to time.Duration }

func (w window) holds(at time.Duration) bool { return w.from <= at && at < w.to }

// pause is an operator's, of a tenant or, without one, of everything.
type pause struct {
	window
	tenant string
}

// What is drawn, each with numbers of its own.
const (
	ofPlan = iota
	ofEvent
	ofExchange
	ofCall
	ofPayload
	ofLife
	ofNews
	ofLock
	ofRoll
)

// dice are those of one thing.
func (p *plan) dice(parts ...uint64) *rand.Rand {
	h := p.seed
	for _, part := range parts {
		h ^= part + 0x9e3779b97f4a7c15 + h<<6 + h>>2
		h *= 0xbf58476d1ce4e5b9
		h ^= h >> 31
	}
	return rand.New(rand.NewPCG(h, p.seed))
}

// between draws a duration, uneven so that hardly ever two things happen in one instant.
func between(r *rand.Rand, from, to time.Duration) time.Duration {
	return from + time.Duration(r.Int64N(int64(max(to-from, 1))))
}

func newPlan(seed uint64) *plan {
	p := &plan{seed: seed}
	r := p.dice(ofPlan)
	chance := func(percent int) bool { return r.IntN(100) < percent }
	p.calm = chance(10)
	p.events, p.tenants, p.aggregates, p.processes = 5+r.IntN(40), 1+r.IntN(4), 1+r.IntN(12), 1+r.IntN(3)
	p.heal = between(r, 20*time.Second, 70*time.Second)
	p.timeout, p.poll = between(r, time.Second, 5*time.Second), between(r, 200*time.Millisecond, 2*time.Second)
	p.grace = between(r, 0, 8*time.Second)
	p.queue = twin.Queue{Ordered: chance(50), Lease: p.timeout + 2*time.Second + between(r, 0, 12*time.Second)}
	p.queue.Hold = p.queue.Ordered && chance(30)
	p.batch, p.parallel = 1+r.IntN(30), 1+r.IntN(8)
	p.once, p.woken = chance(12), chance(30)
	p.roundTrip = between(r, time.Millisecond, 30*time.Millisecond)
	p.failing, p.poison, p.slow = r.IntN(60), chance(50), 20*time.Millisecond
	if chance(40) {
		p.slow = min(between(r, 0, 2*time.Second), p.timeout)
	}
	p.drawPolicy(r)
	p.drawLimits(r)
	if !p.calm {
		p.drawFaults(r)
	}
	if p.restless {
		p.slow, p.grace = p.timeout, 0
	}
	return p
}

func (p *plan) drawPolicy(r *rand.Rand) {
	base := between(r, 100*time.Millisecond, 2*time.Second)
	p.policy = outbox.Policy{
		MaxAttempts: 1 + r.IntN(8),
		Backoff:     outbox.Backoff{Base: base, Cap: base + between(r, 0, 15*time.Second)},
		Jitter:      r.Float64(),
		MaxPayload:  100,
	}
}

func (p *plan) drawLimits(r *rand.Rand) {
	p.limits = gate.Limits{Parallel: p.parallel, RetryShare: 1}
	if r.IntN(4) == 0 {
		p.limits.RetryShare = 0.1 + 0.6*r.Float64()
	}
	if r.IntN(5) == 0 {
		p.limits.Rate = 2 + 40*r.Float64()
	}
	if r.IntN(5) == 0 {
		p.limits.Tenants.Parallel = 1 + r.IntN(4)
	}
	if r.IntN(6) == 0 {
		p.limits.Tenants.Rate = 2 + 20*r.Float64()
	}
	if r.IntN(3) == 0 {
		p.limits.Breaker = gate.Breaker{Failures: 1 + r.IntN(6), Cooldown: between(r, time.Second, 8*time.Second)}
	}
}

func (p *plan) drawFaults(r *rand.Rand) {
	p.trouble, p.mishaps, p.restless = r.IntN(25), r.IntN(4) > 0, r.IntN(6) == 0
	draw := func(most time.Duration) window {
		from := between(r, 0, p.heal)
		return window{from, min(from+between(r, 0, most), p.heal)}
	}
	for range r.IntN(3) {
		p.away = append(p.away, draw(20*time.Second))
	}
	for range r.IntN(3) {
		p.outages = append(p.outages, draw(30*time.Second))
	}
	p.rejected = r.IntN(2) == 0
	for range r.IntN(3) {
		w := pause{window: draw(20 * time.Second)}
		if r.IntN(2) == 0 {
			w.tenant = tenantOf(r.IntN(p.tenants))
		}
		p.pauses = append(p.pauses, w)
	}
}

func tenantOf(n int) string { return []string{"", "acme", "globex", "initech"}[n] }

// breaks reports whether there is a breaker.
func (p *plan) breaks() bool { return p.limits.Breaker.Failures > 0 }

// String says what is unusual about the plan, for who reads a trace.
func (p *plan) String() string {
	return fmt.Sprintf("%d events of %d aggregates and %d tenants, %d dispatchers; ordered %v, hold %v, once %v, calm %v\n"+
		"batch %d, parallel %d, lease %s, request timeout %s, poll %s, grace %s, healed after %s\n"+
		"%d attempts, backoff %s..%s, jitter %.2f; limits %+v\n"+
		"table away %v, receiver out %v, paused %v",
		p.events, p.aggregates, p.tenants, p.processes, p.queue.Ordered, p.queue.Hold, p.once, p.calm,
		p.batch, p.parallel, p.queue.Lease, p.timeout, p.poll, p.grace, p.heal,
		p.policy.MaxAttempts, p.policy.Backoff.Base, p.policy.Backoff.Cap, p.policy.Jitter, p.limits,
		p.away, p.outages, p.pauses)
}
