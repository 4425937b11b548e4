package main_test

import (
	"context"
	"crypto/rand"
	"database/sql"
	"fmt"
	"net/http"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/outboxctl/outboxctl/outbox"
	"github.com/outboxctl/outboxctl/outbox/outboxtest"
)

const rolesSchema = `My "outbox"`

// roles is an outbox with the roles of migrate grants, each of which can log in.
type roles struct {
	db  *pgxpool.Pool     // of the owner
	url map[string]string // by role
}

// newRoles runs the script as an operator would: with psql.
func newRoles(t *testing.T) *roles {
	t.Helper()
	url, db := empty(t)
	if code, _, words := run(t, url, "migrate", "--schema", rolesSchema); code != 0 {
		t.Fatalf("migrate = %d: %s", code, words)
	}
	prefix := "test_" + strings.ToLower(rand.Text()[:10]) + "_"
	_, script, _ := run(t, "", "migrate", "grants", "--schema", rolesSchema, "--prefix", prefix)
	psql := tool("psql")
	if psql == "" {
		t.Fatal("psql is missing: install PostgreSQL's client programs")
	}
	cmd := exec.Command(psql, "-X", "-q", "-v", "ON_ERROR_STOP=1", "-d", url)
	cmd.Stdin = strings.NewReader(script)
	if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
		t.Fatalf("psql: %v: %s", err, out)
	}
	r := &roles{db: db, url: map[string]string{}}
	password, c := rand.Text(), db.Config().ConnConfig
	for _, role := range []string{"producer", "dispatcher", "operator", "reader", "cdc"} {
		execute(t, db, fmt.Sprintf(`alter role %s%s login password '%s'`, prefix, role, password))
		t.Cleanup(func() { execute(t, db, fmt.Sprintf(`drop owned by %[1]s; drop role %[1]s`, prefix+role)) })
		r.url[role] = fmt.Sprintf("host=%s port=%d dbname=%s user=%s%s password=%s", c.Host, c.Port, c.Database, prefix, role, password)
	}
	return r
}

// in puts the schema into a statement.
func (r *roles) in(sql string) string {
	return strings.ReplaceAll(sql, "{schema}", pgx.Identifier{rolesSchema}.Sanitize())
}

func (r *roles) connect(t *testing.T, role string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(context.Background(), r.url[role])
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

func (r *roles) run(t *testing.T, role string, args ...string) (code int, out, words string) {
	t.Helper()
	return run(t, r.url[role], append(args, "--schema", rolesSchema)...)
}

// Each command works as the role that it is for. Another role is told in a line what it lacks.
func TestCommandsNeedTheirRoleAndNoMore(t *testing.T) {
	t.Parallel()
	r := newRoles(t)
	tests := []struct{ command, may, not string }{
		{"migrate status", "reader", "producer"},
		{"migrate verify", "reader", "producer"},
		{"migrate plan", "reader", "producer"},
		{"migrate", "reader", "producer"}, // there is nothing to do
		{"stats", "reader operator dispatcher", "producer cdc"},
		{"stats errors", "reader operator dispatcher", "producer cdc"},
		{"stats --by hour", "reader operator dispatcher", "producer"},
		{"stats -o prometheus", "reader operator dispatcher", "producer"},
		{"dispatch --to stdout: --once --dry-run", "reader", "cdc"},
		{"purge --older-than 30d --yes", "operator", "producer dispatcher reader cdc"},
		{"dispatch --to stdout: --once", "dispatcher", "producer operator reader cdc"},
	}
	for _, tt := range tests {
		for _, role := range strings.Fields(tt.may) {
			if code, _, words := r.run(t, role, strings.Fields(tt.command)...); code != 0 {
				t.Errorf("%s as %s = %d: %s", tt.command, role, code, words)
			}
		}
		for _, role := range strings.Fields(tt.not) {
			if code, _, words := r.run(t, role, strings.Fields(tt.command)...); code != 4 || !refused(words) {
				t.Errorf("%s as %s = %d, want 4 and a line: %s", tt.command, role, code, words)
			}
		}
	}
}

// refused reports whether the one line that is no log says what is missing.
func refused(words string) bool {
	var said []string
	for line := range strings.Lines(words) {
		if strings.HasPrefix(line, "outboxctl: ") && !strings.HasPrefix(line, "outboxctl: warning:") {
			said = append(said, line)
		}
	}
	return len(said) == 1 && strings.Contains(said[0], "permission denied for")
}

// A migration is the owner's, whoever else may look.
func TestOnlyTheOwnerMigrates(t *testing.T) {
	t.Parallel()
	r := newRoles(t)
	execute(t, r.db, r.in(`drop index {schema}.outbox_lag`))
	for _, role := range []string{"operator", "dispatcher", "reader"} {
		code, _, words := r.run(t, role, "migrate")
		if code != 4 || !strings.Contains(words, "must be owner of table outbox") || strings.Count(words, "outboxctl: ") != 1 {
			t.Errorf("migrate as %s = %d: %q, want one line", role, code, words)
		}
		if code, _, words := r.run(t, role, "migrate", "down", "--to", "8"); code != 4 {
			t.Errorf("migrate down as %s = %d: %s", role, code, words)
		}
	}
}

func TestProducerRoleWritesEvents(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	r := newRoles(t)
	conn := r.connect(t, "producer")
	key := uuid.New()
	for _, statement := range []string{
		`insert into {schema}.outbox (aggregate_type, aggregate_id, event_type, idempotency_key, payload, status, available_at)
values ('order', '42', 'order.created', gen_random_uuid(), '{"n": 1}', 'pending', now())`,
		`insert into {schema}.outbox (aggregate_type, aggregate_id, event_type, payload) values ('order', '42', 'order.created', '{}') returning id`,
		`select {schema}.outbox_emit('order', '42', 'order.created', '{}')`,
		`select {schema}.outbox_emit('order', '42', 'order.created', '{}', '` + key.String() + `', 'acme', '{"a": "b"}', now(), 2, 'crm')`,
		`select {schema}.outbox_emit('order', '42', 'order.created', '{}', '` + key.String() + `')`,
	} {
		if _, err := conn.Exec(ctx, r.in(statement)); err != nil {
			t.Errorf("%s: %v", statement, err)
		}
	}
	ev := outbox.Event{Type: "order.created", AggregateType: "order", AggregateID: "42", Payload: []byte(`{}`)}
	appender := outbox.Appender{Schema: rolesSchema}
	if err := pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error { return appender.Append(ctx, tx, ev) }); err != nil {
		t.Errorf("Append: %v", err)
	}
	if err := appendSQL(ctx, r.url["producer"], appender, ev); err != nil {
		t.Errorf("AppendSQL: %v", err)
	}
	if n := query[int](t, r.db, r.in(`select count(*) from {schema}.outbox where status = 'pending'`)); n != 6 {
		t.Errorf("%d events, want 6", n)
	}
}

// An operator fills a gap from what the role may read.
func TestOperatorRoleBackfills(t *testing.T) {
	t.Parallel()
	r := newRoles(t)
	execute(t, r.db, ordersSQL)
	execute(t, r.db, `insert into orders select i, 'c', 1, 'EUR', 'new', now() from generate_series(1, 5) i`)
	args := backfillOrders("--all", "--name", "gap")
	code, _, words := r.run(t, "operator", args...)
	if code != 4 || !strings.Contains(words, `permission denied for "public"."orders"`) || !strings.Contains(words, `grant select on "public"."orders" to `) {
		t.Errorf("without a grant: exit code %d: %s", code, words)
	}
	role := r.connect(t, "operator").Config().User
	execute(t, r.db, `grant select on orders to `+role)
	if code, out, words := r.run(t, "operator", args...); code != 0 || !strings.HasPrefix(out, "backfilled 5 events ") {
		t.Errorf("with one: exit code %d: %s%s", code, out, words)
	}
	execute(t, r.db, r.in(`update {schema}.outbox_operations set ended_at = null`))
	if code, out, words := r.run(t, "operator", backfillOrders("--resume", "gap")...); code != 0 || !strings.HasPrefix(out, "backfilled 5 events ") {
		t.Errorf("again: exit code %d: %s%s", code, out, words)
	}
	if code, _, _ := r.run(t, "reader", backfillOrders("--all", "--dry-run")...); code != 4 {
		t.Errorf("as reader: exit code %d, want 4", code)
	}
}

func appendSQL(ctx context.Context, url string, appender outbox.Appender, ev outbox.Event) error {
	config, err := pgx.ParseConfig(url)
	if err != nil {
		return err
	}
	db := sql.OpenDB(stdlib.GetConnector(*config))
	defer db.Close()
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	if err := appender.AppendSQL(ctx, tx, ev); err != nil {
		return err
	}
	return tx.Commit()
}

// A dispatcher delivers, retries, buries and counts with its role alone.
func TestDispatcherRoleDelivers(t *testing.T) {
	t.Parallel()
	r := newRoles(t)
	execute(t, r.db, r.in(`select {schema}.outbox_emit('order', n::text, 'order.created', '{}') from generate_series(1, 20) n`))
	receiver := outboxtest.NewReceiver(t, outboxtest.Script(outboxtest.Answer{Status: http.StatusInternalServerError},
		outboxtest.Answer{Status: http.StatusUnprocessableEntity}, outboxtest.Answer{Status: http.StatusOK}))
	code, _, words := r.run(t, "dispatcher", "dispatch", "--once", "--to", receiver.URL, "--allow-private", "--backoff", "100ms..1s")
	if code != 3 { // one is a dead letter
		t.Errorf("dispatch = %d, want 3: %s", code, words)
	}
	got := query[string](t, r.db, r.in(`select string_agg(status || ' ' || n, ', ' order by status)
from (select status, count(*) n from {schema}.outbox group by status) s`))
	if want := "dead_letter 1, delivered 19"; got != want {
		t.Errorf("events: %s, want %s", got, want)
	}
	if strings.Contains(words, "denied") {
		t.Errorf("something was refused: %s", words)
	}
	if n := query[int](t, r.db, r.in(`select count(*) from {schema}.outbox_attempts`)); n != 2 {
		t.Errorf("%d attempts are recorded, want 2", n)
	}
}

// What a role is not for is refused by PostgreSQL, whatever the program.
func TestRolesAreRefusedTheRest(t *testing.T) {
	t.Parallel()
	r := newRoles(t)
	execute(t, r.db, r.in(`select {schema}.outbox_emit('order', '1', 'order.created', '{}')`))
	execute(t, r.db, r.in(`insert into {schema}.outbox_operations (command) values ('replay')`))
	const finish = `finished_at = now(), status = 'discarded'`
	tests := []struct {
		sql string
		may string
	}{
		{`select payload from {schema}.outbox`, "dispatcher operator"},
		{`select headers from {schema}.outbox`, "dispatcher operator"},
		{`select status, error from {schema}.outbox`, "dispatcher operator reader"},
		{`select destination from {schema}.outbox`, "producer dispatcher operator reader cdc"},
		{`update {schema}.outbox set payload = '{"n": 2}'`, "operator"},
		{`update {schema}.outbox set ` + finish + ` where false`, "dispatcher operator"},
		{`update {schema}.outbox set idempotency_key = gen_random_uuid()`, "operator"},
		// A dispatcher adds copies for other destinations, which are pending and due now: it sets no state.
		{`insert into {schema}.outbox (aggregate_type, aggregate_id, event_type, payload) values ('order', '1', 'x', '{}')`, "producer dispatcher operator"},
		{`insert into {schema}.outbox (aggregate_type, aggregate_id, event_type, payload, status, available_at)
values ('order', '1', 'x', '{}', 'pending', now())`, "producer operator"},
		{`insert into {schema}.outbox (id, aggregate_type, aggregate_id, event_type, payload) values (0, 'order', '1', 'x', '{}')`, ""},
		{`insert into {schema}.outbox (aggregate_type, aggregate_id, event_type, payload, status, finished_at)
values ('order', '1', 'x', '{}', 'delivered', now())`, ""},
		{`insert into {schema}.outbox (aggregate_type, aggregate_id, event_type, payload, origin) values ('order', '1', 'x', '{}', 'backfill:1')`, "dispatcher operator"},
		{`delete from {schema}.outbox where id < 0`, "operator"},
		{`select * from {schema}.outbox_attempts`, "dispatcher operator reader"},
		{`delete from {schema}.outbox_attempts`, "operator"},
		{`delete from {schema}.outbox_rollup`, "operator"},
		{`delete from {schema}.outbox_samples`, "operator"},
		{`update {schema}.outbox_attempts set error = ''`, ""},
		{`delete from {schema}.outbox_audit`, ""},
		{`select payload from {schema}.outbox_archive`, "operator"},
		{`select headers from {schema}.outbox_archive`, "operator"},
		{`select status, error from {schema}.outbox_archive`, "operator reader"},
		{`select {schema}.outbox_archive_prepare(array[now()])`, "operator"},
		{`select {schema}.outbox_archive_drop('outbox_archive_2000_01', now())`, "operator"},
		{`update {schema}.outbox_archive set payload = null`, "operator"},
		{`delete from {schema}.outbox_archive`, ""},
		{`select {schema}.outbox_forget(now() - interval '3000 hours', 1)`, "operator"},
		{`select {schema}.outbox_forget(now(), 1)`, ""},
		{`insert into {schema}.outbox_operations (command) values ('purge')`, "operator"},
		{`update {schema}.outbox_operations set command = 'none'`, ""},
		{`delete from {schema}.outbox_operations`, ""},
		{`insert into {schema}.outbox_destinations (destination) values ('crm') on conflict do nothing`, "dispatcher operator"},
		{`insert into {schema}.outbox_late (destination, events, last_event) values ('crm', 0, 0)`, "dispatcher"},
		{`update {schema}.outbox_late set destination = 'erp'`, ""},
		{`delete from {schema}.outbox_late`, ""},
		{`delete from {schema}.outbox_destinations`, ""},
		{`truncate {schema}.outbox`, ""},
		{`drop table {schema}.outbox`, ""},
		{`create table {schema}.mine (id int)`, ""},
		{`update {schema}.outbox_migrations set version = 0`, ""},
	}
	for role := range r.url {
		conn := r.connect(t, role)
		for _, tt := range tests {
			_, err := conn.Exec(context.Background(), r.in(tt.sql))
			switch may := slices.Contains(strings.Fields(tt.may), role); {
			case may && err != nil:
				t.Errorf("%s is refused %s: %v", role, tt.sql, err)
			case !may && !denied(err):
				t.Errorf("%s may %s: %v", role, tt.sql, err)
			}
		}
	}
	var replication bool
	err := r.connect(t, "cdc").QueryRow(context.Background(), `select rolreplication from pg_roles where rolname = current_user`).Scan(&replication)
	if err != nil || !replication {
		t.Errorf("cdc may replicate: %v, %v", replication, err)
	}
}

func denied(err error) bool {
	const insufficientPrivilege = "42501"
	pg, ok := err.(*pgconn.PgError)
	return ok && pg.Code == insufficientPrivilege
}
