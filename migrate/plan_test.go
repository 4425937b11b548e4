package migrate_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outboxctl/outboxctl/migrate"
	"github.com/outboxctl/outboxctl/outbox/outboxtest"
)

// extra are migrations of which one alters a table in use and one builds its index concurrently, as
// later versions will.
var extra = []struct{ file, text string }{
	{later(1, "alter"), `-- oldest binary: 9
-- locks: outbox (access exclusive)
alter table :"schema".outbox add column extra int;
---- down ----
alter table :"schema".outbox drop column extra;
`},
	{later(2, "index"), `-- oldest binary: 9
-- locks: outbox (share update exclusive)
-- concurrently

-- For the tests.
create unique index outbox_extra on :"schema".outbox (tenant_id, id) where finished_at is null;
---- down ----
drop index :"schema".outbox_extra;
`},
}

// later is the file's name of the nth migration after those of this binary.
func later(n int, name string) string { return fmt.Sprintf("%03d_%s.sql", migrate.Latest+n, name) }

// withExtra returns a schema with migrations beyond those of this binary.
func withExtra(t *testing.T, db migrate.Beginner, name string) *migrate.Schema {
	t.Helper()
	s := migrate.New(db, name)
	for _, e := range extra {
		if err := s.Add(e.file, e.text); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// What a migration's file says that it locks is what PostgreSQL says.
func TestPlanSaysWhatIsLocked(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	const schema = `My-"Schema"`
	conn := connect(t, outboxtest.Empty(t))
	s := withExtra(t, conn, schema)
	for version := range migrate.Latest + 1 { // the last one alters a table in use
		have := tables(t, conn, schema)
		err := pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
			want, err := s.Execute(ctx, tx, version+1)
			if err != nil {
				return err
			}
			if got := locks(t, tx, have); !slices.Equal(got, want) {
				t.Errorf("migration %d locks %v, and says %v", version+1, got, want)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// tables returns the schema's tables by their ids.
func tables(t *testing.T, conn *pgx.Conn, schema string) (ids []uint32) {
	t.Helper()
	rows, err := conn.Query(context.Background(), `
select c.oid from pg_class c join pg_namespace n on n.oid = c.relnamespace
 where n.nspname = $1 and c.relkind in ('r', 'p')`, schema)
	if err != nil {
		t.Fatal(err)
	}
	if ids, err = pgx.CollectRows(rows, pgx.RowTo[uint32]); err != nil {
		t.Fatal(err)
	}
	return ids
}

// locks returns the strongest lock that the transaction's session holds on each of these tables.
func locks(t *testing.T, tx pgx.Tx, tables []uint32) (all []migrate.Lock) {
	t.Helper()
	rows, err := tx.Query(context.Background(), `
select c.relname, array_agg(l.mode)
  from pg_locks l join pg_class c on c.oid = l.relation
 where l.pid = pg_backend_pid() and l.granted and l.relation = any ($1)
 group by c.relname order by c.relname`, tables)
	if err != nil {
		t.Fatal(err)
	}
	var table string
	var modes []string
	_, err = pgx.ForEachRow(rows, []any{&table, &modes}, func() error {
		all = append(all, migrate.Lock{Table: table, Mode: strongest(modes)})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// strongest returns the strongest of PostgreSQL's lock modes, in words.
func strongest(modes []string) string {
	for _, mode := range []string{
		"AccessExclusive", "Exclusive", "ShareRowExclusive", "Share", "ShareUpdateExclusive", "RowExclusive", "RowShare", "AccessShare",
	} {
		if slices.Contains(modes, mode+"Lock") {
			var words strings.Builder
			for _, r := range mode {
				if r >= 'A' && r <= 'Z' && words.Len() > 0 {
					words.WriteByte(' ')
				}
				words.WriteString(strings.ToLower(string(r)))
			}
			return words.String()
		}
	}
	return ""
}

func TestPlan(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	conn := connect(t, outboxtest.URL(t))
	plan := func(s *migrate.Schema) []migrate.Planned {
		s.Limit(migrate.Limits{Lock: time.Second, Tries: 3})
		all, err := s.Plan(ctx)
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	if got := plan(migrate.New(conn, "public")); len(got) > 0 {
		t.Errorf("Plan() of an up-to-date schema = %v", got)
	}
	if got := plan(migrate.New(conn, "nothing there")); len(got) != migrate.Latest || got[1].Name != "outbox" {
		t.Errorf("Plan() of nothing = %v", got)
	}
	if n := value[int](t, conn, `select count(*) from pg_namespace where nspname = 'nothing there'`); n != 0 {
		t.Error("Plan() created the schema")
	}
	exec(t, conn, `drop index outbox_lag`)
	record := migrate.Lock{Table: "outbox_migrations", Mode: "row exclusive"}
	want := []migrate.Planned{
		{Version: migrate.Latest + 1, Name: "alter", Locks: []migrate.Lock{{Table: "outbox", Mode: "access exclusive"}, record},
			Wait: 3 * time.Second, Oldest: 9},
		{Version: migrate.Latest + 2, Name: "index", Locks: []migrate.Lock{{Table: "outbox", Mode: "share update exclusive"}, record},
			Outside: true, Wait: 5 * time.Minute, Oldest: 9},
		{Name: "outbox_lag", Locks: []migrate.Lock{{Table: "outbox", Mode: "share update exclusive"}},
			Outside: true, Wait: 5 * time.Minute},
	}
	got := plan(withExtra(t, conn, "public"))
	if !reflect.DeepEqual(got, want) {
		t.Errorf("Plan() = %+v\nwant %+v", got, want)
	}
	blocks := []bool{got[0].BlocksWriters(), got[1].BlocksWriters(), got[2].BlocksWriters()}
	if !slices.Equal(blocks, []bool{true, false, false}) {
		t.Errorf("BlocksWriters() = %v", blocks)
	}
	exec(t, conn, `insert into outbox_migrations (version, name, min_binary) values ($1, 'later', 9)`, migrate.Latest+3)
	if _, err := withExtra(t, conn, "public").Plan(ctx); !errors.Is(err, migrate.ErrNewer) {
		t.Errorf("Plan() of a newer schema = %v, want ErrNewer", err)
	}
}

// A file that could surprise somebody at work does not get as far as a release.
func TestMigrationFilesAreStrict(t *testing.T) {
	t.Parallel()
	tests := map[string]string{
		"no way down":         "-- oldest binary: 9\n-- locks: none\nselect 1;\n",
		"no oldest binary":    "-- locks: none\nselect 1;\n---- down ----\n",
		"no locks":            "-- oldest binary: 9\nselect 1;\n---- down ----\n",
		"unknown lock":        "-- oldest binary: 9\n-- locks: outbox (total)\nselect 1;\n---- down ----\n",
		"long wait":           "-- oldest binary: 9\n-- locks: outbox (share)\nselect 1;\nselect 2;\n---- down ----\n",
		"concurrently a view": "-- oldest binary: 9\n-- locks: none\n-- concurrently\ncreate view v as select 1;\n---- down ----\n",
		"concurrently none":   "-- oldest binary: 9\n-- locks: none\n-- concurrently\n---- down ----\n",
	}
	for name, text := range tests {
		if err := migrate.New(nil, "public").Add(later(1, "bad"), text); err == nil {
			t.Errorf("%s: taken", name)
		}
	}
}
