package commands_test

import (
	"bytes"
	"encoding/json"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/outboxctl/outboxctl/commands"
	"github.com/outboxctl/outboxctl/migrate"
	"github.com/outboxctl/outboxctl/outbox/outboxtest"
)

// outboxctl runs a command line on a database and returns what a shell would see.
func outboxctl(url string, args ...string) (code int, out, words string) {
	var stdout, stderr bytes.Buffer
	code = commands.Main(commands.Process{
		Args:    args,
		In:      strings.NewReader(""),
		Out:     &stdout,
		Err:     &stderr,
		Signals: make(chan os.Signal),
		Getenv: func(name string) string {
			if name == "DATABASE_URL" {
				return url
			}
			return ""
		},
	})
	return code, stdout.String(), stderr.String()
}

func execute(t *testing.T, url, sql string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	if _, err := conn.Exec(t.Context(), sql); err != nil {
		t.Fatal(err)
	}
}

func TestMigrateExitCodes(t *testing.T) {
	t.Parallel()
	empty, migrated, changed, newer, older, foreign := outboxtest.Empty(t), outboxtest.URL(t),
		outboxtest.URL(t), outboxtest.URL(t), outboxtest.URL(t), outboxtest.Empty(t)
	execute(t, changed, `drop index outbox_due; alter table outbox add mine int`)
	execute(t, newer, `insert into outbox_migrations (version, name, min_binary) values (1000, 'later', 1)`)
	execute(t, older, `delete from outbox_migrations where version = 13; drop table outbox_late`)
	execute(t, foreign, `create table outbox (id int)`)
	tests := []struct {
		url   string
		args  string
		code  int
		out   string // in stdout
		words string // in stderr
	}{
		{empty, "migrate verify", 5, "", "missing"},
		{empty, "migrate status", 0, "not applied", ""},
		{empty, `migrate --schema My-"Schema"`, 0, `schema My-"Schema" is at version`, "applied 1 migrations\n"},
		{empty, `migrate verify --schema My-"Schema"`, 0, "as the migrations make it", ""},
		{empty, "migrate verify", 5, "", "run: outboxctl migrate"},
		{migrated, "migrate", 0, "nothing to do", ""},
		{migrated, "migrate up", 0, "nothing to do", ""},
		{migrated, "migrate verify", 0, "as the migrations make it", ""},
		{changed, "migrate verify", 1, "index outbox.outbox_due is missing", "differences from what the migrations make: 2\n"},
		{changed, "migrate verify", 1, "column outbox.mine is not expected: integer\n", ""},
		{newer, "migrate up", 5, "", "newer"},
		{newer, "migrate verify", 5, "", "newer"},
		{newer, "migrate status", 0, "later", ""},
		{older, "migrate verify", 5, "", "older"},
		{older, "migrate up", 0, "up to date", "applied 13 late\n"},
		{foreign, "migrate", 1, "", "choose another with --schema"},
		{"postgres://127.0.0.1:1/nowhere", "migrate", 4, "", "cannot be reached"},
		{"postgres://127.0.0.1:1/nowhere", "migrate print --schema app", 0, `"app".outbox`, ""},
		{migrated, "migrate print --schema " + strings.Repeat("x", 64), 2, "", "--schema"},
		{migrated, "migrate status --schema " + strings.Repeat("x", 64), 2, "", "--schema"},
	}
	for _, tt := range tests {
		code, out, words := outboxctl(tt.url, strings.Fields(tt.args)...)
		if code != tt.code || !strings.Contains(out, tt.out) || !strings.Contains(words, tt.words) {
			t.Errorf("%s = %d, want %d\nstdout %q, want %q\nstderr %q, want %q", tt.args, code, tt.code, out, tt.out, words, tt.words)
		}
	}
}

func TestMigrateDocument(t *testing.T) {
	t.Parallel()
	url := outboxtest.Empty(t)
	type document struct {
		Schema          string
		Current, Latest int
		Migrations      []struct {
			Version int
			Name    string
			Applied *string `json:"applied_at"`
		}
		Differences []struct{ Object, Want, Have string }
	}
	read := func(args ...string) (d document) {
		_, out, words := outboxctl(url, append(args, "-o", "json")...)
		if err := json.Unmarshal([]byte(out), &d); err != nil {
			t.Fatalf("%v: %v in %q, %q", args, err, out, words)
		}
		if d.Schema != "outboxctl.migrate/v1" || d.Latest != migrate.Latest || len(d.Migrations) != d.Latest {
			t.Errorf("%v = %+v", args, d)
		}
		return d
	}
	if d := read("migrate", "status"); d.Current != 0 || d.Migrations[0].Applied != nil {
		t.Errorf("status before = %+v", d)
	}
	if d := read("migrate"); d.Current != migrate.Latest || d.Migrations[0].Name != "migrations" || d.Migrations[0].Applied == nil {
		t.Errorf("up = %+v", d)
	}
	if d := read("migrate", "verify"); d.Differences == nil || len(d.Differences) > 0 {
		t.Errorf("verify = %+v, want an empty list", d)
	}
	execute(t, url, `alter table outbox add mine int`)
	d := read("migrate", "verify")
	if len(d.Differences) != 1 || d.Differences[0].Object != "column outbox.mine" || d.Differences[0].Have != "integer" {
		t.Errorf("verify after a change = %+v", d.Differences)
	}
}

func TestMigrateAtOnce(t *testing.T) {
	t.Parallel()
	url := outboxtest.Empty(t)
	codes := make([]int, 8)
	var wg sync.WaitGroup
	for i := range codes {
		wg.Go(func() { codes[i], _, _ = outboxctl(url, "migrate") })
	}
	wg.Wait()
	if !slices.Equal(codes, make([]int, 8)) {
		t.Errorf("exit codes of eight at once = %v, want all 0", codes)
	}
	if code, out, words := outboxctl(url, "migrate", "verify"); code != 0 {
		t.Errorf("verify afterwards = %d, %s%s", code, out, words)
	}
}
