package twin

import (
	"cmp"
	"slices"
	"time"

	"github.com/outboxctl/outboxctl/outbox"
)

// Paused is a destination or a tenant of it that is not served.
type Paused struct {
	Destination, Tenant string
	Until               time.Time // zero = until it is resumed
}

// Compare orders pauses as they are listed.
func (p Paused) Compare(other Paused) int {
	return cmp.Or(cmp.Compare(p.Destination, other.Destination), cmp.Compare(p.Tenant, other.Tenant))
}

func (p Paused) inForce(now time.Time) bool { return p.Until.IsZero() || p.Until.After(now) }

// Pause is what [outbox.Run.Pause] does.
func (t *Table) Pause(p outbox.Pause, now time.Time) {
	t.Resume(p.Destination, p.Tenant, now)
	paused := Paused{Destination: p.Destination, Tenant: p.Tenant}
	if p.For != outbox.Forever {
		paused.Until = now.Add(p.For)
	}
	t.pauses = append(t.pauses, paused)
}

// Resume is what [outbox.Run.Resume] does; it reports whether there was a pause.
func (t *Table) Resume(destination, tenant string, now time.Time) (was bool) {
	t.pauses = slices.DeleteFunc(t.pauses, func(p Paused) bool {
		found := p.Destination == destination && p.Tenant == tenant
		was = was || found && p.inForce(now)
		return found
	})
	return was
}

// Pauses lists those in force.
func (t *Table) Pauses(now time.Time) (list []Paused) {
	for _, p := range t.pauses {
		if p.inForce(now) {
			list = append(list, p)
		}
	}
	slices.SortFunc(list, Paused.Compare)
	return list
}

// EachPause calls f with each, over or not, which may change it.
func (t *Table) EachPause(f func(*Paused)) {
	for i := range t.pauses {
		f(&t.pauses[i])
	}
}
