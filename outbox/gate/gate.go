// Package gate holds the limits of a destination: a rate, limits of its tenants, a share for retries,
// a circuit breaker. Each is an [outbox.Gate] of its own; together they admit what the smallest of
// them does.
//
// Limits hold per process and count in this process alone. Nothing here waits, starts a goroutine or
// knows a database: a loop asks before it claims, and tells what it sends and what came of it.
package gate

import (
	"time"

	"github.com/outboxctl/outboxctl/outbox"
)

// Limits are a destination's. The zero value limits nothing.
type Limits struct {
	Rate       float64 // requests per second; 0 = any
	Tenants    TenantLimits
	RetryShare float64 // of Parallel, for retries while fresh events wait, 0..1; 1 = any
	Parallel   int     // requests at once, as the loop has it
	Breaker    Breaker
}

// New returns the gate with these limits, nil for none. changed, which may be nil, is told when the
// breaker changes its state, by the goroutine that calls the gate.
func New(l Limits, changed func(Change)) outbox.Gate {
	var all gates
	if l.Rate > 0 {
		all = append(all, newRate(l.Rate))
	}
	if l.Tenants.any() {
		all = append(all, newTenants(l.Tenants))
	}
	if l.RetryShare < 1 && l.Parallel > 0 {
		all = append(all, newShare(l.RetryShare, l.Parallel))
	}
	if l.Breaker.Failures > 0 || l.Breaker.Ratio > 0 {
		all = append(all, newBreaker(l.Breaker, changed))
	}
	switch len(all) {
	case 0:
		return nil
	case 1:
		return all[0]
	}
	return all
}

// gates are several limits as one.
type gates []outbox.Gate

// Admit implements [outbox.Gate]: the smallest admission wins.
func (all gates) Admit(h outbox.InHand) outbox.Admission {
	a := outbox.Everything()
	for _, g := range all {
		a = a.And(g.Admit(h))
	}
	return a
}

// Record implements [outbox.Gate].
func (all gates) Record(ev *outbox.Event, out *outbox.Outcome) (shut bool) {
	for _, g := range all {
		shut = g.Record(ev, out) || shut
	}
	return shut
}

// later is d from now.
func later(d time.Duration) time.Time { return time.Now().Add(d) }
