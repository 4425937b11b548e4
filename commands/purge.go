package commands

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/outboxctl/outboxctl/outbox"
)

// purgeOptions are the flags of purge.
type purgeOptions struct {
	filterOptions
	operateOptions
	rate     rateValue
	pause    durationValue
	attempts durationValue
	rollup   durationValue
}

func newPurge(a *app) *cobra.Command {
	var o purgeOptions
	cmd := &cobra.Command{
		Use:   "purge",
		Short: "delete finished events",
		Long: `Delete the delivered events that ended longer ago than --older-than. Failed events, dead
letters and discarded ones go only when --status names them; events that are not
finished never go, whatever is asked.

It works in short transactions beside producers and dispatchers, leaves alone what
others have locked, and can be stopped at any time: what is gone is gone, and the same
command again goes on with the rest. Two at once are refused.

A purge by age and status also removes history that is too old: attempts (90d; those of
open and failed events and of dead letters stay as long as these), the counts by the
minute and samples of health that stats reads (35d).

A key that was purged can be inserted again: keep events at least as long as producers
may repeat theirs.
` + exitCodes,
		Example: `  outboxctl purge --older-than 30d --dry-run
  outboxctl purge --older-than 30d --yes
  outboxctl purge --older-than 90d --status dead_letter,discarded --reason 'ticket 4711'
  outboxctl purge --older-than 30d --rate 2000/s --max-duration 1h --yes`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context(), a, cmd.Flags()) },
	}
	o.flags(cmd.Flags())
	return cmd
}

// historyFlags say how old what accompanies events may become.
var historyFlags = []string{"attempts-older-than", "rollup-older-than"}

func (o *purgeOptions) flags(fs *pflag.FlagSet) {
	o.batchSize = 5000
	o.attempts, o.rollup = durationValue(90*24*time.Hour), durationValue(35*24*time.Hour)
	o.filterOptions.flags(fs)
	o.operateOptions.flags(fs)
	fs.Var(&o.rate, "rate", "at most so many events in a time: 5000/s, 100000/m")
	fs.Var(&o.pause, "pause", "wait this long between two transactions")
	fs.Var(&o.attempts, "attempts-older-than", "remove rows of outbox_attempts that are older than this")
	fs.Var(&o.rollup, "rollup-older-than", "remove rows of outbox_rollup and outbox_samples that are older than this")
	for _, name := range append([]string{"rate", "pause"}, historyFlags...) { // they select, or are a dispatcher's
		_ = fs.SetAnnotation(name, noTwinMark, nil) // it is there
	}
}

func (o *purgeOptions) check(fs *pflag.FlagSet) error {
	if err := o.filterOptions.check(fs); err != nil {
		return err
	}
	if err := o.operateOptions.check(); err != nil {
		return err
	}
	switch {
	case !fs.Changed("older-than"):
		return usage(errors.New("--older-than is missing: say how long finished events are kept"), "such as --older-than 30d")
	case o.olderThan == 0 && !o.all:
		return usage(errors.New("--older-than 0s is every event that ended"), "if they all may go, say --all")
	}
	return nil
}

func (o *purgeOptions) run(ctx context.Context, a *app, fs *pflag.FlagSet) error {
	if err := o.check(fs); err != nil {
		return err
	}
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
	what, err := o.purge(now, fs)
	if err != nil {
		return err
	}
	var run *outbox.Run
	err = a.operate(ctx, store, operation{
		operateOptions: o.operateOptions,
		verb:           "purge", done: "purged", noun: "event", what: filterWords(what.Filter),
		spec: outbox.Operation{Filter: what.Filter, Alone: true},
		step: func(r *outbox.Run) outbox.Step {
			run = r
			return store.Purge(r, what)
		},
		pace: outbox.Pace{Batch: o.batchSize, Rate: float64(o.rate), Pause: time.Duration(o.pause)},
		lines: func(ctx context.Context, planned outbox.Progress) ([]string, error) {
			return o.lines(ctx, store, planned)
		},
		skipsAreFine: []string{"locked"},
		idle:         func(planned outbox.Progress) bool { return len(purged(planned).History) == 0 },
		more:         historyWords,
		document:     newPurgeDocument,
	})
	if run != nil && !run.Rehearsal() {
		a.sayDeadRows(ctx, store, run.Progress.Done)
	}
	return err
}

// purge makes of the flags what is to go.
func (o *purgeOptions) purge(now time.Time, fs *pflag.FlagSet) (what outbox.Purge, err error) {
	if what.Filter, err = o.resolve(now); err != nil {
		return what, err
	}
	for _, status := range what.Filter.Statuses {
		if !status.Final() {
			return what, usage(fmt.Errorf("--status %s: events that are not finished are never purged", status),
				"to give an event up: outboxctl events discard")
		}
	}
	if len(what.Filter.Statuses) == 0 {
		what.Filter.Statuses = []outbox.Status{outbox.Delivered}
	}
	what.Filter.FinishedBefore = now.Add(-time.Duration(o.olderThan))
	if o.keepsHouse(fs) {
		what.History = outbox.History{Attempts: now.Add(-time.Duration(o.attempts)), Rollup: now.Add(-time.Duration(o.rollup))}
	}
	return what, nil
}

// keepsHouse reports whether old history goes, too: it does not where particular events are meant,
// unless its age is given.
func (o *purgeOptions) keepsHouse(fs *pflag.FlagSet) bool {
	given := func(name string) bool { return fs.Changed(name) }
	particular := slices.DeleteFunc(slices.Clone(filterFlags), func(name string) bool { return name == "older-than" || name == "status" })
	return slices.ContainsFunc(historyFlags, given) || !slices.ContainsFunc(particular, given)
}

// assumedRate is that of the first purge, in events per second; later ones go by the last one.
const assumedRate = 20_000

// lines say what the count alone does not: how much, from when, how long it takes.
func (o *purgeOptions) lines(ctx context.Context, store *outbox.Store, planned outbox.Progress) ([]string, error) {
	p := purged(planned)
	var lines []string
	if planned.Done > 0 {
		past, err := store.PastRate(ctx, "purge")
		if err != nil {
			return nil, err
		}
		lines = append(lines, fmt.Sprintf("ended %s to %s, about %s", instant(p.Oldest), instant(p.Newest), bytesWords(p.Bytes)),
			o.timeWords(planned.Done, past))
	}
	if len(p.History) > 0 {
		lines = append(lines, "history: "+historyCounts(p.History))
	}
	return lines, nil
}

func (o *purgeOptions) timeWords(n int64, past float64) string {
	speed, basis := past, "as fast as the last purge"
	if past == 0 {
		speed, basis = assumedRate, "as assumed before the first purge"
	}
	if asked := float64(o.rate); asked > 0 && asked < speed {
		speed, basis = asked, "as --rate asks"
	}
	took := time.Duration(float64(n)/speed*float64(time.Second)) + time.Duration(n/int64(o.batchSize))*time.Duration(o.pause)
	if o.pause > 0 {
		basis += ", with pauses"
	}
	return fmt.Sprintf("takes about %s at %s/s, %s", age(max(took, time.Second)), thousands(int64(speed)), basis)
}

// purged is what a purge's progress holds besides its count. Our own store wrote it.
func purged(p outbox.Progress) outbox.Purged {
	more, _ := p.Purged()
	return more
}

func historyWords(p outbox.Progress) string {
	if counts := historyCounts(purged(p).History); counts != "" {
		return "; history: " + counts
	}
	return ""
}

// historyNouns are what the tables of the history hold.
var historyNouns = map[string]string{"attempts": "attempt", "rollup": "rollup row", "samples": "sample"}

// historyCounts lists what is counted: 1,204 attempts · 360 rollup rows.
func historyCounts(history map[string]int64) string {
	var words []string
	for _, table := range slices.Sorted(maps.Keys(history)) {
		words = append(words, counted(history[table], historyNouns[table]))
	}
	return strings.Join(words, " · ")
}

// purgeDocument is outboxctl.purge/v1. Bytes and times are those of a dry run.
type purgeDocument struct {
	operationDocument
	History map[string]int64 `json:"history"` // rows removed, by table
	Bytes   int64            `json:"bytes,omitempty"`
	Oldest  time.Time        `json:"oldest,omitzero"`
	Newest  time.Time        `json:"newest,omitzero"`
}

func newPurgeDocument(base operationDocument, progress outbox.Progress) any {
	p := purged(progress)
	doc := purgeDocument{operationDocument: base, History: map[string]int64{}}
	maps.Copy(doc.History, p.History)
	if base.DryRun {
		doc.Bytes, doc.Oldest, doc.Newest = p.Bytes, p.Oldest, p.Newest
	}
	return doc
}

// manyDead is from how many dead rows on a purge says who clears them away.
const manyDead = 10_000

// sayDeadRows tells whether the room that a purge made comes to use. It is a hint: without an answer
// nothing is said.
func (a *app) sayDeadRows(ctx context.Context, store *outbox.Store, n int64) {
	if n < manyDead {
		return
	}
	v, err := store.Vacuuming(context.WithoutCancel(ctx))
	if err != nil {
		return
	}
	last := "never vacuumed yet"
	if v.Last > 0 {
		last = "last vacuumed " + age(v.Last) + " ago"
	}
	if v.Auto {
		fmt.Fprintf(a.Err, "%s dead rows are left to autovacuum (%s): their room is used again, the table's file stays as large\n", thousands(n), last)
		return
	}
	fmt.Fprintf(a.Err, "%s dead rows are left and autovacuum is off for the table (%s): run vacuum on it, or claims and the table grow\n", thousands(n), last)
}
