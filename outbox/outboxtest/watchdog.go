package outboxtest

import (
	"fmt"
	"os"
	"os/exec"
	"sync"
	"syscall"
)

// watchScript reads the server's pid, or an empty line when it has ended, until we are gone, even
// by kill -9. Then it stops the server, if one runs, and removes the folder. The pid cannot be
// another's: we have not said that the server ended, so it was running when we last could tell.
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
rm -rf "$1"
`

// watchdog is a process that cleans up after this one.
type watchdog struct {
	mu  sync.Mutex
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

func (w *watchdog) started(pid int) { w.say(fmt.Sprintln(pid)) }
func (w *watchdog) ended()          { w.say("\n") }

// say tells the watchdog something. It may be gone only if it was dismissed or killed.
func (w *watchdog) say(line string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.in.WriteString(line)
}

// dismiss lets the watchdog do its work now.
func (w *watchdog) dismiss() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.in.Close()
	return w.cmd.Wait()
}
