package outboxtest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"time"
)

// errNoFakeTime is the one line for a machine that cannot give a server a clock of its own.
var errNoFakeTime = errors.New("no libfaketime found: install it (apt-get install libfaketime, dnf install libfaketime)")

// fakeTimeFiles is where packages put the library; .ci/needs looks there too.
var fakeTimeFiles = []string{
	"/usr/lib/*/faketime/libfaketime.so.1",
	"/usr/lib/faketime/libfaketime.so.1",
	"/usr/lib64/faketime/libfaketime.so.1",
	"/usr/local/lib/faketime/libfaketime.so.1",
}

// ownClock gives the server a clock of its own, which goes right until [Cluster.Shift] moves it. Only
// what tells the time of day is faked: pauses and timeouts are as long as ever.
func (c *Cluster) ownClock() error {
	if runtime.GOOS != "linux" {
		return errors.New("a server has a clock of its own on Linux alone")
	}
	for _, pattern := range fakeTimeFiles {
		files, err := filepath.Glob(pattern)
		if err != nil {
			return err
		}
		if len(files) > 0 {
			c.clock = []string{"LD_PRELOAD=" + files[0], "FAKETIME_TIMESTAMP_FILE=" + c.clockFile(),
				"FAKETIME_NO_CACHE=1", "FAKETIME_DONT_FAKE_MONOTONIC=1"}
			return c.Shift(0)
		}
	}
	return errNoFakeTime
}

func (c *Cluster) clockFile() string { return filepath.Join(c.dir, "clock") }

// Shift sets the clock of a cluster with [Options.Clock]: d ahead of the machine's, or behind it when
// d is negative. The server sees a jump at once.
func (c *Cluster) Shift(d time.Duration) error {
	draft := c.clockFile() + ".new"
	if err := os.WriteFile(draft, fmt.Appendf(nil, "%+.3f\n", d.Seconds()), 0o644); err != nil {
		return err
	}
	return os.Rename(draft, c.clockFile()) // in one instant: the server reads it all the time
}
