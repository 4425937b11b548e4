package twin

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/outboxctl/outboxctl/outbox"
)

// unroutedFor is how long an event that no route wants is left alone.
const unroutedFor = time.Minute

// Route is what one step of a new [outbox.Router] does that has room for all events, and returns how many it
// has looked at.
func (t *Table) Route(routes outbox.Routes, now time.Time) (looked int) {
	held := map[Aggregate]bool{}
	for _, r := range t.routable(now) {
		if a := r.Aggregate(); held[a] || r.Leased(now) {
			held[a] = true
			continue
		}
		looked++
		t.route(r, routes, now)
	}
	return looked
}

// routable are the events without a destination in the order of their turn: those that nobody has looked at
// by tenant, and then those whose time has come again.
func (t *Table) routable(now time.Time) []*Row {
	var fresh, again []*Row
	for _, r := range t.Rows {
		switch {
		case r.Destination != "" || !r.Open():
		case r.NextAttemptAt.IsZero():
			fresh = append(fresh, r)
		case !r.NextAttemptAt.After(now):
			again = append(again, r)
		}
	}
	slices.SortStableFunc(fresh, func(a, b *Row) int { return cmp.Compare(a.TenantID, b.TenantID) })
	return append(fresh, again...)
}

func (t *Table) route(r *Row, routes outbox.Routes, now time.Time) {
	to := routes.Match(&outbox.Event{
		ID: r.ID, TenantID: r.TenantID, AggregateType: r.AggregateType, AggregateID: r.AggregateID,
		Type: r.EventType, SchemaVersion: r.SchemaVersion, Headers: r.Headers,
	})
	for _, name := range to.To {
		if c := t.find(r.Key, name); t.hasCopy(r, name) && strings.HasPrefix(c.Origin, outbox.ShadowOrigin) {
			c.Origin, c.UpdatedAt = "", now
		}
	}
	own := slices.IndexFunc(to.To, func(name string) bool { return !t.hasCopy(r, name) })
	for _, name := range to.Shadow {
		t.Insert(now, copyOf(r, name, outbox.ShadowOrigin))
	}
	r.Status, r.Lease, r.LeaseUntil, r.UpdatedAt = outbox.Pending, "", time.Time{}, now
	if len(to.To) == 0 {
		r.NextAttemptAt = now.Add(unroutedFor)
		r.Error, r.ErrorKind, r.ErrorCode = "no route matches", outbox.KindUnrouted, 0
		return
	}
	destination := to.To[max(own, 0)]
	for _, name := range to.To {
		if name != destination {
			t.Insert(now, copyOf(r, name, ""))
		}
	}
	if c := t.find(r.Key, destination); c != nil {
		r.Status, r.FinishedAt, r.ErrorKind, r.ErrorCode = outbox.Discarded, now, "duplicate", 0
		r.Error = fmt.Sprintf("event %d has the same key at destination %q", c.ID, destination)
		return
	}
	r.Destination, r.NextAttemptAt = destination, time.Time{}
	if r.ErrorKind == outbox.KindUnrouted {
		r.Error, r.ErrorKind = "", ""
	}
}

// hasCopy reports whether a destination has a copy of this very event already.
func (t *Table) hasCopy(r *Row, destination string) bool {
	c := t.find(r.Key, destination)
	return c != nil && c != r && c.SourceID == r.Place()
}

// Review is what [outbox.Router.Review] does.
func (t *Table) Review(now time.Time) (n int) {
	for _, r := range t.Rows {
		if r.Destination == "" && r.Open() && !r.NextAttemptAt.IsZero() && !r.Leased(now) {
			r.NextAttemptAt, r.UpdatedAt = time.Time{}, now
			n++
		}
	}
	return n
}
