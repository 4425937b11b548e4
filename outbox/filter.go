package outbox

import (
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Filter selects events for an operator's command. All of its parts must hold, and of a list one
// entry; the zero value selects every event. As JSON it is what outbox_operations keeps.
type Filter struct {
	IDs            []int64     `json:"ids,omitempty"`
	Keys           []uuid.UUID `json:"keys,omitempty"`
	Statuses       []Status    `json:"statuses,omitempty"`
	EventTypes     []string    `json:"event_types,omitempty"` // globs such as order.*
	Aggregates     []Aggregate `json:"aggregates,omitempty"`
	Tenants        []string    `json:"tenants,omitempty"`
	Destinations   []string    `json:"destinations,omitempty"`   // "" is the default one
	Since          time.Time   `json:"since,omitzero"`           // created at or after
	Until          time.Time   `json:"until,omitzero"`           // created before
	FinishedBefore time.Time   `json:"finished_before,omitzero"` // which no open event is
	ErrorKinds     []string    `json:"error_kinds,omitempty"`
	ErrorCodes     []int       `json:"error_codes,omitempty"`
}

// Aggregate is what an event is about.
type Aggregate struct {
	Type string `json:"type"`
	ID   string `json:"id"`
}

// filterPart is one condition on o, a row of the outbox.
type filterPart struct {
	used bool
	name string // of its argument
	arg  any
	sql  string
}

// parts lists the conditions that are constants; only their arguments vary.
func (f Filter) parts() []filterPart {
	types, ids := make([]string, len(f.Aggregates)), make([]string, len(f.Aggregates))
	for i, a := range f.Aggregates {
		types[i], ids[i] = a.Type, a.ID
	}
	return []filterPart{
		{len(f.IDs) > 0, "f_ids", f.IDs, "\n   and o.id = any (@f_ids::bigint[])"},
		{len(f.Keys) > 0, "f_keys", texts(f.Keys), "\n   and o.idempotency_key = any (@f_keys::text[]::uuid[])"},
		{len(f.Statuses) > 0, "f_statuses", texts(f.Statuses), "\n   and o.status = any (@f_statuses::text[])"},
		{len(f.EventTypes) > 0, "f_types", likePatterns(f.EventTypes), "\n   and o.event_type like any (@f_types::text[])"},
		{len(f.Tenants) > 0, "f_tenants", f.Tenants, "\n   and o.tenant_id = any (@f_tenants::text[])"},
		{len(f.Destinations) > 0, "f_destinations", f.Destinations, "\n   and o.destination = any (@f_destinations::text[])"},
		{len(f.Aggregates) > 0, "f_aggregate_types", types, ""},
		{len(f.Aggregates) > 0, "f_aggregate_ids", ids, `
   and (o.aggregate_type, o.aggregate_id) in (select * from unnest(@f_aggregate_types::text[], @f_aggregate_ids::text[]))`},
		{!f.Since.IsZero(), "f_since", f.Since, "\n   and o.created_at >= @f_since::timestamptz"},
		{!f.Until.IsZero(), "f_until", f.Until, "\n   and o.created_at < @f_until::timestamptz"},
		{!f.FinishedBefore.IsZero(), "f_finished", f.FinishedBefore, "\n   and o.finished_at < @f_finished::timestamptz"},
		{len(f.ErrorKinds) > 0, "f_kinds", f.ErrorKinds, "\n   and o.error_kind = any (@f_kinds::text[])"},
		{len(f.ErrorCodes) > 0, "f_codes", f.ErrorCodes, "\n   and o.error_code = any (@f_codes::int[])"},
	}
}

// texts prints values: behind a pooler, where no statement is prepared, texts are sure to be taken.
func texts[T any](values []T) []string {
	all := make([]string, len(values))
	for i, v := range values {
		all[i] = fmt.Sprint(v)
	}
	return all
}

// Empty reports whether f selects every event.
func (f Filter) Empty() bool {
	for _, p := range f.parts() {
		if p.used {
			return false
		}
	}
	return true
}

// narrow puts the conditions in place of /*filter*/ in a statement. It stands after another
// condition on o, on a line's end.
func (f Filter) narrow(sql string) string {
	var where strings.Builder
	for _, p := range f.parts() {
		if p.used {
			where.WriteString(p.sql)
		}
	}
	return strings.ReplaceAll(sql, "/*filter*/", where.String())
}

// args are the conditions' values, and what else the statement names.
func (f Filter) args(more pgx.NamedArgs) pgx.NamedArgs {
	args := pgx.NamedArgs{}
	for _, p := range f.parts() {
		if p.used {
			args[p.name] = p.arg
		}
	}
	for name, value := range more {
		args[name] = value
	}
	return args
}
