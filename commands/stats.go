package commands

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/outboxctl/outboxctl/outbox"
)

// statsOptions are the flags of stats.
type statsOptions struct {
	since      durationValue
	top        int
	by         string
	outputFile string
	check      checkOptions
	watch      durationValue // 0 = look once
}

// How many names are listed when nobody says --top.
const (
	onScreen    = 5
	inList      = 50
	inDocuments = 1000
)

func newStats(a *app) *cobra.Command {
	var o statsOptions
	cmd := &cobra.Command{
		Use:   "stats",
		Short: "show how the outbox is doing",
		Long: `Show how many events there are by status, destination, type and tenant, how old the
oldest undelivered one is (the lag), how fast events come and go, what destinations
answered, which dispatchers are alive, and what in the database is in the way. It
changes nothing and is cheap enough for every second: it reads open events by index
and takes rates from what dispatchers have summed up. More than 100,000 finished
events are estimated, marked with ~, and so are more than 500,000 open ones.

With --watch it looks again and again until it is stopped, which is no error.
-o prometheus is for the textfile collector of the node exporter, with --output-file.
-o csv lists the same numbers, or those of --by.

With --check it judges, in one line with performance data for Nagios and its kin, and
exits with 0 OK, 1 WARNING (beyond 80 % of a limit), 2 CRITICAL (beyond it) or 3
UNKNOWN (it cannot judge: PostgreSQL is away, a flag is wrong). A limit may be off.
` + exitCodes,
		Example: `  outboxctl stats
  outboxctl stats --since 1h
  outboxctl stats --watch
  outboxctl stats --by hour --since 1d
  outboxctl stats --check --max-dead 0
  outboxctl stats -o json | jq .lag_seconds
  outboxctl stats -o prometheus --output-file /var/lib/node_exporter/outbox.prom`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context(), a, cmd.Flags()) },
	}
	o.flags(cmd.Flags())
	outputs(cmd, "csv", "prometheus")
	cmd.AddCommand(newStatsErrors(a), newStatsDoctor(a))
	return cmd
}

func (o *statsOptions) flags(fs *pflag.FlagSet) {
	o.since = durationValue(15 * time.Minute)
	fs.Var(&o.since, "since", "window for attempts, errors and answers")
	fs.StringVar(&o.by, "by", "", "show only one list, by this `name`: "+oneOf(bys))
	fs.IntVar(&o.top, "top", 0, "`number` of names in each list (default: 5, with --by 50, in documents 1000)")
	fs.StringVar(&o.outputFile, "output-file", "", "write the results into this `file`, which is replaced at once")
	o.check.flags(fs)
	fs.Var(&o.watch, "watch", "look again and again, after this pause: on a terminal it redraws the screen")
	fs.Lookup("watch").NoOptDefVal = "2s"
	fs.Lookup("watch").DefValue = ""
}

// validate refuses what makes no sense.
func (o *statsOptions) validate(a *app, fs *pflag.FlagSet) error {
	switch {
	case o.by != "" && !slices.Contains(bys, o.by):
		return usage(fmt.Errorf("--by %q: want %s", o.by, oneOf(bys)), "")
	case o.by != "" && a.global.output == "prometheus":
		return usage(errors.New("--by has no form for -o prometheus, which has its own lists"), "")
	case o.since <= 0:
		return usage(errors.New("--since must be longer than 0"), "")
	case o.top < 1 && fs.Changed("top"):
		return usage(errors.New("--top must be 1 or more"), "")
	case o.check.on && o.by != "":
		return usage(errors.New("--check and --by exclude each other"), "")
	case o.check.on && a.global.output != "table" && a.global.output != "json":
		return usage(errors.New("--check answers with one line, or with -o json"), "")
	case fs.Changed("watch"):
		return o.checkWatch(a)
	}
	return nil
}

func (o *statsOptions) run(ctx context.Context, a *app, fs *pflag.FlagSet) error {
	if err := o.validate(a, fs); err != nil {
		return err
	}
	store, done, err := a.openStore(ctx, reads)
	if err != nil {
		return err
	}
	defer done()
	if o.watch > 0 {
		return o.watchStats(ctx, a, store)
	}
	return statsFailure(a.toFile(o.outputFile, func(a *app) error { return o.show(ctx, a, store) }))
}

// show prints what is asked for, once.
func (o *statsOptions) show(ctx context.Context, a *app, store *outbox.Store) error {
	switch {
	case o.check.on:
		return o.check.run(ctx, a, store, o.look(a))
	case o.by != "":
		return o.showBy(ctx, a, store)
	}
	st, err := store.Stats(ctx, o.look(a))
	if err != nil {
		return err
	}
	switch a.global.output {
	case "json":
		return a.printJSON(newStatsDocument(st))
	case "csv":
		return a.printMetricsCSV(metrics(st))
	case "prometheus":
		_ = store.Mark(ctx, "prometheus", 0) // doctor asks for it
		return a.printPrometheus(metrics(st))
	}
	return a.printStats(st)
}

// look asks for what is shown.
func (o *statsOptions) look(a *app) outbox.Look {
	look := outbox.Look{Window: time.Duration(o.since), Top: o.top}
	switch {
	case a.global.output == "prometheus", a.global.output == "csv" && o.by == "":
		look.Top = inMetrics
	case o.top > 0:
	case a.global.output != "table":
		look.Top = inDocuments
	case o.by != "":
		look.Top = inList
	default:
		look.Top = onScreen
	}
	return look
}

// statsFailure says what it means that stats, which never wait long, have had to.
func statsFailure(err error) error {
	const lockNotAvailable, queryCanceled = "55P03", "57014"
	pg, ok := errors.AsType[*pgconn.PgError](err)
	switch {
	case ok && pg.Code == lockNotAvailable:
		return &failure{exitError, errors.New("stats: somebody has locked a table of the outbox, as a migration or VACUUM FULL does, for a second and more"),
			"run it again; who it is: select * from pg_locks where mode = 'AccessExclusiveLock'"}
	case ok && pg.Code == queryCanceled:
		return &failure{exitError, errors.New("stats: PostgreSQL took longer than 10s for an answer"),
			"run it again with a shorter --since, or when PostgreSQL is less busy"}
	}
	return err
}

// rate prints a number per minute.
func rate(r float64) string {
	if r > 0 && r < 10 {
		return fmt.Sprintf("%.1f", r)
	}
	return thousands(int64(r + 0.5))
}

// percent prints a share.
func percent(share float64) string { return fmt.Sprintf("%.1f %%", 100*share) }
