package main_test

import (
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/outboxctl/outboxctl/outbox/outboxtest"
)

// canary is a password that no URL can hold as it is; a part of it is enough to give it away.
const canary, canaryPart = `S3cr3t%S#@!`, "S3cr3t"

// cluster starts a PostgreSQL of the test's own, with the outbox in its database postgres.
func cluster(t *testing.T, options outboxtest.Options) *outboxtest.Cluster {
	t.Helper()
	c, err := outboxtest.Start(options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	if code, _, words := run(t, c.URL("postgres"), "migrate"); code != 0 {
		t.Fatalf("migrate: exit code %d: %s", code, words)
	}
	return c
}

// TestPasswordIsInNoOutput has PostgreSQL's password in URLs of all kinds, good and bad, from the
// environment and from a flag, in the commands that a person runs: B70.
func TestPasswordIsInNoOutput(t *testing.T) {
	t.Parallel()
	c := cluster(t, outboxtest.Options{Password: canary})
	good := c.URL("postgres")
	server, err := url.Parse(good)
	if err != nil {
		t.Fatal(err)
	}
	encoded := url.QueryEscape(canary)
	tests := []struct {
		name string
		url  string
		code int
	}{
		{"good", good, 0},
		{"wrong password", strings.Replace(good, "@", "-and-more@", 1), 4},
		{"no such user", strings.Replace(good, "postgres:", "nobody:", 1), 4},
		{"no such database", c.URL("nowhere"), 4},
		{"TLS that the server has not", strings.Replace(good, "disable", "verify-full", 1), 4},
		{"nobody listens", "postgres://app:" + encoded + "@127.0.0.1:1/shop", 4},
		{"no host", "postgres://app:" + encoded + "@/shop?host=/nowhere", 4},
		{"password as a setting", "postgres://127.0.0.1:1/shop?user=app&password=" + encoded, 4},
		{"port that is none", "postgres://app:" + encoded + "@127.0.0.1:abc/shop", 2},
		{"not encoded", "postgres://app:" + canary + "@" + server.Host + "/shop", 2},
		{"no scheme", "app:" + canary + "@" + server.Host + "/shop", 2},
		{"unknown sslmode", "postgres://app:" + encoded + "@127.0.0.1/shop?sslmode=perhaps", 2},
		{"words", "host=127.0.0.1 port=1 user=app password='" + canary + "'", 4},
		{"words with a bad port", "host=127.0.0.1 port=abc user=app password='" + canary + "'", 2},
		{"words with an open quote", "host=127.0.0.1 port=1 user=app password='" + canary, 2},
	}
	commands := [][]string{
		{"stats"},
		{"dispatch", "--to", "stdout:", "--once", "--log-level", "debug", "--log-format", "json"},
	}
	for i, tt := range tests {
		command := commands[i%len(commands)]
		fromEnv := start(t, tt.url, command...)
		fromFlag := startWith(t, nil, append(command, "--database-url", tt.url)...)
		for _, p := range []*process{fromEnv, fromFlag} {
			if code := p.wait(patience); code != tt.code {
				t.Errorf("%s: exit code %d, want %d: %s", tt.name, code, tt.code, p.err.String())
			}
			if text := p.out.String() + p.err.String(); strings.Contains(text, canaryPart) {
				t.Errorf("%s: the password is in the output: %s", tt.name, text)
			}
		}
		if warning := "a password in --database-url is visible"; !strings.Contains(fromFlag.err.String(), warning) && tt.name != "no scheme" {
			t.Errorf("%s: no warning about the flag: %s", tt.name, fromFlag.err.String())
		}
	}
	if log, err := os.ReadFile(c.LogFile()); err != nil || strings.Contains(string(log), canaryPart) {
		t.Errorf("the password is in the server's log (%v)", err)
	}
}

// TestSecretsAndPayloadsAreInNoLog runs a dispatcher with secrets wherever it takes them, through
// failures of all kinds and to the dump that SIGQUIT makes: B70.
func TestSecretsAndPayloadsAreInNoLog(t *testing.T) {
	t.Parallel()
	dsn, db := database(t)
	execute(t, db, `insert into outbox (aggregate_type, aggregate_id, event_type, payload, headers)
		select 'order', i::text, 'order.created', jsonb_build_object('card', $1::text), jsonb_build_object('authorization', $1::text)
		  from generate_series(1, 6) i`, canary)
	r := outboxtest.NewReceiver(t, outboxtest.Script(
		outboxtest.Answer{Status: 500, Body: canary}, outboxtest.Answer{Status: 422, Body: canary},
		outboxtest.Answer{Status: 302, Header: map[string][]string{"Location": {"/" + canary}}},
		outboxtest.Answer{Raw: canary}, outboxtest.Answer{Reset: true}, outboxtest.Answer{},
	))
	target := strings.Replace(r.URL, "://", "://app:"+url.QueryEscape(canary)+"@", 1) + "/hooks?token=" + url.QueryEscape(canary)
	dispatcher := startWith(t, []string{"DATABASE_URL=" + dsn, "WEBHOOK_URL=" + target, "OUTBOXCTL_SECRET=" + canary + canary + canary},
		"dispatch", "--allow-private", "--log-level", "debug", "--parallel", "1")
	eventually(t, "the six are tried", func() bool {
		return query[int](t, db, `select count(*) from outbox where status <> 'in_progress' and attempts > 0`) == 6
	})
	if args := commandLine(t, dispatcher); strings.Contains(args, canaryPart) || !strings.Contains(args, "dispatch") {
		t.Errorf("the process list shows %q", args)
	}
	dispatcher.signal(syscall.SIGQUIT)
	if code := dispatcher.wait(patience); code != 2 || !strings.Contains(dispatcher.err.String(), "SIGQUIT: quit") {
		t.Errorf("exit code %d after SIGQUIT, want 2 and a dump", code)
	}
	if text := dispatcher.out.String() + dispatcher.err.String(); strings.Contains(text, canaryPart) {
		t.Errorf("a secret is in the output: %s", text)
	}
	kept := query[string](t, db, `select string_agg(concat(receipt, error, lease), ' ') from outbox`) +
		query[string](t, db, `select string_agg(concat(error, lease), ' ') from outbox_attempts`)
	if strings.Contains(kept, canaryPart) {
		t.Errorf("a secret is in the tables: %s", kept)
	}
}

// commandLine is what others can see of a process.
func commandLine(t *testing.T, p *process) string {
	t.Helper()
	pid := fmt.Sprint(p.cmd.Process.Pid)
	if text, err := os.ReadFile("/proc/" + pid + "/cmdline"); err == nil {
		return string(text)
	}
	out, err := exec.Command("ps", "-o", "args=", "-p", pid).Output()
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}
