// Package twin is the outbox's table in plain Go: what claims, settles and operators' commands make of its
// rows, by the documented rules and with none of the SQL. A test of this package compares the two, row by
// row; the simulation lets dispatchers work on it where time is a test's own.
package twin

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/outboxctl/outboxctl/outbox"
)

// Row is a row of the outbox, column by column. Zero values of columns that may be null are null.
type Row struct {
	ID            int64
	SourceID      int64
	TenantID      string
	AggregateType string
	AggregateID   string
	EventType     string
	SchemaVersion int
	Key           uuid.UUID
	Destination   string
	Headers       map[string]string
	Payload       string // as JSON
	Status        outbox.Status
	Attempts      int
	AvailableAt   time.Time
	NextAttemptAt time.Time
	Lease         string
	LeaseUntil    time.Time
	LastAttemptAt time.Time
	FinishedAt    time.Time
	CreatedAt     time.Time
	UpdatedAt     time.Time
	Receipt       string
	Error         string
	ErrorKind     string
	ErrorCode     int
	Origin        string
}

// Attempt is a row of outbox_attempts.
type Attempt struct {
	EventID     int64
	Attempt     int
	Lease       string
	Destination string
	Outcome     outbox.Status
	ErrorKind   string
	ErrorCode   int
	Error       string
	Latency     time.Duration
}

// Count is what outbox_rollup counts attempts by, minute and worker left out.
type Count struct {
	Destination, EventType string
	Outcome                outbox.Status
	ErrorKind              string
	ErrorCode, Attempt     int
	Shadow                 bool
}

// Note is a row of outbox_audit.
type Note struct {
	Operation, EventID int64
	Action             string
	Status             outbox.Status
	Attempts           int
	Destination        string
}

// Table is the outbox with what accompanies it.
type Table struct {
	Rows     []*Row // in the order of their ids
	Archive  []*Row
	Attempts []Attempt
	Counts   map[Count]int
	Notes    []Note

	pauses []Paused
	last   int64 // id that was given
}

// New returns an empty table.
func New() *Table { return &Table{Counts: map[Count]int{}} }

// Append is what [outbox.Append] does: an event whose key is there under any destination is taken as done.
func (t *Table) Append(now time.Time, events ...outbox.Event) {
	for _, ev := range events {
		if slices.ContainsFunc(t.Rows, func(r *Row) bool { return r.Key == ev.Key }) {
			continue
		}
		t.Insert(now, Row{
			TenantID: ev.TenantID, AggregateType: ev.AggregateType, AggregateID: ev.AggregateID, EventType: ev.Type,
			SchemaVersion: max(ev.SchemaVersion, 1), Key: ev.Key, Destination: ev.Destination, Headers: maps.Clone(ev.Headers),
			Payload: string(ev.Payload), AvailableAt: ev.AvailableAt,
		})
	}
}

// Insert adds a row with the columns' defaults, unless its destination has the key.
func (t *Table) Insert(now time.Time, r Row) {
	if t.find(r.Key, r.Destination) != nil {
		return
	}
	t.last++
	r.ID, r.Status, r.UpdatedAt = t.last, outbox.Pending, now
	if r.AvailableAt.IsZero() {
		r.AvailableAt = now
	}
	if r.CreatedAt.IsZero() {
		r.CreatedAt = now
	}
	if r.Headers == nil {
		r.Headers = map[string]string{}
	}
	t.Rows = append(t.Rows, &r)
}

// Number gives a row another id than the one it got: a sequence leaves gaps.
func (t *Table) Number(r *Row, id int64) {
	r.ID, t.last = id, max(t.last, id)
	slices.SortFunc(t.Rows, func(a, b *Row) int { return cmp.Compare(a.ID, b.ID) })
}

// Row returns a row by its id, nil when there is none.
func (t *Table) Row(id int64) *Row {
	at, ok := slices.BinarySearchFunc(t.Rows, id, func(r *Row, id int64) int { return cmp.Compare(r.ID, id) })
	if !ok {
		return nil
	}
	return t.Rows[at]
}

func (t *Table) find(key uuid.UUID, destination string) *Row {
	for _, r := range t.Rows {
		if r.Key == key && r.Destination == destination {
			return r
		}
	}
	return nil
}

// Pass lets time go by: every time moves into the past.
func (t *Table) Pass(d time.Duration) {
	for _, r := range t.Rows {
		for _, at := range []*time.Time{
			&r.AvailableAt, &r.NextAttemptAt, &r.LeaseUntil, &r.LastAttemptAt, &r.FinishedAt, &r.CreatedAt, &r.UpdatedAt,
		} {
			if !at.IsZero() {
				*at = at.Add(-d)
			}
		}
	}
	for i := range t.pauses {
		if at := &t.pauses[i].Until; !at.IsZero() {
			*at = at.Add(-d)
		}
	}
}

// Open reports whether the event has not ended.
func (r *Row) Open() bool { return r.FinishedAt.IsZero() }

// Due is when the event may be sent, or may be again.
func (r *Row) Due() time.Time {
	if !r.NextAttemptAt.IsZero() {
		return r.NextAttemptAt
	}
	return r.AvailableAt
}

// Leased reports whether a worker has the event and its time is not over.
func (r *Row) Leased(now time.Time) bool { return r.Lease != "" && !r.LeaseUntil.Before(now) }

// Free reports whether the event may be claimed, were it alone.
func (r *Row) Free(now time.Time) bool { return r.Open() && !r.Due().After(now) && !r.Leased(now) }

// Place is the event's among those of its aggregate.
func (r *Row) Place() int64 {
	if r.SourceID != 0 {
		return r.SourceID
	}
	return r.ID
}

// Aggregate is what events wait for each other by.
type Aggregate struct{ Destination, TenantID, Type, ID string }

// Aggregate returns the row's.
func (r *Row) Aggregate() Aggregate {
	return Aggregate{r.Destination, r.TenantID, r.AggregateType, r.AggregateID}
}
