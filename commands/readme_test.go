package commands_test

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/outboxctl/outboxctl/commands"
	"github.com/outboxctl/outboxctl/outbox/outboxtest"
)

func readme(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// readmeSection returns the text below a heading, up to the next one of its rank.
func readmeSection(t *testing.T, heading string) string {
	t.Helper()
	_, text, found := strings.Cut(readme(t), "\n"+heading+"\n")
	if !found {
		t.Fatalf("README has no %q", heading)
	}
	rank, _, _ := strings.Cut(heading, " ")
	text, _, _ = strings.Cut(text, "\n"+rank+" ")
	return text
}

// readmeBlocks returns the fenced blocks of a language, in order.
func readmeBlocks(t *testing.T, language string) []string {
	t.Helper()
	var blocks []string
	for _, m := range regexp.MustCompile("(?s)```"+language+"\n(.*?)```").FindAllStringSubmatch(readme(t), -1) {
		blocks = append(blocks, m[1])
	}
	return blocks
}

// readmeRows returns the cells of the tables in a text, without heads and lines.
func readmeRows(text string) [][]string {
	var rows [][]string
	for line := range strings.Lines(text) {
		line, isRow := strings.CutPrefix(strings.TrimSpace(line), "|")
		if !isRow || strings.HasPrefix(line, "---") {
			continue
		}
		var cells []string
		for cell := range strings.SplitSeq(strings.TrimSuffix(line, "|"), "|") {
			cells = append(cells, strings.TrimSpace(cell))
		}
		rows = append(rows, cells)
	}
	return rows
}

func TestReadmeNamesFilesThatExist(t *testing.T) {
	t.Parallel()
	names := regexp.MustCompile("\\]\\(([^):#]+)\\)|`(deploy/[^`]+)`").FindAllStringSubmatch(readme(t), -1)
	if len(names) < 8 {
		t.Fatalf("only %d files were found in README", len(names))
	}
	for _, m := range names {
		if _, err := os.Stat(filepath.Join("..", m[1]+m[2])); err != nil {
			t.Error(err)
		}
	}
}

func TestReadmeCommandsExist(t *testing.T) {
	t.Parallel()
	command := regexp.MustCompile("(?m)(?:[$;*] +|`)outboxctl ([^`|;\n]*)")
	found := command.FindAllStringSubmatch(readme(t), -1)
	if len(found) < 9 {
		t.Fatalf("only %d commands were found in README", len(found))
	}
	for _, m := range found {
		args := strings.Fields(strings.TrimSuffix(strings.TrimSpace(m[1]), "2>&1"))
		if code, _, words := outboxctl("", append(args, "--help")...); code != 0 {
			t.Errorf("outboxctl %s: exit %d: %s", m[1], code, words)
		}
	}
}

func TestReadmeFlagsExist(t *testing.T) {
	t.Parallel()
	known := map[string]bool{}
	for _, args := range [][]string{
		{"backfill"},
		{"config", "show"},
		{"dispatch"},
		{"events", "edit"},
		{"dispatch", "pause"},
		{"events", "explain"},
		{"events", "list"},
		{"events", "show"},
		{"migrate"},
		{"purge"},
		{"replay"},
		{"stats"},
		{"version"},
	} {
		_, help, _ := outboxctl("", append(args, "--help")...)
		for _, name := range regexp.MustCompile(`--[a-z-]+`).FindAllString(help, -1) {
			known[name] = true
		}
	}
	for line := range strings.Lines(readme(t)) {
		if strings.Contains(line, "psql ") { // has flags of its own
			continue
		}
		for _, m := range regexp.MustCompile("[ `(](--[a-z][a-z-]*)").FindAllStringSubmatch(line, -1) {
			if !known[m[1]] && m[1] != "--some-flag" {
				t.Errorf("README names %s, which no command has", m[1])
			}
		}
	}
}

// readmeSetting is a row of the settings in README.
type readmeSetting struct {
	flag     string // "" = environment alone
	selects  bool   // has no twin in the environment
	standard string // default
	others   []string
}

func readmeSettings(t *testing.T) (all []readmeSetting) {
	t.Helper()
	settings, _, _ := strings.Cut(readmeSection(t, "## Settings"), "### Exit codes")
	for _, row := range readmeRows(settings) {
		if row[0] == "flag" {
			continue
		}
		s := readmeSetting{standard: strings.Trim(row[1], "`"), others: regexp.MustCompile(`[A-Z_]{4,}`).FindAllString(row[3], -1)}
		flag, selects := strings.CutSuffix(row[0], " *")
		s.flag, s.selects = strings.Trim(flag, "`"), selects
		all = append(all, s)
	}
	return all
}

func TestReadmeHasEveryFlagAndDefault(t *testing.T) {
	t.Parallel()
	_, help, _ := outboxctl("", "dispatch", "--help")
	_, help, _ = strings.Cut(help, "\nFlags:\n")
	want := map[string]string{}
	for _, m := range regexp.MustCompile(`(?m)^ +(?:-\w, )?(--[a-z-]+) .*?(?:\(default:? "?(.*?)"?\))?$`).FindAllStringSubmatch(help, -1) {
		want[m[1]] = m[2]
	}
	delete(want, "--help")
	got := map[string]string{}
	for _, s := range readmeSettings(t) {
		if _, twice := got[s.flag]; twice {
			t.Errorf("README has two rows for %s", s.flag)
		}
		if s.flag != "" {
			got[s.flag] = s.standard
		}
	}
	if !maps.Equal(got, want) {
		t.Errorf("flags and defaults in README = %q\nwant those of dispatch --help: %q", got, want)
	}
}

func TestReadmeHasEveryVariable(t *testing.T) {
	t.Parallel()
	want := map[string]bool{"NO_COLOR": true} // asked for on a terminal
	for _, name := range askedByDispatch() {
		want[name] = true
	}
	got := map[string]bool{}
	for _, s := range readmeSettings(t) {
		if s.flag != "" && !s.selects {
			got["OUTBOXCTL_"+strings.ToUpper(strings.ReplaceAll(s.flag[2:], "-", "_"))] = true
		}
		for _, name := range s.others {
			got[name] = true
		}
	}
	delete(want, "TERM")
	if !maps.Equal(got, want) {
		t.Errorf("variables in README = %q\nwant those that dispatch reads: %q",
			slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(want)))
	}
}

// askedByDispatch returns the variables that dispatch looks for. It finds what it needs to get as
// far as to the database under the names that it looks for last.
func askedByDispatch() (names []string) {
	var mu sync.Mutex
	commands.Main(commands.Process{
		Args: []string{"dispatch"}, In: strings.NewReader(""), Out: &bytes.Buffer{}, Err: &bytes.Buffer{},
		Signals: make(chan os.Signal),
		Getenv: func(name string) string {
			mu.Lock()
			defer mu.Unlock()
			names = append(names, name)
			return map[string]string{
				"DB_URL": "postgres://127.0.0.1:1/nowhere", "WEBHOOK_URL": "stdout:", "OUTBOXCTL_ONCE": "true",
			}[name]
		},
	})
	return names
}

func TestReadmeHasEveryExitCode(t *testing.T) {
	t.Parallel()
	_, help, _ := outboxctl("", "dispatch", "--help")
	_, help, _ = strings.Cut(help, "Exit codes:")
	help, _, _ = strings.Cut(help, "Usage:")
	want := regexp.MustCompile(`\b\d+\b`).FindAllString(help, -1)
	var got []string
	for _, row := range readmeRows(readmeSection(t, "### Exit codes")) {
		got = append(got, regexp.MustCompile(`\d+`).FindAllString(row[0], -1)...)
	}
	if !slices.Equal(got, want) {
		t.Errorf("exit codes in README = %v, want %v", got, want)
	}
}

func TestReadmeSaysWhatAnAnswerDoes(t *testing.T) {
	t.Parallel()
	said := map[string]string{} // by status: what becomes of the event
	for _, row := range readmeRows(readmeSection(t, "## What an answer does")) {
		for _, code := range regexp.MustCompile(`\b[2-5]\d\d\b`).FindAllString(row[0], -1) {
			said[code] = row[1]
		}
	}
	if len(said) < 30 {
		t.Fatalf("only %d statuses were found in README", len(said))
	}
	url := outboxtest.URL(t)
	for code := range said {
		execute(t, url, `insert into outbox (aggregate_type, aggregate_id, event_type, payload)
			values ('answer', '`+code+`', 'answer', '`+code+`')`)
	}
	receiver := outboxtest.NewReceiver(t, func(_ int, r *outboxtest.Request) outboxtest.Answer {
		var code int
		fmt.Sscan(string(r.Body), &code)
		return outboxtest.Answer{Status: code}
	})
	dispatch := []string{"dispatch", "--once", "--wait", "0s", "--allow-private", "--format", "payload", "--to", receiver.URL}
	outboxctl(url, dispatch...)
	outboxctl(url, "dispatch", "resume", "default", "--reason", "410 has paused it")
	outboxctl(url, dispatch...)
	for code, words := range said {
		got := queryText(t, url, `
			select case when status <> 'pending' then status
			            when next_attempt_at < now() + interval '10 s' then 'soon'
			            when next_attempt_at > now() + interval '3 min' then 'late' end
			  from outbox where aggregate_id = '`+code+`'`)
		want := map[string]string{"delivered": "is delivered", "soon": "after 2 s", "late": "after 5 min", "dead_letter": "is a dead letter"}[got]
		if want == "" || !strings.Contains(words, want) {
			t.Errorf("after %s the event is %s, and README says that it %s", code, got, words)
		}
	}
}

// TestReadmeRuns runs the SQL and compiles the Go of README.
func TestReadmeRuns(t *testing.T) {
	t.Parallel()
	source := filepath.Join(t.TempDir(), "receiver.go")
	if err := os.WriteFile(source, []byte(readmeBlocks(t, "go")[0]), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("go", "vet", source).CombinedOutput(); err != nil {
		t.Errorf("go vet: %v: %s", err, out)
	}
	sql := readmeBlocks(t, "sql")
	if len(sql) != 4 {
		t.Fatalf("README has %d blocks of SQL, want 4", len(sql))
	}
	business, brief, room, takeOver := sql[0], sql[1], sql[2], sql[3]

	url := outboxtest.URL(t)
	execute(t, url, business)
	execute(t, url, brief)
	if got := queryText(t, url, `select count(*)::text from outbox`); got != "2" {
		t.Errorf("%s events after both inserts, want 2", got)
	}

	url = outboxtest.Empty(t)
	execute(t, url, handWrittenSQL)
	execute(t, url, brief)
	_, script, _ := outboxctl(url, "migrate", "print")
	execute(t, url, "begin;"+room+script+takeOver+"commit;")
	if code, out, _ := outboxctl(url, "migrate", "verify"); code != 0 {
		t.Errorf("migrate verify after the move: exit %d, %s", code, out)
	}
	if got := queryText(t, url, `select string_agg(aggregate_id, ' ' order by id) from outbox`); got != "1 2 43" {
		t.Errorf("moved = %s, want 1 2 43", got)
	}
}

// handWrittenSQL is the table of a worker written by hand, with an event in each of its statuses.
const handWrittenSQL = `
create type outbox_status as enum ('pending', 'in_progress', 'delivered', 'failed');
create table outbox (
  id bigserial primary key, aggregate_type text not null, aggregate_id text not null, event_type text not null,
  idempotency_key uuid not null, payload jsonb not null, status outbox_status not null default 'pending',
  attempts int not null default 0, available_at timestamptz not null default now(), next_attempt_at timestamptz,
  created_at timestamptz not null default now(), updated_at timestamptz not null default now());
create unique index ux_outbox_idempotency on outbox (idempotency_key);
create index ix_outbox_pick on outbox (status, next_attempt_at, available_at, id);
insert into outbox (aggregate_type, aggregate_id, event_type, idempotency_key, payload, status)
select 'order', n, 'order.created', gen_random_uuid(), '{}', (enum_range(null::outbox_status))[n]
  from generate_series(1, 4) n`

func queryText(t *testing.T, url, sql string) (text string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	if err := conn.QueryRow(t.Context(), sql).Scan(&text); err != nil {
		t.Fatal(err)
	}
	return text
}
