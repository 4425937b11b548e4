package twin

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/outboxctl/outboxctl/outbox"
)

// Tally is what a command has done and left.
type Tally struct {
	Done    int64
	Skipped map[string]int64
}

func (t *Tally) skip(reason string) {
	if t.Skipped == nil {
		t.Skipped = map[string]int64{}
	}
	t.Skipped[reason]++
}

// matches reports whether a filter selects a row.
func matches(f outbox.Filter, r *Row) bool {
	among := func(n int, found bool) bool { return n == 0 || found }
	return among(len(f.IDs), slices.Contains(f.IDs, r.ID)) &&
		among(len(f.Keys), slices.Contains(f.Keys, r.Key)) &&
		among(len(f.Statuses), slices.Contains(f.Statuses, r.Status)) &&
		among(len(f.EventTypes), slices.ContainsFunc(f.EventTypes, func(glob string) bool { return fits(glob, r.EventType) })) &&
		among(len(f.Tenants), slices.Contains(f.Tenants, r.TenantID)) &&
		among(len(f.Destinations), slices.Contains(f.Destinations, r.Destination)) &&
		among(len(f.Aggregates), slices.Contains(f.Aggregates, outbox.Aggregate{Type: r.AggregateType, ID: r.AggregateID})) &&
		among(len(f.ErrorKinds), r.ErrorKind != "" && slices.Contains(f.ErrorKinds, r.ErrorKind)) &&
		(f.FinishedBefore.IsZero() || !r.Open() && r.FinishedAt.Before(f.FinishedBefore))
}

// fits takes * for any text.
func fits(glob, text string) bool {
	ok, err := path.Match(glob, text)
	return ok && err == nil
}

// change selects rows as an operator's command does, judges each, and does something to those that nothing
// speaks against.
func (t *Table) change(f outbox.Filter, before time.Time, operation int64, action string, judge func(*Row) string, do func(*Row)) (tally Tally) {
	if slices.Contains(f.Statuses, outbox.Pending) { // those with a lapsed lease, too
		f.Statuses = append(slices.Clone(f.Statuses), outbox.InProgress)
	}
	var touched []*Row
	for _, r := range t.Rows {
		ended := r.FinishedAt
		if r.Open() {
			ended = r.CreatedAt
		}
		if !matches(f, r) || !ended.Before(before) {
			continue
		}
		if reason := judge(r); reason != "" {
			tally.skip(reason)
			continue
		}
		touched = append(touched, r)
	}
	for _, r := range touched {
		t.Notes = append(t.Notes, Note{operation, r.ID, action, r.Status, r.Attempts, r.Destination})
		do(r)
	}
	tally.Done = int64(len(touched))
	return tally
}

// Replay is what [outbox.Store.Replay] does. ordered says which destinations keep an order.
func (t *Table) Replay(replay outbox.Replay, operation int64, now time.Time, ordered func(destination string) bool) Tally {
	action := "replay"
	if replay.MoveTo != nil {
		action = "move"
	}
	judge := func(r *Row) string {
		switch {
		case r.Leased(now) || ordered(r.Destination) && t.busy(r.Aggregate(), now):
			return outbox.SkipInFlight
		case replay.MoveTo != nil && t.find(r.Key, *replay.MoveTo) != nil:
			return outbox.SkipDuplicate
		}
		return ""
	}
	return t.change(replay.Filter, replay.Before, operation, action, judge, func(r *Row) {
		if !r.Open() {
			r.renew(now)
		}
		r.Status, r.Lease, r.LeaseUntil, r.NextAttemptAt, r.Receipt = outbox.Pending, "", time.Time{}, time.Time{}, ""
		if replay.MoveTo != nil {
			r.Destination = *replay.MoveTo
		}
		origin := fmt.Sprintf("replay:%d", operation)
		if r.isShadow() {
			origin = "shadow " + origin
		}
		r.Origin, r.UpdatedAt = origin, now
	})
}

// renew makes an event that has ended as it was when it was new, but for when it happened.
func (r *Row) renew(now time.Time) {
	r.Attempts, r.AvailableAt, r.FinishedAt = 0, now, time.Time{}
	r.Error, r.ErrorKind, r.ErrorCode = "", "", 0
	if _, has := r.Headers["occurred_at"]; !has {
		r.Headers = maps.Clone(r.Headers)
		r.Headers["occurred_at"] = r.CreatedAt.UTC().Format("2006-01-02T15:04:05.000000Z")
	}
}

func (r *Row) isShadow() bool { return strings.HasPrefix(r.Origin, outbox.ShadowOrigin) }

// busy reports whether a worker has an event of the aggregate.
func (t *Table) busy(a Aggregate, now time.Time) bool {
	return slices.ContainsFunc(t.Rows, func(r *Row) bool { return r.Open() && r.Aggregate() == a && r.Leased(now) })
}

// Discard is what [outbox.Store.Discard] does.
func (t *Table) Discard(d outbox.Discard, operation int64, now time.Time) Tally {
	judge := func(r *Row) string {
		if r.Leased(now) {
			return outbox.SkipInFlight
		}
		return ""
	}
	return t.change(d.Filter, d.Before, operation, "discard", judge, func(r *Row) {
		r.Status, r.Lease, r.LeaseUntil = outbox.Discarded, "", time.Time{}
		r.Error, r.ErrorKind, r.ErrorCode = d.Reason, outbox.KindDiscarded, 0
		r.FinishedAt, r.UpdatedAt = now, now
	})
}

// Edit is what [outbox.Run.Edit] does; it reports whether it may.
func (t *Table) Edit(id int64, payload string, newKey *uuid.UUID, operation int64, now time.Time) bool {
	r := t.Row(id)
	if r.Leased(now) {
		return false
	}
	t.Notes = append(t.Notes, Note{operation, r.ID, "edit", r.Status, r.Attempts, r.Destination})
	r.Payload, r.UpdatedAt = payload, now
	if newKey != nil {
		r.Key = *newKey
	}
	return true
}

// Purge is what [outbox.Store.Purge] does with events: those that have ended go, or into the archive.
func (t *Table) Purge(p outbox.Purge) (gone int64) {
	t.Rows = slices.DeleteFunc(t.Rows, func(r *Row) bool {
		if !matches(p.Filter, r) {
			return false
		}
		if p.Archive {
			t.Archive = append(t.Archive, r)
		}
		gone++
		return true
	})
	return gone
}
