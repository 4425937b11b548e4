package storm

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/outboxctl/outboxctl/outbox/outboxtest/storm/crash"
	"github.com/outboxctl/outboxctl/outbox/outboxtest/storm/history"
)

// process is one life of a program. Its words go to a log that its name's lives share.
type process struct {
	name  string
	cmd   *exec.Cmd
	began time.Time
	done  chan struct{} // closed when it has ended
	end   time.Time     // set when done is closed
}

// launch starts the binary under test, the armed one if it is to die at a crash point.
func (r *run) launch(name, role string, a *arms, env []string, out *os.File, args ...string) (*process, error) {
	log, err := os.OpenFile(r.logFile(name), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close() // the child has its own
	binary := r.plan.Binary
	if a != nil {
		binary, env = r.plan.Armed, append(env, crash.Env(a.point, a.nth, a.file)...)
	}
	p := &process{name: name, cmd: exec.Command(binary, args...), done: make(chan struct{})}
	p.cmd.Dir = r.dir
	p.cmd.Env = append([]string{"PATH=/usr/bin:/bin", "HOME=" + r.dir, "GORACE=atexit_sleep_ms=0", "OUTBOXCTL_GOROUTINES=" + r.countFile(name)}, env...)
	p.cmd.Stderr = log
	if out != nil {
		p.cmd.Stdout = out
	}
	os.Remove(r.countFile(name)) // of the life before
	p.began = time.Now()
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	r.leash.Started(p.pid())
	go func() {
		p.cmd.Wait() // its state is asked for below
		p.end = time.Now()
		r.leash.Ended(p.pid())
		add(&r.book, &r.book.h.Processes, history.Process{Name: name, Role: role, Pid: p.pid(), Began: p.began, End: p.end, How: p.how()})
		close(p.done)
	}()
	return p, nil
}

func (r *run) logFile(name string) string { return filepath.Join(r.dir, name+".log") }

// countFile is where a process says how many goroutines it has.
func (r *run) countFile(name string) string { return filepath.Join(r.dir, name+".goroutines") }

func (p *process) pid() int { return p.cmd.Process.Pid }

func (p *process) signal(s syscall.Signal) error { return p.cmd.Process.Signal(s) }

func (p *process) alive() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// how says how it ended: "exit 0", "signal killed".
func (p *process) how() string {
	if s, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus); ok && s.Signaled() {
		return "signal " + s.Signal().String()
	}
	return "exit " + strconv.Itoa(p.cmd.ProcessState.ExitCode())
}

// state is a process's letter in /proc, T of one that is stopped; "" when it is gone.
func state(pid int) string {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return ""
	}
	_, rest, _ := strings.Cut(string(text), ") ")
	letter, _, _ := strings.Cut(rest, " ")
	return letter
}

// footprint is what a process holds; RSS is 0 when it is gone.
func (r *run) footprint(p *process) history.Sample {
	s := history.Sample{Name: p.name, At: time.Now()}
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/statm", p.pid()))
	if fields := strings.Fields(string(text)); len(fields) > 1 {
		pages, _ := strconv.ParseInt(fields[1], 10, 64)
		s.RSS = pages * int64(os.Getpagesize())
	}
	entries, _ := os.ReadDir(fmt.Sprintf("/proc/%d/fd", p.pid()))
	s.Files = len(entries)
	count, _ := os.ReadFile(r.countFile(p.name))
	s.Goroutines, _ = strconv.Atoi(string(count))
	return s
}

// queued is how long a process's threads have waited for a processor since they began.
func queued(pid int) (total time.Duration) {
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	for _, thread := range threads {
		var ran, waited int64 // in nanoseconds
		text, err := os.ReadFile(thread)
		if err != nil {
			continue // it has ended meanwhile
		}
		if _, err := fmt.Sscan(string(text), &ran, &waited); err == nil {
			total += time.Duration(waited)
		}
	}
	return total
}
