package outboxtest

import (
	"fmt"
	"os"
	"os/exec"
	"syscall"
)

// leashScript reads pids that are to be ended, or no longer, until we are gone, even by a panic or kill -9, when no
// cleanup runs. Then it ends those that are left and removes the folders that it was given.
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
[ $# -eq 0 ] || rm -rf "$@"
`

// Leash is a process that ends others which outlive this one.
type Leash struct {
	in  *os.File // ends when this process does: nobody else holds it open
	cmd *exec.Cmd
}

// NewLeash starts one, which also removes these folders.
func NewLeash(dirs ...string) (*Leash, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	cmd := exec.Command("/bin/sh", append([]string{"-c", leashScript, "sh"}, dirs...)...)
	cmd.Stdin = r
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // out of reach of the terminal's Ctrl-C
	return &Leash{in: w, cmd: cmd}, cmd.Start()
}

// Started puts a process on the leash. Short writes to a pipe are whole, also when several are made at once.
func (l *Leash) Started(pid int) { fmt.Fprintln(l.in, "start", pid) }

// Ended lets a process go, before its pid can be another's.
func (l *Leash) Ended(pid int) { fmt.Fprintln(l.in, "end", pid) }

// Release has it do its work now.
func (l *Leash) Release() error {
	l.in.Close()
	return l.cmd.Wait()
}
