package migrate_test

import (
	"context"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/outboxctl/outboxctl/migrate"
	"github.com/outboxctl/outboxctl/outbox/outboxtest"
)

const partitionsSQL = `
select coalesce(array_agg(c.relname || ' ' || pg_get_expr(c.relpartbound, c.oid) order by c.relname), '{}')
  from pg_inherits i join pg_class c on c.oid = i.inhrelid
 where i.inhparent = $1::regclass`

// Partitions are by the months of UTC, whatever the session's time zone, and each is made once.
func TestArchiveIsPreparedByMonth(t *testing.T) {
	t.Parallel()
	conn := connect(t, outboxtest.Empty(t))
	for _, schema := range []string{"public", `My-"Schema"`, `$body$ %s`, `o'clock\`} {
		if _, err := up(migrate.New(conn, schema)); err != nil {
			t.Fatal(err)
		}
		quoted := pgx.Identifier{schema}.Sanitize()
		exec(t, conn, `set timezone = 'Asia/Tokyo'; set datestyle = 'SQL, DMY'`)
		prepare := `select ` + quoted + `.outbox_archive_prepare($1::text[]::timestamptz[])`
		times := []string{"2026-01-31T23:30:00Z", "2026-01-01T00:00:00Z", "2026-02-01T00:00:00Z", "1999-12-31T23:59:59.999999Z"}
		if n := value[int](t, conn, prepare, times); n != 3 {
			t.Errorf("%q: %d partitions are made, want 3", schema, n)
		}
		if n := value[int](t, conn, prepare, times); n != 0 {
			t.Errorf("%q: %d partitions are made again", schema, n)
		}
		exec(t, conn, `set timezone = 'UTC'; set datestyle = 'ISO'`)
		want := []string{
			"outbox_archive_1999_12 FOR VALUES FROM ('1999-12-01 00:00:00+00') TO ('2000-01-01 00:00:00+00')",
			"outbox_archive_2026_01 FOR VALUES FROM ('2026-01-01 00:00:00+00') TO ('2026-02-01 00:00:00+00')",
			"outbox_archive_2026_02 FOR VALUES FROM ('2026-02-01 00:00:00+00') TO ('2026-03-01 00:00:00+00')",
		}
		if got := value[[]string](t, conn, partitionsSQL, quoted+".outbox_archive"); !slices.Equal(got, want) {
			t.Errorf("%q: partitions\n%s\nwant\n%s", schema, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
		if got, err := migrate.New(conn, schema).Verify(context.Background()); err != nil || len(got) > 0 {
			t.Errorf("%q: Verify() = %v, %v", schema, got, err)
		}
	}
}

// A month that somebody's larger partition holds needs none of its own.
func TestArchiveTakesOthersPartitions(t *testing.T) {
	t.Parallel()
	conn := connect(t, outboxtest.URL(t))
	exec(t, conn, `create table year partition of outbox_archive for values from ('2025-01-01 00:00+00') to ('2026-01-01 00:00+00')`)
	if n := value[int](t, conn, `select outbox_archive_prepare(array['2025-07-01', '2026-01-01']::timestamptz[])`); n != 1 {
		t.Errorf("%d partitions are made, want 1", n)
	}
	if got, err := migrate.New(conn, "public").Verify(context.Background()); err != nil || len(got) > 0 {
		t.Errorf("Verify() = %v, %v", got, err)
	}
}

func TestArchiveIsPreparedByManyAtOnce(t *testing.T) {
	t.Parallel()
	url := outboxtest.URL(t)
	var all sync.WaitGroup
	for range 8 {
		conn := connect(t, url)
		all.Go(func() {
			for month := range 6 {
				_, err := conn.Exec(context.Background(), `select outbox_archive_prepare(array['2026-01-15'::timestamptz + $1 * interval '1 month'])`, month)
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	if n := len(value[[]string](t, connect(t, url), partitionsSQL, "outbox_archive")); n != 6 {
		t.Errorf("%d partitions, want 6", n)
	}
}

const archiveSQL = `
select outbox_archive_prepare(array['2026-01-15', '2026-02-15']::timestamptz[]);
insert into outbox_archive (id, tenant_id, aggregate_type, aggregate_id, event_type, schema_version, idempotency_key, destination,
            headers, payload, status, attempts, available_at, finished_at, created_at, updated_at, origin)
select i, '', 'order', i::text, 'order.created', 1, gen_random_uuid(), '', '{}', '{}', 'delivered', 1, now(),
       '2026-01-31 23:59+00'::timestamptz + i * interval '1 minute', now(), now(), ''
  from generate_series(0, 9) i`

func TestArchiveDropsWholePartitionsOnly(t *testing.T) {
	t.Parallel()
	conn := connect(t, outboxtest.URL(t))
	exec(t, conn, archiveSQL)
	for _, tt := range []struct {
		part, before string
		want         bool
	}{
		{"outbox_archive_2026_01", "2026-01-31 23:59:59+00", false},
		{"outbox_archive_2026_02", "2026-02-01+00", false},
		{"outbox", "infinity", false},
		{"outbox_archive", "infinity", false},
		{`outbox_archive_2026_01; drop table outbox`, "infinity", false},
		{"outbox_archive_2026_01", "2026-02-01+00", true},
		{"outbox_archive_2026_01", "2026-02-01+00", false},
	} {
		if got := value[bool](t, conn, `select outbox_archive_drop($1, $2::text::timestamptz)`, tt.part, tt.before); got != tt.want {
			t.Errorf("drop %s before %s = %v", tt.part, tt.before, got)
		}
	}
	if n := value[int](t, conn, `select count(*) from outbox_archive`); n != 9 {
		t.Errorf("%d events are left, want 9", n)
	}
}

func TestDownCountsTheArchive(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	conn := connect(t, outboxtest.URL(t))
	exec(t, conn, archiveSQL)
	s := migrate.New(conn, "public")
	want := []migrate.Loss{{Table: "outbox_archive", Rows: 10}}
	if got, err := s.Losses(ctx, 9); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("Losses() = %v, %v, want %v", got, err, want)
	}
	if _, err := down(s, 9, true); err != nil {
		t.Error(err)
	}
	if n := value[int](t, conn, `select count(*) from pg_class where relname like 'outbox_archive%'`); n != 0 {
		t.Errorf("%d relations are left", n)
	}
}

func TestUpRestoresTheArchivesIndexes(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	conn := connect(t, outboxtest.URL(t))
	exec(t, conn, archiveSQL)
	exec(t, conn, `drop index outbox_archive_key`)
	s := migrate.New(conn, "public")
	plan, err := s.Plan(ctx)
	if err != nil || len(plan) != 1 || plan[0].Name != "outbox_archive_key" || !plan[0].BlocksWriters() {
		t.Errorf("Plan() = %+v, %v", plan, err)
	}
	if got := news(t, s, nil); !slices.Equal(got, []string{migrate.Restored + " outbox_archive_key"}) {
		t.Errorf("Up() told %v", got)
	}
	if got, err := s.Verify(ctx); err != nil || len(got) > 0 {
		t.Errorf("Verify() = %v, %v", got, err)
	}
}

// The functions that act as the owner are for whom they were granted to.
func TestOwnersFunctionsAreNotForEverybody(t *testing.T) {
	t.Parallel()
	conn := connect(t, outboxtest.URL(t))
	prefix := grant(t, conn, "public", "")
	for _, function := range []string{"outbox_archive_prepare(timestamptz[])", "outbox_archive_drop(text, timestamptz)", "outbox_forget(timestamptz, int)"} {
		may := func(role string) bool {
			return value[bool](t, conn, `select has_function_privilege($1::text, $2::text, 'execute')`, role, function)
		}
		if may("pg_monitor") { // is there in every cluster and has what everybody has
			t.Errorf("everybody may run %s", function)
		}
		for _, role := range migrate.Roles() {
			if may(prefix+role) != (role == "operator") {
				t.Errorf("%s may run %s: %v", role, function, may(prefix+role))
			}
		}
	}
}

func TestRecordOfTheLastMonthsStays(t *testing.T) {
	t.Parallel()
	conn := connect(t, outboxtest.URL(t))
	exec(t, conn, `
insert into outbox_operations (command, heartbeat_at) select 'replay', now() - d * interval '1 day' from unnest(array[400, 300, 100, 50]) d;
insert into outbox_audit (operation, event_id, at, action, status, attempts, destination)
select 1, 1, now() - d * interval '1 day', 'replay', 'failed', 1, '' from unnest(array[400, 399, 398, 50]) d`)
	if _, err := conn.Exec(context.Background(), `select outbox_forget(now() - interval '89 days', 10)`); err == nil {
		t.Error("what is younger than 90 days can be forgotten")
	}
	forget := `select operations || ' ' || audit from outbox_forget(now() - interval '365 days', 2)`
	for _, want := range []string{"1 2", "0 1", "0 0"} {
		if got := value[string](t, conn, forget); got != want {
			t.Errorf("forgot %s, want %s", got, want)
		}
	}
}
