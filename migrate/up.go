package migrate

import (
	"context"
	"fmt"
	"iter"
	"slices"

	"github.com/jackc/pgx/v5"
)

// Up applies the migrations that are missing, each in a transaction of its own, and then restores
// the indexes of the schema that are missing or invalid, without making producers or dispatchers
// wait. It yields each as it is done, and who is in the way while it waits. Run by several at once,
// each migration is applied and yielded by one of them, and all end when there is nothing left to
// do. A missing schema is created.
//
// It yields an error at most once, as its last: [ErrNewer] when the database knows migrations
// that this binary does not, [ErrBusy] when others' locks do not go away, [ErrPooled] when an index
// is to be built behind a pooler, [ErrName], or the database's. What was yielded before stays applied.
func (s *Schema) Up(ctx context.Context) iter.Seq2[News, error] {
	return s.working(func(w *work) error { return w.up(ctx) })
}

func (w *work) up(ctx context.Context) error {
	for {
		m, done, err := w.missing(ctx)
		if err != nil {
			return err
		}
		if done {
			return w.mend(ctx)
		}
		did, err := w.apply(ctx, m)
		if err != nil {
			return err
		}
		if !did {
			continue
		}
		if err := w.tell(News{What: Applied, Version: m.Version, Name: m.Name}); err != nil {
			return err
		}
	}
}

// missing looks for the next migration to apply; done says that there is none.
func (w *work) missing(ctx context.Context) (m Migration, done bool, err error) {
	w.told = nil
	err = w.watched(ctx, "migrate", func(ctx context.Context, pid chan<- int) error {
		return w.within(ctx, pgx.ReadOnly, w.limits.all(), func(tx pgx.Tx, backend int) error {
			pid <- backend
			m, done, err = w.next(ctx, tx)
			return err
		})
	})
	if passing(err) {
		err = w.busy(err)
	}
	return m, done, err
}

// next returns the first migration that was not applied.
func (s *Schema) next(ctx context.Context, tx pgx.Tx) (m Migration, done bool, err error) {
	applied, err := s.applied(ctx, tx)
	if err != nil {
		return m, false, fmt.Errorf("read the schema's version: %w", err)
	}
	if err := s.knows(applied); err != nil {
		return m, false, err
	}
	for _, m := range s.steps {
		have := func(step Step) bool { return step.Version == m.Version }
		if !slices.ContainsFunc(applied, have) {
			return m, false, nil
		}
	}
	return m, true, nil
}

// knows refuses to change a schema that a newer binary migrated.
func (s *Schema) knows(applied []Step) error {
	for _, step := range applied {
		if step.Version > s.latest() {
			return fmt.Errorf("%w: version %d, known %d", ErrNewer, step.Version, s.latest())
		}
	}
	return nil
}

// apply applies a migration, unless somebody else was faster.
func (w *work) apply(ctx context.Context, m Migration) (did bool, err error) {
	if m.outside {
		return w.applyOutside(ctx, m)
	}
	err = w.patiently(ctx, m.String(), func(ctx context.Context, tx pgx.Tx) (err error) {
		if did, err = w.stillNext(ctx, tx, m); err != nil || !did {
			return err
		}
		return w.execute(ctx, tx, m)
	})
	return did && err == nil, err
}

// applyOutside builds a migration's indexes one by one, and finds those that are there already when
// an earlier run was cut off.
func (w *work) applyOutside(ctx context.Context, m Migration) (did bool, err error) {
	err = w.inSession(ctx, m.String(), func(w *work, conn *pgx.Conn) error {
		err := w.read(ctx, func(tx pgx.Tx) error {
			did, err = w.stillNext(ctx, tx, m)
			return err
		})
		if err != nil || !did {
			return err
		}
		for _, ix := range m.indexes {
			if _, err := w.build(ctx, conn, ix); err != nil {
				return err
			}
		}
		return w.patiently(ctx, m.String(), func(ctx context.Context, tx pgx.Tx) error {
			return w.record(ctx, tx, m)
		})
	})
	return did && err == nil, err
}

func (w *work) stillNext(ctx context.Context, tx pgx.Tx, m Migration) (bool, error) {
	next, done, err := w.next(ctx, tx)
	return err == nil && !done && next.Version == m.Version, err
}

const schemaExistsSQL = `select exists (select from pg_namespace where nspname = $1)`

const recordSQL = `
insert into :"schema".outbox_migrations (version, name, min_binary)
values ($1, $2, $3)`

// boundSQL: whoever queues behind a statement also queues while it works.
const boundSQL = `select set_config('statement_timeout', $1, true)`

func (s *Schema) execute(ctx context.Context, tx pgx.Tx, m Migration) error {
	// `create schema if not exists` needs the right to create one even where there is one.
	var exists bool
	if err := tx.QueryRow(ctx, schemaExistsSQL, s.name).Scan(&exists); err != nil {
		return err
	}
	if !exists {
		if _, err := tx.Exec(ctx, in(s.name, `create schema :"schema"`)); err != nil {
			return fmt.Errorf("create schema %q: %w", s.name, err)
		}
	}
	if m.blocksWriters() {
		if _, err := tx.Exec(ctx, boundSQL, milliseconds(MaxLock)); err != nil {
			return err
		}
	}
	if _, err := tx.Exec(ctx, in(s.name, m.up)); err != nil {
		return fmt.Errorf("%s: %w", m, err)
	}
	return s.record(ctx, tx, m)
}

func (s *Schema) record(ctx context.Context, tx pgx.Tx, m Migration) error {
	if _, err := tx.Exec(ctx, in(s.name, recordSQL), m.Version, m.Name, m.Oldest); err != nil {
		return fmt.Errorf("record %s: %w", m, err)
	}
	return nil
}
