// Package mutant holds programs with one mistake each, and what has to find it: a storm whose history the checker
// judges, or tests that are named. A mutant that nothing finds means that those are too weak.
package mutant

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/outboxctl/outboxctl/outbox/outboxtest/edit"
)

// Mutant is outboxctl with one mistake.
type Mutant struct {
	Name   string
	Breaks string // what it does wrong, and the guarantee that is broken by it
	edits  []change
	storm  *sighting // that has to show it
	tests  *tests    // that have to fail; where there is a storm too, the quick way
}

// change is an edit without the mutant's name.
type change struct{ file, old, new string }

// Edits are what makes the mutant.
func (m Mutant) Edits() []edit.Edit {
	var all []edit.Edit
	for _, c := range m.edits {
		all = append(all, edit.Edit{Name: "mutant " + m.Name, File: c.file, Old: c.old, New: c.new})
	}
	return all
}

// Found is what came of looking for a mutant.
type Found struct {
	By   string // the invariant or the test that found it; "" = nothing did
	How  string // the first violation, or the test's first words
	Took time.Duration
}

// ErrUnfit says that a mutant was not looked for: it does not compile, its storm did not come about, or its tests did not run.
var ErrUnfit = errors.New("unfit")

// Hunt looks for a mutant by its storm, or by its tests where it has none. An error says that it was not looked for.
func (m Mutant) Hunt(ctx context.Context) (Found, error) {
	if m.storm != nil {
		return m.timed(func() (Found, error) { return m.storm.meet(ctx, m.Edits()) })
	}
	return m.HuntQuickly(ctx)
}

// HuntQuickly looks for it by its tests.
func (m Mutant) HuntQuickly(ctx context.Context) (Found, error) {
	if m.tests == nil {
		return Found{}, fmt.Errorf("mutant %s: %w: it has no tests", m.Name, ErrUnfit)
	}
	return m.timed(func() (Found, error) { return m.tests.meet(ctx, m.Edits()) })
}

func (m Mutant) timed(hunt func() (Found, error)) (Found, error) {
	began := time.Now()
	found, err := hunt()
	found.Took = time.Since(began)
	if err != nil {
		err = fmt.Errorf("mutant %s: %w", m.Name, err)
	}
	return found, err
}

// Control is a run in which nothing may be found: what looks for mutants, and finds none in the program as it is.
type Control struct {
	Name string
	meet func(ctx context.Context) (Found, error)
}

// Controls are those of some mutants: each of their weathers once, and the tests of each package.
func Controls(mutants []Mutant) (all []Control) {
	storms, packages := map[*weather]*sighting{}, map[string]*tests{}
	for _, m := range mutants {
		switch {
		case m.storm != nil:
			s, known := storms[m.storm.weather]
			if !known {
				s = m.storm.weather.shows()
				storms[m.storm.weather] = s
				all = append(all, Control{s.name(), func(ctx context.Context) (Found, error) { return s.meet(ctx, nil) }})
			}
			s.invariants = append(s.invariants, m.storm.invariants...)
		default:
			t, known := packages[m.tests.folder]
			if !known {
				t = testsOf(m.tests.folder)
				packages[t.folder] = t
				all = append(all, Control{"tests of " + t.folder, func(ctx context.Context) (Found, error) { return t.meet(ctx, nil) }})
			}
			t.names = append(t.names, m.tests.names...)
		}
	}
	return all
}

// Hunt looks for a mistake in the program as it is.
func (c Control) Hunt(ctx context.Context) (Found, error) {
	began := time.Now()
	found, err := c.meet(ctx)
	found.Took = time.Since(began)
	if err != nil {
		err = fmt.Errorf("control, %s: %w", c.Name, err)
	}
	return found, err
}
