package webhook_test

import (
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/outboxctl/outboxctl/outbox"
	"github.com/outboxctl/outboxctl/outbox/sink/webhook"
)

// host is a row of testdata/hosts.txt.
type host struct{ verdict, text string }

// The verdicts.
const (
	public   = "public"
	private  = "private"
	shut     = "shut"
	spelling = "spelling"
)

func readHosts(t *testing.T) (all []host) {
	t.Helper()
	text, err := os.ReadFile("testdata/hosts.txt")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		verdict, rest, found := strings.Cut(strings.TrimSpace(line), " ")
		if found && verdict != "#" {
			all = append(all, host{verdict, strings.TrimSpace(rest)})
		}
	}
	if len(all) < 100 {
		t.Fatalf("only %d hosts were read", len(all))
	}
	return all
}

// url is one with the host in it.
func (h host) url() string {
	switch {
	case strings.Contains(h.text, "/") || strings.HasPrefix(h.text, "http:"):
		return h.text
	case strings.Contains(h.text, ":"):
		return "http://[" + strings.Replace(h.text, "%", "%25", 1) + "]/"
	}
	return "http://" + h.text + "/"
}

// may reports whether requests go there, without and with allow_private.
func (h host) may() (byDefault, allowed bool) {
	return h.verdict == public, h.verdict == public || h.verdict == private
}

func TestHostsThatAreTaken(t *testing.T) {
	t.Parallel()
	for _, h := range readHosts(t) {
		byDefault, allowed := h.may()
		for allow, want := range map[bool]bool{false: byDefault, true: allowed} {
			sink, err := webhook.New(webhook.Config{URL: h.url(), AllowPrivate: allow})
			if (err == nil) != want {
				t.Errorf("%s, allow_private %v: %v, want it %s", h.text, allow, err, h.verdict)
			}
			if err == nil {
				sink.Close()
			}
		}
	}
}

func TestAddressesThatAreDialled(t *testing.T) {
	t.Parallel()
	for _, h := range readHosts(t) {
		if _, err := netip.ParseAddr(h.text); err != nil {
			continue
		}
		byDefault, allowed := h.may()
		closed, open := webhook.CheckAddr(h.text, false), webhook.CheckAddr(h.text, true)
		if (closed == nil) != byDefault || (open == nil) != allowed {
			t.Errorf("%s: by default %v, with allow_private %v, want it %s", h.text, closed, open, h.verdict)
		}
		if h.verdict == private && !strings.Contains(closed.Error(), "allow_private") {
			t.Errorf("%s: %v, want the setting that opens it", h.text, closed)
		}
	}
}

// A name that has any of the addresses which are not for it leads nowhere, however good it looked.
func TestNamesOfBlockedAddressesLeadNowhere(t *testing.T) {
	t.Parallel()
	for _, h := range readHosts(t) {
		if _, err := netip.ParseAddr(h.text); err != nil || strings.Contains(h.text, "%") { // an answer has no zone
			continue
		}
		byDefault, allowed := h.may()
		for allow, dialled := range map[bool]bool{false: byDefault, true: allowed} {
			if dialled { // it is somebody's
				continue
			}
			sink, err := webhook.New(webhook.Config{URL: "http://receiver.example:1/", AllowPrivate: allow})
			if err != nil {
				t.Fatal(err)
			}
			names, _ := newNameServer(t, h.text)
			sink.ResolveBy(names)
			if got, want := deliver(t, sink, sampleEvent()), (answer{Verdict: outbox.VerdictSlow, Kind: "blocked"}); got != want {
				t.Errorf("a name of %s, allow_private %v: %+v, want %+v", h.text, allow, got, want)
			}
			sink.Close()
		}
	}
}
