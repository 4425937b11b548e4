package commands

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/outboxctl/outboxctl/outbox"
)

// discardOptions are the flags of events discard.
type discardOptions struct {
	filterOptions
	operateOptions
}

func newEventsDiscard(a *app) *cobra.Command {
	var o discardOptions
	cmd := &cobra.Command{
		Use:   "discard",
		Short: "give events up that nobody needs any more",
		Long: `End events that are not to be sent any more, with a reason. Without --status, failed
events and dead letters are meant; pending ones when they are named, but for those that
are being sent right now. They stay in the table as discarded until they are purged, and
replay --status discarded brings them back.

It shows how many events it would discard and asks. outbox_operations keeps the reason,
outbox_audit what each event was.
` + exitCodes,
		Example: `  outboxctl events discard --aggregate order:42 --reason "test order"
  outboxctl events discard --status dead_letter --error-code 410 --reason "customer left"
  outboxctl events discard --status pending --event-type 'debug.*' --reason "not needed" --dry-run`,
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

func (o *discardOptions) flags(fs *pflag.FlagSet) {
	o.filterOptions.flags(fs)
	o.operateOptions.flags(fs)
}

func (o *discardOptions) check(fs *pflag.FlagSet) error {
	if err := errors.Join(o.filterOptions.check(fs), o.operateOptions.check()); err != nil {
		return err
	}
	f, err := o.resolve(time.Now()) // and again by the database's clock; mistakes are told before it is asked
	if err != nil {
		return err
	}
	return o.narrow(&f)
}

// narrow gives the filter its statuses: failed and dead letters unless some are named.
func (o *discardOptions) narrow(f *outbox.Filter) error {
	if err := needFilter(*f, o.all); err != nil {
		return err
	}
	if o.reason == "" {
		return usage(errors.New("discard needs a --reason, for those who will miss these events"), "")
	}
	if len(f.Statuses) == 0 {
		f.Statuses = []outbox.Status{outbox.Failed, outbox.DeadLetter}
	}
	for _, status := range f.Statuses {
		switch status {
		case outbox.InProgress:
			return usage(fmt.Errorf("--status %s: what is being sent cannot be given up", status), "wait for its outcome")
		case outbox.Delivered, outbox.Discarded:
			return usage(fmt.Errorf("--status %s: nothing is left to give up", status), "name pending, failed or dead_letter")
		}
	}
	return nil
}

func (o *discardOptions) run(ctx context.Context, a *app) error {
	store, now, done, err := a.openStoreNow(ctx, writes)
	if err != nil {
		return err
	}
	defer done()
	filter, err := o.resolve(now)
	if err != nil {
		return err
	}
	if err := o.narrow(&filter); err != nil {
		return err
	}
	discard := store.Discard(outbox.Discard{Filter: filter, Before: now, Reason: o.reason})
	return a.operate(ctx, store, operation{
		operateOptions: o.operateOptions,
		verb:           "discard", done: "discarded", noun: "event", what: filterWords(filter),
		spec: outbox.Operation{Filter: filter},
		step: discard.Step,
		pace: outbox.Pace{Batch: o.batchSize},
		lines: func(_ context.Context, planned outbox.Progress) ([]string, error) {
			return whyNone(filter, planned, a.schemaFlag()), nil
		},
	})
}
