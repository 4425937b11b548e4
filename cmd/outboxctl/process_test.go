package main_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/outboxctl/outboxctl/outbox/outboxtest"
)

// patience is how long anything may take on a busy machine before a test gives up.
const patience = 30 * time.Second

// long reports whether the tests run in their long form: more rows, more crashes.
var long = os.Getenv("OUTBOXCTL_TEST_LONG") != ""

// TestMain gives the binary a folder. This binary is also the producer of the atomicity tests.
func TestMain(m *testing.M) {
	if os.Getenv(produceUntil) != "" {
		produce()
		return
	}
	var err error
	if buildDir, err = os.MkdirTemp("", "outboxctl-test-"); err == nil {
		theLeash, err = outboxtest.NewLeash(buildDir)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	if err := theLeash.Release(); err != nil {
		fmt.Fprintln(os.Stderr, "leash:", err)
	}
	os.Exit(code)
}

// Set by TestMain, before any test.
var (
	buildDir string
	theLeash *outboxtest.Leash
)

// binary builds outboxctl once per run, with the race detector when the tests have it.
var binary = sync.OnceValues(func() (string, error) {
	file := filepath.Join(buildDir, "outboxctl")
	args := []string{"build", "-o", file}
	if info, ok := debug.ReadBuildInfo(); ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"}) {
		args = append(args, "-race")
	}
	out, err := exec.Command("go", append(args, ".")...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("go build: %w: %s", err, out)
	}
	return file, nil
})

// process is a running outboxctl. It ends with its test at the latest.
type process struct {
	t    testing.TB
	cmd  *exec.Cmd
	out  lines
	err  lines
	done chan struct{} // closed when it has ended
}

// start runs outboxctl on a database.
func start(t testing.TB, url string, args ...string) *process {
	t.Helper()
	return startWith(t, []string{"DATABASE_URL=" + url}, args...)
}

// startWith runs outboxctl with an environment of its own.
func startWith(t testing.TB, env []string, args ...string) *process {
	t.Helper()
	file, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	return startFile(t, file, env, args...)
}

// startFile runs a binary of outboxctl.
func startFile(t testing.TB, file string, env []string, args ...string) *process {
	t.Helper()
	p := &process{t: t, cmd: exec.Command(file, args...), done: make(chan struct{})}
	// Without GORACE a process under the race detector takes a second to exit.
	p.cmd.Env = append([]string{"PATH=/usr/bin:/bin", "HOME=" + buildDir, "GORACE=atexit_sleep_ms=0"}, env...)
	p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.err
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	theLeash.Started(p.cmd.Process.Pid)
	go func() {
		_ = p.cmd.Wait() // its state is asked for later
		theLeash.Ended(p.cmd.Process.Pid)
		close(p.done)
	}()
	t.Cleanup(p.end)
	return p
}

// end leaves no process behind and shows what it said when the test failed.
func (p *process) end() {
	_ = p.cmd.Process.Kill()
	<-p.done
	words := p.err.String()
	if strings.Contains(words, "WARNING: DATA RACE") || strings.Contains(words, "\npanic: ") {
		p.t.Errorf("outboxctl broke")
	}
	if p.t.Failed() {
		said := strings.Split(p.out.String()+words, "\n")
		p.t.Logf("outboxctl %s (pid %d) at its end:\n%s", strings.Join(p.cmd.Args[1:], " "), p.cmd.Process.Pid,
			strings.Join(said[max(0, len(said)-30):], "\n"))
	}
}

func (p *process) signal(s syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatalf("signal %s: %v", s, err)
	}
}

// kill ends it as a crash does, and returns when it is gone.
func (p *process) kill() {
	p.t.Helper()
	p.signal(syscall.SIGKILL)
	<-p.done
}

// wait returns the exit code, when it ends in time.
func (p *process) wait(limit time.Duration) int {
	p.t.Helper()
	select {
	case <-p.done:
		return p.cmd.ProcessState.ExitCode()
	case <-time.After(limit):
		p.t.Fatalf("outboxctl runs on after %s", limit)
		return -1
	}
}

// stop asks it to end, which it must do well.
func (p *process) stop() {
	p.t.Helper()
	p.signal(syscall.SIGTERM)
	if code := p.wait(patience); code != 0 {
		p.t.Errorf("exit code %d after SIGTERM, want 0", code)
	}
}

// says returns when its log has text.
func (p *process) says(text string) {
	p.t.Helper()
	eventually(p.t, "the log has "+text, func() bool { return strings.Contains(p.err.String(), text) })
}

// run runs outboxctl to its end.
func run(t testing.TB, url string, args ...string) (code int, out, words string) {
	t.Helper()
	p := start(t, url, args...)
	code = p.wait(patience)
	return code, p.out.String(), p.err.String()
}

// dispatch starts a dispatcher that is quick to notice things; flags may say otherwise.
func dispatch(t testing.TB, url, to string, flags ...string) *process {
	t.Helper()
	return start(t, url, append([]string{"dispatch", "--to", to, "--allow-private", "--poll-interval", "200ms"}, flags...)...)
}

// once is a dispatcher that ends when nothing is due.
func once(t testing.TB, url, to string, flags ...string) (code int, words string) {
	t.Helper()
	code, _, words = run(t, url, append([]string{"dispatch", "--to", to, "--allow-private", "--once"}, flags...)...)
	return code, words
}

// eventually returns when ok does, and fails the test when that takes too long.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited %s in vain: %s", patience, what)
		}
	}
}

// gate holds a receiver's answers back until the test opens it, which its end does at the latest.
type gate struct {
	opened chan struct{}
	open   func()
}

func newGate() gate {
	opened := make(chan struct{})
	return gate{opened, sync.OnceFunc(func() { close(opened) })}
}

// receiver starts one whose answers may wait for a gate: it cannot be closed before them.
func (g gate) receiver(t testing.TB, answer func(int, *outboxtest.Request) outboxtest.Answer) *outboxtest.Receiver {
	t.Helper()
	r := outboxtest.NewReceiver(t, answer)
	t.Cleanup(g.open)
	return r
}

// lines is what a process has written so far.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}
