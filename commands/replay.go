package commands

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

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
	moveTo           string
	moves            bool
	canary           []int
	canaryTimeout    durationValue
	minSuccess       percentValue
}

// maxWave bounds a wave of a canary, whose events are kept in mind.
const maxWave = 10_000

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

With --canary 1,10,100 it releases one event, waits for its outcome, then ten, then a
hundred, then the rest; it stops by itself when less than --min-success of a wave is
delivered. With --move-to the events of one destination go to another: those that failed
and those that wait, which keep their attempts.
` + exitCodes,
		Example: `  outboxctl replay --status=failed --dry-run
  outboxctl replay --destination crm --error-kind timeout --since 2h --rate 50/s
  outboxctl replay --status=failed --canary 1,10,100
  outboxctl replay --destination crm --move-to crm-new --yes
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
	fs.StringVar(&o.moveTo, "move-to", "", "the `destination` that the events go to instead of theirs")
	fs.IntSliceVar(&o.canary, "canary", nil, "`sizes` of waves that go first, each after the one before has arrived: 1,10,100")
	o.canaryTimeout, o.minSuccess = durationValue(5*time.Minute), 0.95
	fs.Var(&o.canaryTimeout, "canary-timeout", "how long to wait for a wave's outcome")
	fs.Var(&o.minSuccess, "min-success", "stop when less of a wave is delivered")
}

func (o *replayOptions) check(fs *pflag.FlagSet) error {
	if err := errors.Join(o.filterOptions.check(fs), o.operateOptions.check()); err != nil {
		return err
	}
	if err := o.checkWaves(fs); err != nil {
		return err
	}
	o.moves = fs.Changed("move-to")
	f, err := o.resolve(time.Now()) // and again by the database's clock; mistakes are told before it is asked
	if err != nil {
		return err
	}
	return o.narrow(&f)
}

func (o *replayOptions) checkWaves(fs *pflag.FlagSet) error {
	switch {
	case fs.Changed("canary") && len(o.canary) == 0:
		return usage(errors.New("--canary is empty: give the sizes of the waves, such as 1,10,100"), "")
	case slices.ContainsFunc(o.canary, func(n int) bool { return n < 1 || n > maxWave }):
		return usage(fmt.Errorf("--canary: a wave has 1 to %d events", maxWave), "")
	case len(o.canary) == 0 && (fs.Changed("canary-timeout") || fs.Changed("min-success")):
		return usage(errors.New("--canary-timeout and --min-success go with --canary"), "")
	case o.canaryTimeout <= 0:
		return usage(errors.New("--canary-timeout must be longer than 0"), "")
	}
	return nil
}

func (o *replayOptions) run(ctx context.Context, a *app) error {
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
	spec := outbox.Replay{Filter: filter, Before: now, Rate: float64(o.rate)}
	if o.moves {
		to := typedDestination(o.moveTo)
		spec.MoveTo = &to
	}
	replay := store.Replay(spec)
	op := operation{
		operateOptions: o.operateOptions,
		verb:           "replay", done: "replayed", noun: "event", what: filterWords(filter),
		spec: outbox.Operation{Filter: o.record(filter)},
		step: replay.Step,
		pace: outbox.Pace{Batch: o.batchSize},
		lines: func(ctx context.Context, planned outbox.Progress) ([]string, error) {
			if lines := whyNone(filter, planned, a.schemaFlag()); lines != nil {
				return lines, nil
			}
			return o.lines(ctx, store, replay, planned)
		},
	}
	if o.moves {
		op.what += ", to " + cell(destinationName(*spec.MoveTo))
	}
	if len(o.canary) > 0 {
		op.drive = o.inWaves(replay)
	}
	return a.operate(ctx, store, op)
}

// inWaves drives the replay behind its canary.
func (o *replayOptions) inWaves(replay *outbox.Change) func(context.Context, *outbox.Run, func(int), func(string)) error {
	return func(ctx context.Context, run *outbox.Run, seen func(int), say func(string)) error {
		err := replay.InWaves(ctx, run, outbox.Canary{
			Waves: o.canary, MinSuccess: float64(o.minSuccess), Timeout: time.Duration(o.canaryTimeout),
			Tell: func(w outbox.Wave) { say(waveWords(w)) },
		}, outbox.Pace{Batch: o.batchSize}, seen)
		if stopped, ok := errors.AsType[*outbox.CanaryError](err); ok {
			stopped.Unserved, stopped.Paused = destinationNames(stopped.Unserved), destinationNames(stopped.Paused)
		}
		return err
	}
}

// waveWords says how a wave begins, and how it ended.
func waveWords(w outbox.Wave) string {
	words := fmt.Sprintf("wave %d of %d: ", w.N, w.Of)
	switch {
	case w.Over:
		words += fmt.Sprintf("%d of %d delivered", w.Delivered, w.Events)
		if w.Open > 0 {
			words += fmt.Sprintf(", %d still open", w.Open)
		}
	case len(w.Unserved) > 0:
		words += fmt.Sprintf("%s, but no dispatcher is alive for %s", counted(int64(w.Events), "event"), strings.Join(destinationNames(w.Unserved), ", "))
	case len(w.Paused) > 0:
		words += fmt.Sprintf("%s, but paused: %s", counted(int64(w.Events), "event"), strings.Join(destinationNames(w.Paused), ", "))
	default:
		words += counted(int64(w.Events), "event") + ", waiting for the outcome"
	}
	return words
}

// replayRecord is what outbox_operations keeps of the command line.
type replayRecord struct {
	outbox.Filter
	Rate   string  `json:"rate,omitempty"`
	MoveTo *string `json:"move_to,omitempty"`
	Canary []int   `json:"canary,omitempty"`
}

func (o *replayOptions) record(f outbox.Filter) replayRecord {
	record := replayRecord{Filter: f, Rate: o.rate.String(), Canary: o.canary}
	if o.moves {
		record.MoveTo = &o.moveTo
	}
	return record
}

// narrow gives the filter its statuses: failed unless some are named, and what is open where events
// move. No filter at all is a mistake before that.
func (o *replayOptions) narrow(f *outbox.Filter) error {
	if err := needFilter(*f, o.all); err != nil {
		return err
	}
	if o.moves {
		if err := o.checkMove(*f); err != nil {
			return err
		}
	}
	if len(f.Statuses) == 0 {
		f.Statuses = []outbox.Status{outbox.Failed}
		if o.moves {
			f.Statuses = []outbox.Status{outbox.Pending, outbox.Failed}
		}
	}
	return o.checkStatuses(f.Statuses)
}

func (o *replayOptions) checkMove(f outbox.Filter) error {
	switch to := typedDestination(o.moveTo); {
	case o.moveTo == "":
		return usage(errors.New("--move-to is empty: the default destination is called default"), "")
	case len(o.moveTo) > 200 || !utf8.ValidString(o.moveTo):
		return usage(errors.New("--move-to is no name of a destination: at most 200 bytes of UTF-8"), "")
	case len(f.Destinations) != 1:
		return usage(errors.New("--move-to needs the one --destination that the events are to leave"), "")
	case f.Destinations[0] == to:
		return usage(fmt.Errorf("--move-to %s is the destination that they have", o.moveTo), "")
	}
	return nil
}

func (o *replayOptions) checkStatuses(statuses []outbox.Status) error {
	for _, status := range statuses {
		if status == outbox.InProgress || status == outbox.Pending && !o.moves {
			return usage(fmt.Errorf("--status %s: what is pending or in progress is sent anyway", status), "name failed, dead_letter, discarded or delivered")
		}
	}
	switch delivered := slices.Contains(statuses, outbox.Delivered); {
	case delivered && !o.includeDelivered:
		return usage(errors.New("--status delivered sends again what receivers have taken"), "if they recognise a repeat by its key, add --include-delivered --reason WHY")
	case !delivered && o.includeDelivered:
		return usage(errors.New("--include-delivered agrees to what --status delivered asks for"), "add --status delivered, or leave it out")
	case delivered && o.reason == "":
		return usage(errors.New("--include-delivered needs a --reason"), "")
	}
	return nil
}

// lines say what an operator should know before the answer.
func (o *replayOptions) lines(ctx context.Context, store *outbox.Store, replay *outbox.Change, planned outbox.Progress) (lines []string, err error) {
	if planned.Done == 0 {
		return nil, nil
	}
	if o.rate > 0 {
		seconds := float64(planned.Done-1) / float64(o.rate)
		if seconds > maxDuration.Seconds() {
			return nil, usage(fmt.Errorf("--rate %s would spread them over more than 36500d", o.rate.String()), "")
		}
		lines = append(lines, fmt.Sprintf("due over %s, %s", age(time.Duration(seconds*float64(time.Second))), o.rate.String()))
	}
	if len(o.canary) > 0 {
		lines = append(lines, fmt.Sprintf("first in waves of %s, of which %s must be delivered within %s",
			strings.Join(texts(o.canary), ", "), o.minSuccess.String(), printDuration(time.Duration(o.canaryTimeout))))
	}
	if o.moves {
		served, err := store.Serves(ctx, typedDestination(o.moveTo))
		if err != nil {
			return nil, err
		}
		if !served {
			lines = append(lines, fmt.Sprintf("warning: no dispatcher is alive for %s", cell(o.moveTo)))
		}
	}
	overtaken, err := replay.Overtaken(ctx)
	return append(lines, overtakenWords(overtaken)...), err
}

// overtakenWords warn of events that receivers would see in the wrong order.
func overtakenWords(o outbox.Overtaken) []string {
	switch {
	case o.Aggregates > 0 && o.Cut:
		return []string{fmt.Sprintf("warning: of at least %s a later event was delivered already (only a part was looked at)", counted(int64(o.Aggregates), "aggregate"))}
	case o.Aggregates > 0:
		return []string{fmt.Sprintf("warning: of %s out of %s a later event was delivered already", counted(int64(o.Aggregates), "aggregate"), thousands(int64(o.Looked)))}
	case o.Cut:
		return []string{"no later event of these aggregates was found delivered, but only a part was looked at"}
	}
	return nil
}
