package main_test

import (
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/outboxctl/outboxctl/outbox/outboxtest"
)

// canary is a password that no URL can hold as it is; a part of it is enough to give it away.
const (
	canary     = `S3cr3t%S#@!`
	canaryPart = outboxtest.Secret("S3cr3t")
)

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
	c := cluster(t, outboxtest.Options{Password: canary, Settings: []string{"log_statement = 'all'", "log_connections = on", "log_duration = on"}})
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
			if text := p.out.String() + p.err.String(); canaryPart.In(text) != "" {
				t.Errorf("%s: the password is in the output: %s", tt.name, text)
			}
		}
		if warning := "a password in --database-url is visible"; !strings.Contains(fromFlag.err.String(), warning) && tt.name != "no scheme" {
			t.Errorf("%s: no warning about the flag: %s", tt.name, fromFlag.err.String())
		}
	}
	if log, err := os.ReadFile(c.LogFile()); err != nil || canaryPart.In(string(log)) != "" {
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
	if args := commandLine(t, dispatcher); canaryPart.In(args) != "" || !strings.Contains(args, "dispatch") {
		t.Errorf("the process list shows %q", args)
	}
	dispatcher.signal(syscall.SIGQUIT)
	if code := dispatcher.wait(patience); code != 2 || !strings.Contains(dispatcher.err.String(), "SIGQUIT: quit") {
		t.Errorf("exit code %d after SIGQUIT, want 2 and a dump", code)
	}
	if text := dispatcher.out.String() + dispatcher.err.String(); canaryPart.In(text) != "" {
		t.Errorf("a secret is in the output: %s", text)
	}
	kept := query[string](t, db, `select string_agg(concat(receipt, error, lease), ' ') from outbox`) +
		query[string](t, db, `select string_agg(concat(error, lease), ' ') from outbox_attempts`)
	if canaryPart.In(kept) != "" {
		t.Errorf("a secret is in the tables: %s", kept)
	}
}

// TestConfiguredSecretsAreInNoDump has secrets wherever a configuration file takes them, and asks
// everybody who may know them: the log, the process list, PostgreSQL, and the dump of SIGQUIT: B70.
func TestConfiguredSecretsAreInNoDump(t *testing.T) {
	t.Parallel()
	dsn, db := database(t)
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	writeCertificate(t, cert, key)
	pem, err := os.ReadFile(key)
	if err != nil {
		t.Fatal(err)
	}
	keyLine := outboxtest.Secret(strings.Split(string(pem), "\n")[1])
	execute(t, db, `insert into outbox (aggregate_type, aggregate_id, event_type, payload)
		select 'order', i::text, t, '{}' from generate_series(1, 5) i, unnest(array['crm', 'mail']) t`)
	to := outboxtest.NewReceiver(t, outboxtest.Script(outboxtest.Answer{Status: 500, Body: canary}, outboxtest.Answer{}))
	target := strings.Replace(to.URL, "://", "://app:"+url.QueryEscape(canary)+"@", 1) + "/hooks?token=" + url.QueryEscape(canary)
	file := filepath.Join(dir, "outboxctl.yaml")
	text := fmt.Sprintf(`database_url: ${DSN}
poll_interval: 200ms
destinations:
  crm: &crm
    url: %[1]q
    secrets: [%[2]q, "${SIGNING}"]
    headers: {Authorization: "Bearer %[3]s", X-Key: "${HEADER}"}
    allow_private: true
    client_cert_file: cert.pem
    client_key_file: key.pem
    retry: {backoff: 100ms..200ms}
  mail:
    url: %[1]q
    secret_file: secrets
    proxy: "http://app:%[4]s@127.0.0.1:1/"
    allow_private: true
routes:
  - {event_type: crm, to: [crm]}
  - {event_type: mail, to: [mail]}
`, target, canary+canary+canary, canary, url.QueryEscape(canary))
	for name, content := range map[string]string{file: text, filepath.Join(dir, "secrets"): canary + canary + canary + "\n"} {
		if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	env := []string{"DSN=" + strings.Replace(dsn, "postgres@", "postgres:"+url.QueryEscape(canary)+"@", 1), "SIGNING=" + canary + canary + canary, "HEADER=" + canary}
	dispatcher := startWith(t, env, "dispatch", "--config", file, "--log-level", "debug", "--log-format", "json")
	eventually(t, "both destinations are tried", func() bool {
		return query[int](t, db, `select count(*) from outbox where attempts > 0`) == 10 && count(t, db, "delivered") == 5
	})
	seen := query[string](t, db, `select string_agg(concat_ws(' ', application_name, query), ' ') from pg_stat_activity where datname = current_database()`) +
		query[string](t, db, `select string_agg(concat_ws(' ', d, w), ' ') from outbox_destinations d, outbox_workers w`) +
		query[string](t, db, `select string_agg(a::text, ' ') from outbox_attempts a`) + commandLine(t, dispatcher)
	dispatcher.signal(syscall.SIGHUP) // which reads the file again
	dispatcher.says("configuration read again")
	dispatcher.signal(syscall.SIGQUIT)
	dispatcher.wait(patience)
	seen += dispatcher.out.String() + dispatcher.err.String()
	if !strings.Contains(seen, "SIGQUIT: quit") || !strings.Contains(seen, "outboxctl") || !strings.Contains(seen, "refused") {
		t.Errorf("there is no dump, no application's name or no failure of the proxy in %s", seen)
	}
	for _, secret := range []outboxtest.Secret{canaryPart, keyLine} {
		if how := secret.In(seen); how != "" {
			t.Errorf("%s is told, %s, in %s", secret, how, seen)
		}
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
