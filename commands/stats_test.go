package commands_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outboxctl/outboxctl/commands"
	"github.com/outboxctl/outboxctl/outbox/outboxtest"
)

// Thousands of names are some hundred series, and the text is what Prometheus reads: each metric once,
// its help and type before it, no series twice, no timestamp.
func TestMetricsAreBoundedAndValid(t *testing.T) {
	t.Parallel()
	url := outboxtest.URL(t)
	execute(t, url, `insert into outbox (tenant_id, aggregate_type, aggregate_id, event_type, destination, payload)
		select 'tenant ' || i, 'order', i::text, 'type ' || i, 'destination ' || i % 900, '{}' from generate_series(1, 10000) i`)
	execute(t, url, `insert into outbox_rollup (minute, worker, destination, event_type, outcome, error_kind, error_code, attempt, n, latency, age)
		select date_trunc('minute', now()), 0, 'destination ' || i % 900, 'type ' || i, 'pending', 'http', 100 + i, 1, i, '0', '0' from generate_series(1, 899) i`)
	code, text, words := outboxctl(url, "stats", "-o", "prometheus")
	if code != 0 {
		t.Fatalf("exit %d: %s", code, words)
	}
	help := regexp.MustCompile(`^# (HELP|TYPE) (outbox_[a-z0-9_]+) \S.*$`)
	sample := regexp.MustCompile(`^(outbox_[a-z0-9_]+)(?:\{(?:[a-z_]+="(?:[^"\\\n]|\\.)*",?)+\})? -?[0-9.]+$`)
	described, seen, current := map[string]int{}, map[string]bool{}, ""
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		if m := help.FindStringSubmatch(line); m != nil {
			described[m[2]]++
			current = m[2]
			continue
		}
		m := sample.FindStringSubmatch(line)
		series, _, _ := strings.Cut(line, "} ")
		switch {
		case m == nil:
			t.Errorf("not a sample: %q", line)
		case m[1] != current || described[current] != 2:
			t.Errorf("%q is not below its help and type", line)
		case seen[series]:
			t.Errorf("%q is there twice", series)
		}
		seen[series] = true
	}
	if len(seen) < 400 || len(seen) > 1000 || len(text) > 300_000 {
		t.Errorf("%d series in %d bytes, want 1,000 and 300,000 at most", len(seen), len(text))
	}
	for _, want := range []string{
		`outbox_event_type_open_events{event_type="other"} 9950`,
		`outbox_window_answers{kind="other",code="0"} ` + fmt.Sprint(849*850/2),
	} {
		if !strings.Contains(text, "\n"+want+"\n") {
			t.Errorf("there is no %s", want)
		}
	}
	if strings.Contains(text, "tenant ") || strings.Contains(text, "tenant=") {
		t.Error("tenants are series, of which there may be any number")
	}
	others := regexp.MustCompile(`outbox_destination_open_events\{destination="other"\} (\d+)`).FindStringSubmatch(text)
	if len(others) != 2 || others[1] == "0" {
		t.Errorf("the other destinations have %v events", others)
	}
}

// A table that somebody has locked is told in a line, after a second.
func TestStatsOfALockedTable(t *testing.T) {
	t.Parallel()
	url := outboxtest.URL(t)
	unlock := lockTable(t, url)
	defer unlock()
	code, _, words := outboxctl(url, "stats")
	if code != 1 || !strings.HasPrefix(words, "outboxctl: stats: somebody has locked a table of the outbox") || strings.Count(words, "\n") != 2 {
		t.Errorf("exit %d: %q, want 1 and one line with a hint", code, words)
	}
	code, out, words := outboxctl(url, "stats", "--check")
	if code != 3 || !strings.HasPrefix(out, "OUTBOX UNKNOWN - stats: somebody has locked") || words != "" {
		t.Errorf("exit %d: %q %q, want 3 and one line", code, out, words)
	}
}

// lockTable locks the outbox as a migration would, until it is told to let go.
func lockTable(t *testing.T, url string) (unlock func()) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(t.Context(), `begin; lock table outbox in access exclusive mode`); err != nil {
		t.Fatal(err)
	}
	return func() { _ = conn.Close(context.Background()) }
}

// pressed is a writer that presses Ctrl-C when it has seen a text so often.
type pressed struct {
	bytes.Buffer
	text    string
	times   int
	signals chan os.Signal
}

func (p *pressed) Write(b []byte) (int, error) {
	n, err := p.Buffer.Write(b)
	if p.times > 0 && strings.Count(p.String(), p.text) >= p.times {
		p.times = 0
		p.signals <- os.Interrupt
	}
	return n, err
}

// watch runs stats --watch until a text has been written so often.
func watch(url string, out io.Writer, signals chan os.Signal, args ...string) (code int, words string) {
	var stderr bytes.Buffer
	code = commands.Main(commands.Process{
		Args: append([]string{"stats", "--watch=500ms"}, args...), In: strings.NewReader(""), Out: out, Err: &stderr, Signals: signals,
		Getenv: func(name string) string {
			return map[string]string{"DATABASE_URL": url, "TERM": "xterm"}[name]
		},
	})
	return code, stderr.String()
}

// Without a terminal each look is a block, or a line of JSON; Ctrl-C is no error.
func TestWatchWritesOneLookAfterTheOther(t *testing.T) {
	t.Parallel()
	url := outboxtest.URL(t)
	for _, tt := range []struct{ output, text string }{{"table", "\nlag "}, {"json", `{"schema":"outboxctl.stats/v1",`}} {
		out := &pressed{text: tt.text, times: 3, signals: make(chan os.Signal, 1)}
		code, words := watch(url, out, out.signals, "-o", tt.output)
		if code != 0 || words != "" {
			t.Errorf("-o %s: exit %d: %s", tt.output, code, words)
		}
		if tt.output == "json" && strings.Count(out.String(), "\n") != 3 {
			t.Errorf("not three lines: %q", out)
		}
		if strings.Contains(out.String(), "\x1b") {
			t.Errorf("-o %s: something for a terminal: %q", tt.output, out)
		}
	}
}

// When PostgreSQL does not answer meanwhile it says so and goes on.
func TestWatchOutlivesTrouble(t *testing.T) {
	t.Parallel()
	url := outboxtest.URL(t)
	out := &pressed{text: "\n", times: 2, signals: make(chan os.Signal, 1)}
	unlock := func() {}
	first := writerFunc(func(b []byte) (int, error) {
		if out.Len() == 0 {
			unlock = lockTable(t, url)
			time.AfterFunc(3*time.Second, func() { unlock() })
		}
		return out.Write(b)
	})
	code, words := watch(url, first, out.signals, "-o", "json")
	if code != 0 || !strings.Contains(words, "somebody has locked a table of the outbox") || strings.Count(out.String(), "\n") != 2 {
		t.Errorf("exit %d: %q %q, want 0, a line of trouble and two looks", code, words, out)
	}
}

type writerFunc func(b []byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }
