package outbox

import (
	"context"
	"errors"
	"maps"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// row is a row of the source, and what becomes of it.
type row struct {
	match string   // finds it again
	place []string // where it stands: the cursor behind it
	event Event    // but for its payload and headers
	day   string   // of its time, in UTC; "" = it has none
	fate  string   // "" = its event is missing
}

// Why a row makes no event.
const (
	fateExists  = "exists"  // an event of this type about its aggregate is there, under another key
	fateRepeat  = "repeat"  // its own event is there
	fateInvalid = "invalid" // the outbox would not take its event
	fateGone    = "gone"    // it was removed as the page was read
)

// cursor is where a run stands. Texts are as PostgreSQL writes them under roundSQL.
type backfillCursor struct {
	After []string `json:"after"`
}

// pageSettingsSQL gives values the same texts whatever the role's settings are, so that cursors and
// keys are the same in every session; and a page the time that a source without an index needs.
const pageSettingsSQL = `
select set_config('timezone', 'UTC', true),
       set_config('datestyle', 'ISO', true),
       set_config('extra_float_digits', '1', true),
       set_config('statement_timeout', $1, true)`

// pageTime is long enough for a page of a source that must be read whole for it.
const pageTime = 10 * time.Minute

// turnSQL makes the backfills of one source take turns, page by page: $1 is schema, purpose and
// source.
const turnSQL = `select pg_advisory_xact_lock(hashtextextended($1, 0))`

// Step looks at the next rows and inserts the events that are missing, spread apart in their due
// times. On a rehearsal it counts what it would do.
func (b *Backfill) Step(run *Run, spread time.Duration) Step {
	b.spread = spread
	if !run.Rehearsal() {
		b.seen.origin = backfilled + strconv.FormatInt(run.ID, 10)
	}
	return func(ctx context.Context, limit int) (int, error) { return b.step(ctx, run, limit) }
}

// step takes a page apart when a row in it cannot become an event, until that row is alone.
func (b *Backfill) step(ctx context.Context, run *Run, limit int) (int, error) {
	n, err := b.page(ctx, run, limit, true)
	switch {
	case err == nil || !badData(err):
		return n, err
	case limit > 1:
		return b.step(ctx, run, limit/2)
	}
	return b.page(ctx, run, 1, false)
}

// badData reports whether a value of a row was refused.
func badData(err error) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return ok && (strings.HasPrefix(pg.Code, "22") || strings.HasPrefix(pg.Code, "23"))
}

// page is a step's transaction; a row that is not good is skipped.
func (b *Backfill) page(ctx context.Context, run *Run, limit int, good bool) (int, error) {
	var rows []row
	n, err := run.step(ctx, func(tx pgx.Tx, p *Progress) (n int, err error) {
		var from backfillCursor
		if err := p.at(&from); err != nil {
			return 0, err
		}
		if err := b.prepare(ctx, tx, run); err != nil {
			return 0, err
		}
		if rows, err = b.rows(ctx, tx, from, limit, good); err != nil || len(rows) == 0 {
			return 0, err
		}
		if good {
			err = b.judge(ctx, tx, run, rows)
		}
		if err == nil {
			err = b.write(ctx, tx, run, from, rows)
		}
		if err != nil {
			return 0, err
		}
		for _, r := range rows {
			if r.fate == "" {
				p.Done++
				continue
			}
			p.skip(r.fate, 1)
		}
		return len(rows), p.move(backfillCursor{rows[len(rows)-1].place})
	})
	if err == nil && n > 0 && b.look != nil {
		b.look(rows)
	}
	return n, err
}

func (b *Backfill) prepare(ctx context.Context, tx pgx.Tx, run *Run) error {
	if _, err := tx.Exec(ctx, pageSettingsSQL, limits{statement: pageTime}.args()[0]); err != nil {
		return err
	}
	if b.source.kind != "v" && b.source.kind != "f" { // whose plans are their own
		if _, err := tx.Exec(ctx, byIndexSQL); err != nil {
			return err
		}
	}
	if run.Rehearsal() {
		return nil
	}
	_, err := tx.Exec(ctx, turnSQL, b.store.schema+" outboxctl backfill "+b.Spec.SourceName())
	return err
}

// with adds values to the arguments of the statements.
func (b *Backfill) with(more pgx.NamedArgs, bounds map[string][]string) pgx.NamedArgs {
	args := maps.Clone(b.sql.args)
	maps.Copy(args, more)
	for prefix, texts := range bounds {
		for i, text := range texts {
			args[prefix+strconv.Itoa(i)] = text
		}
	}
	return args
}

func (b *Backfill) rows(ctx context.Context, tx pgx.Tx, from backfillCursor, limit int, good bool) ([]row, error) {
	statement := b.sql.page
	if !good {
		statement = b.sql.pass
	}
	found, err := tx.Query(ctx, statement.from(from), b.with(pgx.NamedArgs{"limit": limit}, map[string][]string{"a": from.After}))
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(found, func(r pgx.CollectableRow) (v row, err error) {
		var key []string
		var empty bool
		ev := &v.event
		err = r.Scan(&v.match, &v.place, &key, &ev.TenantID, &ev.AggregateType, &ev.AggregateID, &ev.Type, &ev.SchemaVersion,
			&ev.Destination, &empty, &v.day)
		if err != nil {
			return v, err
		}
		ev.Key = BackfillKey(b.Spec.SourceName(), ev.Type, ev.SchemaVersion, key...)
		if !good || empty || !fits(*ev) {
			v.fate = fateInvalid
		}
		return v, nil
	})
}

// fits reports whether the outbox takes such an event; outbox_key_size says the same.
func fits(ev Event) bool {
	return ev.AggregateType != "" && ev.AggregateID != "" && ev.Type != "" &&
		len(ev.TenantID)+len(ev.AggregateType)+len(ev.AggregateID) <= 2000 && len(ev.Type) <= 1000 && len(ev.Destination) <= 200
}

const keysThereSQL = `
select k
  from unnest(@keys::text[]::uuid[]) k
 where exists (select from {schema}.outbox o where o.idempotency_key = k) -- outbox_key`

// judge finds the rows whose event is there. A key that belongs to an event of another type is left to
// the insert, or where there is none, to a look.
func (b *Backfill) judge(ctx context.Context, tx pgx.Tx, run *Run, rows []row) (err error) {
	if err := b.catchUp(ctx, tx); err != nil {
		return err
	}
	there := map[uuid.UUID]bool{}
	if run.Rehearsal() {
		if there, err = b.keysThere(ctx, tx, rows); err != nil {
			return err
		}
	}
	for i := range rows {
		r := &rows[i]
		switch ev := r.event; {
		case r.fate != "":
		case there[ev.Key] || b.seen.has(ev.Key):
			r.fate = fateRepeat
		case b.Spec.Existing == SameAggregate && b.seen.has(b.seen.about(ev.TenantID, ev.AggregateType, ev.AggregateID, ev.Type)):
			r.fate = fateExists
		}
		there[r.event.Key] = true // a second row of this key is one too many
	}
	return nil
}

func (b *Backfill) keysThere(ctx context.Context, tx pgx.Tx, rows []row) (map[uuid.UUID]bool, error) {
	keys := make([]string, len(rows))
	for i, r := range rows {
		keys[i] = r.event.Key.String()
	}
	found, err := tx.Query(ctx, b.store.sql(keysThereSQL), pgx.NamedArgs{"keys": keys})
	if err != nil {
		return nil, err
	}
	there := make(map[uuid.UUID]bool, len(rows))
	var key uuid.UUID
	_, err = pgx.ForEachRow(found, []any{&key}, func() error { there[key] = true; return nil })
	return there, err
}

// write inserts the events that are missing; a rehearsal takes samples of them.
func (b *Backfill) write(ctx context.Context, tx pgx.Tx, run *Run, from backfillCursor, rows []row) error {
	var missing []*row
	for i := range rows {
		if rows[i].fate == "" {
			missing = append(missing, &rows[i])
		}
	}
	switch {
	case len(missing) == 0:
		return nil
	case run.Rehearsal():
		return b.takeSamples(ctx, tx, from, rows, missing)
	}
	tag, err := tx.Exec(ctx, b.sql.insert.from(from), b.eventArgs(from, rows, missing))
	if err != nil || tag.RowsAffected() == int64(len(missing)) {
		return err
	}
	return b.missed(ctx, tx, missing)
}

func (b *Backfill) eventArgs(from backfillCursor, rows []row, missing []*row) pgx.NamedArgs {
	matches, keys := make([]string, len(missing)), make([]string, len(missing))
	for i, r := range missing {
		matches[i], keys[i] = r.match, r.event.Key.String()
	}
	return b.with(pgx.NamedArgs{"matches": matches, "keys": keys, "spread": b.spread.Microseconds(), "origin": b.seen.origin},
		map[string][]string{"a": from.After, "z": rows[len(rows)-1].place})
}

// mineSQL finds which events this run has written, of those that it wanted to.
const mineSQL = `
select idempotency_key
  from {schema}.outbox
 where idempotency_key = any (@keys::text[]::uuid[]) -- outbox_key
   and origin = @origin`

// missed finds out what kept events from being inserted: somebody has written the same key, or the
// row is there no more.
func (b *Backfill) missed(ctx context.Context, tx pgx.Tx, missing []*row) error {
	rows := make([]row, len(missing))
	for i, r := range missing {
		rows[i] = *r
	}
	there, err := b.keysThere(ctx, tx, rows)
	if err != nil {
		return err
	}
	args := b.eventArgs(backfillCursor{}, rows, missing)
	found, err := tx.Query(ctx, b.store.sql(mineSQL), pgx.NamedArgs{"keys": args["keys"], "origin": args["origin"]})
	if err != nil {
		return err
	}
	mine := map[uuid.UUID]bool{}
	var key uuid.UUID
	if _, err := pgx.ForEachRow(found, []any{&key}, func() error { mine[key] = true; return nil }); err != nil {
		return err
	}
	for _, r := range missing {
		switch {
		case mine[r.event.Key]:
		case there[r.event.Key]:
			r.fate = fateRepeat
		default:
			r.fate = fateGone
		}
	}
	return nil
}
