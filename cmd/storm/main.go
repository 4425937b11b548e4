// Storm runs outboxctl through a storm and says whether its promises held: a PostgreSQL of its own, dispatchers,
// producers and receivers, all of them real, and a nemesis with a seed that breaks everything around them. `make storm`
// runs it for a minute, `make storm-long` for an hour.
//
//	go run ./cmd/storm --duration 1m --seed 7
//	go run ./cmd/storm --control --duration 20s
//	go run ./cmd/storm check history.gz
//
// It exits with 0 when all promises held, 1 when one did not, a fault has no proof or something went wrong, 2
// when it was called wrongly, and 130 when it was interrupted.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

func main() {
	// Not SIGPIPE: our own receivers and wires write to connections that are gone, which is no reason to stop.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	os.Exit(run(ctx, os.Args[1:]))
}

// errUnproved means that a promise was broken, or a run proves nothing.
var errUnproved = errors.New("the promises are not proved")

func run(ctx context.Context, args []string) int {
	if len(args) > 0 && args[0] == "check" {
		return code(ctx, checkFiles(args[1:]))
	}
	o, err := parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		return 2
	}
	return code(ctx, o.storm(ctx))
}

// code says how it ended; a storm's verdict has been printed.
func code(ctx context.Context, err error) int {
	switch {
	case ctx.Err() != nil:
		fmt.Fprintln(os.Stderr, "storm: interrupted; everything is stopped")
		return 130
	case errors.Is(err, errUnproved):
		return 1
	case err != nil:
		fmt.Fprintln(os.Stderr, "storm:", err)
		return 1
	}
	return 0
}

// options are the command line's.
type options struct {
	seed     uint64
	duration time.Duration
	rate     float64
	every    time.Duration
	faults   string
	control  bool
	quiet    bool
	long     bool
	dir      string
	binary   string
	armed    string // the same with crash points
}

func parse(args []string) (*options, error) {
	o := &options{}
	f := flag.NewFlagSet("storm", flag.ContinueOnError)
	f.Uint64Var(&o.seed, "seed", 1, "what chance is drawn from; the same seed repeats a run as far as a machine allows")
	f.DurationVar(&o.duration, "duration", time.Minute, "of writing and breaking; healing and judging come on top")
	f.Float64Var(&o.rate, "rate", 150, "events per second, of which 15 % are rolled back")
	f.DurationVar(&o.every, "every", time.Second, "between two faults, on average")
	f.StringVar(&o.faults, "faults", "", "kinds of faults, separated by commas: kill,wire:*,receiver:5*; without it, all")
	f.BoolVar(&o.control, "control", false, "no faults at all: nothing may come twice")
	f.BoolVar(&o.quiet, "quiet", false, "no operators")
	f.BoolVar(&o.long, "long", false, "an hour: storms with control runs between them; --duration does not count")
	f.StringVar(&o.dir, "dir", "", "where logs and histories are kept; without it, only those of a run that failed are")
	f.StringVar(&o.binary, "binary", "", "an outboxctl to run instead of the one that this source makes")
	f.StringVar(&o.armed, "armed", "", "with --binary: the same with crash points; without it there are no such faults")
	f.Usage = func() {
		fmt.Fprint(f.Output(), "Usage:\n  storm [flags]\n  storm check HISTORY...\n\nFlags:\n")
		f.PrintDefaults()
	}
	if err := f.Parse(args); err != nil {
		return nil, err
	}
	wrong := ""
	switch {
	case f.NArg() > 0:
		wrong = fmt.Sprintf("no argument %q is known", f.Arg(0))
	case o.control && o.faults != "":
		wrong = "--control has no faults"
	case o.duration <= 0 || o.every <= 0 || o.rate <= 0:
		wrong = "--duration, --every and --rate are more than 0"
	case o.armed != "" && o.binary == "":
		wrong = "--armed needs --binary"
	case o.long && (o.control || o.faults != ""):
		wrong = "--long has faults of all kinds, and control runs"
	}
	if wrong != "" {
		fmt.Fprintln(os.Stderr, "storm:", wrong)
		return nil, errors.New(wrong)
	}
	return o, nil
}

// kinds are the plan's words for faults: nil is all, an empty list none.
func (o *options) kinds() []string {
	switch {
	case o.control:
		return []string{}
	case o.faults == "":
		return nil
	}
	return strings.Split(o.faults, ",")
}
