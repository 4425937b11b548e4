package outbox

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// BackfillSpec says which events the rows of a table or view stand for. As JSON it is what
// outbox_operations keeps. Names are raw, as the catalog has them.
type BackfillSpec struct {
	Schema        string           `json:"schema"`
	Table         string           `json:"table"`                 // or a view
	Source        string           `json:"source"`                // in keys; "" = schema.table
	Key           []string         `json:"key,omitempty"`         // columns that make a row one; nil = the primary key
	TimeColumn    string           `json:"time_column,omitempty"` // "" = rows have no time, and there is no window
	EventType     Field            `json:"event_type"`
	AggregateType Field            `json:"aggregate_type"`
	AggregateID   Field            `json:"aggregate_id"`
	Tenant        Field            `json:"tenant,omitzero"`
	Destination   Field            `json:"destination,omitzero"`
	SchemaVersion Field            `json:"schema_version,omitzero"` // zero = 1
	Headers       map[string]Field `json:"headers,omitempty"`
	Payload       []PayloadField   `json:"payload,omitempty"`        // an object of columns
	PayloadAll    bool             `json:"payload_all,omitempty"`    // or of all columns that there are now
	PayloadColumn string           `json:"payload_column,omitempty"` // or a column of type jsonb as it is
	Existing      Existing         `json:"existing"`
	Since         time.Time        `json:"since,omitzero"` // by the time column, at or after
	Until         time.Time        `json:"until,omitzero"` // before
	Force         bool             `json:"-"`              // go on without an index, and past open transactions
}

// Field is where a value comes from: a column, or a constant.
type Field struct {
	Column string `json:"column,omitempty"`
	Value  string `json:"value,omitempty"`
}

// PayloadField is a member of a payload.
type PayloadField struct {
	Name   string `json:"name"`
	Column string `json:"column"`
}

// Existing says which events count as already there, besides those of the same key.
type Existing string

// What counts as a row's event. The zero value asks for a choice where there is one.
const (
	SameAggregate Existing = "aggregate" // any event of the same type about the same aggregate, whatever its key
	SameKey       Existing = "key"       // none
)

// SpecError is a specification that does not fit the database.
type SpecError struct {
	Text string
	Hint string // what to do; "" = the text says it
}

func (e *SpecError) Error() string { return e.Text }

func specError(hint, format string, args ...any) error {
	return &SpecError{fmt.Sprintf(format, args...), hint}
}

// SourceName is what the source is called in keys.
func (s BackfillSpec) SourceName() string { return cmp.Or(s.Source, s.Schema+"."+s.Table) }

// Hash tells specifications apart, but for their windows: a run goes on under the one that it began
// with.
func (s BackfillSpec) Hash() string {
	s.Since, s.Until = time.Time{}, time.Time{}
	text, err := json.Marshal(s)
	if err != nil {
		panic(err) // it is strings all over
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:8])
}

// Backfill makes events from the rows of a source, in pages by keyset, each in a transaction of its
// own that keeps how far it came:
//
//  1. Read the next rows: their keys, and what their events will be called.
//  2. Read which events others have committed meanwhile. A row and its event are committed together,
//     so that the event of a row that is seen is seen as well.
//  3. Compute the keys, and leave out the rows whose event is there.
//  4. Insert the rest, from the rows themselves. Their payloads do not leave the database.
//
// It is for one goroutine at a time.
type Backfill struct {
	Spec     BackfillSpec
	Estimate int64 // rows of the source, as the planner believes

	store    *Store
	source   *source
	sql      statements
	seen     *seen
	gathered bool

	look    func([]row)   // is told what became of each row; nil = nobody asks
	samples []Event       // of a rehearsal
	spread  time.Duration // between the due times of two events
}

// manyRows is how large a source may be whose pages no index serves.
const manyRows = 100_000

// Backfill checks a specification against the catalog. A [SpecError] says what does not fit.
func (s *Store) Backfill(ctx context.Context, spec BackfillSpec) (*Backfill, error) {
	b := &Backfill{Spec: spec, store: s}
	src, err := s.findSource(ctx, spec)
	if err == nil {
		b.source, err = src, src.check(&b.Spec)
	}
	if err != nil {
		if _, ok := errors.AsType[*SpecError](err); ok {
			return nil, err
		}
		return nil, fmt.Errorf("backfill: %w", err)
	}
	b.Estimate, b.seen = src.estimate, newSeen(b.Spec)
	b.sql = s.statements(b.Spec, src)
	return b, b.checkPlan(ctx)
}

// checkPlan refuses a large view whose pages take a sort of all of its rows.
func (b *Backfill) checkPlan(ctx context.Context) error {
	if b.source.kind != "v" || b.Estimate < manyRows || b.Spec.Force {
		return nil
	}
	var plan string
	err := b.store.inTx(ctx, slowReads, func(tx pgx.Tx) error {
		return tx.QueryRow(ctx, "explain (format json) "+b.sql.page.start, b.with(pgx.NamedArgs{"limit": defaultBatch}, nil)).Scan(&plan)
	})
	switch {
	case err != nil:
		return fmt.Errorf("backfill: plan: %w", err)
	case strings.Contains(plan, `"Node Type": "Sort"`):
		return specError("index the columns below it, or --force",
			"the view %s has about %d rows, and each page would sort them all", b.source.name(), b.Estimate)
	}
	return nil
}

// Nameless reports how many rows are left out because their time or a part of their key is null.
func (b *Backfill) Nameless(ctx context.Context) (n int64, err error) {
	if b.sql.nameless == "" {
		return 0, nil
	}
	err = b.store.inTx(ctx, slowReads, func(tx pgx.Tx) error { return tx.QueryRow(ctx, b.sql.nameless).Scan(&n) })
	if err != nil {
		return 0, fmt.Errorf("backfill: count rows without a time or key: %w", err)
	}
	return n, nil
}

func columnList(columns []string) string { return strings.Join(columns, ", ") }

func sortedNames[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// version is the constant of the schema's version, 0 where there is none.
func (s BackfillSpec) version() int {
	n, _ := strconv.Atoi(s.SchemaVersion.Value) // checked where it was read
	return n
}
