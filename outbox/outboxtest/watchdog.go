package outboxtest

import (
	"fmt"
	"os"
	"os/exec"
	"syscall"
)

// watchScript reads the server's pid, or an empty line when it has ended, until we are gone, even
// by kill -9. Then it stops the server, if one runs, and removes the folder. The pid cannot be
// another's: it is the server's until we, its parent, have taken note of its end.
const watchScript = `
trap '' INT TERM HUP
pid=
while read -r line; do pid=$line; done
if [ -n "$pid" ]; then
  kill -QUIT "$pid"
  n=0
  while kill -0 "$pid" && [ $n -lt 10 ]; do sleep 1; n=$((n+1)); done
  kill -KILL "$pid"
fi
rm -rf "$1"
`

// watchdog is a process that cleans up after this one.
type watchdog struct {
	in  *os.File // ends when this process does: nobody else holds it open
	cmd *exec.Cmd
}

// watch starts a watchdog over a folder.
func watch(dir string) (*watchdog, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	cmd := exec.Command("/bin/sh", "-c", watchScript, "sh", dir)
	cmd.Dir = "/"
	cmd.Stdin = r
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // out of reach of the terminal's Ctrl-C
	if err := cmd.Start(); err != nil {
		w.Close()
		return nil, fmt.Errorf("start the watchdog: %w", err)
	}
	return &watchdog{in: w, cmd: cmd}, nil
}

// started and ended tell it about the server. A watchdog that someone killed cannot be told.
func (w *watchdog) started(pid int) { fmt.Fprintln(w.in, pid) }
func (w *watchdog) ended()          { fmt.Fprintln(w.in) }

// dismiss lets the watchdog do its work now.
func (w *watchdog) dismiss() error {
	w.in.Close()
	return w.cmd.Wait()
}
