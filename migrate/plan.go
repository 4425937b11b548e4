package migrate

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
)

// Planned is something that [Schema.Up] would do now.
type Planned struct {
	Version int           // of the migration; 0 = an index to restore, or an option
	Name    string        // of the migration or the index; with and the option's name
	Locks   []Lock        // on tables that are there, the record of migrations among them
	Outside bool          // of a transaction: it builds indexes concurrently
	Wait    time.Duration // for others' locks, at most; outside, for each older transaction
	Oldest  int           // the oldest binary schema version that may run beside it
}

// BlocksWriters reports whether producers and dispatchers may have to wait for it, [MaxLock] at most.
func (p Planned) BlocksWriters() bool { return slices.ContainsFunc(p.Locks, Lock.BlocksWriters) }

// recordTable is where the migrations are recorded.
const recordTable = "outbox_migrations"

// Plan returns what Up, and With for those options, would do now, nothing when there is nothing to
// do. It changes nothing. It returns [ErrNewer] and [ErrOption] when they would.
func (s *Schema) Plan(ctx context.Context, with ...string) (all []Planned, err error) {
	asked, err := options(with)
	if err != nil {
		return nil, err
	}
	err = s.read(ctx, func(tx pgx.Tx) error {
		applied, err := s.applied(ctx, tx)
		if err != nil {
			return err
		}
		if err := s.knows(applied); err != nil {
			return err
		}
		broken, err := s.toMend(ctx, tx)
		if err != nil {
			return err
		}
		all = s.plan(applied, broken)
		tables, functions := ourNames()
		have, err := s.describe(ctx, tx, tables, functions)
		for _, o := range asked {
			if !o.whole(have) {
				all = append(all, s.plannedOption(o))
			}
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("plan: %w", err)
	}
	return all, nil
}

func (s *Schema) plan(applied []Step, broken []index) (all []Planned) {
	have, coming := map[int]bool{}, map[string]bool{}
	for _, step := range applied {
		have[step.Version] = true
	}
	for _, m := range s.steps {
		if have[m.Version] {
			continue
		}
		all = append(all, s.planned(m))
		for _, ix := range m.indexes {
			coming[ix.name] = true
		}
	}
	for _, ix := range broken {
		if !coming[ix.name] {
			all = append(all, Planned{Name: ix.name, Locks: ix.locks(), Outside: true, Wait: patience})
		}
	}
	return all
}

func (s *Schema) planned(m Migration) Planned {
	p := Planned{Version: m.Version, Name: m.Name, Locks: m.Locks, Outside: m.outside, Oldest: m.Oldest}
	if m.Version > 1 {
		p.Locks = append(p.Locks[:len(p.Locks):len(p.Locks)], Lock{recordTable, "row exclusive"})
	}
	p.Wait = s.limits.all()
	if m.outside {
		p.Wait = patience
	}
	return p
}

func (s *Schema) plannedOption(o Option) Planned {
	p := Planned{Name: o.step.Name, Locks: o.step.Locks, Outside: o.step.outside, Wait: s.limits.all()}
	if p.Outside {
		p.Wait = patience
	}
	return p
}

// locks are those of a build: writers may write, but for those of a whole table; nobody may vacuum or
// alter.
func (ix index) locks() []Lock {
	if ix.whole {
		return []Lock{{ix.table, "share"}}
	}
	return []Lock{{ix.table, "share update exclusive"}}
}
