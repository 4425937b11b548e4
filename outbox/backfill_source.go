package outbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// source is a table or view, as the catalog describes it.
type source struct {
	schema, table string
	kind          string // r, p: table; v: view; m: materialized view; f: foreign table
	columns       []column
	indexes       []index
	estimate      int64

	key    []string // columns that make a row one
	page   []column // columns that rows are paged by: time and key
	unique bool     // an aggregate has one row
}

type column struct {
	name    string
	kind    string // its type, as PostgreSQL writes it
	base    string // of a domain, the type below it
	filled  bool   // never null
	allowed bool   // may be read by us
}

type index struct {
	columns []string // of its key; "" = an expression
	primary bool
	unique  bool // over all rows, at every moment
	whole   bool // valid, and over all rows
	ordered bool // a B-tree
}

// The catalog, by raw names. All of it belongs to pg_catalog, so no search path has a say.
const (
	relationSQL = `
select c.oid, c.relkind::text, has_schema_privilege(n.oid, 'usage'), has_any_column_privilege(c.oid, 'select')
  from pg_class c
  join pg_namespace n on n.oid = c.relnamespace
 where n.nspname = @schema::text
   and c.relname = @table::text
   and c.relkind in ('r', 'p', 'v', 'm', 'f')`

	columnsSQL = `
select a.attname, format_type(a.atttypid, a.atttypmod), format_type(coalesce(nullif(t.typbasetype, 0), t.oid), null),
       a.attnotnull, has_column_privilege(a.attrelid, a.attnum, 'select')
  from pg_attribute a
  join pg_type t on t.oid = a.atttypid
 where a.attrelid = @oid
   and a.attnum > 0
   and not a.attisdropped
 order by a.attnum`

	indexesSQL = `
select array(select coalesce(a.attname, '')
               from unnest(i.indkey::int2[]) with ordinality k(attnum, place)
               left join pg_attribute a on a.attrelid = i.indrelid and a.attnum = k.attnum and k.attnum > 0
              where k.place <= i.indnkeyatts
              order by k.place),
       i.indisprimary, i.indisunique and i.indimmediate, i.indisvalid and i.indpred is null, m.amname = 'btree'
  from pg_index i
  join pg_class c on c.oid = i.indexrelid
  join pg_am m on m.oid = c.relam
 where i.indrelid = @oid
 order by i.indisprimary desc, i.indexrelid`

	relationNamesSQL = `
select n.nspname, c.relname
  from pg_class c
  join pg_namespace n on n.oid = c.relnamespace
 where c.relkind in ('r', 'p', 'v', 'm', 'f')
   and n.nspname not in ('pg_catalog', 'information_schema', 'pg_toast')
 limit 10000`
)

// slowReads are for what is done once, at the start.
var slowReads = limits{statement: 10 * time.Minute, lock: 2 * time.Second, reads: true}

func (s *Store) findSource(ctx context.Context, spec BackfillSpec) (*source, error) {
	src := &source{schema: spec.Schema, table: spec.Table}
	err := s.inTx(ctx, slowReads, func(tx pgx.Tx) error {
		oid, err := src.find(ctx, tx)
		if err != nil {
			return err
		}
		if src.columns, err = collect(ctx, tx, columnsSQL, oid, func(row pgx.CollectableRow) (c column, err error) {
			return c, row.Scan(&c.name, &c.kind, &c.base, &c.filled, &c.allowed)
		}); err != nil {
			return err
		}
		if src.indexes, err = collect(ctx, tx, indexesSQL, oid, func(row pgx.CollectableRow) (x index, err error) {
			return x, row.Scan(&x.columns, &x.primary, &x.unique, &x.whole, &x.ordered)
		}); err != nil {
			return err
		}
		src.estimate, err = estimate(ctx, tx, `select from `+src.name())
		return err
	})
	return src, err
}

func (src *source) find(ctx context.Context, tx pgx.Tx) (oid uint32, err error) {
	var usable, readable bool
	err = tx.QueryRow(ctx, relationSQL, pgx.NamedArgs{"schema": src.schema, "table": src.table}).Scan(&oid, &src.kind, &usable, &readable)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return 0, src.unknown(ctx, tx)
	case err != nil:
		return 0, err
	case !usable || !readable:
		return 0, denied(ctx, tx, src, usable)
	}
	return oid, nil
}

// SourceDenied means that our role may not read the source.
type SourceDenied struct{ Text, Hint string }

func (e *SourceDenied) Error() string { return e.Text }

func denied(ctx context.Context, tx pgx.Tx, src *source, usable bool) error {
	var role string
	if err := tx.QueryRow(ctx, `select current_user`).Scan(&role); err != nil {
		return err
	}
	role = pgx.Identifier{role}.Sanitize()
	grant := fmt.Sprintf("grant select on %s to %s", src.name(), role)
	if !usable {
		grant = fmt.Sprintf("grant usage on schema %s to %s; %s", pgx.Identifier{src.schema}.Sanitize(), role, grant)
	}
	return &SourceDenied{fmt.Sprintf("permission denied for %s, which the role %s may not read", src.name(), role), "its owner can say: " + grant}
}

// unknown names the tables whose names are like the one that is not there.
func (src *source) unknown(ctx context.Context, tx pgx.Tx) error {
	rows, err := tx.Query(ctx, relationNamesSQL)
	if err != nil {
		return err
	}
	all, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (name pgx.Identifier, err error) {
		name = pgx.Identifier{"", ""}
		return name, row.Scan(&name[0], &name[1])
	})
	if err != nil {
		return err
	}
	var names, hint []string
	for _, name := range all {
		names = append(names, name[1])
	}
	for _, like := range near(src.table, names) {
		for _, name := range all {
			if text := name.Sanitize(); name[1] == like && !slices.Contains(hint, text) {
				hint = append(hint, text)
			}
		}
	}
	return specError(didYouMean(hint), "there is no table or view %s", src.name())
}

// name is the source's, quoted.
func (src *source) name() string { return pgx.Identifier{src.schema, src.table}.Sanitize() }

func collect[T any](ctx context.Context, tx pgx.Tx, sql string, oid uint32, scan func(pgx.CollectableRow) (T, error)) ([]T, error) {
	rows, err := tx.Query(ctx, sql, pgx.NamedArgs{"oid": oid})
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, scan)
}

// estimate asks the planner how many rows a query has. It reads none.
func estimate(ctx context.Context, tx pgx.Tx, sql string) (int64, error) {
	var text string
	if err := tx.QueryRow(ctx, `explain (format json) `+sql).Scan(&text); err != nil {
		return 0, err
	}
	var plan []struct {
		Plan struct {
			Rows float64 `json:"Plan Rows"`
		}
	}
	if err := json.Unmarshal([]byte(text), &plan); err != nil || len(plan) == 0 {
		return 0, fmt.Errorf("explain: %w", err)
	}
	return int64(plan[0].Plan.Rows), nil
}

// check completes the specification from the catalog, and finds out how to page through the source.
func (src *source) check(spec *BackfillSpec) error {
	if spec.PayloadAll {
		spec.Payload = nil
		for _, c := range src.columns {
			spec.Payload = append(spec.Payload, PayloadField{c.name, c.name})
		}
	}
	for _, name := range spec.columns() {
		if _, err := src.column(name); err != nil {
			return err
		}
	}
	for _, check := range []func(*BackfillSpec) error{src.checkTypes, src.chooseKey, src.choosePages, src.chooseExisting} {
		if err := check(spec); err != nil {
			return err
		}
	}
	return nil
}

// columns lists the columns that a specification names.
func (s BackfillSpec) columns() (all []string) {
	for _, f := range s.fields() {
		all = append(all, f.Column)
	}
	for _, p := range s.Payload {
		all = append(all, p.Column)
	}
	all = append(append(all, s.Key...), s.TimeColumn, s.PayloadColumn)
	return slices.DeleteFunc(all, func(name string) bool { return name == "" })
}

func (s BackfillSpec) fields() []Field {
	all := []Field{s.EventType, s.AggregateType, s.AggregateID, s.Tenant, s.Destination, s.SchemaVersion}
	for _, f := range s.Headers {
		all = append(all, f)
	}
	return all
}

func (src *source) column(name string) (column, error) {
	i := slices.IndexFunc(src.columns, func(c column) bool { return c.name == name })
	if i < 0 {
		return column{}, specError(didYouMean(near(name, src.columnNames())), "%s has no column %q", src.name(), name)
	}
	if c := src.columns[i]; c.allowed {
		return c, nil
	}
	quoted := pgx.Identifier{name}.Sanitize()
	return column{}, &SourceDenied{
		fmt.Sprintf("permission denied for column %s of %s", quoted, src.name()),
		fmt.Sprintf("its owner can say: grant select (%s) on %s to …", quoted, src.name()),
	}
}

func (src *source) columnNames() []string {
	names := make([]string, len(src.columns))
	for i, c := range src.columns {
		names[i] = c.name
	}
	return names
}

// timeKinds are the types that a window can be over.
var timeKinds = []string{withZone, "timestamp without time zone", "date"}

const withZone = "timestamp with time zone"

func (src *source) checkTypes(spec *BackfillSpec) error {
	for _, want := range []struct {
		flag, column string
		kinds        []string
	}{
		{"the time column", spec.TimeColumn, timeKinds},
		{"the schema version", spec.SchemaVersion.Column, []string{"smallint", "integer", "bigint"}},
		{"the payload", spec.PayloadColumn, []string{"jsonb", "json"}},
	} {
		if want.column == "" {
			continue
		}
		if c, _ := src.column(want.column); !slices.Contains(want.kinds, c.base) {
			return specError("what needs an expression needs a view", "%s %q is of type %s: want %s", want.flag, c.name, c.kind, strings.Join(want.kinds, " or "))
		}
	}
	return nil
}

// chooseKey finds the columns that make a row one: those that were named, the primary key, or else
// the first unique index without nulls. A view has what was named.
func (src *source) chooseKey(spec *BackfillSpec) error {
	src.key = spec.Key
	switch proven := src.uniqueKeys(); {
	case src.kind == "v" || src.kind == "f":
		if len(src.key) == 0 {
			return specError("name the columns that make a row of it one: key", "%s is no table: it has no primary key", src.name())
		}
	case len(src.key) == 0 && len(proven) > 0:
		src.key = proven[0]
	case len(src.key) == 0:
		return specError("give it one", "%s has neither a primary key nor a unique index over columns that are not null", src.name())
	case src.kind != "m" && !slices.ContainsFunc(proven, func(k []string) bool { return sameColumns(k, src.key) }):
		return specError("the key is a primary key or a unique index over columns that are not null",
			"no index of %s makes (%s) unique", src.name(), columnList(src.key))
	}
	spec.Key = src.key
	return nil
}

// uniqueKeys are the sets of columns of which an index says that no two rows share them.
func (src *source) uniqueKeys() (keys [][]string) {
	for _, x := range src.indexes {
		nullable := slices.ContainsFunc(x.columns, func(name string) bool {
			return !slices.ContainsFunc(src.columns, func(c column) bool { return c.name == name && (c.filled || src.kind == "m") })
		})
		if x.unique && x.whole && !nullable {
			keys = append(keys, x.columns)
		}
	}
	return keys
}

func sameColumns(a, b []string) bool {
	a, b = slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b))
	return slices.Equal(a, b)
}

// choosePages refuses a large source through which no index leads.
func (src *source) choosePages(spec *BackfillSpec) error {
	names := src.key
	if spec.TimeColumn != "" {
		names = append([]string{spec.TimeColumn}, slices.DeleteFunc(slices.Clone(src.key), func(k string) bool { return k == spec.TimeColumn })...)
	}
	for _, name := range names {
		c, err := src.column(name)
		if err != nil {
			return err
		}
		src.page = append(src.page, c)
	}
	if src.estimate < manyRows || spec.Force || src.kind == "v" { // whose plan is looked at instead
		return nil
	}
	led := slices.ContainsFunc(src.indexes, func(x index) bool { return x.whole && x.ordered && x.columns[0] == names[0] })
	if !led {
		return src.unled(names)
	}
	return nil
}

func (src *source) unled(names []string) error {
	var quoted []string
	for _, name := range names {
		quoted = append(quoted, pgx.Identifier{name}.Sanitize())
	}
	return specError(fmt.Sprintf("create index concurrently on %s (%s), or --force", src.name(), strings.Join(quoted, ", ")),
		"%s has about %d rows and no index that begins with %s: each page would read all of it", src.name(), src.estimate, quoted[0])
}

// chooseExisting decides what counts as a row's event. Where an aggregate has one row, its event is
// known by the aggregate. Where it has several, nobody can know whose an event is.
func (src *source) chooseExisting(spec *BackfillSpec) error {
	keys := src.uniqueKeys()
	if src.kind == "v" || src.kind == "f" || src.kind == "m" {
		keys = append(keys, src.key)
	}
	names := []string{spec.AggregateID.Column, spec.Tenant.Column, spec.AggregateType.Column, spec.EventType.Column}
	src.unique = slices.ContainsFunc(keys, func(key []string) bool {
		return !slices.ContainsFunc(key, func(name string) bool { return !slices.Contains(names, name) })
	})
	switch {
	case spec.Existing != "":
	case src.unique:
		spec.Existing = SameAggregate
	default:
		return specError(`existing "aggregate": leave such aggregates out; existing "key": only an event of the same key counts`,
			"an aggregate may have several rows in %s: say what an event without their key means", src.name())
	}
	return nil
}

// near returns the names that a name may have been meant to be, the likeliest first.
func near(name string, names []string) []string {
	type candidate struct {
		name     string
		distance int
	}
	var all []candidate
	for _, other := range names {
		if d := distance(strings.ToLower(name), strings.ToLower(other)); d <= max(len(name)/3, 1) {
			all = append(all, candidate{other, d})
		}
	}
	slices.SortStableFunc(all, func(x, y candidate) int { return x.distance - y.distance })
	var found []string
	for _, c := range all[:min(len(all), 3)] {
		found = append(found, c.name)
	}
	return found
}

func didYouMean(names []string) string {
	if len(names) == 0 {
		return ""
	}
	return "there is " + strings.Join(names, ", ")
}

// distance is how many letters must be changed, added or removed to make b of a (Levenshtein's).
func distance(a, b string) int {
	from, to := []rune(a), []rune(b)
	line := make([]int, len(to)+1)
	for j := range line {
		line[j] = j
	}
	for i, x := range from {
		corner := line[0]
		line[0] = i + 1
		for j, y := range to {
			cost := corner
			if x != y {
				cost++
			}
			corner = line[j+1]
			line[j+1] = min(line[j+1]+1, line[j]+1, cost)
		}
	}
	return line[len(to)]
}
