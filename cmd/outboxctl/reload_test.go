package main_test

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/outboxctl/outboxctl/outbox/outboxtest"
)

// TestHangupReadsTheConfigurationAgain changes one destination of a running process, adds one, takes
// one away, and breaks the file: nothing is lost, nothing is sent to the wrong place, and what did not
// change goes on.
func TestHangupReadsTheConfigurationAgain(t *testing.T) {
	t.Parallel()
	url, db := database(t)
	to := outboxtest.NewReceiver(t, nil)
	file := filepath.Join(t.TempDir(), "outboxctl.yaml")
	write := func(destinations ...string) {
		t.Helper()
		text := "poll_interval: 200ms\ndestinations:\n"
		for _, d := range destinations {
			text += "  " + strings.ReplaceAll(d, "URL", to.URL) + "\n"
		}
		text += "routes: [{to: [same]}]\n"
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	const (
		same    = `same: {url: "URL/same", allow_private: true, secrets: [a-secret-of-more-than-24-bytes]}`
		changes = `changes: {url: "URL/before", allow_private: true}`
		goes    = `goes: {url: "URL/goes", allow_private: true}`
	)
	sent := 0
	send := func(destination, path string) {
		t.Helper()
		if _, err := db.Exec(t.Context(), `insert into outbox (aggregate_type, aggregate_id, event_type, payload, destination)
			values ('order', '1', 'order.created', '{}', $1)`, destination); err != nil {
			t.Fatal(err)
		}
		sent++
		to.Wait(t, sent, patience)
		if got := to.Requests()[sent-1].Path; got != path {
			t.Errorf("an event for %s went to %s, want %s", destination, got, path)
		}
	}
	serves := func() string {
		return query[string](t, db, `select string_agg(array_to_string(destinations, ' '), ' and ') from outbox_workers`)
	}

	write(same, changes, goes)
	p := start(t, url, "dispatch", "--config", file)
	send("same", "/same")
	send("changes", "/before")
	send("goes", "/goes")

	write(same, strings.Replace(changes, "before", "after", 1), `comes: {url: "URL/comes", allow_private: true}`)
	p.signal(syscall.SIGHUP)
	p.says(`msg="configuration read again" destinations=3 changed=changes begun=comes ended=goes`)
	send("changes", "/after")
	send("comes", "/comes")
	send("same", "/same")
	eventually(t, "the heartbeat names the new destinations", func() bool { return serves() == "same changes comes" || serves() == "same comes changes" })
	if n := strings.Count(p.err.String(), "msg=dispatching destination=same "); n != 1 {
		t.Errorf("the loop of a destination that did not change began %d times", n)
	}

	// Secrets change without a new loop.
	write(strings.Replace(same, "a-secret", "new-secret", 1), strings.Replace(changes, "before", "after", 1))
	p.signal(syscall.SIGHUP)
	p.says(`msg="configuration read again" destinations=2 secrets=same ended=comes`)
	before := to.Requests()[sent-1].Header.Get("X-Signature")
	send("same", "/same")
	if after := to.Requests()[sent-1].Header.Get("X-Signature"); after == before || after == "" {
		t.Errorf("signed %q, as before", after)
	}

	// A file with mistakes keeps the old one and says why.
	write(`same: {url: "URL/other", allow_private: true, parallel: none}`, `changes: {uri: x}`)
	p.signal(syscall.SIGHUP)
	p.says(`msg="configuration not read again, the old one stays" error="` + file + `:3:`)
	p.says(`parallel: \"none\" is not a whole number; ` + file + `:4:`)
	send("same", "/same")
	send("changes", "/after")
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	p.signal(syscall.SIGHUP)
	p.says("no such file or directory")
	send("same", "/same")
	p.stop()
	if n := query[int](t, db, `select count(*) from outbox where status <> 'delivered'`); n != 0 || to.Count() != sent {
		t.Errorf("%d events are not delivered, %d requests; want 0, %d", n, to.Count(), sent)
	}
}
