package commands_test

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/rogpeppe/go-internal/testscript"

	"github.com/outboxctl/outboxctl/outbox/outboxtest"
)

// TestMain puts outboxctl on the path, for scripts to run. It is without the race detector, which a thousand short
// processes would spend minutes on; the processes of cmd/outboxctl's tests have it.
func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "outboxctl-script-")
	if err == nil {
		err = build(filepath.Join(dir, "outboxctl"))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Setenv("PATH", dir+string(filepath.ListSeparator)+os.Getenv("PATH"))
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

func build(file string) error {
	const version = "-X main.version=1.2.3 -X main.commit=c0ffee -X main.date=2026-01-02T03:04:05Z"
	if out, err := exec.Command("go", "build", "-ldflags", version, "-o", file, "../cmd/outboxctl").CombinedOutput(); err != nil {
		return fmt.Errorf("go build: %w: %s", err, out)
	}
	return nil
}

// TestScripts runs testdata/script: what a person types and sees, one script per command and
// promise. Each has an empty database in DATABASE_URL and, besides testscript's own commands:
//
//	exits CODE COMMAND…    run a command that must exit with CODE
//	sql STATEMENT          run SQL; rows go to stdout, one a line, columns separated by tabs
//	server SETTING…        start a server of its own with these settings; DATABASE_URL is there from then on
//	receiver ANSWER…       start a webhook receiver at $RECEIVER_URL that gives these answers in
//	                       turn and the last one for ever: a status, hang, or reset
//	received N             it has had N requests; they go to stdout: path, attempt, headers, body
//	like stdout FILE       the output is the file's text, in which … stands for any text on a line
//	silent stdout          nothing was written there
func TestScripts(t *testing.T) {
	t.Parallel()
	testscript.Run(t, testscript.Params{
		Dir:   "../testdata/script",
		Setup: setUp,
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits":    exits,
			"sql":      runSQL,
			"server":   server,
			"receiver": receiver,
			"received": received,
			"like":     like,
			"silent":   silent,
		},
	})
}

// keyT and keyReceiver are where a script keeps its test and its receiver.
const (
	keyT = iota
	keyReceiver
)

func setUp(env *testscript.Env) error {
	t, ok := env.T().(testing.TB)
	if !ok {
		return errors.New("testscript hides the test")
	}
	env.Values[keyT], env.Values[keyReceiver] = t, new(*outboxtest.Receiver)
	env.Setenv("DATABASE_URL", outboxtest.Empty(t))
	env.Setenv("HOME", env.WorkDir)
	return nil
}

func exits(ts *testscript.TestScript, _ bool, args []string) {
	if len(args) < 2 {
		ts.Fatalf("usage: exits CODE COMMAND…")
	}
	code := 0
	err := ts.Exec(args[1], args[2:]...)
	if failed, ok := errors.AsType[*exec.ExitError](err); ok {
		code = failed.ExitCode()
	} else if err != nil {
		ts.Fatalf("%v", err)
	}
	if fmt.Sprint(code) != args[0] {
		ts.Fatalf("exit code %d, want %s", code, args[0])
	}
}

func runSQL(ts *testscript.TestScript, _ bool, args []string) {
	ctx := ts.Value(keyT).(testing.TB).Context()
	conn, err := pgx.Connect(ctx, ts.Getenv("DATABASE_URL"))
	ts.Check(err)
	defer conn.Close(ctx)
	// The simple protocol gives every value as psql would show it.
	results, err := conn.PgConn().Exec(ctx, strings.Join(args, " ")).ReadAll()
	ts.Check(err)
	for _, result := range results {
		for _, row := range result.Rows {
			cells := make([]string, len(row))
			for i, cell := range row {
				cells[i] = string(cell)
			}
			fmt.Fprintln(ts.Stdout(), strings.Join(cells, "\t"))
		}
	}
}

func server(ts *testscript.TestScript, _ bool, settings []string) {
	c, err := outboxtest.Start(outboxtest.Options{Settings: settings})
	ts.Check(err)
	ts.Defer(func() { ts.Check(c.Close()) })
	ts.Setenv("DATABASE_URL", c.URL("postgres"))
}

func receiver(ts *testscript.TestScript, _ bool, args []string) {
	var answers []outboxtest.Answer
	for _, word := range args {
		answers = append(answers, answer(ts, word))
	}
	v := outboxtest.NewReceiver(ts.Value(keyT).(testing.TB), outboxtest.Script(answers...))
	*ts.Value(keyReceiver).(**outboxtest.Receiver) = v
	ts.Setenv("RECEIVER_URL", v.URL)
}

func answer(ts *testscript.TestScript, word string) outboxtest.Answer {
	switch word {
	case "hang":
		return outboxtest.Answer{Hang: true}
	case "reset":
		return outboxtest.Answer{Reset: true}
	}
	status, err := strconv.Atoi(word)
	ts.Check(err)
	return outboxtest.Answer{Status: status, Header: http.Header{"X-Request-Id": {"req-7f3a"}}}
}

func received(ts *testscript.TestScript, _ bool, args []string) {
	v := *ts.Value(keyReceiver).(**outboxtest.Receiver)
	if v == nil || len(args) != 1 {
		ts.Fatalf("usage: received N, after receiver ANSWER…")
	}
	v.WaitFor(ts.Value(keyT).(testing.TB), 10*time.Second, answered)
	if n := v.Count(); fmt.Sprint(n) != args[0] {
		ts.Fatalf("%d requests, want %s", n, args[0])
	}
	for _, r := range v.Requests() {
		fmt.Fprintln(ts.Stdout(), r.Method, r.Path, "attempt", r.Attempt)
		ts.Check(r.Header.Write(ts.Stdout()))
		fmt.Fprintf(ts.Stdout(), "\n%s\n\n", r.Body)
	}
}

// answered reports whether no request is open.
func answered(requests []outboxtest.Request) bool {
	for _, r := range requests {
		if r.Done.IsZero() {
			return false
		}
	}
	return true
}

func like(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: like stdout|stderr FILE")
	}
	have, want := ts.ReadFile(args[0]), os.Expand(ts.ReadFile(args[1]), ts.Getenv)
	pattern := "^" + strings.ReplaceAll(regexp.QuoteMeta(want), "…", ".*") + "$"
	if !regexp.MustCompile(pattern).MatchString(have) {
		ts.Fatalf("%s is not like %s:\n%s", args[0], args[1], have)
	}
}

func silent(ts *testscript.TestScript, _ bool, args []string) {
	for _, name := range args {
		if text := ts.ReadFile(name); text != "" {
			ts.Fatalf("%s should be empty: %s", name, text)
		}
	}
}
