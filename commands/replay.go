package commands

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/outboxctl/outboxctl/outbox"
)

// replayOptions are the flags of replay.
type replayOptions struct {
	filterOptions
	operateOptions
	rate             rateValue
	includeDelivered bool
}

func newReplay(a *app) *cobra.Command {
	var o replayOptions
	cmd := &cobra.Command{
		Use:   "replay",
		Short: "send failed events again",
		Long: `Put failed events back to pending, for dispatchers to deliver: with the same key, no
attempts, and the history of all attempts before. Without --status, failed events are
meant; dead_letter, discarded and delivered ones when they are named. Pending events and
those in flight are never touched.

It shows how many events it would put back and asks. It works in short transactions and
can be stopped at any moment; the same command again goes on with the rest, and no event
is put back twice, also by several at once. outbox_operations keeps what it did.
` + exitCodes,
		Example: `  outboxctl replay --status=failed --dry-run
  outboxctl replay --destination crm --error-kind timeout --since 2h --rate 50/s
  outboxctl replay --status dead_letter --aggregate order:42 --reason "address mended"`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.check(cmd.Flags()); err != nil {
				return err
			}
			return o.run(cmd.Context(), a)
		},
	}
	o.flags(cmd.Flags())
	return cmd
}

func (o *replayOptions) flags(fs *pflag.FlagSet) {
	o.filterOptions.flags(fs)
	o.operateOptions.flags(fs)
	fs.Var(&o.rate, "rate", "how many become due in a time, such as 50/s: live traffic goes on beside them (default: all at once)")
	fs.BoolVar(&o.includeDelivered, "include-delivered", false, "agree that receivers get again what they have taken; with --status delivered and --reason")
}

func (o *replayOptions) check(fs *pflag.FlagSet) error {
	if err := errors.Join(o.filterOptions.check(fs), o.operateOptions.check()); err != nil {
		return err
	}
	f, err := o.resolve(time.Now()) // and again by the database's clock; mistakes are told before it is asked
	if err != nil {
		return err
	}
	return o.narrow(&f)
}

func (o *replayOptions) run(ctx context.Context, a *app) error {
	db, err := a.open(ctx, writes)
	if err != nil {
		return err
	}
	defer db.Close()
	store := outbox.NewStore(db, a.global.schema)
	now, err := store.Now(ctx)
	if err != nil {
		return err
	}
	filter, err := o.resolve(now)
	if err != nil {
		return err
	}
	if err := o.narrow(&filter); err != nil {
		return err
	}
	replay := store.Replay(outbox.Replay{Filter: filter, Before: now, Rate: float64(o.rate)})
	return a.operate(ctx, store, operation{
		operateOptions: o.operateOptions,
		verb:           "replay", done: "replayed", noun: "event", what: filterWords(filter),
		spec: outbox.Operation{Filter: replayRecord{filter, o.rate.String()}},
		step: replay.Step,
		pace: outbox.Pace{Batch: o.batchSize},
		lines: func(ctx context.Context, planned outbox.Progress) ([]string, error) {
			return o.lines(planned)
		},
	})
}

// replayRecord is what outbox_operations keeps of the command line.
type replayRecord struct {
	outbox.Filter
	Rate string `json:"rate,omitempty"`
}

// narrow gives the filter its statuses: failed unless some are named. No filter at all is a mistake
// before that.
func (o *replayOptions) narrow(f *outbox.Filter) error {
	if err := needFilter(*f, o.all); err != nil {
		return err
	}
	if len(f.Statuses) == 0 {
		f.Statuses = []outbox.Status{outbox.Failed}
	}
	for _, status := range f.Statuses {
		if !status.Final() {
			return usage(fmt.Errorf("--status %s: what is pending or in progress is sent anyway", status), "name failed, dead_letter, discarded or delivered")
		}
	}
	switch delivered := slices.Contains(f.Statuses, outbox.Delivered); {
	case delivered && !o.includeDelivered:
		return usage(errors.New("--status delivered sends again what receivers have taken"), "if they recognise a repeat by its key, add --include-delivered --reason WHY")
	case !delivered && o.includeDelivered:
		return usage(errors.New("--include-delivered agrees to what --status delivered asks for"), "add --status delivered, or leave it out")
	case delivered && o.reason == "":
		return usage(errors.New("--include-delivered needs a --reason"), "")
	}
	return nil
}

// lines say how long the events are spread.
func (o *replayOptions) lines(planned outbox.Progress) ([]string, error) {
	if o.rate == 0 || planned.Done == 0 {
		return nil, nil
	}
	seconds := float64(planned.Done-1) / float64(o.rate)
	if seconds > maxDuration.Seconds() {
		return nil, usage(fmt.Errorf("--rate %s would spread them over more than 36500d", o.rate.String()), "")
	}
	return []string{fmt.Sprintf("due over %s, %s", age(time.Duration(seconds*float64(time.Second))), o.rate.String())}, nil
}
