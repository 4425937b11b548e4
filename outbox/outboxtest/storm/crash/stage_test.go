package crash_test

import (
	"bytes"
	"context"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxctl/outboxctl/outbox/outboxtest/storm/crash"
)

// patience is how long anything may take on a busy machine before a run gives up.
const patience = 40 * time.Second

// stage is where one run takes place.
type stage struct {
	crashed
	binary string
	proof  string
	url    string // of the database
}

// process is an outboxctl of a run. It ends with its test at the latest, and by itself when nobody is left to end it.
type process struct {
	t     *testing.T
	cmd   *exec.Cmd
	words said
	done  chan struct{}
}

// victim starts a process that is to die.
func (s *stage) victim(t *testing.T, args ...string) *process {
	t.Helper()
	return s.start(t, crash.Env(s.point, s.nth, s.proof), args...)
}

func (s *stage) healthy(t *testing.T, args ...string) *process {
	t.Helper()
	return s.start(t, nil, args...)
}

func (s *stage) start(t *testing.T, env []string, args ...string) *process {
	t.Helper()
	p := &process{t: t, cmd: exec.Command(s.binary, args...), done: make(chan struct{})}
	p.cmd.Env = append([]string{"PATH=/usr/bin:/bin", "HOME=" + buildDir, "DATABASE_URL=" + s.url, "OUTBOXCTL_MAX_DURATION=3m"}, env...)
	p.cmd.Stdout, p.cmd.Stderr = &p.words, &p.words
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = p.cmd.Wait() // its state is asked for later
		close(p.done)
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		<-p.done
		if t.Failed() {
			t.Logf("outboxctl %s (pid %d):\n%s", strings.Join(args, " "), p.cmd.Process.Pid, p.words.String())
		}
	})
	return p
}

// dies waits for the victim's death, and returns when it was. The proof has it, and nothing else.
func (s *stage) dies(t *testing.T, p *process) time.Time {
	t.Helper()
	p.wait()
	status := p.cmd.ProcessState.Sys().(syscall.WaitStatus)
	deaths, err := crash.Deaths(s.proof)
	if err != nil {
		t.Fatal(err)
	}
	if len(deaths) != 1 || deaths[0].Point != s.point || deaths[0].Pid != p.cmd.Process.Pid || status.Signal() != syscall.SIGKILL {
		t.Fatalf("the process ended with %v and the proof %v, want its death at %s", p.cmd.ProcessState, deaths, s.point)
	}
	return deaths[0].At
}

func (p *process) wait() {
	p.t.Helper()
	select {
	case <-p.done:
	case <-time.After(patience):
		p.t.Fatalf("outboxctl runs on after %s", patience)
	}
}

// well runs a process to its end, which must be a good one.
func (s *stage) well(t *testing.T, args ...string) {
	t.Helper()
	p := s.healthy(t, args...)
	p.wait()
	if code := p.cmd.ProcessState.ExitCode(); code != 0 {
		t.Fatalf("outboxctl %s: exit code %d, want 0", strings.Join(args, " "), code)
	}
}

// stop asks a dispatcher to end, which it must do well once it has begun: before, it has nothing to put down.
func (p *process) stop() {
	p.t.Helper()
	eventually(p.t, "the dispatcher has begun", func() bool { return strings.Contains(p.words.String(), "msg=dispatching") })
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	p.wait()
	if code := p.cmd.ProcessState.ExitCode(); code != 0 {
		p.t.Errorf("exit code %d after SIGTERM, want 0", code)
	}
}

// said is what a process has written so far.
type said struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (s *said) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(p)
}

func (s *said) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

// eventually returns when ok does, and fails the test when that takes too long.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited %s in vain: %s", patience, what)
		}
	}
}

func execute(t *testing.T, db *pgxpool.Pool, sql string, args ...any) {
	t.Helper()
	if _, err := db.Exec(context.Background(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// query returns the one value that sql selects.
func query[T any](t *testing.T, db *pgxpool.Pool, sql string, args ...any) (v T) {
	t.Helper()
	if err := db.QueryRow(context.Background(), sql, args...).Scan(&v); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return v
}

// equal fails the test unless a query selects what it should.
func equal(t *testing.T, db *pgxpool.Pool, what, sql string, want int) {
	t.Helper()
	if got := query[int](t, db, sql); got != want {
		t.Errorf("%s: %d, want %d", what, got, want)
	}
}

// gone waits for the end of what a dead process had begun in the database.
func gone(t *testing.T, db *pgxpool.Pool) {
	t.Helper()
	eventually(t, "the dead one's transactions have ended", func() bool {
		return query[int](t, db, `select count(*) from pg_stat_activity
			where datname = current_database() and pid <> pg_backend_pid() and xact_start is not null and backend_type = 'client backend'`) == 0
	})
}
