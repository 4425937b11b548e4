package migrate

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// index is one that a migration creates.
type index struct {
	table, name string
	unique      bool
	on          string // what follows the table's name: (at, id) where …
	whole       bool   // of a partitioned table, whose indexes cannot be built concurrently
	invalid     bool   // found there, but of no use
}

func (ix index) String() string { return "index " + ix.name }

// buildSQL creates the index while writers go on; those of the archive, which is the only partitioned
// table, wait.
func (ix index) buildSQL() string {
	unique, concurrently := "", "concurrently "
	if ix.unique {
		unique = "unique "
	}
	if ix.whole {
		concurrently = ""
	}
	return fmt.Sprintf(`create %sindex %s%s on :"schema".%s %s`, unique, concurrently, ix.name, ix.table, ix.on)
}

func (ix index) dropSQL() string {
	if ix.whole {
		return fmt.Sprintf(`drop index :"schema".%s`, ix.name)
	}
	return fmt.Sprintf(`drop index concurrently :"schema".%s`, ix.name)
}

var definition = regexp.MustCompile(`^CREATE (UNIQUE )?INDEX (\w+) ON (\w+) (.*)$`)

// ourIndexes returns the expected indexes but those of constraints, which come and go with these.
func ourIndexes() (all []index) {
	constraints, whole := map[string]bool{}, map[string]bool{}
	for _, o := range objects(expected) {
		if name, ok := strings.CutPrefix(o.name, "constraint "); ok {
			constraints[name] = true
		}
		if name, ok := strings.CutPrefix(o.name, "table "); ok {
			whole[name] = strings.HasPrefix(o.definition, "table by ")
		}
		name, ok := strings.CutPrefix(o.name, "index ")
		if !ok || constraints[name] {
			continue
		}
		part := definition.FindStringSubmatch(o.definition)
		all = append(all, index{table: part[3], name: part[2], unique: part[1] != "", on: part[4], whole: whole[part[3]]})
	}
	return all
}

const brokenSQL = `
select w.name, i.there is not null
  from unnest(@tables::text[], @names::text[]) w("table", name)
  join pg_namespace n on n.nspname = @schema
  join pg_class t on t.relnamespace = n.oid and t.relname = w.table
  left join lateral (
	select true as there, x.indisvalid and x.indisready as valid
	  from pg_index x
	  join pg_class c on c.oid = x.indexrelid
	 where x.indrelid = t.oid
	   and c.relname = w.name) i on true
 where i.valid is not true`

// broken returns those of the indexes that are missing or invalid although their table is there.
func (s *Schema) broken(ctx context.Context, tx pgx.Tx, all ...index) (found []index, err error) {
	named := map[string]index{}
	tables, names := make([]string, len(all)), make([]string, len(all))
	for i, ix := range all {
		named[ix.name] = ix
		tables[i], names[i] = ix.table, ix.name
	}
	rows, err := tx.Query(ctx, brokenSQL, pgx.NamedArgs{"schema": s.name, "tables": tables, "names": names})
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (index, error) {
		var name string
		var invalid bool
		err := row.Scan(&name, &invalid)
		ix := named[name]
		ix.invalid = invalid
		return ix, err
	})
}

// toMend returns the broken indexes of the schema, and those of options that are there and invalid.
func (s *Schema) toMend(ctx context.Context, tx pgx.Tx) ([]index, error) {
	all := ourIndexes()
	for _, o := range Options() {
		all = append(all, o.step.indexes...)
	}
	found, err := s.broken(ctx, tx, all...)
	missing := func(ix index) bool { return !ix.invalid && optional(ix.name) }
	return slices.DeleteFunc(found, missing), err
}

func optional(name string) bool {
	return slices.ContainsFunc(Options(), func(o Option) bool {
		return slices.ContainsFunc(o.step.indexes, func(ix index) bool { return ix.name == name })
	})
}

// mend builds the indexes of an up-to-date schema that somebody dropped, or left invalid by a build
// that did not end.
func (w *work) mend(ctx context.Context) error {
	var found []index
	err := w.read(ctx, func(tx pgx.Tx) (err error) {
		found, err = w.toMend(ctx, tx)
		return err
	})
	if err != nil || len(found) == 0 {
		return err
	}
	return w.inSession(ctx, found[0].String(), func(w *work, conn *pgx.Conn) error {
		for _, ix := range found {
			did, err := w.build(ctx, conn, ix)
			if err != nil {
				return err
			}
			if !did {
				continue
			}
			if err := w.tell(News{What: Restored, Name: ix.name}); err != nil {
				return err
			}
		}
		return nil
	})
}

// build creates an index unless it is there and valid; did says whether there was something to do.
func (w *work) build(ctx context.Context, conn *pgx.Conn, ix index) (did bool, err error) {
	if err := w.letBuild(ctx, ix); err != nil {
		return false, err
	}
	var found []index
	err = w.read(ctx, func(tx pgx.Tx) error {
		found, err = w.broken(ctx, tx, ix)
		return err
	})
	if err != nil || len(found) == 0 {
		return false, err
	}
	if found[0].invalid {
		if err := w.outside(ctx, conn, ix, ix.dropSQL()); err != nil {
			return false, err
		}
	}
	return true, w.outside(ctx, conn, ix, ix.buildSQL())
}

// buildersSQL finds who holds a table's lock of builds and vacuums. An autovacuum, which has no user,
// makes way by itself.
const buildersSQL = `
select distinct l.pid, coalesce(a.application_name, '')
  from pg_locks l
  join pg_class t on t.oid = l.relation
  join pg_namespace n on n.oid = t.relnamespace
  join pg_stat_activity a on a.pid = l.pid
 where n.nspname = $1
   and t.relname = $2
   and l.database = (select oid from pg_database where datname = current_database())
   and l.mode = 'ShareUpdateExclusiveLock'
   and l.granted
   and l.pid <> pg_backend_pid()
   and a.usesysid is not null
 order by 1`

// letBuild waits until nobody builds an index of the table by hand: an unfinished one looks invalid.
// It looks again and again, since a build would in turn wait for the snapshot of who waits for its lock.
func (w *work) letBuild(ctx context.Context, ix index) error {
	w.told = nil
	for start := time.Now(); ; {
		var builders []Blocker
		err := w.read(ctx, func(tx pgx.Tx) error {
			rows, err := tx.Query(ctx, buildersSQL, w.name, ix.table)
			if err != nil {
				return err
			}
			builders, err = pgx.CollectRows(rows, pgx.RowToStructByPos[Blocker])
			return err
		})
		if err != nil || len(builders) == 0 {
			return err
		}
		if err := w.waits(ix.String(), builders); err != nil {
			return err
		}
		if time.Since(start) > patience {
			return w.busy(fmt.Errorf("%s: another build or a vacuum has been running for %s", ix, patience))
		}
		if err := sleep(ctx, jitter(pause)); err != nil {
			return err
		}
	}
}

// outside runs a statement that no transaction may be around. What it waits for, older
// transactions, is in nobody else's way, so it has the session's patience.
func (w *work) outside(ctx context.Context, conn *pgx.Conn, ix index, sql string) error {
	w.told = nil
	err := w.watched(ctx, ix.String(), func(ctx context.Context, pid chan<- int) error {
		pid <- int(conn.PgConn().PID())
		_, err := conn.Exec(ctx, in(w.name, sql))
		return err
	})
	switch {
	case err == nil:
		return nil
	case passing(err):
		return w.busy(fmt.Errorf("%s: %w", ix, err))
	}
	return fmt.Errorf("%s: %w", ix, err)
}
