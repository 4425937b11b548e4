package commands_test

import (
	"os"
	"strings"
	"testing"
)

// Addresses that are not for it, and what may be one, are refused where they are written: by config
// check, and before dispatch connects to anything. The table is the webhook's.
func TestHostsAreRefusedBeforeTheStart(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../outbox/sink/webhook/testdata/hosts.txt")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for line := range strings.Lines(string(text)) {
		verdict, host, found := strings.Cut(strings.TrimSpace(line), " ")
		if !found || verdict == "#" {
			continue
		}
		n++
		url := strings.TrimSpace(host)
		switch {
		case strings.Contains(url, "/") || strings.HasPrefix(url, "http:"):
		case strings.Contains(url, ":"):
			url = "http://[" + strings.Replace(url, "%", "%25", 1) + "]/"
		default:
			url = "http://" + url + "/"
		}
		for _, allow := range []string{"false", "true"} {
			taken := verdict == "public" || verdict == "private" && allow == "true"
			config := writeFile(t, "destinations:\n  crm:\n    url: "+jsonText(url)+"\n    allow_private: "+allow+"\n")
			const nowhere = "postgres://127.0.0.1:1/nowhere"
			for name, tt := range map[string]struct {
				args []string
				ok   int // the exit code of what is taken
			}{
				"config check": {[]string{"config", "check", "--config", config}, 0},
				"a file":       {[]string{"dispatch", "--config", config, "--once"}, 4},
				"--to":         {[]string{"dispatch", "--to", url, "--allow-private=" + allow, "--once"}, 4},
			} {
				want := 2
				if taken {
					want = tt.ok
				}
				if code, _, words := outboxctl(nowhere, tt.args...); code != want {
					t.Errorf("%s with %s, allow_private %s: exit %d, want %d: %s", name, url, allow, code, want, words)
				}
			}
		}
	}
	if n < 100 {
		t.Errorf("only %d hosts were read", n)
	}
}
