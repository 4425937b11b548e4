package migrate

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
)

// Option is a part of the schema that costs something and that not everybody needs: it is made when
// it is asked for. Whether it is there is seen in the catalog; nothing records it.
type Option struct {
	Name  string // as --with takes it
	About string // what it is for, and what it costs

	step    Migration // with neither version nor oldest binary
	objects []object  // that it makes
}

// optionsFolder holds a file for each option. Its head is two or three lines: "-- " and what it is
// about, the locks, and the mark of one that holds nothing but indexes, as in a migration. Both ways
// may be run again.
const optionsFolder = "sql/with"

// Options returns what can be asked for, by name. It panics as migrations does.
func Options() []Option {
	entries, err := files.ReadDir(optionsFolder)
	if err != nil {
		panic(err)
	}
	var all []Option
	for _, entry := range entries {
		text, err := files.ReadFile(optionsFolder + "/" + entry.Name())
		if err != nil {
			panic(err)
		}
		o, err := parseOption(entry.Name(), string(text))
		if err != nil {
			panic(err)
		}
		all = append(all, o)
	}
	return all
}

func parseOption(file, text string) (o Option, err error) {
	o.Name = strings.TrimSuffix(file, ".sql")
	o.step.Name = "with " + o.Name
	about, body, _ := strings.Cut(text, "\n")
	o.About = strings.TrimPrefix(about, "-- ")
	locks, body, _ := strings.Cut(body, "\n")
	if o.step.Locks, err = parseLocks(strings.TrimPrefix(locks, locksMark)); err != nil {
		return o, fmt.Errorf("migrate: %s has no second line %q: %w", file, locksMark, err)
	}
	body, down, found := strings.Cut(body, separator)
	if !found {
		return o, fmt.Errorf("migrate: %s has no way down", file)
	}
	o.step.down = down
	o.step.up, o.step.outside = strings.CutPrefix(body, concurrently)
	for _, found := range indexPattern.FindAllStringSubmatch(o.step.up, -1) {
		o.step.indexes = append(o.step.indexes, index{table: found[3], name: found[2], unique: found[1] != "", on: found[4]})
	}
	for _, e := range objects(expectedWith) {
		if name, ok := strings.CutPrefix(e.name, o.step.Name+" "); ok {
			o.objects = append(o.objects, object{name, e.definition})
		}
	}
	return o, nil
}

// options returns those of these names.
func options(names []string) (all []Option, err error) {
	known := Options()
	for _, name := range names {
		i := slices.IndexFunc(known, func(o Option) bool { return o.Name == name })
		if i < 0 {
			return nil, fmt.Errorf("%w: %q", ErrOption, name)
		}
		all = append(all, known[i])
	}
	return all, nil
}

// optionalNames returns the names of the functions that options make.
func optionalNames() (functions []string) {
	for _, o := range Options() {
		for _, made := range o.objects {
			if name, ok := strings.CutPrefix(made.name, "function "); ok {
				name, _, _ = strings.Cut(name, "(")
				functions = append(functions, name)
			}
		}
	}
	return functions
}

// present returns the options of which anything is there.
func present(have []object) (all []Option) {
	for _, o := range Options() {
		if slices.ContainsFunc(o.objects, func(made object) bool { return holds(have, made.name) }) {
			all = append(all, o)
		}
	}
	return all
}

func holds(all []object, name string) bool {
	return slices.ContainsFunc(all, func(o object) bool { return o.name == name })
}

// whole reports whether all of the option is there and as it should be.
func (o Option) whole(have []object) bool {
	return len(o.objects) > 0 && !slices.ContainsFunc(o.objects, func(made object) bool { return !slices.Contains(have, made) })
}

// Present returns the names of the options that the schema has.
func (s *Schema) Present(ctx context.Context) (names []string, err error) {
	have, err := s.look(ctx)
	if err != nil {
		return nil, fmt.Errorf("options: %w", err)
	}
	for _, o := range present(have) {
		names = append(names, o.Name)
	}
	return names, nil
}

// With adds options to an up-to-date schema and yields as [Schema.Up] does; one that is there is
// passed over, one that is not as it should be is made again. [ErrOption] is one that nobody knows.
func (s *Schema) With(ctx context.Context, names ...string) iter.Seq2[News, error] {
	return s.working(func(w *work) error {
		return w.each(ctx, names, func(o Option, have []object) error {
			if o.whole(have) {
				return nil
			}
			if err := w.add(ctx, o); err != nil {
				return err
			}
			return w.tell(News{What: Added, Name: o.Name})
		})
	})
}

// Without takes options away, and yields likewise.
func (s *Schema) Without(ctx context.Context, names ...string) iter.Seq2[News, error] {
	return s.working(func(w *work) error {
		return w.each(ctx, names, func(o Option, have []object) error {
			if !slices.ContainsFunc(present(have), func(p Option) bool { return p.Name == o.Name }) {
				return nil
			}
			if err := w.remove(ctx, o); err != nil {
				return err
			}
			return w.tell(News{What: Removed, Name: o.Name})
		})
	})
}

// each runs f for each of the options, and tells it what is there.
func (w *work) each(ctx context.Context, names []string, f func(Option, []object) error) error {
	all, err := options(names)
	if err != nil {
		return err
	}
	for _, o := range all {
		have, err := w.look(ctx)
		if err != nil {
			return fmt.Errorf("%s: %w", o.step.Name, err)
		}
		if err := f(o, have); err != nil {
			return err
		}
	}
	return nil
}

// look describes what is there.
func (s *Schema) look(ctx context.Context) (have []object, err error) {
	err = s.read(ctx, func(tx pgx.Tx) error {
		applied, err := s.applied(ctx, tx)
		if err != nil {
			return err
		}
		if err := s.status(applied).check(); err != nil {
			return err
		}
		tables, functions := ourNames()
		have, err = s.describe(ctx, tx, tables, functions)
		return err
	})
	return have, err
}

func (w *work) add(ctx context.Context, o Option) error {
	if o.step.outside {
		return w.inSession(ctx, o.step.Name, func(w *work, conn *pgx.Conn) error {
			for _, ix := range o.step.indexes {
				if _, err := w.build(ctx, conn, ix); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return w.runOption(ctx, o, o.step.up)
}

func (w *work) remove(ctx context.Context, o Option) error { return w.runOption(ctx, o, o.step.down) }

// runOption runs one way of an option, of which the part that locks the table comes last and is
// short.
func (w *work) runOption(ctx context.Context, o Option, sql string) error {
	return w.patiently(ctx, o.step.Name, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, boundSQL, milliseconds(MaxLock)); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, in(w.name, sql)); err != nil {
			return fmt.Errorf("%s: %w", o.step.Name, err)
		}
		return nil
	})
}
