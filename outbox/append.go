package outbox

import (
	"context"
	"database/sql"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Append writes events in the producer's transaction, into the outbox of the schema public: they
// are committed with the business change or not at all. An event whose Key is in the outbox
// already, under any destination, is taken as done and not written again.
//
// It is one statement, whatever the number of events, and their ids follow their order here.
// Appending to another schema is [Appender]'s work.
func Append(ctx context.Context, tx pgx.Tx, events ...Event) error {
	return Appender{}.Append(ctx, tx, events...)
}

// AppendSQL is [Append] for producers that use database/sql with a PostgreSQL driver.
func AppendSQL(ctx context.Context, tx *sql.Tx, events ...Event) error {
	return Appender{}.AppendSQL(ctx, tx, events...)
}

// Appender writes events to the outbox of one schema; see [Append].
type Appender struct {
	Schema string // raw name; "" = public
}

// Append is [Append] for the appender's schema.
func (a Appender) Append(ctx context.Context, tx pgx.Tx, events ...Event) error {
	return a.append(events, func(statement, document string) error {
		_, err := tx.Exec(ctx, statement, document)
		return err
	})
}

// AppendSQL is [AppendSQL] for the appender's schema.
func (a Appender) AppendSQL(ctx context.Context, tx *sql.Tx, events ...Event) error {
	return a.append(events, func(statement, document string) error {
		_, err := tx.ExecContext(ctx, statement, document)
		return err
	})
}

// appendSQL takes the events as one JSON document, which every driver can pass. The payload is in
// it as text, so that PostgreSQL reads its numbers itself.
const appendSQL = `
insert into {schema}.outbox
       (tenant_id, aggregate_type, aggregate_id, event_type, schema_version, idempotency_key,
        destination, headers, payload, payload_bytes, available_at)
select v.tenant_id, v.aggregate_type, v.aggregate_id, v.event_type, v.schema_version, v.key,
       v.destination, v.headers, v.payload::pg_catalog.jsonb, pg_catalog.decode(v.payload_bytes, 'base64'),
       coalesce(v.available_at, pg_catalog.now())
  from pg_catalog.jsonb_array_elements($1::pg_catalog.jsonb) with ordinality e(doc, place)
 cross join lateral pg_catalog.jsonb_to_record(e.doc) as v(
       tenant_id pg_catalog.text, aggregate_type pg_catalog.text, aggregate_id pg_catalog.text,
       event_type pg_catalog.text, schema_version pg_catalog.int4, key pg_catalog.uuid,
       destination pg_catalog.text, headers pg_catalog.jsonb, payload pg_catalog.text,
       payload_bytes pg_catalog.text, available_at pg_catalog.timestamptz)
 where not exists (select from {schema}.outbox o where o.idempotency_key = v.key) -- outbox_key
 order by e.place
    on conflict (idempotency_key, destination) do nothing`

func (a Appender) append(events []Event, exec func(statement, document string) error) error {
	if len(events) == 0 {
		return nil
	}
	document, err := appendDocument(events)
	if err != nil {
		return err
	}
	schema := pgx.Identifier{a.schema()}.Sanitize()
	if err := exec(strings.ReplaceAll(appendSQL, "{schema}", schema), document); err != nil {
		return fmt.Errorf("append %d events: %w", len(events), err)
	}
	return nil
}

func (a Appender) schema() string {
	if a.Schema == "" {
		return "public"
	}
	return a.Schema
}

// appended is an event as appendSQL reads it.
type appended struct {
	TenantID      string            `json:"tenant_id"`
	AggregateType string            `json:"aggregate_type"`
	AggregateID   string            `json:"aggregate_id"`
	Type          string            `json:"event_type"`
	SchemaVersion int               `json:"schema_version"`
	Key           uuid.UUID         `json:"key"`
	Destination   string            `json:"destination"`
	Headers       map[string]string `json:"headers"`
	Payload       *string           `json:"payload,omitempty"`
	PayloadBytes  *string           `json:"payload_bytes,omitempty"` // base64
	AvailableAt   *time.Time        `json:"available_at,omitempty"`
}

// appendDocument leaves out an event whose key an earlier one of the same batch has.
func appendDocument(events []Event) (string, error) {
	rows := make([]appended, 0, len(events))
	seen := make(map[uuid.UUID]bool)
	for i, ev := range events {
		row, err := newAppended(ev)
		if err != nil {
			return "", fmt.Errorf("append event %d of %d: %w", i+1, len(events), err)
		}
		if !seen[row.Key] {
			rows = append(rows, row)
		}
		seen[row.Key] = true
	}
	document, err := json.Marshal(rows)
	if err != nil {
		return "", fmt.Errorf("append %d events: %w", len(events), err)
	}
	return string(document), nil
}

func newAppended(ev Event) (appended, error) {
	if !validTexts(ev) {
		return appended{}, errors.New("its tenant, aggregate, type, destination or a header is not UTF-8")
	}
	row := appended{
		TenantID: ev.TenantID, AggregateType: ev.AggregateType, AggregateID: ev.AggregateID,
		Type: ev.Type, SchemaVersion: max(ev.SchemaVersion, 1), Key: ev.Key,
		Destination: ev.Destination, Headers: ev.Headers,
	}
	if row.Headers == nil {
		row.Headers = map[string]string{}
	}
	if row.Key == uuid.Nil {
		row.Key = uuid.New()
	}
	if !ev.AvailableAt.IsZero() {
		row.AvailableAt = &ev.AvailableAt
	}
	switch payload := string(ev.Payload); {
	case ev.Binary:
		encoded := base64.StdEncoding.EncodeToString(ev.Payload)
		row.PayloadBytes = &encoded
	case !json.Valid(ev.Payload) || !utf8.ValidString(payload):
		return row, errors.New("the payload is not JSON in UTF-8; set Binary for other bytes")
	default:
		row.Payload = &payload
	}
	return row, nil
}

// validTexts reports whether all of ev's texts are UTF-8; encoding/json would change others.
func validTexts(ev Event) bool {
	for name, value := range ev.Headers {
		if !utf8.ValidString(name) || !utf8.ValidString(value) {
			return false
		}
	}
	return utf8.ValidString(ev.TenantID + ev.AggregateType + ev.AggregateID + ev.Type + ev.Destination)
}
