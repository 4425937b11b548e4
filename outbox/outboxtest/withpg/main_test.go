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

// build returns the path of the program.
func build(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "withpg")
	if out, err := exec.Command("go", "build", "-o", path, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return path
}

// environment is ours with the variable set to a value.
func environment(value string) []string {
	return append(os.Environ(), "OUTBOXCTL_TEST_DATABASE_URL="+value)
}

func TestCommandSharesOneServer(t *testing.T) {
	t.Parallel()
	path := build(t)
	tests := []struct {
		name, set, script string
		out               string // how stdout begins
		code              int
	}{
		{"own cluster", "", `echo $OUTBOXCTL_TEST_DATABASE_URL; exit 7`, "postgres://postgres@127.0.0.1:", 7},
		{"given server", "given", `echo $OUTBOXCTL_TEST_DATABASE_URL`, "given\n", 0},
		{"killed command", "given", `kill -KILL $$`, "", 128 + 9},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			cmd := exec.Command(path, "sh", "-c", tt.script)
			cmd.Env = environment(tt.set)
			out, err := cmd.Output()
			if _, exited := errors.AsType[*exec.ExitError](err); err != nil && !exited {
				t.Fatal(err)
			}
			if !strings.HasPrefix(string(out), tt.out) || cmd.ProcessState.ExitCode() != tt.code {
				t.Errorf("%q, exit %d, want %q, exit %d", out, cmd.ProcessState.ExitCode(), tt.out, tt.code)
			}
		})
	}
}

func TestSignalsReachTheCommand(t *testing.T) {
	t.Parallel()
	cmd := exec.Command(build(t), "sh", "-c", `trap 'exit 9' TERM; echo ready; while :; do sleep 0.1; done`)
	cmd.Env = environment("given")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		t.Fatalf("the command said %q, %v", line, err)
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	cmd.Wait()
	if got := cmd.ProcessState.ExitCode(); got != 9 {
		t.Errorf("exit %d, want the command's 9", got)
	}
}
