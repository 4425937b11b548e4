package migrate_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/outboxctl/outboxctl/migrate"
	"github.com/outboxctl/outboxctl/outbox/outboxtest"
)

var update = flag.Bool("update", false, "rewrite "+migrate.ExpectedFile)

const tablesSQL = `select coalesce(array_agg(relname::text), '{}') from pg_class where relnamespace = 'public'::regnamespace and relkind in ('r', 'p')`

const functionsSQL = `select coalesce(array_agg(proname::text), '{}') from pg_proc where pronamespace = 'public'::regnamespace`

// Whatever the migrations make is what Verify expects, in every schema.
func TestExpectedIsWhatTheMigrationsMake(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	conn := connect(t, outboxtest.URL(t))
	var tables, functions []string
	if err := conn.QueryRow(ctx, tablesSQL).Scan(&tables); err != nil {
		t.Fatal(err)
	}
	if err := conn.QueryRow(ctx, functionsSQL).Scan(&functions); err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		s := migrate.New(conn, name)
		if _, err := up(s); err != nil {
			t.Fatal(err)
		}
		got, err := s.Describe(ctx, tables, functions)
		if err != nil {
			t.Fatal(err)
		}
		if *update {
			if err := os.WriteFile(migrate.ExpectedFile, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(migrate.ExpectedFile)
		if err != nil {
			t.Fatal(err)
		}
		if got != string(want) {
			t.Errorf("schema %q is\n%s\nwant\n%s", name, got, want)
		}
	}
}

func TestVerifyNamesWhatDiffers(t *testing.T) {
	t.Parallel()
	tests := []struct{ name, change, object string }{
		{"column dropped", `alter table outbox drop column origin`, "column outbox.origin"},
		{"column added", `alter table outbox add column mine int`, "column outbox.mine"},
		{"column nullable", `alter table outbox alter column tenant_id drop not null`, "column outbox.tenant_id"},
		{"column without its default", `alter table outbox alter column status drop default`, "column outbox.status"},
		{"column of another type", `alter table outbox_attempts alter column attempt type bigint`, "column outbox_attempts.attempt"},
		{"constraint dropped", `alter table outbox drop constraint outbox_lease`, "constraint outbox.outbox_lease"},
		{"constraint loosened", `alter table outbox drop constraint outbox_payload, add constraint outbox_payload check (true)`, "constraint outbox.outbox_payload"},
		{"constraint not validated", `alter table outbox drop constraint outbox_attempts_positive, add constraint outbox_attempts_positive check (attempts >= 0) not valid`, "constraint outbox.outbox_attempts_positive"},
		{"index dropped", `drop index outbox_due`, "index outbox.outbox_due"},
		{"index added", `create index mine on outbox (status)`, "index outbox.mine"},
		{"index invalid", `update pg_index set indisvalid = false where indexrelid = 'outbox_lag'::regclass`, "index outbox.outbox_lag"},
		{"index without its predicate", `drop index outbox_done; create index outbox_done on outbox (finished_at, id)`, "index outbox.outbox_done"},
		{"fillfactor", `alter table outbox set (fillfactor = 100)`, "table outbox"},
		{"not logged", `alter table outbox_samples set unlogged`, "table outbox_samples"},
		{"function dropped", `drop function outbox_emit`, "function outbox_emit(text, text, text, jsonb, uuid, text, jsonb, timestamp with time zone, integer, text)"},
		{"function's search_path", `alter function outbox_emit reset all`, "function outbox_emit(text, text, text, jsonb, uuid, text, jsonb, timestamp with time zone, integer, text)"},
		{"function added", `create function outbox_emit(int) returns int language sql as 'select 1'`, "function outbox_emit(integer)"},
		{"record lost", `delete from outbox_migrations where version = 3`, "migration 3 attempts"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			ctx := context.Background()
			conn := connect(t, outboxtest.URL(t))
			s := migrate.New(conn, "public")
			if got, err := s.Verify(ctx); err != nil || len(got) > 0 {
				t.Fatalf("Verify() before = %v, %v", got, err)
			}
			if _, err := conn.Exec(ctx, tt.change); err != nil {
				t.Fatal(err)
			}
			got, err := s.Verify(ctx)
			if err != nil {
				t.Fatal(err)
			}
			if len(got) != 1 || got[0].Object != tt.object {
				t.Errorf("Verify() = %v, want one difference, of %s", got, tt.object)
			}
		})
	}
}

func TestVerifyNeedsNoRights(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	conn := connect(t, outboxtest.URL(t))
	// pg_monitor is there in every cluster and may do nothing here.
	_, err := conn.Exec(ctx, `
revoke all on schema public from public;
grant usage on schema public to pg_monitor;
grant select on outbox_migrations to pg_monitor;
set role pg_monitor;
set default_transaction_read_only = on`)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := migrate.New(conn, "public").Verify(ctx); err != nil || len(got) > 0 {
		t.Errorf("Verify() = %v, %v", got, err)
	}
}

func TestReadersCreateNothing(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	conn := connect(t, outboxtest.Empty(t))
	s := migrate.New(conn, "app")
	if _, err := s.Check(ctx); !errors.Is(err, migrate.ErrMissing) {
		t.Errorf("Check() = %v, want ErrMissing", err)
	}
	if _, err := s.Verify(ctx); !errors.Is(err, migrate.ErrMissing) {
		t.Errorf("Verify() = %v, want ErrMissing", err)
	}
	st, err := s.Status(ctx)
	if err != nil || st.Current != 0 || st.Latest != migrate.Latest || len(st.Migrations) != migrate.Latest {
		t.Errorf("Status() = %+v, %v", st, err)
	}
	var n int
	err = conn.QueryRow(ctx, `select count(*) from pg_namespace where nspname = 'app'`).Scan(&n)
	if err != nil || n != 0 {
		t.Errorf("%d schemas, %v, want none", n, err)
	}
}

func TestCheckComparesVersions(t *testing.T) {
	t.Parallel()
	record := func(version, oldest int) string {
		return fmt.Sprintf(`insert into outbox_migrations (version, name, min_binary) values (%d, 'later', %d);`, version, oldest)
	}
	const latest = migrate.Latest
	tests := []struct {
		name, change string
		version      int
		check, up    error
	}{
		{"older", fmt.Sprintf(`delete from outbox_migrations where version = %d; drop table outbox_late`, latest), latest - 1, migrate.ErrOlder, nil},
		{"newer and compatible", record(latest+1, 9), latest + 1, nil, migrate.ErrNewer},
		{"newer", record(latest+1, 9) + record(latest+2, latest+2), latest + 2, migrate.ErrNewer, migrate.ErrNewer},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			ctx := context.Background()
			conn := connect(t, outboxtest.URL(t))
			exec(t, conn, tt.change)
			s := migrate.New(conn, "public")
			if version, err := s.Check(ctx); version != tt.version || !errors.Is(err, tt.check) {
				t.Errorf("Check() = %d, %v, want %d, %v", version, err, tt.version, tt.check)
			}
			if _, err := s.Verify(ctx); err == nil {
				t.Error("Verify() judges a version that it does not know")
			}
			if _, err := up(s); !errors.Is(err, tt.up) {
				t.Errorf("Up() = %v, want %v", err, tt.up)
			}
		})
	}
}

func exec(t *testing.T, conn *pgx.Conn, sql string, args ...any) {
	t.Helper()
	if _, err := conn.Exec(context.Background(), sql, args...); err != nil {
		t.Fatal(err)
	}
}
