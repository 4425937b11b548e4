package commands_test

import (
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/outboxctl/outboxctl/outbox/outboxtest"
)

// The secrets, each a word of its own, so that what is told can be traced.
const (
	secretPassword = outboxtest.Secret("PASSWORD-8c1f%#")
	secretSigning  = outboxtest.Secret("SIGNING-77aa-0123456789")
	secretUser     = outboxtest.Secret("USERINFO-51be%/")
	secretToken    = outboxtest.Secret("TOKEN-0e4d&=")
	secretHeader   = outboxtest.Secret("HEADER-93ab")
	secretAnswer   = outboxtest.Secret("ANSWER-d00d")
	secretPayload  = outboxtest.Secret("PAYLOAD-6f6f")
	secretMeta     = outboxtest.Secret("META-4b1d") // in an event's headers
)

// secrecy are for each command the arguments with which it tells most.
var secrecy = map[string][]string{
	"backfill": {"--table", "cards", "--event-type", "card.made", "--aggregate-type", "card", "--aggregate-id", "id", "--payload", "id", "--time-column", "at",
		"--all", "--yes"},
	"backfill detect": {"--table", "cards", "--event-type", "card.made", "--aggregate-type", "card", "--aggregate-id", "id", "--payload", "*", "--time-column", "at"},
	"config check":    nil,
	"config show":     {"--origin"},
	"dispatch":        {"--once", "--wait", "0s"},
	"dispatch pause":  {"crm", "--reason", "why", "--for", "1ms"},
	"events edit":     {"1", "--set", "/card=changed", "--reason", "why", "--yes"},
	"events show":     {"1"},
	"migrate down":    {"--to", "13"},
	"migrate print":   nil,
}

// No command tells what is secret, in whatever form it prints and however much it logs; nor do the
// tables that say what has happened. Only who asks by --reveal sees what an event says: B71.
func TestNoCommandTellsWhatIsSecret(t *testing.T) {
	t.Parallel()
	base := outboxtest.URL(t)
	conn := connectTo(t, base)
	execOn(t, conn, `create table cards (id int primary key, number text, at timestamptz not null default now() - interval '1 hour')`)
	execOn(t, conn, `insert into cards select i, $1 from generate_series(1, 3) i`, string(secretPayload))
	execOn(t, conn, `insert into outbox (aggregate_type, aggregate_id, event_type, headers, payload)
		select 'order', i::text, 'order.created', jsonb_build_object('authorization', $1::text), jsonb_build_object('card', $2::text) from generate_series(1, 8) i`,
		string(secretMeta), string(secretPayload))
	told := func(status int) outboxtest.Answer {
		return outboxtest.Answer{Status: status, Body: string(secretAnswer), Header: map[string][]string{"Set-Cookie": {string(secretAnswer)}, "Location": {"/" + string(secretAnswer)}}}
	}
	to := outboxtest.NewReceiver(t, outboxtest.Script(told(422), told(302), told(500), outboxtest.Answer{Raw: string(secretAnswer)}, outboxtest.Answer{Reset: true}, told(200)))
	config := secretFile(t, to.URL)
	u, err := url.Parse(base)
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.UserPassword(u.User.Username(), string(secretPassword)) // which nobody asks for
	everywhere := []outboxtest.Secret{secretPassword, secretSigning, secretUser, secretToken, secretHeader, secretAnswer, secretPayload, secretMeta}

	paths := slices.DeleteFunc(sorted(runnable()), func(path string) bool { return path == "dispatch" })
	for _, path := range append([]string{"dispatch"}, paths...) { // with something to tell for the others
		args, own := secrecy[path]
		if !own {
			args = deep[path]
		}
		for _, more := range [][]string{{"--log-format", "text"}, {"-o", "json", "--log-format", "json"}, {"-o", "csv"}, {"-o", "jsonl"}} {
			line := slices.Concat(strings.Fields(path), args, []string{"--config", config, "--log-level", "debug"}, more)
			_, out, words := outboxctl(u.String(), line...)
			for _, secret := range everywhere {
				if how := secret.In(out + words); how != "" {
					t.Errorf("outboxctl %s %v tells %s, %s: %s%s", path, more, secret, how, out, words)
				}
			}
		}
	}
	if n := value[int](t, conn, `select count(distinct error_kind) from outbox_attempts`); n < 3 {
		t.Errorf("only %d kinds of failures have come", n)
	}
	for _, table := range []string{"outbox_attempts", "outbox_audit", "outbox_destinations", "outbox_operations", "outbox_rollup", "outbox_workers", "outbox_samples"} {
		rows := value[string](t, conn, `select coalesce(string_agg(r::text, ' '), '') from `+table+` r`)
		for _, secret := range everywhere {
			if how := secret.In(rows); how != "" {
				t.Errorf("%s tells %s, %s: %s", table, secret, how, rows)
			}
		}
	}
	_, out, words := outboxctl(u.String(), "events", "show", "2", "--reveal", "--reason", "ticket 4711", "--config", config)
	for i, secret := range everywhere {
		if asked := i >= len(everywhere)-2; (secret.In(out) != "") != asked || secret.In(words) != "" {
			t.Errorf("events show --reveal tells %s: %v, want %v: %s%s", secret, !asked, asked, out, words)
		}
	}
}

// secretFile is a configuration with a secret wherever it takes one.
func secretFile(t *testing.T, receiver string) string {
	t.Helper()
	target := strings.Replace(receiver, "://", "://"+url.UserPassword("app", string(secretUser)).String()+"@", 1) + "/hooks?token=" + url.QueryEscape(string(secretToken))
	dir := t.TempDir()
	text := fmt.Sprintf(`destinations:
  crm:
    url: %q
    secret_file: secrets
    headers: {Authorization: "Bearer %s"}
    allow_private: true
    parallel: 1
  graveyard:
    url: %q
    secrets: [%q]
    proxy: %q
routes:
  - {event_type: "order.*", to: [crm]}
  - {event_type: "card.*", to: [graveyard]}
`, target, secretHeader, "https://example.invalid/?"+url.QueryEscape(string(secretToken)), secretSigning,
		"http://"+url.UserPassword("app", string(secretUser)).String()+"@127.0.0.1:1")
	for name, content := range map[string]string{"outboxctl.yaml": text, "secrets": string(secretSigning) + "\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return filepath.Join(dir, "outboxctl.yaml")
}
