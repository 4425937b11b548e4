package twin

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/outboxctl/outboxctl/outbox"
)

// Queue says whose events are claimed and how, as [outbox.QueueOptions] does.
type Queue struct {
	Destination string
	Ordered     bool
	Hold        bool // with Ordered: what has failed for good holds those behind it
	Lease       time.Duration
	DeadLetter  string
}

// Pick chooses up to want.N events that may be claimed, the oldest due first and tenants by turns, from turn
// on. Rows that others have locked it passes over. all says that there are no more than these.
func (t *Table) Pick(q Queue, want outbox.Want, now time.Time, turn int, locked func(*Row) bool) (taken []*Row, all bool) {
	all = true
	if q.Ordered { // a failed event holds its own aggregate alone
		want.Share = nil
	}
	line := t.line(q, want, now, turn, locked)
	retries := t.retries(line, want)
	for _, runs := range line {
		room := roomOf(want.Rooms, runs[0][0].TenantID)
		for _, run := range runs {
			for _, r := range run {
				isRetry := r.Attempts > 0 && want.Share != nil
				switch {
				case len(taken) >= want.N || isRetry && retries == 0:
					all = false
					continue
				case room == 0:
					continue
				}
				if isRetry {
					retries--
				}
				room--
				taken = append(taken, r)
			}
		}
	}
	return taken, all
}

// line lists what may be claimed: by tenant, in their turn, as runs.
func (t *Table) line(q Queue, want outbox.Want, now time.Time, turn int, locked func(*Row) bool) (line [][][]*Row) {
	of := map[string][][]*Row{}
	var tenants []string
	for _, run := range t.Runs(q, max(want.Run, 1), now, locked) {
		tenant := run[0].TenantID
		if of[tenant] == nil {
			tenants = append(tenants, tenant)
		}
		of[tenant] = append(of[tenant], run)
	}
	slices.Sort(tenants)
	for i := range tenants {
		line = append(line, of[tenants[(i+turn)%len(tenants)]])
	}
	return line
}

// retries is how many a claim may take.
func (t *Table) retries(line [][][]*Row, want outbox.Want) int {
	if want.Share == nil {
		return want.N
	}
	for _, runs := range line {
		for _, run := range runs {
			if run[0].Attempts == 0 {
				return want.Share.Retries
			}
		}
	}
	return want.Share.Alone
}

func roomOf(r *outbox.Rooms, tenant string) int {
	if r == nil {
		return outbox.NoLimit
	}
	if room, ok := r.Of[tenant]; ok {
		return room
	}
	return r.Each
}

// Runs are the events that may be claimed now, the oldest due first: each alone, or, where there is an order,
// the leading due ones of an aggregate together, up to most.
func (t *Table) Runs(q Queue, most int, now time.Time, locked func(*Row) bool) (runs [][]*Row) {
	open := map[Aggregate][]*Row{}
	for _, r := range t.Rows {
		switch {
		case r.Destination != q.Destination || !r.Open():
		case q.Ordered:
			open[r.Aggregate()] = append(open[r.Aggregate()], r)
		case r.Free(now) && (locked == nil || !locked(r)):
			runs = append(runs, []*Row{r})
		}
	}
	for a, rows := range open {
		if run := t.leading(a, rows, q, most, now, locked); len(run) > 0 {
			runs = append(runs, run)
		}
	}
	slices.SortFunc(runs, func(a, b []*Row) int {
		return cmp.Or(a[0].Due().Compare(b[0].Due()), cmp.Compare(a[0].ID, b[0].ID))
	})
	return runs
}

// leading is the run at the head of an aggregate: none while one of its events is being sent, and one alone
// when that has failed before.
func (t *Table) leading(a Aggregate, open []*Row, q Queue, most int, now time.Time, locked func(*Row) bool) (run []*Row) {
	if slices.ContainsFunc(open, func(r *Row) bool { return r.Leased(now) }) {
		return nil
	}
	slices.SortFunc(open, byPlace)
	if open[0].ErrorKind != "" {
		most = 1
	}
	for _, r := range open {
		if len(run) == most || !r.Free(now) || q.Hold && t.Held(a, r.Place()) || locked != nil && locked(r) {
			break
		}
		run = append(run, r)
	}
	return run
}

func byPlace(a, b *Row) int { return cmp.Compare(a.Place(), b.Place()) }

// Held reports whether an earlier event of the aggregate, or this one, has failed for good and waits for a person.
func (t *Table) Held(a Aggregate, place int64) bool {
	return slices.ContainsFunc(t.Rows, func(r *Row) bool {
		return r.Aggregate() == a && r.Place() <= place && (r.Status == outbox.Failed || r.Status == outbox.DeadLetter)
	})
}

// Take gives a row to a worker.
func (t *Table) Take(r *Row, q Queue, lease string, now time.Time) {
	r.Status, r.Lease, r.LeaseUntil = outbox.InProgress, lease, now.Add(q.Lease)
	r.LastAttemptAt, r.UpdatedAt = now, now
	r.Attempts++
}

// Objection says what is wrong with a claim that brought these events before a time; nil = nothing. It judges what may be claimed and not which of it: that is the claim's own business.
func (t *Table) Objection(q Queue, want outbox.Want, events []outbox.Event, to time.Time) error {
	if len(events) > want.N {
		return fmt.Errorf("%d events were claimed, %d wanted", len(events), want.N)
	}
	taken, retries := map[string]int{}, 0
	claimed := map[int64]bool{}
	for _, ev := range events {
		r := t.Row(ev.ID)
		switch {
		case r == nil:
			return fmt.Errorf("event %d was claimed and is not there", ev.ID)
		case claimed[ev.ID]:
			return fmt.Errorf("event %d was claimed twice at once", ev.ID)
		case r.Destination != q.Destination:
			return fmt.Errorf("event %d was claimed and goes to %q", ev.ID, r.Destination)
		case !r.Open():
			return fmt.Errorf("event %d was claimed and is %s", ev.ID, r.Status)
		case r.Due().After(to):
			return fmt.Errorf("event %d was claimed %s early", ev.ID, r.Due().Sub(to))
		case r.Leased(to):
			return fmt.Errorf("event %d was claimed and %s has it", ev.ID, r.Lease)
		case ev.Attempts != r.Attempts+1:
			return fmt.Errorf("event %d was claimed for attempt %d after %d", ev.ID, ev.Attempts, r.Attempts)
		}
		claimed[ev.ID] = true
		if taken[r.TenantID]++; taken[r.TenantID] > roomOf(want.Rooms, r.TenantID) {
			return fmt.Errorf("%d events of tenant %q were claimed, there was room for %d", taken[r.TenantID], r.TenantID, roomOf(want.Rooms, r.TenantID))
		}
		if r.Attempts > 0 {
			retries++
		}
	}
	if s := want.Share; !q.Ordered && s != nil && retries > max(s.Retries, s.Alone) {
		return fmt.Errorf("%d retries were claimed, their share was %+v", retries, *s)
	}
	if !q.Ordered {
		return nil
	}
	return t.disorder(q, want, events, claimed, to)
}

// disorder says which claimed event has one before it that was not, or is not alone.
func (t *Table) disorder(q Queue, want outbox.Want, events []outbox.Event, claimed map[int64]bool, now time.Time) error {
	run := map[Aggregate]int{}
	for _, ev := range events {
		r := t.Row(ev.ID)
		a := r.Aggregate()
		if run[a]++; run[a] > max(want.Run, 1) {
			return fmt.Errorf("%d events of %v were claimed, %d wanted", run[a], a, want.Run)
		}
		if q.Hold && t.Held(a, r.Place()) {
			return fmt.Errorf("event %d was claimed behind one that holds it", ev.ID)
		}
		for _, other := range t.Rows {
			if other == r || !other.Open() || other.Aggregate() != a {
				continue
			}
			switch {
			case other.Leased(now):
				return fmt.Errorf("event %d was claimed while %s has event %d of its aggregate", ev.ID, other.Lease, other.ID)
			case byPlace(other, r) < 0 && !claimed[other.ID]:
				return fmt.Errorf("event %d was claimed before event %d of its aggregate", ev.ID, other.ID)
			case byPlace(other, r) < 0 && other.ErrorKind != "" && t.heads(other):
				return fmt.Errorf("event %d was claimed with event %d before it, which failed", ev.ID, other.ID)
			}
		}
	}
	return nil
}

// heads reports whether a row is the first open one of its aggregate.
func (t *Table) heads(r *Row) bool {
	return !slices.ContainsFunc(t.Rows, func(o *Row) bool {
		return o.Open() && o.Aggregate() == r.Aggregate() && byPlace(o, r) < 0
	})
}
