package commands

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/outboxctl/outboxctl/outbox"
)

// pauseOptions are the arguments of dispatch pause and dispatch resume.
type pauseOptions struct {
	destination string // as typed
	tenant      string
	reason      string
	lasts       durationValue
}

func newDispatchPause(a *app) *cobra.Command {
	var o pauseOptions
	cmd := &cobra.Command{
		Use:   "pause DESTINATION",
		Short: "keep a destination's or a tenant's events from being sent",
		Long: `Keep the events of a destination, or of one tenant there, from being sent, until dispatch
resume or for as long as --for says. Every dispatcher knows within its poll interval: it
claims no more, gives back what it has claimed and not sent, and lets requests in flight
end. Events stay as they are and lose no attempt. New ones are accepted as ever.

The destination that dispatch --to serves is called default. A pause again changes the
one that is there. stats shows pauses, outbox_operations who began and ended them.
` + exitCodes,
		Example: `  outboxctl dispatch pause crm --for 2h --reason 'they move to a new data centre'
  outboxctl dispatch pause default --tenant acme --reason 'ticket 4711: floods the receiver'`,
		Args: oneDestination,
		RunE: func(cmd *cobra.Command, args []string) error {
			o.destination = args[0]
			return o.pause(cmd, a)
		},
	}
	o.flags(cmd.Flags())
	cmd.Flags().Var(&o.lasts, "for", "how long; without it, until dispatch resume")
	typed(cmd.Flags(), "for")
	return cmd
}

func newDispatchResume(a *app) *cobra.Command {
	var o pauseOptions
	cmd := &cobra.Command{
		Use:   "resume DESTINATION",
		Short: "send a paused destination's or tenant's events again",
		Long: `End a pause: one that dispatch pause began, or one that the destination asked for by its
answers (410, webhook-delivery: disable, or a long Retry-After). Every dispatcher knows
within its poll interval and goes on with the oldest event. No event is changed by it.
` + exitCodes,
		Example: `  outboxctl dispatch resume crm --reason 'they are back'
  outboxctl dispatch resume default --tenant acme --reason 'ticket 4711 is solved'`,
		Args: oneDestination,
		RunE: func(cmd *cobra.Command, args []string) error {
			o.destination = args[0]
			return o.resume(cmd, a)
		},
	}
	o.flags(cmd.Flags())
	return cmd
}

func (o *pauseOptions) flags(fs *pflag.FlagSet) {
	fs.StringVar(&o.tenant, "tenant", "", "only this `tenant`'s events")
	fs.StringVar(&o.reason, "reason", "", "`why`, for those who wonder, and for the record; required")
}

// oneDestination wants the name of one.
func oneDestination(cmd *cobra.Command, args []string) error {
	switch {
	case len(args) == 0:
		return usage(fmt.Errorf("%s needs the destination's name; the one of dispatch --to is called default", cmd.CommandPath()), helpHint(cmd))
	case len(args) > 1:
		return usage(fmt.Errorf("%s takes one destination, and there is %q", cmd.CommandPath(), args[1]), helpHint(cmd))
	case args[0] == "":
		return usage(errors.New("the destination's name is empty; the one of dispatch --to is called default"), "")
	}
	return nil
}

func (o *pauseOptions) check(fs *pflag.FlagSet) error {
	switch {
	case fs.Changed("tenant") && o.tenant == "":
		return usage(errors.New("--tenant has an empty value: leave the flag out for all of the destination"), "")
	case strings.TrimSpace(o.reason) == "":
		return usage(errors.New("--reason is missing: say why"), "")
	case fs.Changed("for") && o.lasts <= 0:
		return usage(errors.New("--for must be longer than 0"), "")
	}
	return nil
}

// name is the destination as the table has it.
func (o *pauseOptions) name() string {
	return typedDestination(o.destination)
}

// what is paused, in words.
func (o *pauseOptions) what() string {
	if o.tenant != "" {
		return "tenant " + o.tenant + " of " + o.destination
	}
	return o.destination
}

// pausedDocument is outboxctl.pause/v1 and outboxctl.resume/v1. Its keys are an interface.
type pausedDocument struct {
	Schema      string     `json:"schema"`
	Destination string     `json:"destination"`
	Tenant      *string    `json:"tenant"` // null = all of the destination
	Paused      bool       `json:"paused"`
	Until       *time.Time `json:"until"`     // null with paused = until resumed
	Changed     bool       `json:"changed"`   // false when there was no pause to end
	Tenants     []string   `json:"tenants"`   // that are paused there now
	Operation   int64      `json:"operation"` // 0 = nothing was done
}

func (o *pauseOptions) pause(cmd *cobra.Command, a *app) error {
	if err := o.check(cmd.Flags()); err != nil {
		return err
	}
	return o.record(cmd.Context(), a, "pause", func(ctx context.Context, store *outbox.Store, run *outbox.Run) error {
		p := outbox.Pause{
			Destination: o.name(), Tenant: o.tenant, For: outbox.Forever, Reason: o.reason, By: operator(a.Getenv),
		}
		if o.lasts > 0 {
			p.For = time.Duration(o.lasts)
		}
		if err := run.Pause(ctx, p); err != nil {
			return err
		}
		return o.say(ctx, a, store, run, true)
	})
}

func (o *pauseOptions) resume(cmd *cobra.Command, a *app) error {
	if err := o.check(cmd.Flags()); err != nil {
		return err
	}
	return o.record(cmd.Context(), a, "resume", func(ctx context.Context, store *outbox.Store, run *outbox.Run) error {
		was, err := run.Resume(ctx, o.name(), o.tenant)
		if err != nil {
			return err
		}
		return o.say(ctx, a, store, run, was)
	})
}

// record does f as an operation. It refuses a destination that nobody has heard of: a slip of the
// pen that looks like a pause would be noticed too late.
func (o *pauseOptions) record(ctx context.Context, a *app, command string, f func(context.Context, *outbox.Store, *outbox.Run) error) error {
	store, done, err := a.openStore(ctx, writes)
	if err != nil {
		return err
	}
	defer done()
	all, known, served, err := store.Known(ctx, o.name())
	if err != nil {
		return err
	}
	if !known {
		for i := range all {
			all[i] = destinationName(all[i])
		}
		slices.Sort(all)
		return usage(fmt.Errorf("there is no destination %q", o.destination), "known are: "+strings.Join(all, ", "))
	}
	if !served && command == "pause" {
		a.warnOnce("no dispatcher that is alive serves %s; the pause holds for those to come", o.destination)
	}
	filter := map[string]string{"destination": o.destination}
	if o.tenant != "" {
		filter["tenant"] = o.tenant
	}
	if o.lasts > 0 {
		filter["for"] = o.lasts.String()
	}
	run, err := store.Begin(ctx, a.signed(outbox.Operation{Command: command, Filter: filter, Reason: o.reason, Planned: -1}))
	if err != nil {
		return err
	}
	err = f(ctx, store, run)
	return errors.Join(err, run.End(ctx, endWords(err)))
}

// say tells how things stand after a pause or a resume, as the database has it.
func (o *pauseOptions) say(ctx context.Context, a *app, store *outbox.Store, run *outbox.Run, changed bool) error {
	all, err := store.Pauses(ctx)
	if err != nil {
		return err
	}
	doc := pausedDocument{Destination: o.destination, Changed: changed, Tenants: []string{}, Operation: run.ID}
	if o.tenant != "" {
		doc.Tenant = &o.tenant
	}
	for _, p := range all {
		if p.Destination != o.name() {
			continue
		}
		if p.Tenant == o.tenant {
			if doc.Paused = true; !p.Until.IsZero() {
				doc.Until = &p.Until
			}
		}
		if p.Tenant != "" {
			doc.Tenants = append(doc.Tenants, p.Tenant)
		}
	}
	doc.Schema = "outboxctl.resume/v1"
	if doc.Paused {
		doc.Schema = "outboxctl.pause/v1"
	}
	if a.global.output == "json" {
		return a.printJSON(doc)
	}
	fmt.Fprintln(a.Out, o.words(doc))
	if !doc.Paused && o.tenant == "" && len(doc.Tenants) > 0 {
		fmt.Fprintf(a.Err, "  still paused there: %s\n", someTenants(doc.Tenants))
	}
	return nil
}

func (o *pauseOptions) words(doc pausedDocument) string {
	switch {
	case doc.Paused && doc.Until != nil:
		return fmt.Sprintf("paused %s until %s, operation %d", o.what(), instant(*doc.Until), doc.Operation)
	case doc.Paused:
		return fmt.Sprintf("paused %s until it is resumed, operation %d", o.what(), doc.Operation)
	case doc.Changed:
		return fmt.Sprintf("resumed %s, operation %d", o.what(), doc.Operation)
	}
	return o.what() + " is not paused: nothing to do"
}

// someTenants names a few.
func someTenants(tenants []string) string {
	const shown = 5
	words := make([]string, 0, shown+1)
	for _, tenant := range tenants[:min(len(tenants), shown)] {
		words = append(words, "tenant "+tenant)
	}
	if more := len(tenants) - shown; more > 0 {
		words = append(words, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(words, ", ")
}
