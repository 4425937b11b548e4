package commands

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/outboxctl/outboxctl/outbox"
)

// statsOptions are the flags of stats.
type statsOptions struct {
	since durationValue
	top   int
}

// How many names are listed when nobody says --top.
const (
	onScreen    = 5
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
` + exitCodes,
		Example: `  outboxctl stats
  outboxctl stats --since 1h
  outboxctl stats -o json | jq .lag_seconds`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context(), a) },
	}
	o.flags(cmd.Flags())
	return cmd
}

func (o *statsOptions) flags(fs *pflag.FlagSet) {
	o.since = durationValue(15 * time.Minute)
	fs.Var(&o.since, "since", "window for answers and the error share")
	fs.IntVar(&o.top, "top", 0, "`number` of names in each list (default: 5, in documents 1000)")
}

// check refuses what makes no sense.
func (o *statsOptions) check() error {
	switch {
	case o.since <= 0:
		return usage(errors.New("--since must be longer than 0"), "")
	case o.top < 0:
		return usage(errors.New("--top must be 1 or more"), "")
	}
	return nil
}

func (o *statsOptions) run(ctx context.Context, a *app) error {
	if err := o.check(); err != nil {
		return err
	}
	db, err := a.open(ctx, reads)
	if err != nil {
		return err
	}
	defer db.Close()
	return statsFailure(o.show(ctx, a, outbox.NewStore(db, a.global.schema)))
}

// show prints the whole picture once.
func (o *statsOptions) show(ctx context.Context, a *app, store *outbox.Store) error {
	st, err := store.Stats(ctx, o.look(a))
	if err != nil {
		return err
	}
	if a.global.output == "json" {
		return a.printJSON(newStatsDocument(st))
	}
	return a.printStats(st)
}

// look asks for what is shown.
func (o *statsOptions) look(a *app) outbox.Look {
	top := onScreen
	if a.global.output != "table" {
		top = inDocuments
	}
	return outbox.Look{Window: time.Duration(o.since), Top: cmp.Or(o.top, top)}
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
		return &failure{exitError, errors.New("stats: PostgreSQL took longer than 5s for an answer"),
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
