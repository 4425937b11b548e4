package gate

import (
	"cmp"
	"maps"
	"math"
	"time"

	"github.com/outboxctl/outboxctl/outbox"
)

// TenantLimit bounds one tenant of a destination.
type TenantLimit struct {
	Parallel int     // events claimed and not answered; 0 = any, or as for the others
	Rate     float64 // requests per second; likewise
}

// TenantLimits bound each tenant of a destination.
type TenantLimits struct {
	TenantLimit
	Overrides map[string]TenantLimit // by tenant
}

func (l TenantLimits) any() bool { return l.TenantLimit != (TenantLimit{}) || len(l.Overrides) > 0 }

// of is the limit of one tenant.
func (l TenantLimits) of(tenant string) TenantLimit {
	own := l.Overrides[tenant]
	return TenantLimit{cmp.Or(own.Parallel, l.Parallel), cmp.Or(own.Rate, l.Rate)}
}

// tenants keeps each tenant within its limits. It remembers a tenant only while that has events in
// hand or a bucket that is not full again, which is as long as a burst takes to come back.
type tenants struct {
	limits  TenantLimits
	named   map[string]int // room of each override when nothing is in hand
	buckets map[string]*bucket
	swept   time.Time
}

var _ outbox.Gate = (*tenants)(nil)

func newTenants(l TenantLimits) *tenants {
	g := &tenants{limits: l, named: map[string]int{}, buckets: map[string]*bucket{}}
	for tenant := range l.Overrides {
		g.named[tenant] = l.of(tenant).room()
	}
	return g
}

// room is what a tenant has that was not heard of for a while.
func (l TenantLimit) room() int { return l.beside(outbox.Hand{}) }

// beside is the room beside what is in hand, by a bucket that is full: what waits has its tokens in it.
func (l TenantLimit) beside(h outbox.Hand) int {
	room := outbox.NoLimit
	if l.Parallel > 0 {
		room = l.Parallel - h.Waiting - h.Sending
	}
	if l.Rate > 0 {
		room = min(room, burstOf(l.Rate)-h.Waiting)
	}
	return max(room, 0)
}

// Admit implements [outbox.Gate].
func (g *tenants) Admit(h outbox.InHand) outbox.Admission {
	g.sweep()
	rooms := &outbox.Rooms{Each: g.limits.room(), Of: maps.Clone(g.named)}
	next := time.Duration(math.MaxInt64)
	for tenant, hand := range h.Tenants {
		if limit := g.limits.of(tenant); limit != (TenantLimit{}) {
			rooms.Of[tenant] = limit.beside(hand)
		}
	}
	for tenant, b := range g.buckets {
		n, wait := b.room(h.Tenants[tenant].Waiting)
		if room, known := rooms.Of[tenant]; known {
			n = min(n, room)
		} else if limit := g.limits.of(tenant); limit.Parallel > 0 {
			n = min(n, limit.Parallel)
		}
		rooms.Of[tenant] = n
		if wait > 0 {
			next = min(next, wait)
		}
	}
	a := outbox.Everything()
	a.Rooms = rooms
	if next < math.MaxInt64 {
		a.Next = later(next)
	}
	return a
}

// Record implements [outbox.Gate].
func (g *tenants) Record(ev *outbox.Event, out *outbox.Outcome) bool {
	perSecond := g.limits.of(ev.TenantID).Rate
	if out != nil || perSecond <= 0 {
		return false
	}
	b, ok := g.buckets[ev.TenantID]
	if !ok {
		b = newBucket(perSecond)
		g.buckets[ev.TenantID] = b
	}
	b.take()
	return false
}

// sweep forgets the buckets that are full again, now and then.
func (g *tenants) sweep() {
	if time.Since(g.swept) < 100*time.Millisecond {
		return
	}
	g.swept = time.Now()
	maps.DeleteFunc(g.buckets, func(_ string, b *bucket) bool { return b.full() })
}
