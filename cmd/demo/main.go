// Demo shows outboxctl at work, in under a minute and without leaving a trace: a throw-away
// PostgreSQL, a shop that writes orders with their events, a receiver that misbehaves, the real
// binary in between, one of its processes killed on the way, an incident with its replay, two
// destinations of which one is down, and a proof at the end that every committed order arrived. `make demo` runs it.
//
// It exits with 0 when the proof holds, 1 when it does not or something went wrong, and 130 when
// it was interrupted.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	// SIGPIPE is there so that `make demo | head` cleans up, too.
	ctx, stop := signal.NotifyContext(context.Background(),
		os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGPIPE)
	defer stop()
	os.Exit(run(ctx, newScreen(os.Stdout)))
}

func run(ctx context.Context, s *screen) int {
	begin := time.Now()
	err := play(ctx, s)
	switch {
	case ctx.Err() != nil:
		s.end("interrupted; everything is stopped and removed")
		return 130
	case errors.Is(err, errNotProved):
		s.end("the proof failed")
		return 1
	case err != nil:
		fmt.Fprintln(os.Stderr, "demo:", err)
		return 1
	}
	s.end(fmt.Sprintf("%d seconds; everything is stopped and removed", int(time.Since(begin).Seconds())))
	return 0
}

// play runs the scenes in order. What they have opened is closed when it returns, however it does.
func play(ctx context.Context, s *screen) error {
	d := &demo{screen: s}
	defer d.close()
	for _, scene := range []func(context.Context) error{
		d.startPostgres, d.migrate, d.startReceiver, d.deliver, d.crash, d.takeOver, d.stats, d.stop,
		d.outage, d.diagnose, d.replay, d.tidy, d.stop,
		d.fanOut, d.isolate, d.stop, d.prove,
	} {
		if err := scene(ctx); err != nil {
			return err
		}
	}
	return nil
}
