package main_test

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/outboxctl/outboxctl/outbox/outboxtest"
)

// TestDispatcherOutlivesTheReaderOfItsLog takes the log's reader away, as a logger that is started
// again does.
func TestDispatcherOutlivesTheReaderOfItsLog(t *testing.T) {
	t.Parallel()
	url, db := database(t)
	r := outboxtest.NewReceiver(t, nil)
	cmd, reader := piped(t, url, "stderr", "dispatch", "--to", r.URL, "--allow-private", "--poll-interval", "200ms")
	insert(t, db, "order.created", 1)
	r.Wait(t, 1, patience)
	reader.Close()
	for n := 2; n < 5; n++ {
		insert(t, db, "order.created", 1)
		r.Wait(t, n, patience)
	}
	allDelivered(t, db, 4)
	cmd.Process.Signal(syscall.SIGTERM)
	if err := cmd.Wait(); err != nil {
		t.Errorf("after SIGTERM: %v, want exit code 0", err)
	}
}

// TestStandardOutputWithoutAReaderEndsTheRun is `outboxctl dispatch --to stdout: | head -1`: what was
// not read is not delivered, and what is unsent is given back at once.
func TestStandardOutputWithoutAReaderEndsTheRun(t *testing.T) {
	t.Parallel()
	url, db := database(t)
	insert(t, db, "order.created", 1)
	cmd, reader := piped(t, url, "stdout", "dispatch", "--to", "stdout:", "--poll-interval", "200ms", "--parallel", "1")
	if _, err := reader.Read(make([]byte, 64<<10)); err != nil {
		t.Fatal(err)
	}
	reader.Close()
	insert(t, db, "order.created", 50)
	if err := cmd.Wait(); cmd.ProcessState.ExitCode() != 1 {
		t.Errorf("%v, want exit code 1", err)
	}
	if n := count(t, db, "delivered"); n != 1 {
		t.Errorf("%d events are delivered, want the one that was read", n)
	}
	if n := query[int](t, db, `select count(*) from outbox where status = 'pending' and attempts = 0`); n < 48 {
		t.Errorf("%d events are given back, want all but those tried", n)
	}
}

// TestResultsWithoutAReaderAreNoTrouble is `outboxctl stats | true`.
func TestResultsWithoutAReaderAreNoTrouble(t *testing.T) {
	t.Parallel()
	url, _ := database(t)
	for _, output := range []string{"table", "json"} {
		cmd, reader := piped(t, url, "stdout", "stats", "-o", output)
		reader.Close()
		_ = cmd.Wait() // whether it has noticed does not matter
		words := cmd.Stderr.(*strings.Builder).String()
		if code := cmd.ProcessState.ExitCode(); code < 0 || code > 1 || words != "" {
			t.Errorf("stats -o %s: exit code %d, want 0 or 1 without a word: %s", output, code, words)
		}
	}
}

// piped starts outboxctl with one of its streams in a pipe, and returns the pipe's other end.
func piped(t *testing.T, url, stream string, args ...string) (*exec.Cmd, *os.File) {
	t.Helper()
	file, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer writer.Close()
	cmd := exec.Command(file, args...)
	cmd.Env = []string{"DATABASE_URL=" + url, "HOME=" + buildDir, "GORACE=atexit_sleep_ms=0"}
	if stream == "stdout" {
		cmd.Stdout, cmd.Stderr = writer, &strings.Builder{}
	} else {
		cmd.Stderr = writer
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := time.AfterFunc(2*patience, func() { cmd.Process.Kill() })
	t.Cleanup(func() {
		cmd.Process.Kill() // unless it has ended
		ended.Stop()
		reader.Close()
	})
	return cmd, reader
}
