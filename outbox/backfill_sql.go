package outbox

import (
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
)

// statements are a backfill's. They are put together once, from constants and from names that the
// catalog has, quoted; what the specification says otherwise is their arguments.
type statements struct {
	page     fromTo // rows to look at
	pass     fromTo // rows to pass by: nothing of them is read but where they stand
	insert   fromTo // events of some of a page's rows
	sample   fromTo // the same events, for people
	nameless string // "" = there are no such rows
	args     pgx.NamedArgs
}

// fromTo is a statement from the source's start on, and from a cursor on.
type fromTo struct{ start, cursor string }

func (f fromTo) from(c backfillCursor) string {
	if c.After == nil {
		return f.start
	}
	return f.cursor
}

// The rows that a page looks at, by the index that leads with the columns in {order}. With the rows
// come what they are found again by, where they stand, and what their events are called.
const pageSQL = `
select {match}, {place}, {key}, {tenant}, {aggregate_type}, {aggregate_id}, {event_type}, {schema_version}, {destination}, {empty}, {day}
  from {source} s
 where {named}{window}{after}
 order by {order}
 limit @limit`

const passSQL = `
select '', {place}, array['']::text[], '', '', '', '', 1, '', true, {day}
  from {source} s
 where {named}{window}{after}
 order by {order}
 limit @limit`

// eventSQL makes the events of the rows that are wanted, in their order. These are found between the
// page's ends, by the same index.
const eventSQL = `
select {tenant}, {aggregate_type}, {aggregate_id}, {event_type}, {schema_version}, w.key, {destination},
       {headers}, {payload}, now() + (w.place - 1) * @spread::bigint * interval '1 microsecond', @origin::text
  from unnest(@matches::text[], @keys::text[]::uuid[]) with ordinality w(match, key, place)
  join {source} s on {match} = w.match
 where {named}{window}{after}{upto}`

const insertEventsSQL = `
insert into {schema}.outbox
       (tenant_id, aggregate_type, aggregate_id, event_type, schema_version, idempotency_key, destination,
        headers, payload, available_at, origin)` + eventSQL + `
   and not exists (select from {schema}.outbox o where o.idempotency_key = w.key) -- outbox_key
 order by w.place
    on conflict (idempotency_key, destination) do nothing`

const sampleEventsSQL = `
select e.*, now()
  from (` + eventSQL + `
 order by w.place) e`

const namelessSQL = `
select count(*)
  from {source} s
 where {nulls}`

func (s *Store) statements(spec BackfillSpec, src *source) statements {
	b := builder{args: pgx.NamedArgs{}, spec: spec, src: src}
	after, upto := b.bound("a", ">"), b.bound("z", "<=")
	fill := func(text string) fromTo {
		return fromTo{b.fill(s.schema, text, "", upto), b.fill(s.schema, text, after, upto)}
	}
	st := statements{
		page: fill(pageSQL), pass: fill(passSQL), insert: fill(insertEventsSQL), sample: fill(sampleEventsSQL),
		args: b.args,
	}
	if nulls := b.nulls(" is null"); len(nulls) > 0 {
		st.nameless = strings.NewReplacer("{source}", src.name(), "{nulls}", strings.Join(nulls, " or ")).Replace(namelessSQL)
	}
	return st
}

// builder puts names and places for arguments into a statement.
type builder struct {
	args pgx.NamedArgs
	spec BackfillSpec
	src  *source
}

// fill replaces all in one pass, so that a name with braces stays a name.
func (b *builder) fill(schema, text, after, upto string) string {
	key, page := b.texts(b.src.key), make([]string, len(b.src.page))
	order := make([]string, len(b.src.page))
	for i, c := range b.src.page {
		order[i] = quoted(c.name)
		page[i] = order[i] + "::text"
	}
	empty := "false"
	if b.spec.PayloadColumn != "" {
		empty = quoted(b.spec.PayloadColumn) + " is null"
	}
	named := append([]string{"true"}, b.nulls(" is not null")...)
	return strings.NewReplacer(
		"{schema}", schema,
		"{source}", b.src.name(),
		"{match}", "array["+strings.Join(key, ", ")+"]::text",
		"{key}", "array["+strings.Join(key, ", ")+"]",
		"{place}", "array["+strings.Join(page, ", ")+"]",
		"{order}", strings.Join(order, ", "),
		"{tenant}", b.text("tenant", b.spec.Tenant),
		"{aggregate_type}", b.text("aggregate_type", b.spec.AggregateType),
		"{aggregate_id}", b.text("aggregate_id", b.spec.AggregateID),
		"{event_type}", b.text("event_type", b.spec.EventType),
		"{destination}", b.text("destination", b.spec.Destination),
		"{schema_version}", b.version(),
		"{empty}", empty,
		"{day}", b.day(),
		"{headers}", b.headers(),
		"{payload}", b.payload(),
		"{named}", strings.Join(named, " and "),
		"{window}", b.window(),
		"{after}", after,
		"{upto}", upto,
	).Replace(text)
}

// quoted is a column of the source.
func quoted(column string) string { return "s." + pgx.Identifier{column}.Sanitize() }

func (b *builder) texts(columns []string) (all []string) {
	for _, name := range columns {
		all = append(all, quoted(name)+"::text")
	}
	return all
}

// arg is the place of an argument.
func (b *builder) arg(name string, value any) string {
	b.args[name] = value
	return "@" + name
}

// text is a field that is never null: a null column counts as empty.
func (b *builder) text(name string, f Field) string {
	if f.Column != "" {
		return "coalesce(" + quoted(f.Column) + "::text, '')"
	}
	return b.arg(name, f.Value) + "::text"
}

func (b *builder) version() string {
	if name := b.spec.SchemaVersion.Column; name != "" {
		return "coalesce(" + quoted(name) + "::int, 1)"
	}
	return b.arg("schema_version", max(b.spec.version(), 1)) + "::int"
}

// instant is the time column as an instant; one without a zone is in UTC.
func (b *builder) instant() string {
	if c, _ := b.src.column(b.spec.TimeColumn); c.base != withZone {
		return "(" + quoted(c.name) + "::timestamp at time zone 'UTC')"
	}
	return quoted(b.spec.TimeColumn)
}

func (b *builder) day() string {
	if b.spec.TimeColumn == "" {
		return "''"
	}
	return "to_char(" + b.instant() + " at time zone 'UTC', 'YYYY-MM-DD')"
}

// window narrows by the time column itself, not by an expression over it, for the sake of its index.
func (b *builder) window() (where string) {
	if b.spec.TimeColumn == "" {
		return ""
	}
	place := "%s::timestamptz"
	if c, _ := b.src.column(b.spec.TimeColumn); c.base != withZone {
		place = "(%s::timestamptz at time zone 'UTC')"
	}
	if !b.spec.Since.IsZero() {
		where += "\n   and " + quoted(b.spec.TimeColumn) + " >= " + fmt.Sprintf(place, b.arg("since", b.spec.Since))
	}
	if !b.spec.Until.IsZero() {
		where += "\n   and " + quoted(b.spec.TimeColumn) + " < " + fmt.Sprintf(place, b.arg("until", b.spec.Until))
	}
	return where
}

// bound compares where a row stands with arguments prefix0, prefix1, …, the texts of a cursor. The
// first column is compared on its own as well: the planner judges that better.
func (b *builder) bound(prefix, operator string) string {
	var columns, places []string
	for i, c := range b.src.page {
		columns = append(columns, quoted(c.name))
		places = append(places, fmt.Sprintf("@%s%d::text::%s", prefix, i, c.kind))
	}
	return fmt.Sprintf("\n   and %s %s= %s\n   and (%s) %s (%s)", columns[0], operator[:1], places[0],
		strings.Join(columns, ", "), operator, strings.Join(places, ", "))
}

// nulls are conditions on the columns that rows are found by and that may be null.
func (b *builder) nulls(condition string) (all []string) {
	for _, c := range b.src.page {
		if !c.filled {
			all = append(all, quoted(c.name)+condition)
		}
	}
	return all
}

// headers are texts; a column that is null makes none. The source's time is among them.
func (b *builder) headers() string {
	var pairs []string
	for i, name := range sortedNames(b.spec.Headers) {
		f := b.spec.Headers[name]
		value := quoted(f.Column) + "::text"
		if f.Column == "" {
			value = b.arg(fmt.Sprintf("header_value%d", i), f.Value) + "::text"
		}
		pairs = append(pairs, b.arg(fmt.Sprintf("header%d", i), name)+"::text, "+value)
	}
	if _, given := b.spec.Headers[occurredAt]; !given && b.spec.TimeColumn != "" {
		at := b.instant()
		pairs = append(pairs, "'"+occurredAt+"', case when isfinite("+at+`) then to_char(`+at+` at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') end`)
	}
	return "jsonb_strip_nulls(" + object(pairs) + ")"
}

// occurredAt is the header with the time of what an event tells, where that is not when it was written.
const occurredAt = "occurred_at"

func (b *builder) payload() string {
	if b.spec.PayloadColumn != "" {
		return quoted(b.spec.PayloadColumn) + "::jsonb"
	}
	var pairs []string
	for i, p := range b.spec.Payload {
		pairs = append(pairs, b.arg(fmt.Sprintf("payload%d", i), p.Name)+"::text, "+quoted(p.Column))
	}
	return object(pairs)
}

// object makes a jsonb object of pairs. A function takes a hundred arguments at most.
func object(pairs []string) string {
	const most = 50
	var parts []string
	for chunk := range slices.Chunk(pairs, most) {
		parts = append(parts, "jsonb_build_object("+strings.Join(chunk, ", ")+")")
	}
	if len(parts) == 0 {
		return "jsonb_build_object()"
	}
	return strings.Join(parts, " || ")
}
