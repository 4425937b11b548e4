package main_test

import (
	"bufio"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func TestDemo(t *testing.T) {
	t.Parallel()
	binary := filepath.Join(t.TempDir(), "demo")
	if out, err := exec.Command("go", "build", "-o", binary, ".").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v: %s", err, out)
	}
	t.Run("runs to its proof and cleans up", func(t *testing.T) {
		t.Parallel()
		p := start(t, binary)
		out := p.until("")
		if code := p.exit(); code != 0 {
			t.Fatalf("exit %d\n%s", code, out)
		}
		for _, want := range []string{
			"✓ 341 of 341 committed orders arrived", "✓ 0 of 39 rolled-back orders arrived", "✓ 36 of 36 copies arrived", "no order was taken twice",
			"requests had a bad signature", "$ outboxctl migrate\n", "$ kill -9 ", "$ outboxctl stats\n",
		} {
			if !strings.Contains(out, want) {
				t.Errorf("the output does not say %q", want)
			}
		}
		if strings.ContainsAny(out, "✗\x1b") {
			t.Errorf("the output has a colour or a claim that does not hold:\n%s", out)
		}
	})
	t.Run("cleans up when interrupted", func(t *testing.T) {
		t.Parallel()
		p := start(t, binary)
		p.until("dispatching to=")
		p.cmd.Process.Signal(os.Interrupt)
		out := p.until("")
		if code := p.exit(); code != 130 || !strings.Contains(out, "interrupted") {
			t.Errorf("exit %d, want 130\n%s", code, out)
		}
	})
	t.Run("cleans up when its reader leaves", func(t *testing.T) {
		t.Parallel()
		p := start(t, binary)
		p.until("dispatching to=")
		p.pipe.Close()
		if code := p.exit(); code != 130 {
			t.Errorf("exit %d, want 130", code)
		}
	})
}

// process is a demo that runs in a group and a folder of its own.
type process struct {
	t    *testing.T
	cmd  *exec.Cmd
	pipe interface{ Close() error }
	out  *bufio.Scanner
	temp string
}

func start(t *testing.T, binary string) *process {
	t.Helper()
	temp := t.TempDir()
	// PostgreSQL runs as another user when we are root, and must get there.
	for _, dir := range []string{filepath.Dir(temp), temp} {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command(binary)
	cmd.Env = append(os.Environ(), "TMPDIR="+temp)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Stderr = os.Stderr
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) })
	return &process{t, cmd, pipe, bufio.NewScanner(pipe), temp}
}

// until reads up to the line that holds text, to the end when text is "".
func (p *process) until(text string) string {
	p.t.Helper()
	var out strings.Builder
	for p.out.Scan() {
		out.WriteString(p.out.Text() + "\n")
		if text != "" && strings.Contains(p.out.Text(), text) {
			return out.String()
		}
	}
	if text != "" {
		p.t.Fatalf("the output does not say %q:\n%s", text, out.String())
	}
	return out.String()
}

// exit waits for the end, checks that nothing is left, and returns the exit code.
func (p *process) exit() int {
	p.t.Helper()
	p.cmd.Wait()
	if err := syscall.Kill(-p.cmd.Process.Pid, 0); !errors.Is(err, syscall.ESRCH) {
		p.t.Errorf("processes of the demo are left: %v", err)
	}
	left, err := filepath.Glob(filepath.Join(p.temp, "*"))
	if err != nil || len(left) > 0 {
		p.t.Errorf("left in the temporary folder: %v, %v", left, err)
	}
	return p.cmd.ProcessState.ExitCode()
}
