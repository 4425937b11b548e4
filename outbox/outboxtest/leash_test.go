package outboxtest_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/outboxctl/outboxctl/outbox/outboxtest"
)

// TestLeashEndsWhatIsLeftAndNothingElse has three sleepers, one of which is let go.
func TestLeashEndsWhatIsLeftAndNothingElse(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "build")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	l, err := outboxtest.NewLeash(dir)
	if err != nil {
		t.Fatal(err)
	}
	var sleepers []*exec.Cmd
	for range 3 {
		cmd := exec.Command("sleep", "60")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		l.Started(cmd.Process.Pid)
		sleepers = append(sleepers, cmd)
	}
	l.Ended(sleepers[1].Process.Pid)
	if err := l.Release(); err != nil {
		t.Fatal(err)
	}
	for _, cmd := range []*exec.Cmd{sleepers[0], sleepers[2]} {
		if err := cmd.Wait(); err == nil || err.Error() != "signal: killed" {
			t.Errorf("a process that was left ended with %v, want killed", err)
		}
	}
	if err := sleepers[1].Process.Signal(syscall.Signal(0)); err != nil {
		t.Errorf("the one that was let go is gone: %v", err)
	}
	_ = sleepers[1].Process.Kill()
	_ = sleepers[1].Wait()
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("the folder is there: %v", err)
	}
}
