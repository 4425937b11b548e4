package main_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/outboxctl/outboxctl/outbox/outboxtest"
	"github.com/outboxctl/outboxctl/outbox/sink/webhook"
)

// The secrets of the rotation.
const (
	oldSecret = "old-CANARY-of-more-than-24-bytes"
	newSecret = "whsec_bmV3LUNBTkFSWS1vZi1tb3JlLXRoYW4tMjQtYnl0ZXM="
)

// signed tells which of the two secrets have signed a request.
func signed(r outboxtest.Request) (byOld, byNew bool) {
	return webhook.Verify(r.Header, r.Body, oldSecret) == nil, webhook.Verify(r.Header, r.Body, newSecret) == nil
}

// B48: a secret is changed under load, in three steps, without a request that a receiver with
// either secret would refuse.
func TestSecretIsRotatedUnderLoad(t *testing.T) {
	t.Parallel()
	step := time.Second
	if long {
		step = 30 * time.Second
	}
	url, db := database(t)
	to := outboxtest.NewReceiver(t, func(n int, _ *outboxtest.Request) outboxtest.Answer {
		if n%10 == 0 { // retries are signed with the secrets of their time
			return outboxtest.Answer{Status: 500}
		}
		return outboxtest.Answer{}
	})
	file := filepath.Join(t.TempDir(), "secrets")
	write := func(secrets ...string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(strings.Join(secrets, "\n")), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(oldSecret)
	p := dispatch(t, url, to.URL, "--secret-file", file, "--backoff", "100ms..1s", "--log-level", "debug")
	p.says("dispatching")

	load := func() {
		t.Helper()
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for end := time.Now().Add(step); time.Now().Before(end); <-tick.C {
			insert(t, db, "order.created", 1)
		}
	}
	// reload returns when it is done and what was being sent has arrived.
	reload := func(times int) time.Time {
		t.Helper()
		p.signal(syscall.SIGHUP)
		eventually(t, "the secrets are read again", func() bool { return strings.Count(p.err.String(), "secrets read again") == times })
		time.Sleep(200 * time.Millisecond)
		return time.Now()
	}
	load()
	write(newSecret, oldSecret)
	overlap := reload(1)
	load()
	write(newSecret, "")
	last := time.Now()
	afterwards := reload(2)
	load()
	p.stop()
	for _, said := range []string{`msg="secrets read again" active=2`, `msg="secrets read again" active=1`} {
		if !strings.Contains(p.err.String(), said) {
			t.Errorf("the log does not say %s", said)
		}
	}

	var both, one int
	for _, r := range to.Requests() {
		byOld, byNew := signed(r)
		switch {
		case !byOld && !byNew:
			t.Errorf("request %d is signed by neither secret", r.N)
		case r.At.After(overlap) && r.At.Before(last):
			both++
			if !byOld || !byNew || webhook.VerifyBody(r.Header, r.Body, newSecret) != nil {
				t.Errorf("request %d of the overlap: signed by the old one %v, by the new one %v", r.N, byOld, byNew)
			}
		case r.At.After(afterwards):
			one++
			if byOld || webhook.VerifyBody(r.Header, r.Body, newSecret) != nil {
				t.Errorf("request %d after the rotation is signed by the old secret", r.N)
			}
		}
	}
	if least := int(step / (20 * time.Millisecond)); both < least || one < least {
		t.Errorf("%d requests in the overlap and %d after it, want %d or more each", both, one, least)
	}
	noSecret(t, p)
}

func noSecret(t *testing.T, p *process) {
	t.Helper()
	words := p.out.String() + p.err.String()
	for _, part := range []string{"CANARY", newSecret[6:20], "PRIVATE"} {
		if strings.Contains(words, part) {
			t.Errorf("a secret is in the output: %s", words)
		}
	}
}

// A file that cannot be used changes nothing and is named, in one line.
func TestBrokenSecretFileKeepsTheOldSecrets(t *testing.T) {
	t.Parallel()
	url, db := database(t)
	to := outboxtest.NewReceiver(t, nil)
	file := filepath.Join(t.TempDir(), "secrets")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(oldSecret)
	p := dispatch(t, url, to.URL, "--secret-file", file)
	p.says("dispatching")
	for i, tt := range []struct {
		name  string
		spoil func()
		why   string
	}{
		{"not base64", func() { write("whsec_PRIVATE!\n" + oldSecret) }, "secret 1: what follows whsec_ is not base64"},
		{"the second is bad", func() { write(newSecret + "\nwhsec_\n") }, "secret 2: what follows whsec_ is not base64"},
		{"empty", func() { write("\n \n") }, "has no secret"},
		{"gone", func() { os.Remove(file) }, "no such file or directory"},
		{"a folder", func() { os.Mkdir(file, 0o700) }, "is a directory"},
	} {
		tt.spoil()
		p.signal(syscall.SIGHUP)
		const said = "secrets not read again, the old ones stay"
		eventually(t, "the log says so: "+tt.name, func() bool { return strings.Count(p.err.String(), said) == i+1 })
		lines := strings.Split(p.err.String(), said)
		line, _, _ := strings.Cut(lines[len(lines)-1], "\n")
		if !strings.Contains(line, tt.why) {
			t.Errorf("%s: the log says %q, want %q in it", tt.name, line, tt.why)
		}
		insert(t, db, "order.created", 1)
		to.Wait(t, i+1, patience)
		r := to.Requests()[i]
		if err := errors.Join(webhook.Verify(r.Header, r.Body, oldSecret), webhook.VerifyBody(r.Header, r.Body, oldSecret)); err != nil {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
	p.stop()
	if n := strings.Count(p.err.String(), "level=ERROR"); n != 5 {
		t.Errorf("%d lines about errors, want one for each file: %s", n, p.err.String())
	}
	noSecret(t, p)
}
