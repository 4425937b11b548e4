package storm

import (
	"fmt"
	"os"
	"os/exec"
	"syscall"
)

// leashScript reads pids that are to be ended, or no longer, until we are gone, even by kill -9. Then it
// ends those that are left.
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
`

// leash is a process that ends the run's when we cannot.
type leash struct {
	in  *os.File
	cmd *exec.Cmd
}

func newLeash() (*leash, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	cmd := exec.Command("/bin/sh", "-c", leashScript)
	cmd.Stdin = r
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // out of reach of the terminal's Ctrl-C
	return &leash{in: w, cmd: cmd}, cmd.Start()
}

// Short writes to a pipe are whole, also when several are made at once.
func (l *leash) started(pid int) { fmt.Fprintln(l.in, "start", pid) }
func (l *leash) ended(pid int)   { fmt.Fprintln(l.in, "end", pid) }

// release lets it do its work now.
func (l *leash) release() error {
	l.in.Close()
	return l.cmd.Wait()
}
