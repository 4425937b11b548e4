package twin

import (
	"time"

	"github.com/outboxctl/outboxctl/outbox"
)

// Settle writes what became of a claim, and reports whether it did: who has lost the lease changes nothing.
func (t *Table) Settle(q Queue, out outbox.Outcome, now time.Time) bool {
	r := t.Row(out.ID)
	if r == nil || r.Lease == "" || r.Lease != out.Lease {
		return false
	}
	released := out.Refund && out.Status == outbox.Pending
	r.Status, r.Lease, r.LeaseUntil, r.UpdatedAt = out.Status, "", time.Time{}, now
	if out.Refund {
		r.Attempts--
	}
	if out.Status == outbox.Pending {
		r.NextAttemptAt = now.Add(out.Delay)
	} else {
		r.FinishedAt = now
	}
	if out.Receipt != "" {
		r.Receipt = out.Receipt
	}
	if !released {
		r.Error, r.ErrorKind, r.ErrorCode = out.Error, out.ErrorKind, 0
		if out.ErrorKind != "" {
			r.ErrorCode = out.ErrorCode
		}
		t.record(r, out)
	}
	if q.DeadLetter != "" && (out.Status == outbox.Failed || out.Status == outbox.DeadLetter) {
		t.bury(r, q.DeadLetter, now)
	}
	return true
}

// record counts an attempt, and keeps it if it did not deliver.
func (t *Table) record(r *Row, out outbox.Outcome) {
	t.Counts[Count{r.Destination, r.EventType, out.Status, out.ErrorKind, out.ErrorCode, min(r.Attempts, 20), r.isShadow()}]++
	if out.Status == outbox.Delivered {
		return
	}
	t.Attempts = append(t.Attempts, Attempt{
		EventID: r.ID, Attempt: r.Attempts, Lease: out.Lease, Destination: r.Destination, Outcome: out.Status,
		ErrorKind: out.ErrorKind, ErrorCode: out.ErrorCode, Error: out.Error, Latency: out.Latency,
	})
}

// bury gives a copy of what has died to another destination, or lets the copy that is there start anew.
func (t *Table) bury(r *Row, destination string, now time.Time) {
	origin := "dead_letter:" + r.Destination
	c := t.find(r.Key, destination)
	switch {
	case c == nil:
		t.Insert(now, copyOf(r, destination, origin))
		t.Rows[len(t.Rows)-1].AvailableAt = now
	case !c.Leased(now):
		c.Status, c.Attempts, c.AvailableAt, c.NextAttemptAt = outbox.Pending, 0, now, time.Time{}
		c.FinishedAt, c.Lease, c.LeaseUntil = time.Time{}, "", time.Time{}
		c.Receipt, c.Error, c.ErrorKind, c.ErrorCode = "", "", "", 0
		c.Origin, c.UpdatedAt = origin, now
	}
}

// copyOf is the same event for another destination, with a state of its own and the original's place.
func copyOf(r *Row, destination, origin string) Row {
	return Row{
		SourceID: r.Place(), TenantID: r.TenantID, AggregateType: r.AggregateType, AggregateID: r.AggregateID,
		EventType: r.EventType, SchemaVersion: r.SchemaVersion, Key: r.Key, Destination: destination, Headers: r.Headers,
		Payload: r.Payload, AvailableAt: r.AvailableAt, CreatedAt: r.CreatedAt, Origin: origin,
	}
}
