package main_test

import (
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/outboxctl/outboxctl/outbox/outboxtest"
)

// TestStopKeepsResultsAndGivesUnsentEventsBack stops a dispatcher with 16 deliveries under way and
// 24 events claimed: B68.
func TestStopKeepsResultsAndGivesUnsentEventsBack(t *testing.T) {
	t.Parallel()
	for _, signal := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		t.Run(signal.String(), func(t *testing.T) {
			t.Parallel()
			url, db := database(t)
			insert(t, db, "order.created", 40)
			held := newGate()
			r := held.receiver(t, func(n int, _ *outboxtest.Request) outboxtest.Answer {
				if n <= 16 {
					<-held.opened
				}
				return outboxtest.Answer{}
			})
			stopped := dispatch(t, url, r.URL, "--parallel", "16", "--batch-size", "40", "--worker-id", "stopped")
			r.Wait(t, 16, patience)
			if n := count(t, db, "in_progress"); n != 40 {
				t.Fatalf("%d events are claimed, want 40", n)
			}
			stopped.signal(signal)
			unsent := `select count(*) from outbox where status = 'pending' and attempts = 0 and lease is null and next_attempt_at <= clock_timestamp()`
			eventually(t, "the unsent are given back", func() bool { return query[int](t, db, unsent) == 24 })
			if n := r.Count(); n != 16 {
				t.Errorf("%d requests, want none after the signal", n-16)
			}
			dispatch(t, url, r.URL, "--worker-id", "other") // does not wait for a lease to lapse
			r.Wait(t, 40, patience)
			held.open()
			if code := stopped.wait(patience); code != 0 {
				t.Errorf("exit code %d, want 0", code)
			}
			allDelivered(t, db, 40)
			if len(r.ByKey()) != 40 || r.Count() != 40 {
				t.Errorf("%d requests for %d events, want 40 of each", r.Count(), len(r.ByKey()))
			}
			if n := query[int](t, db, `select count(*) from outbox where attempts = 1`); n != 40 {
				t.Errorf("%d events have one attempt, want 40", n)
			}
		})
	}
}

// TestGraceEndsWhatHangs has deliveries that outlast the grace: they are cut off, keep their attempt
// and are due again at once, and that is a clean stop.
func TestGraceEndsWhatHangs(t *testing.T) {
	t.Parallel()
	url, db := database(t)
	insert(t, db, "order.created", 2)
	r := outboxtest.NewReceiver(t, outboxtest.Always(outboxtest.Answer{Hang: true}))
	dispatcher := dispatch(t, url, r.URL, "--grace", "100ms", "--max-attempts", "1", "--request-timeout", "25s")
	r.Wait(t, 2, patience)
	dispatcher.stop()
	cut := `select count(*) from outbox where status = 'pending' and attempts = 1 and error_kind = 'shutdown' and next_attempt_at <= clock_timestamp()`
	if n := query[int](t, db, cut); n != 2 {
		t.Errorf("%d events were cut off and are due, want 2", n)
	}
	healthy := outboxtest.NewReceiver(t, nil)
	if code, words := once(t, url, healthy.URL, "--max-attempts", "1"); code != 0 || healthy.Count() != 2 {
		t.Errorf("exit code %d after %d requests, want 0 after 2, though the attempts were spent: %s", code, healthy.Count(), words)
	}
}

// TestSecondSignalEndsAtOnce does not wait for deliveries that hang: B68.
func TestSecondSignalEndsAtOnce(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name          string
		first, second syscall.Signal
		want          int
	}{
		{"SIGTERM twice", syscall.SIGTERM, syscall.SIGTERM, 143},
		{"SIGINT twice", syscall.SIGINT, syscall.SIGINT, 130},
		{"SIGTERM, then SIGINT", syscall.SIGTERM, syscall.SIGINT, 130},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			url, db := database(t)
			insert(t, db, "order.created", 4)
			r := outboxtest.NewReceiver(t, outboxtest.Always(outboxtest.Answer{Hang: true}))
			dispatcher := dispatch(t, url, r.URL, "--parallel", "2", "--request-timeout", "25s", "--grace", "25s")
			r.Wait(t, 2, patience)
			dispatcher.signal(tt.first)
			eventually(t, "the unsent are given back", func() bool { return count(t, db, "pending") == 2 })
			began := time.Now()
			dispatcher.signal(tt.second)
			if code := dispatcher.wait(patience); code != tt.want {
				t.Errorf("exit code %d, want %d", code, tt.want)
			}
			if took := time.Since(began); took > 5*time.Second {
				t.Errorf("it took %s, want at once", took)
			}
			if n := query[int](t, db, `select count(*) from outbox where status = 'pending' and attempts = 1 and error_kind = 'shutdown'`); n != 2 {
				t.Errorf("%d deliveries are written as cut off, want 2", n)
			}
		})
	}
}

// TestWaitForADatabaseCanBeStopped stops a dispatcher that has not found PostgreSQL yet.
func TestWaitForADatabaseCanBeStopped(t *testing.T) {
	t.Parallel()
	dispatcher := dispatch(t, "postgres://app@127.0.0.1:1/shop", "http://127.0.0.1:1")
	dispatcher.says(`level=ERROR msg="waiting for PostgreSQL" error="PostgreSQL at 127.0.0.1:1, database \"shop\", cannot be reached: connection refused"`)
	dispatcher.stop()
	if n := strings.Count(dispatcher.err.String(), "PostgreSQL"); n != 2 { // both in that line
		t.Errorf("it speaks %d times of PostgreSQL, want one line:\n%s", n, dispatcher.err.String())
	}
}

// TestHangupReadsSecretsAgain changes the secret of a running dispatcher.
func TestHangupReadsSecretsAgain(t *testing.T) {
	t.Parallel()
	url, db := database(t)
	r := outboxtest.NewReceiver(t, nil)
	file := writeSecret(t, t.TempDir()+"/secrets", "the-secret-of-the-last-month")
	dispatcher := dispatch(t, url, r.URL, "--secret-file", file)
	insert(t, db, "order.created", 1)
	r.Wait(t, 1, patience)
	writeSecret(t, file, "the-secret-of-this-month-now", "the-secret-of-the-last-month")
	dispatcher.signal(syscall.SIGHUP)
	dispatcher.says(`msg="secrets read again"`)
	insert(t, db, "order.created", 1)
	r.Wait(t, 2, patience)
	for i, want := range []int{1, 2} {
		signatures := strings.Fields(r.Requests()[i].Header.Get("Webhook-Signature"))
		if len(signatures) != want {
			t.Errorf("request %d has %d signatures, want %d", i+1, len(signatures), want)
		}
	}
	dispatcher.stop()
}

// writeSecret writes secrets into a file, one a line, and returns its name.
func writeSecret(t *testing.T, file string, secrets ...string) string {
	t.Helper()
	if err := os.WriteFile(file, []byte(strings.Join(secrets, "\n")+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}
