package commands_test

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/outboxctl/outboxctl/outbox/outboxtest"
)

// tellSQL puts a text wherever a producer, a receiver or an operator can put one.
var tellSQL = []string{
	`insert into outbox (tenant_id, aggregate_type, aggregate_id, event_type, destination, headers, payload, status, finished_at, error, error_kind, receipt, origin)
		select $1, $1, $1, $1, $1, jsonb_build_object($1::text, $1::text), jsonb_build_object($1::text, $1::text),
		       s, case when s = 'pending' then null else now() end, $1, $1, $1, $1 from unnest(array['pending', 'failed', 'dead_letter', 'delivered']) s`,
	`insert into outbox_attempts (event_id, attempt, lease, destination, outcome, error_kind, error)
		select id, 1, $1, $1, 'failed', $1, $1 from outbox where tenant_id = $1`,
	`insert into outbox_rollup (minute, worker, destination, event_type, outcome, error_kind, attempt, n, latency, age)
		values (date_trunc('minute', now()), 1, $1, $1, 'failed', $1, 1, 1, '1s', '1s')`,
	`insert into outbox_destinations (destination, paused_until, pause_reason, paused_by) values ($1, 'infinity', $1, $1)`,
	`insert into outbox_tenant_pauses (destination, tenant_id, paused_until, reason, paused_by) values ($1, $1, 'infinity', $1, $1)`,
	`with run as (insert into outbox_operations (command, who, host, reason, name, error, ended_at) values ('replay', $1, $1, $1, $1, $1, now()) returning id)
		insert into outbox_audit (operation, event_id, action, status, attempts, destination)
		select r.id, o.id, 'replay', 'failed', 1, $1 from run r, outbox o where o.tenant_id = $1`,
}

// Nothing that others have written moves a cursor, turns text round or begins a formula, in whatever
// form it is shown; and the commands that explain prints can be pasted.
func TestNothingOthersWroteActsOnATerminal(t *testing.T) {
	t.Parallel()
	url := outboxtest.URL(t)
	conn := connectTo(t, url)
	var texts []string
	for _, text := range append(hostileTexts(), "-5", "+1+1", "@x", "=1") {
		if utf8.ValidString(text) && !strings.Contains(text, "\x00") && len(text) < 200 {
			texts = append(texts, text)
			for _, sql := range tellSQL {
				execOn(t, conn, sql, text)
			}
		}
	}
	lines := [][]string{{"stats", "doctor"}, {"stats", "doctor", "-o", "json"}, {"replay", "--status", "failed", "--dry-run"},
		{"events", "discard", "--status", "pending", "--dry-run", "--reason", "x"}, {"purge", "--older-than", "1s", "--status", "failed", "--dry-run"},
		{"dispatch", "--to", "stdout:", "--once", "--dry-run"}}
	for _, form := range []string{"table", "json", "csv"} {
		lines = append(lines, []string{"stats", "errors", "-o", form}, []string{"events", "list", "-o", form, "--limit", "1000"})
		for _, by := range []string{"event-type", "destination", "tenant", "error", "attempt"} {
			lines = append(lines, []string{"stats", "--by", by, "-o", form})
		}
	}
	lines = append(lines, []string{"stats"}, []string{"stats", "-o", "json"}, []string{"events", "list", "-o", "jsonl", "--limit", "1000"})
	for id := 1; id <= 4*len(texts); id += 11 { // some texts in each status; the lists above have all
		lines = append(lines, []string{"events", "show", fmt.Sprint(id), "--reveal", "--reason", "x", "-o", []string{"table", "json"}[id%2]},
			[]string{"events", "explain", fmt.Sprint(id), "-o", "table"}, []string{"events", "explain", fmt.Sprint(id), "-o", "json"})
	}
	for _, line := range lines {
		code, out, words := outboxctl(url, line...)
		if code != 0 && code != 3 {
			t.Errorf("outboxctl %v: exit %d: %s", line, code, words)
		}
		if i := strings.IndexFunc(out+words, func(r rune) bool { return r != '\n' && !unicode.IsPrint(r) }); i >= 0 {
			t.Errorf("outboxctl %v shows %q", line, (out + words)[max(0, i-40):min(i+20, len(out+words))])
		}
		switch {
		case slices.Contains(line, "csv"):
			noFormulas(t, line, out)
		case len(line) > 1 && line[1] == "explain" && slices.Contains(line, "json"):
			pasted(t, url, out)
		}
	}
}

// noFormulas fails when a spreadsheet would compute something.
func noFormulas(t *testing.T, line []string, text string) {
	t.Helper()
	rows, err := csv.NewReader(strings.NewReader(text)).ReadAll()
	if err != nil || len(rows) < 2 {
		t.Errorf("outboxctl %v: %d rows, %v", line, len(rows), err)
	}
	for _, row := range rows {
		for _, cell := range row {
			if cell != "" && strings.ContainsAny(cell[:1], "=+-@\t\r") && cell != "-5" && cell != "-1" && cell != "-" {
				t.Errorf("outboxctl %v: %q", line, cell)
			}
		}
	}
}

// pasted has a shell read the commands of an explanation, and runs what it read.
func pasted(t *testing.T, url, document string) {
	t.Helper()
	var doc struct{ Commands []string }
	if err := json.Unmarshal([]byte(document), &doc); err != nil || len(doc.Commands) == 0 {
		t.Fatalf("%d commands, %v", len(doc.Commands), err)
	}
	script := `outboxctl() { printf '%s\0' "$@"; echo; }` + "\n" + strings.Join(doc.Commands, "\n")
	out, err := exec.Command("bash", "-c", script).Output()
	if err != nil {
		t.Fatalf("%v: %s", err, script)
	}
	for i, line := range strings.Split(strings.TrimSuffix(string(out), "\x00\n"), "\x00\n") {
		args := strings.Split(line, "\x00")
		if args[0] != "events" || args[1] == "edit" { // what changes nothing
			continue
		}
		if args[1] == "discard" {
			args = append(args, "--dry-run")
		}
		if code, _, words := outboxctl(url, args...); code != 0 && code != 3 {
			t.Errorf("%s: exit %d: %s", doc.Commands[i], code, words)
		}
	}
}
