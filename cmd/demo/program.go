package main

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"syscall"
)

// program is the real outboxctl, built from this source.
type program struct {
	*screen
	path   string
	url    string // DATABASE_URL
	secret string // OUTBOXCTL_SECRET
	dir    string // where commands run; "" = here
}

func (p program) build(ctx context.Context) error {
	p.command("go build -o outboxctl ./cmd/outboxctl")
	cmd := exec.CommandContext(ctx, "go", "build", "-o", p.path, "github.com/outboxctl/outboxctl/cmd/outboxctl")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go build: %w: %s", err, out)
	}
	p.command("export DATABASE_URL=" + p.url)
	p.command("export OUTBOXCTL_SECRET=" + p.secret[:12] + "…")
	return nil
}

// cmd is one command line, whose output looks as on a terminal. The environment is ours alone:
// what the user has set for another outbox stays out of it.
func (p program) cmd(args []string) *exec.Cmd {
	p.command("outboxctl " + strings.Join(args, " "))
	cmd := exec.Command(p.path, args...)
	cmd.Dir = p.dir
	cmd.Env = []string{"DATABASE_URL=" + p.url, "OUTBOXCTL_SECRET=" + p.secret, "OUTBOXCTL_COLOR=always",
		"OUTBOXCTL_MAX_DURATION=3m"} // should this process be killed, its child ends, too
	return cmd
}

// run runs a command to its end and shows all that it prints.
func (p program) run(ctx context.Context, args ...string) error {
	cmd := p.cmd(args)
	out := &lines{show: p.line}
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Run(); err != nil && ctx.Err() == nil {
		return fmt.Errorf("outboxctl %s: %w", args[0], err)
	}
	return ctx.Err()
}

// worker is a running dispatcher.
type worker struct {
	cmd  *exec.Cmd
	log  *digest
	done chan struct{} // closed when it has ended
	err  error         // of its end; set when done is closed
}

// start starts a command that goes on, and shows the digest of its log.
func (p program) start(args ...string) (*worker, error) {
	w := &worker{cmd: p.cmd(args), log: &digest{show: p.logged}, done: make(chan struct{})}
	w.cmd.Stderr = &lines{show: w.log.add}
	if err := w.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		w.err = w.cmd.Wait()
		w.log.end()
		close(w.done)
	}()
	return w, nil
}

func (w *worker) pid() int { return w.cmd.Process.Pid }

// ended is the error for a worker that should go on and does not.
func (w *worker) ended() error {
	return fmt.Errorf("the dispatcher ended: %s", w.cmd.ProcessState)
}

// kill ends it as a crash would. One that has ended is left alone.
func (w *worker) kill() {
	w.cmd.Process.Kill()
	<-w.done
}

// terminate asks it to end and waits until it has.
func (w *worker) terminate() error {
	if err := w.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	<-w.done
	if w.err != nil {
		return w.ended()
	}
	return nil
}
