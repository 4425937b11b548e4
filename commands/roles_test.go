package commands_test

import (
	"fmt"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/outboxctl/outboxctl/migrate"
	"github.com/outboxctl/outboxctl/outbox/outboxtest"
)

// everybody runs a command that asks no database.
const everybody = "producer dispatcher operator reader cdc"

// mayRun says which role may run which command, with the arguments in deep or those given here.
// docs/security.md shows it.
var mayRun = map[string]struct {
	roles string
	args  []string
}{
	"backfill": {"operator", []string{"--table", "orders", "--event-type", "order.created", "--aggregate-type", "order", "--aggregate-id", "id",
		"--payload", "*", "--time-column", "at", "--all", "--yes"}},
	"backfill detect": {"operator", []string{"--table", "orders", "--event-type", "order.created", "--aggregate-type", "order", "--aggregate-id", "id",
		"--payload", "*", "--time-column", "at"}},
	"backfill key-function": {everybody, nil},
	"config check":          {everybody, []string{"--config", "CONFIG"}},
	"config show":           {everybody, []string{"--config", "CONFIG"}},
	"dispatch":              {"dispatcher", nil},
	"dispatch pause":        {"operator", nil},
	"dispatch resume":       {"operator", nil},
	"events discard":        {"operator", nil},
	"events edit":           {"operator", nil},
	"events explain":        {"operator reader", nil},
	"events list":           {"dispatcher operator reader", nil},
	"events show":           {"operator", nil}, // with --reveal, which leaves a record
	"migrate":               {"dispatcher operator reader cdc", nil},
	"migrate down":          {"", []string{"--to", "12", "--yes"}},
	"migrate grants":        {everybody, nil},
	"migrate plan":          {"dispatcher operator reader cdc", nil},
	"migrate print":         {everybody, nil},
	"migrate status":        {"dispatcher operator reader cdc", nil},
	"migrate up":            {"dispatcher operator reader cdc", nil},
	"migrate verify":        {"dispatcher operator reader cdc", nil},
	"purge":                 {"operator", nil},
	"replay":                {"operator", nil},
	"stats":                 {"dispatcher operator reader", nil},
	"stats doctor":          {"operator reader", nil},
	"stats errors":          {"dispatcher operator reader", nil},
	"version":               {everybody, nil},
}

// desk is a database with an event of each kind, and the roles of migrate grants.
type desk struct {
	conn *pgx.Conn
	urls map[string]string // by role
}

func newDesk(t *testing.T) *desk {
	t.Helper()
	base := outboxtest.URL(t)
	d := &desk{conn: connectTo(t, base), urls: map[string]string{}}
	const prefix = "Test desk-"
	script, err := migrate.Grants("public", prefix+t.Name())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, role := range migrate.Roles() {
			name := quoted(prefix + t.Name() + role)
			execOn(t, d.conn, `drop owned by `+name)
			execOn(t, d.conn, `drop role `+name)
		}
	})
	execOn(t, d.conn, script)
	u, err := url.Parse(base)
	if err != nil {
		t.Fatal(err)
	}
	for _, role := range migrate.Roles() {
		name := prefix + t.Name() + role
		execOn(t, d.conn, `alter role `+quoted(name)+` login password 'secret'`)
		u.User = url.UserPassword(name, "secret")
		d.urls[role] = u.String()
	}
	execOn(t, d.conn, `create table orders (id int primary key, at timestamptz not null default now() - interval '1 hour');
		insert into orders select generate_series(1, 3);
		grant select on orders to `+quoted(prefix+t.Name()+"operator"))
	return d
}

// The tables that a command may change; outbox_samples, where stats leave a mark, is not among them.
var changing = []string{"outbox", "outbox_attempts", "outbox_archive", "outbox_audit", "outbox_destinations", "outbox_late", "outbox_migrations",
	"outbox_operations", "outbox_rollup", "outbox_tenant_pauses", "outbox_workers"}

// lay puts the same events on it again.
func (d *desk) lay(t *testing.T) {
	t.Helper()
	execOn(t, d.conn, `truncate outbox, outbox_attempts, outbox_audit, outbox_destinations, outbox_operations, outbox_rollup, outbox_tenant_pauses, outbox_workers restart identity;
		insert into outbox (aggregate_type, aggregate_id, event_type, payload, status, finished_at, error_kind)
		select 'order', i::text, 'order.created', '{"n": 1}', s, case when i > 1 then now() - interval '2 hours' end, case when i > 2 then 'http' end
		  from unnest(array['pending', 'delivered', 'failed', 'dead_letter']) with ordinality as kind (s, i)`)
}

// print is a fingerprint of all that is there.
func (d *desk) print(t *testing.T) string {
	t.Helper()
	var all strings.Builder
	for _, table := range changing {
		all.WriteString(value[string](t, d.conn, `select coalesce(md5(string_agg(r::text, ' ' order by r::text)), 'empty') from `+table+` r`))
	}
	return all.String()
}

// Each role runs the commands that it is for. To the others one line says what is missing, and nothing
// has changed.
func TestEachRoleRunsItsCommands(t *testing.T) {
	t.Parallel()
	everyCommand(t, mayRun)
	d := newDesk(t)
	config := writeFile(t, "color: never\n")
	for _, path := range sorted(mayRun) {
		line := strings.Fields(path)
		args := mayRun[path].args
		if args == nil {
			args = deep[path]
		}
		for _, arg := range args {
			line = append(line, strings.Replace(arg, "CONFIG", config, 1))
		}
		d.lay(t)
		before := d.print(t)
		for _, role := range migrate.Roles() {
			may := slices.Contains(strings.Fields(mayRun[path].roles), role)
			code, _, words := outboxctl(d.urls[role], line...)
			switch {
			case may && code != 0 && !(path == "stats doctor" && code == 3):
				t.Errorf("%s may not %s: exit %d: %s", role, path, code, words)
			case !may && (code != 4 || !oneRefusal(words)):
				t.Errorf("%s may %s: exit %d, want 4 and one line: %s", role, path, code, words)
			}
			if may {
				d.lay(t)
				before = d.print(t)
			} else if d.print(t) != before {
				t.Errorf("%s may not %s, and something has changed", role, path)
			}
		}
	}
}

// oneRefusal reports whether the one line that is no warning and no log says what is missing.
func oneRefusal(words string) bool {
	var said []string
	for line := range strings.Lines(words) {
		if strings.HasPrefix(line, "outboxctl: ") && !strings.HasPrefix(line, "outboxctl: warning:") {
			said = append(said, line)
		}
	}
	return len(said) == 1 && (strings.Contains(said[0], "permission denied for ") || strings.Contains(said[0], "must be owner of "))
}

// The page shows the table that the test above has tried.
func TestSecurityPageShowsTheRoles(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../docs/security.md")
	if err != nil {
		t.Fatal(err)
	}
	want := "| command | " + strings.Join(migrate.Roles(), " | ") + " |\n|---|" + strings.Repeat("---|", len(migrate.Roles())) + "\n"
	for _, path := range sorted(mayRun) {
		want += fmt.Sprintf("| `%s` |", path)
		for _, role := range migrate.Roles() {
			if slices.Contains(strings.Fields(mayRun[path].roles), role) {
				want += " yes |"
			} else {
				want += " |"
			}
		}
		want += "\n"
	}
	if !strings.Contains(string(page), want) {
		t.Errorf("docs/security.md does not show this table:\n%s", want)
	}
}
