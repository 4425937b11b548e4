package main_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
)

// leashScript reads pids that are to be ended, or no longer, until we are gone, even by a panic or
// kill -9, when no cleanup runs. Then it ends those that are left and removes our folder.
const leashScript = `
trap '' INT TERM HUP
pids=' '
while read -r what pid; do
  case $what in
    start) pids="$pids$pid " ;;
    end) pids="${pids%% $pid *} ${pids#* $pid }" ;;
  esac
done
[ -z "${pids# }" ] || kill -KILL $pids
rm -rf "$1"
`

// leash is a process that ends outboxctls which outlive this one.
type leash struct {
	in  *os.File // ends when this process does: nobody else holds it open
	cmd *exec.Cmd
}

// putOnLeash starts one that also removes a folder.
func putOnLeash(dir string) (*leash, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	cmd := exec.Command("/bin/sh", "-c", leashScript, "sh", dir)
	cmd.Stdin = r
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // out of reach of the terminal's Ctrl-C
	return &leash{in: w, cmd: cmd}, cmd.Start()
}

// Short writes to a pipe are whole, also when several tests make them at once.
func (l *leash) started(pid int) { fmt.Fprintln(l.in, "start", pid) }
func (l *leash) ended(pid int)   { fmt.Fprintln(l.in, "end", pid) }

// release lets it do its work now.
func (l *leash) release() error {
	l.in.Close()
	return l.cmd.Wait()
}

// TestLeashEndsWhatIsLeftAndNothingElse has three sleepers, one of which is let go.
func TestLeashEndsWhatIsLeftAndNothingElse(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "build")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	l, err := putOnLeash(dir)
	if err != nil {
		t.Fatal(err)
	}
	var sleepers []*exec.Cmd
	for range 3 {
		cmd := exec.Command("sleep", "60")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		l.started(cmd.Process.Pid)
		sleepers = append(sleepers, cmd)
	}
	l.ended(sleepers[1].Process.Pid)
	if err := l.release(); err != nil {
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
