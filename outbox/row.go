package outbox

import (
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// Row is an event as the table has it, but for what it says: neither payload nor headers.
type Row struct {
	ID            int64
	SourceID      int64 // a routed copy's original; 0 = none
	Key           uuid.UUID
	Status        Status
	Type          string
	SchemaVersion int
	AggregateType string
	AggregateID   string
	TenantID      string
	Destination   string
	Attempts      int
	CreatedAt     time.Time
	AvailableAt   time.Time
	NextAttemptAt *time.Time
	LastAttemptAt *time.Time
	FinishedAt    *time.Time
	Lease         string // "" = nobody holds it
	LeaseUntil    *time.Time
	Receipt       string
	Error         string
	ErrorKind     string     // "" = none
	ErrorCode     int        // 0 = none
	Origin        string     // of what an operator's command has written: replay:12
	ArchivedAt    *time.Time // nil = it is in the outbox
}

// rowColumns are read from o by [scanRow].
const rowColumns = `o.id, coalesce(o.source_id, 0), o.idempotency_key, o.status, o.event_type, o.schema_version,
       o.aggregate_type, o.aggregate_id, o.tenant_id, o.destination, o.attempts, o.created_at, o.available_at,
       o.next_attempt_at, o.last_attempt_at, o.finished_at, coalesce(o.lease, ''), o.lease_until,
       coalesce(o.receipt, ''), coalesce(o.error, ''), coalesce(o.error_kind, ''), coalesce(o.error_code, 0), o.origin`

func scanRow(rows pgx.CollectableRow) (r Row, err error) {
	err = rows.Scan(r.targets()...)
	r.CreatedAt, r.AvailableAt = r.CreatedAt.UTC(), r.AvailableAt.UTC()
	return r, err
}

// targets are where rowColumns go.
func (r *Row) targets() []any {
	return []any{&r.ID, &r.SourceID, &r.Key, &r.Status, &r.Type, &r.SchemaVersion,
		&r.AggregateType, &r.AggregateID, &r.TenantID, &r.Destination, &r.Attempts, (*moment)(&r.CreatedAt), (*moment)(&r.AvailableAt),
		perhaps{&r.NextAttemptAt}, perhaps{&r.LastAttemptAt}, perhaps{&r.FinishedAt}, &r.Lease, perhaps{&r.LeaseUntil},
		&r.Receipt, &r.Error, &r.ErrorKind, &r.ErrorCode, &r.Origin}
}

// perhaps reads a time as [moment] does, or null.
type perhaps struct{ to **time.Time }

// ScanTimestamptz implements [pgtype.TimestamptzScanner].
func (p perhaps) ScanTimestamptz(v pgtype.Timestamptz) error {
	if !v.Valid {
		*p.to = nil
		return nil
	}
	var m moment
	if err := m.ScanTimestamptz(v); err != nil {
		return err
	}
	*p.to = new(time.Time(m).UTC())
	return nil
}

// Due is when the event could be claimed first.
func (r *Row) Due() time.Time {
	if r.NextAttemptAt != nil {
		return *r.NextAttemptAt
	}
	return r.AvailableAt
}

// Leased reports whether somebody holds the event at that time.
func (r *Row) Leased(now time.Time) bool { return r.LeaseUntil != nil && !r.LeaseUntil.Before(now) }

func collectRows(rows pgx.Rows, err error) ([]Row, error) {
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, scanRow)
}

// Worker is the name of who holds the event, or held it when the lease lapsed; "" when nobody does.
func (r *Row) Worker() string { return workerOf(r.Lease) }

// workerOf is the name in a lease, in front of the claim's random part.
func workerOf(lease string) string {
	if i := strings.LastIndexByte(lease, '/'); i >= 0 {
		return lease[:i]
	}
	return lease
}
