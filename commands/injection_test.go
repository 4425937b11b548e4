package commands_test

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/pflag"

	"github.com/outboxctl/outboxctl/outbox/outboxtest"
)

// sourceTable and its columns have names that are as bad as they can be.
const sourceTable, sourceID, sourceTime = `Or"der's; drop table victim; --`, `i'd", (select 1) "`, `{schema}@ids$1/*filter*/%s`

// quoted is a name as SQL has it.
func quoted(name string) string { return pgx.Identifier{name}.Sanitize() }

// deep are for each command the arguments with which it comes as far as its statements.
var deep = map[string][]string{
	"backfill":              sourceFlags("--all", "--yes", "--dry-run"),
	"backfill detect":       sourceFlags(),
	"backfill key-function": nil,
	"config check":          {"--config", "CONFIG"},
	"config show":           {"--config", "CONFIG"},
	"dispatch":              {"--to", "stdout:", "--once", "--wait", "0s"},
	"dispatch pause":        {"default", "--reason", "why"},
	"dispatch resume":       {"default", "--reason", "why"},
	"events discard":        {"--status", "pending", "--reason", "why", "--yes"},
	"events edit":           {"1", "--set", "/a=1", "--reason", "why", "--yes"},
	"events explain":        {"1"},
	"events list":           nil,
	"events show":           {"1", "--reveal", "--reason", "why"},
	"migrate":               nil,
	"migrate down":          {"--to", "13", "--yes"},
	"migrate grants":        nil,
	"migrate plan":          nil,
	"migrate print":         nil,
	"migrate status":        nil,
	"migrate up":            nil,
	"migrate verify":        nil,
	"purge":                 {"--older-than", "1h", "--status", "delivered", "--yes"},
	"replay":                {"--status", "failed", "--yes"},
	"stats":                 nil,
	"stats doctor":          nil,
	"stats errors":          nil,
	"version":               nil,
}

func sourceFlags(more ...string) []string {
	return append([]string{"--table", "public." + quoted(sourceTable), "--event-type", "order.created", "--aggregate-type", "order",
		"--aggregate-id", sourceID, "--key", csvField(sourceID), "--payload", "*", "--time-column", sourceTime, "--existing", "key"}, more...)
}

// csvField is a value for a flag that takes lists.
func csvField(v string) string {
	var text strings.Builder
	w := csv.NewWriter(&text)
	w.Write([]string{v})
	w.Flush()
	return strings.TrimSuffix(text.String(), "\n")
}

// embedded puts a text where the flags of a name have room for any.
var embedded = map[string]func(v string) []string{
	"aggregate": func(v string) []string { return []string{"order:" + v, v + ":1"} },
	"set": func(v string) []string {
		return []string{"/a=" + v, "/" + v + "=1", v + "=1", "headers/" + v + "=1", `/a={"` + v + `":1}`}
	},
	"unset":          func(v string) []string { return []string{"/" + v} },
	"path":           func(v string) []string { return []string{"$." + v, `$["` + v + `"]`, `$['` + v + `']`} },
	"payload":        func(v string) []string { return []string{csvField(v + "=" + sourceID), csvField("a=" + v)} },
	"table":          func(v string) []string { return []string{quoted(v), quoted(v) + "." + quoted(sourceTable)} },
	"after":          func(v string) []string { return []string{"2026-01-31T00:00:00Z/" + v} },
	"since":          func(v string) []string { return []string{"2026-01-31" + v} },
	"to":             func(v string) []string { return []string{"http://" + v + "@127.0.0.1:1/", "http://example.com/" + v} },
	"database-url":   func(v string) []string { return []string{"postgres://" + v + "@127.0.0.1:1/x?connect_timeout=1"} },
	"output-file":    func(v string) []string { return nil },
	"tenant":         func(v string) []string { return []string{csvField(v)} },
	"event-type":     func(v string) []string { return []string{csvField(v)} },
	"destination":    func(v string) []string { return []string{csvField(v)} },
	"error-kind":     func(v string) []string { return []string{csvField(v)} },
	"move-to":        func(v string) []string { return []string{v} },
	"worker-id":      func(v string) []string { return []string{v} },
	"reason":         func(v string) []string { return []string{v} },
	"tenant-column":  func(v string) []string { return []string{v} },
	"payload-column": func(v string) []string { return []string{v} },
}

// injected are the values of a flag with hostile texts in them: all texts at once where it takes a list.
// Which of the others each flag gets in the short form depends on its place among the flags.
func injected(f *pflag.Flag, place int) (values []string) {
	texts := hostileTexts()
	if _, isList := f.Value.(pflag.SliceValue); isList {
		var all []string
		for _, text := range texts {
			if utf8.ValidString(text) && !strings.Contains(text, "\x00") {
				all = append(all, csvField(text))
			}
		}
		values = append(values, strings.Join(all, ","))
	}
	for i, text := range texts {
		if (place+i)%45 != 0 && !long {
			continue
		}
		values = append(values, text)
		if embed := embedded[f.Name]; embed != nil {
			values = append(values, embed(text)...)
		}
	}
	return values
}

// Whatever stands in a flag of whatever command is a value, or a mistake that is named: it is never
// SQL, and nothing of a search path is used: B62.
func TestNothingIsInjected(t *testing.T) {
	t.Parallel()
	everyCommand(t, deep)
	h := newHostile(t)
	h.fill(t)
	urls := []string{h.url, with(t, h.url, "default_query_exec_mode", "exec")} // as behind a pooler
	config := writeFile(t, "schema: "+jsonText(hostileSchema)+"\n")
	tried, codes := 0, map[int]int{}
	for _, path := range sorted(deep) {
		cmd := runnable()[path]
		for place, f := range flagsOf(cmd) {
			inherited := cmd.InheritedFlags().Lookup(f.Name) != nil
			if f.Value.Type() == "bool" || f.Name == "watch" || inherited && path != "stats" {
				continue
			}
			for _, value := range injected(f, place+len(path)) {
				code, out, words := outboxctl(urls[tried%len(urls)], hostileLine(path, f.Name, value, config)...)
				tried++
				codes[code]++
				if !harmless(code, f.Name, words) {
					t.Errorf("outboxctl %s --%s=%.200q: exit %d: %.300s", path, f.Name, value, code, words)
				}
				if printsSQL[path] && code == 0 {
					h.runPrinted(t, out)
				}
			}
		}
		h.untouched(t, path)
	}
	t.Logf("%d command lines, by exit code: %v", tried, codes)
	if codes[0] < 50 || codes[2] < 100 {
		t.Errorf("of %d command lines %v ended so: too few came through, or too few were refused", tried, codes)
	}
}

// A text in a filter selects what has it, whatever it means elsewhere: B62.
func TestHostileTextsSelectThemselvesAlone(t *testing.T) {
	t.Parallel()
	url := outboxtest.URL(t)
	conn := connectTo(t, url)
	var texts []string
	for _, text := range append(hostileTexts(), "order_created", "order.created", "order%", "ORDER.created", `order\_created`) {
		if utf8.ValidString(text) && !strings.Contains(text, "\x00") && len(text) < 200 {
			texts = append(texts, text)
			execOn(t, conn, `insert into outbox (tenant_id, aggregate_type, aggregate_id, event_type, destination, payload) values ($1, $1, $1, $1, $1, '{}')`, text)
		}
	}
	for i, text := range texts {
		if !strings.ContainsAny(text, `%_\{`) && i%5 != 0 && !long {
			continue
		}
		field, aggregate := csvField(text), strings.NewReplacer(`\`, `\\`, `:`, `\:`).Replace(text)+":"+text
		for _, line := range [][]string{{"--event-type=" + field}, {"--tenant=" + field, "--aggregate=" + aggregate, "--destination=" + field}} {
			if strings.Contains(text, "\r\n") { // which a list of values has as \n
				continue
			}
			code, out, words := outboxctl(url, append(line, "events", "list", "-o", "json")...)
			var doc struct{ Events []struct{ Tenant_id string } }
			if err := json.Unmarshal([]byte(out), &doc); err != nil || code != 0 || len(doc.Events) != 1 || doc.Events[0].Tenant_id != text {
				t.Errorf("%q: exit %d, %d events, %v: %s", line, code, len(doc.Events), err, words)
			}
		}
	}
}

// What stands in a route is compared with what stands in events, as it is.
func TestHostileTextsAreRoutedByThemselvesAlone(t *testing.T) {
	t.Parallel()
	h := newHostile(t)
	h.fill(t)
	execOn(t, h.conn, `truncate `+quoted(hostileSchema)+`.outbox`)
	dir, n := t.TempDir(), 0
	var routes strings.Builder
	for _, text := range hostileTexts() {
		if !utf8.ValidString(text) || strings.ContainsAny(text, "\x00$") || len(text) > 200 { // of $ a file has its own idea
			continue
		}
		n++
		fmt.Fprintf(&routes, "  - {tenant: [%[1]s], headers: {%[1]s: %[1]s}, to: [crm]}\n", jsonText(text))
		for _, header := range []string{text, text + "x"} {
			execOn(t, h.conn, `insert into `+quoted(hostileSchema)+`.outbox (tenant_id, aggregate_type, aggregate_id, event_type, headers, payload)
				values ($1, 'order', '1', 'order.created', jsonb_build_object($1::text, $2::text), '{}')`, text, header)
		}
	}
	config := writeFile(t, "schema: "+jsonText(hostileSchema)+"\ndestinations:\n  crm: {url: "+jsonText("file:"+filepath.Join(dir, "out.ndjson"))+"}\nroutes:\n"+routes.String())
	code, _, words := outboxctl(h.url, "dispatch", "--config", config, "--once")
	delivered := value[int](t, h.conn, `select count(*) from `+quoted(hostileSchema)+`.outbox where status = 'delivered' and headers ->> tenant_id = tenant_id`)
	open := value[int](t, h.conn, `select count(*) from `+quoted(hostileSchema)+`.outbox where status = 'pending' and destination = '' and headers ->> tenant_id <> tenant_id`)
	if code != 0 || delivered != n || open != n || !harmless(code, "", words) {
		t.Errorf("exit %d, %d events are delivered and %d open, want %d: %s", code, delivered, open, n, words)
	}
	h.untouched(t, "routing")
}

// hostileLine is a command line that comes far, with a value in a flag.
func hostileLine(path, flag, value, config string) []string {
	line := strings.Fields(path)
	for _, word := range deep[path] {
		line = append(line, strings.Replace(word, "CONFIG", config, 1))
	}
	switch flag {
	case "move-to":
		line = append(line, "--destination", "crm")
	case "output-file", "config": // whatever the name: nothing is written, nothing is there
		value = filepath.Join(os.DevNull, value)
	}
	line = append(line, "--"+flag+"="+value)
	if flag != "schema" {
		line = append(line, "--schema", hostileSchema)
	}
	return line
}

// printsSQL are the commands whose output is for psql.
var printsSQL = map[string]bool{"backfill key-function": true, "migrate grants": true, "migrate print": true}

// runPrinted runs a script and takes back what it has done. What fails in it may fail, such as a
// function in an extension that is not there.
func (h *hostile) runPrinted(t *testing.T, script string) {
	t.Helper()
	execOn(t, h.conn, `begin`)
	_, err := h.conn.PgConn().Exec(t.Context(), script).ReadAll()
	if err != nil && strings.Contains(err.Error(), "syntax") {
		t.Errorf("%v in what was printed: %s", err, script)
	}
	if err == nil && value[bool](t, h.conn, `select to_regclass('public.victim') is null`) {
		t.Errorf("the victim is gone after: %s", script)
	}
	execOn(t, h.conn, `rollback`)
}

// harmless reports whether a command with a hostile text ended as it may: done, refused as a mistake,
// or without what was named; and PostgreSQL's parser never saw it.
func harmless(code int, flag, words string) bool {
	for _, sign := range []string{"SQLSTATE", "SHADOW", "syntax error", "panic", "goroutine"} {
		if strings.Contains(words, sign) {
			return false
		}
	}
	switch code {
	case 0, 2, 3, 6:
		return true
	case 1:
		return flag == "output-file" // which cannot be written
	case 4:
		return flag == "database-url" || flag == "direct-database-url"
	case 5:
		return flag == "schema"
	}
	return false
}

// fill migrates the hostile schema and gives it some events of each kind, and a source.
func (h *hostile) fill(t *testing.T) {
	t.Helper()
	if code, _, words := outboxctl(h.url, "migrate", "--schema", hostileSchema); code != 0 {
		t.Fatal(words)
	}
	execOn(t, h.conn, `create table public.`+quoted(sourceTable)+` (`+quoted(sourceID)+` int primary key, `+quoted(sourceTime)+` timestamptz not null default now())`)
	execOn(t, h.conn, `insert into public.`+quoted(sourceTable)+` select generate_series(1, 5)`)
	execOn(t, h.conn, `insert into `+quoted(hostileSchema)+`.outbox (aggregate_type, aggregate_id, event_type, destination, payload, status, finished_at, error_kind)
		select 'order', i::text, 'order.created', case when i % 2 = 0 then 'crm' else '' end, '{"a": {"b": 1}}', s, case when s <> 'pending' then now() - interval '2 hours' end, case when s = 'failed' then 'http' end
		  from generate_series(1, 40) i, lateral (select (array['pending', 'failed', 'delivered', 'dead_letter'])[1 + i % 4] s) s`)
}

func writeFile(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "outboxctl.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// jsonText is a text as JSON and YAML write it.
func jsonText(s string) string {
	text, err := json.Marshal(s)
	if err != nil {
		panic(err)
	}
	return string(text)
}

var long = os.Getenv("OUTBOXCTL_TEST_LONG") != ""
