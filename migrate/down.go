package migrate

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
)

// Down takes the newest migrations back until the schema is at version to, each in a transaction
// of its own, and yields as [Schema.Up] does. Unless destroy says that data may be lost, it stops
// with [ErrData] before the first migration whose tables hold any; see [Schema.Losses]. Version 0
// is a schema without an outbox.
func (s *Schema) Down(ctx context.Context, to int, destroy bool) iter.Seq2[News, error] {
	return s.working(func(w *work) error { return w.down(ctx, to, destroy) })
}

func (w *work) down(ctx context.Context, to int, destroy bool) error {
	for {
		above, err := w.above(ctx, to)
		if err != nil || len(above) == 0 {
			return err
		}
		m := above[0]
		err = w.patiently(ctx, m.String(), func(ctx context.Context, tx pgx.Tx) error {
			return w.revert(ctx, tx, m, destroy)
		})
		if err != nil {
			return err
		}
		if err := w.tell(News{What: Reverted, Version: m.Version, Name: m.Name}); err != nil {
			return err
		}
	}
}

// above returns the applied migrations beyond a version, the newest first.
func (s *Schema) above(ctx context.Context, to int) (all []Migration, err error) {
	err = s.read(ctx, func(tx pgx.Tx) error {
		applied, err := s.applied(ctx, tx)
		if err != nil {
			return err
		}
		if err := s.knows(applied); err != nil {
			return err
		}
		for _, step := range slices.Backward(applied) {
			if step.Version > to {
				all = append(all, s.steps[step.Version-1])
			}
		}
		return nil
	})
	return all, err
}

const forgetSQL = `
delete from :"schema".outbox_migrations
 where version = $1`

// revert takes one migration back. The tables that go are locked first: rows that come after the
// look would be lost unseen.
func (s *Schema) revert(ctx context.Context, tx pgx.Tx, m Migration, destroy bool) error {
	for _, table := range m.tables {
		if _, err := tx.Exec(ctx, in(s.name, `lock table :"schema".`+table)); err != nil {
			return fmt.Errorf("%s: %w", m, err)
		}
		loss, err := s.count(ctx, tx, table, 1)
		if err != nil {
			return fmt.Errorf("%s: %w", m, err)
		}
		if loss.Rows > 0 && !destroy {
			return fmt.Errorf("%w: %s holds rows", ErrData, table)
		}
	}
	if _, err := tx.Exec(ctx, in(s.name, m.wayDown())); err != nil {
		return fmt.Errorf("%s: %w", m, err)
	}
	if m.Version == 1 { // its table is the one that would forget it
		return nil
	}
	if _, err := tx.Exec(ctx, in(s.name, forgetSQL), m.Version); err != nil {
		return fmt.Errorf("forget %s: %w", m, err)
	}
	return nil
}

// outboxVersion is the migration that creates the table which options hang on.
const outboxVersion = 2

// wayDown takes the options along with their table: their functions would stay.
func (m Migration) wayDown() string {
	if m.Version != outboxVersion {
		return m.down
	}
	var text strings.Builder
	for _, o := range Options() {
		text.WriteString(o.step.down)
	}
	return text.String() + m.down
}

// Loss is what a table that goes would take with it.
type Loss struct {
	Table string
	Rows  int64
	More  bool // it holds more than Rows, which nobody counted
}

// maxCounted bounds the time that counting takes.
const maxCounted = 1_000_000

// Losses returns the tables that [Schema.Down] to that version would drop with rows in them. The
// record of migrations is none of them.
func (s *Schema) Losses(ctx context.Context, to int) (all []Loss, err error) {
	above, err := s.above(ctx, to)
	if err != nil {
		return nil, err
	}
	err = s.read(ctx, func(tx pgx.Tx) error {
		for _, m := range slices.Backward(above) {
			for _, table := range m.tables {
				loss, err := s.count(ctx, tx, table, maxCounted)
				if err != nil {
					return fmt.Errorf("count the rows of %s: %w", table, err)
				}
				if loss.Rows > 0 {
					all = append(all, loss)
				}
			}
		}
		return nil
	})
	return all, err
}

// count counts a table's rows, up to a limit.
func (s *Schema) count(ctx context.Context, tx pgx.Tx, table string, limit int64) (Loss, error) {
	loss := Loss{Table: table}
	if table == recordTable {
		return loss, nil
	}
	countSQL := `select count(*) from (select from :"schema".` + table + ` limit $1) r`
	err := tx.QueryRow(ctx, in(s.name, countSQL), limit+1).Scan(&loss.Rows)
	if loss.Rows > limit {
		loss.Rows, loss.More = limit, true
	}
	return loss, err
}
