package migrate_test

import (
	"context"
	"crypto/rand"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/outboxctl/outboxctl/migrate"
	"github.com/outboxctl/outboxctl/outbox/outboxtest"
)

// grant runs the script for roles of this test alone, which belong to the whole server, and returns
// the prefix of their names.
func grant(t *testing.T, conn *pgx.Conn, schema, suffix string) (prefix string) {
	t.Helper()
	prefix = "test_" + strings.ToLower(rand.Text()[:10]) + suffix
	script, err := migrate.Grants(schema, prefix)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, role := range migrate.Roles() {
			name := pgx.Identifier{prefix + role}.Sanitize()
			exec(t, conn, `drop owned by `+name+`; drop role `+name)
		}
	})
	exec(t, conn, script)
	return prefix
}

func TestGrantsFitEverySchema(t *testing.T) {
	t.Parallel()
	conn := connect(t, outboxtest.Empty(t))
	for _, schema := range []string{`My-"Schema"`, `$body$ $block$ %s`, "new\nline", `o'clock\`} {
		if _, err := up(migrate.New(conn, schema)); err != nil {
			t.Fatal(err)
		}
		prefix := grant(t, conn, schema, `$block$ o'"x`)
		usage := `select has_schema_privilege($1::text, $2::text, 'usage')`
		for _, role := range migrate.Roles() {
			if !value[bool](t, conn, usage, prefix+role, schema) {
				t.Errorf("%s cannot use %q", role, schema)
			}
		}
	}
}

// columnsSQL lists the columns of a table for which a role has a privilege.
const columnsSQL = `
select coalesce(array_agg(attname::text order by attname), '{}')
  from pg_attribute
 where attrelid = $2::regclass
   and attnum > 0 and not attisdropped
   and has_column_privilege($1::text, attrelid, attnum, $3)`

// A column that a migration adds is a decision here: who may see it, who may write it.
func TestGrantsNameEveryColumn(t *testing.T) {
	t.Parallel()
	conn := connect(t, outboxtest.URL(t))
	prefix := grant(t, conn, "public", "")
	columns := func(role, privilege string) []string {
		return value[[]string](t, conn, columnsSQL, prefix+role, "outbox", privilege)
	}
	all := value[[]string](t, conn, columnsSQL, value[string](t, conn, `select current_user::text`), "outbox", "select")
	except := func(names ...string) []string {
		return slices.DeleteFunc(slices.Clone(all), func(c string) bool { return slices.Contains(names, c) })
	}
	tests := []struct {
		role, privilege string
		want            []string
	}{
		{"reader", "select", except("payload", "payload_bytes", "headers")},
		{"reader", "insert", []string{}},
		{"reader", "update", []string{}},
		{"operator", "select", all},
		{"operator", "insert", except("id", "attempts", "next_attempt_at", "lease", "lease_until",
			"last_attempt_at", "finished_at", "updated_at", "receipt", "error", "error_kind", "error_code")},
		{"operator", "update", except("id", "source_id", "tenant_id", "aggregate_type", "aggregate_id", "event_type",
			"schema_version", "created_at", "last_attempt_at")},
		{"dispatcher", "select", all},
		{"dispatcher", "insert", except("id", "status", "attempts", "next_attempt_at", "lease", "lease_until",
			"last_attempt_at", "finished_at", "updated_at", "receipt", "error", "error_kind", "error_code")},
		{"dispatcher", "update", []string{"attempts", "available_at", "destination", "error", "error_code", "error_kind", "finished_at", "last_attempt_at",
			"lease", "lease_until", "next_attempt_at", "origin", "receipt", "status", "updated_at"}},
		{"producer", "select", []string{"destination", "id", "idempotency_key"}},
		{"producer", "insert", []string{"aggregate_id", "aggregate_type", "available_at", "destination", "event_type", "headers",
			"idempotency_key", "payload", "payload_bytes", "schema_version", "status", "tenant_id"}},
		{"producer", "update", []string{}},
		{"cdc", "select", []string{"destination", "id"}},
		{"cdc", "insert", []string{}},
	}
	for _, tt := range tests {
		if got := columns(tt.role, tt.privilege); !slices.Equal(got, tt.want) {
			t.Errorf("%s may %s %v, want %v", tt.role, tt.privilege, got, tt.want)
		}
	}
	for _, role := range migrate.Roles() {
		removes := value[bool](t, conn, `select has_table_privilege($1::text, 'outbox', 'delete')`, prefix+role)
		if removes != (role == "operator") {
			t.Errorf("%s may delete events: %v", role, removes)
		}
	}
}

// The script gives what is needed now and takes back what it gave before, or what somebody added.
func TestGrantsTakeBack(t *testing.T) {
	t.Parallel()
	conn := connect(t, outboxtest.URL(t))
	prefix := grant(t, conn, "public", "")
	reader := pgx.Identifier{prefix + "reader"}.Sanitize()
	exec(t, conn, `grant delete on outbox_operations to `+reader+`; grant select (payload) on outbox to `+reader)
	script, err := migrate.Grants("public", prefix)
	if err != nil {
		t.Fatal(err)
	}
	exec(t, conn, script)
	if value[bool](t, conn, `select has_table_privilege($1::text, 'outbox_operations', 'delete')
or has_column_privilege($1::text, 'outbox', 'payload', 'select')`, prefix+"reader") {
		t.Error("a reader kept what it should not have")
	}
}

func TestGrantsRefuseImpossibleNames(t *testing.T) {
	t.Parallel()
	if _, err := migrate.Grants("public", strings.Repeat("x", 60)); !errors.Is(err, migrate.ErrRole) {
		t.Errorf("Grants() = %v, want ErrRole", err)
	}
	if _, err := migrate.Grants("", "outbox_"); !errors.Is(err, migrate.ErrName) {
		t.Errorf("Grants() = %v, want ErrName", err)
	}
}

// Somebody who may create roles, and no more, is told what is left to do.
func TestGrantsNeedNoSuperuser(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	url := outboxtest.Empty(t)
	conn := connect(t, url)
	owner := pgx.Identifier{"test_" + strings.ToLower(rand.Text()[:10])}.Sanitize()
	exec(t, conn, `create role `+owner+` createrole`)
	database := pgx.Identifier{conn.Config().Database}.Sanitize()
	exec(t, conn, `grant create on database `+database+` to `+owner)
	t.Cleanup(func() { exec(t, conn, `reset role; drop owned by `+owner+`; drop role `+owner) })
	exec(t, conn, `set role `+owner)
	if _, err := up(migrate.New(conn, "app")); err != nil {
		t.Fatal(err)
	}
	prefix := grant(t, conn, "app", "")
	t.Cleanup(func() { exec(t, conn, `reset role`) })
	var may bool
	err := conn.QueryRow(ctx, `select has_column_privilege($1::text, 'app.outbox', 'destination', 'select')`, prefix+"cdc").Scan(&may)
	if err != nil || !may {
		t.Errorf("cdc may not look: %v", err)
	}
}
