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
	archive     bool
	redact      bool
	dropArchive bool
	paths       []string
	rate        rateValue
	pause       durationValue
	attempts    durationValue
	rollup      durationValue
	record      durationValue
}

func newPurge(a *app) *cobra.Command {
	var o purgeOptions
	cmd := &cobra.Command{
		Use:   "purge",
		Short: "delete, archive or redact finished events",
		Long: `Delete the delivered events that ended longer ago than --older-than. Failed events, dead
letters and discarded ones go only when --status names them; events that are not
finished never go, whatever is asked.

It works in short transactions beside producers and dispatchers, leaves alone what
others have locked, and can be stopped at any time: what is gone is gone, and the same
command again goes on with the rest. Two at once are refused.

A purge by age and status also removes history that is too old: attempts (90d; those of
open and failed events and of dead letters stay as long as these), the counts by the
minute and samples of health that stats reads (35d), the record of operations (365d).

With --archive the events go to outbox_archive, by the month of their end, and
--drop-archive drops the months that lie wholly before --older-than.

With --redact the events stay, in the outbox and in the archive, and lose what the paths
name of their payloads: those of --path, or else redact in the configuration file. Id,
key, times and state stay, and the payload's hash. A payload of bytes becomes empty. It
cannot be taken back, and redacted events cannot be replayed.

A key that was purged can be inserted again: keep events at least as long as producers
may repeat theirs.
` + exitCodes,
		Example: `  outboxctl purge --older-than 30d --dry-run
  outboxctl purge --older-than 30d --yes
  outboxctl purge --older-than 90d --status dead_letter,discarded --reason 'ticket 4711'
  outboxctl purge --older-than 30d --archive --rate 2000/s --max-duration 1h --yes
  outboxctl purge --drop-archive --older-than 730d
  outboxctl purge --redact --path '$.email' --path '$.card.*' --tenant acme --reason 'ticket 4712'`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context(), a, cmd.Flags()) },
	}
	o.flags(cmd.Flags())
	return cmd
}

// historyFlags say how old what accompanies events may become.
var historyFlags = []string{"attempts-older-than", "rollup-older-than", "record-older-than"}

func (o *purgeOptions) flags(fs *pflag.FlagSet) {
	const day = durationValue(24 * time.Hour)
	o.batchSize = 5000
	o.attempts, o.rollup, o.record = 90*day, 35*day, 365*day
	o.filterOptions.flags(fs)
	o.operateOptions.flags(fs)
	fs.BoolVar(&o.archive, "archive", false, "move the events to outbox_archive")
	fs.BoolVar(&o.redact, "redact", false, "keep the events, and blank what --path names of their payloads")
	fs.BoolVar(&o.dropArchive, "drop-archive", false, "drop the months of the archive that are older than --older-than")
	fs.StringArrayVar(&o.paths, "path", nil, "with --redact: the JSON `path` of a value to blank: $.email, $.card.*, $ for all of the payload")
	fs.Var(&o.rate, "rate", "at most so many events in a time: 5000/s, 100000/m")
	fs.Var(&o.pause, "pause", "wait this `long` between two transactions, 0s for none (default: as long as one took)")
	fs.Var(&o.attempts, "attempts-older-than", "remove rows of outbox_attempts that are older than this")
	fs.Var(&o.rollup, "rollup-older-than", "remove rows of outbox_rollup and outbox_samples that are older than this")
	fs.Var(&o.record, "record-older-than", "remove rows of outbox_operations and outbox_audit that are older than this; 90d at least")
	typed(fs, append([]string{"archive", "redact", "drop-archive", "path", "rate", "pause"}, historyFlags...)...)
}

// keptRecord is what the database keeps of the record in any case.
const keptRecord = durationValue(90 * 24 * time.Hour)

func (o *purgeOptions) check(fs *pflag.FlagSet) error {
	if err := errors.Join(o.filterOptions.check(fs), o.operateOptions.check()); err != nil {
		return err
	}
	var modes []string
	for _, name := range []string{"archive", "redact", "drop-archive"} {
		if fs.Lookup(name).Value.String() == "true" {
			modes = append(modes, "--"+name)
		}
	}
	switch {
	case len(modes) > 1:
		return usage(fmt.Errorf("%s do not go together", strings.Join(modes, " and ")), "run one after the other")
	case len(o.paths) > 0 && !o.redact:
		return usage(errors.New("--path goes with --redact"), "")
	case o.record < keptRecord:
		return usage(errors.New("--record-older-than: the record of the last 90d stays"), "")
	case o.redact:
		return o.checkParticular(fs, historyFlags, "--redact")
	case !fs.Changed("older-than"):
		return usage(errors.New("--older-than is missing: say how long finished events are kept"), "such as --older-than 30d")
	case o.olderThan == 0 && !o.all:
		return usage(errors.New("--older-than 0s is every event that ended"), "if they all may go, say --all")
	case o.dropArchive:
		return o.checkParticular(fs, slices.Concat(particularFlags("older-than"), historyFlags, []string{"rate"}), "--drop-archive")
	}
	_, err := o.filter(time.Now()) // and again by the database's clock; mistakes are told before it is asked
	return err
}

// checkParticular refuses flags that a mode has no use for.
func (o *purgeOptions) checkParticular(fs *pflag.FlagSet, flags []string, mode string) error {
	for _, name := range flags {
		if fs.Changed(name) {
			return usage(fmt.Errorf("--%s does not go with %s", name, mode), "")
		}
	}
	_, err := o.filter(time.Now())
	return err
}

// particularFlags are those of a filter without some.
func particularFlags(without ...string) []string {
	return slices.DeleteFunc(slices.Clone(filterFlags), func(name string) bool { return slices.Contains(without, name) })
}

// filter resolves the flags. Nothing that is open may be named.
func (o *purgeOptions) filter(now time.Time) (f outbox.Filter, err error) {
	if f, err = o.resolve(now); err != nil {
		return f, err
	}
	for _, status := range f.Statuses {
		if !status.Final() {
			return f, usage(fmt.Errorf("--status %s: events that are not finished are never purged", status),
				"to give an event up: outboxctl events discard")
		}
	}
	return f, nil
}

func (o *purgeOptions) run(ctx context.Context, a *app, fs *pflag.FlagSet) error {
	if err := o.check(fs); err != nil {
		return err
	}
	var rules outbox.Redaction
	if o.redact {
		var err error
		if rules, err = o.rules(a); err != nil {
			return err
		}
	}
	store, now, done, err := a.openStoreNow(ctx, writes)
	if err != nil {
		return err
	}
	defer done()
	filter, err := o.filter(now)
	switch {
	case err != nil:
		return err
	case o.redact:
		return o.runRedact(ctx, a, store, filter, rules, fs)
	case o.dropArchive:
		return o.runDrop(ctx, a, store, now.Add(-time.Duration(o.olderThan)))
	}
	return o.runPurge(ctx, a, store, o.purge(filter, now, fs), fs)
}

// purgeRecord is what outbox_operations keeps of what was selected.
type purgeRecord struct {
	outbox.Filter
	Mode  string   `json:"mode,omitempty"` // archive, redact, drop-archive
	Paths []string `json:"paths,omitempty"`
}

const modeArchive = "archive"

func (o *purgeOptions) runPurge(ctx context.Context, a *app, store *outbox.Store, what outbox.Purge, fs *pflag.FlagSet) error {
	op := operation{
		operateOptions: o.operateOptions,
		verb:           "purge", done: "purged", noun: "event", what: filterWords(what.Filter),
		pace:         o.pace(fs, o.batchSize),
		skipsAreFine: []string{outbox.SkipLocked},
		idle:         func(planned outbox.Progress) bool { return len(purged(planned).History) == 0 },
		more:         historyWords,
		document:     func(base operationDocument, p outbox.Progress) any { return o.newDocument(base, p) },
	}
	mode := ""
	if what.Archive {
		mode, op.act, op.done = modeArchive, "archive", "archived"
	}
	op.spec = outbox.Operation{Filter: purgeRecord{Filter: what.Filter, Mode: mode}, Alone: true}
	op.lines = func(ctx context.Context, planned outbox.Progress) ([]string, error) {
		return o.lines(ctx, store, mode, planned)
	}
	var run *outbox.Run
	op.step = func(r *outbox.Run) outbox.Step {
		run = r
		return store.Purge(r, what)
	}
	err := a.operate(ctx, store, op)
	if run != nil && !run.Rehearsal() {
		a.sayDeadRows(ctx, store, run.Progress.Done)
	}
	return err
}

// guest is the share of the time that a purge works unless its pace is given: deliveries beside it
// keep four fifths of their speed on two cores that they have to themselves otherwise, see
// BenchmarkPurgeBesideDelivery.
const guest = 0.5

func (o *purgeOptions) pace(fs *pflag.FlagSet, batch int) outbox.Pace {
	pace := outbox.Pace{Batch: batch, Rate: float64(o.rate), Pause: time.Duration(o.pause)}
	if !fs.Changed("rate") && !fs.Changed("pause") {
		pace.Share = guest
	}
	return pace
}

// purge makes of the filter what is to go.
func (o *purgeOptions) purge(filter outbox.Filter, now time.Time, fs *pflag.FlagSet) outbox.Purge {
	what := outbox.Purge{Filter: filter, Archive: o.archive}
	if len(what.Filter.Statuses) == 0 {
		what.Filter.Statuses = []outbox.Status{outbox.Delivered}
	}
	what.Filter.FinishedBefore = now.Add(-time.Duration(o.olderThan)) // also of 0
	if o.keepsHouse(fs) {
		before := func(age durationValue) time.Time { return now.Add(-time.Duration(age)) }
		what.History = outbox.History{Attempts: before(o.attempts), Rollup: before(o.rollup), Record: before(o.record)}
	}
	return what
}

// keepsHouse reports whether old history goes, too: it does not where particular events are meant,
// unless its age is given.
func (o *purgeOptions) keepsHouse(fs *pflag.FlagSet) bool {
	return slices.ContainsFunc(historyFlags, fs.Changed) || !slices.ContainsFunc(particularFlags("older-than", "status"), fs.Changed)
}

// assumedRate is that of the first purge, in events per second; later ones go by the last one.
const assumedRate = 20_000

// lines say what the count alone does not: how much, from when, how long it takes.
func (o *purgeOptions) lines(ctx context.Context, store *outbox.Store, mode string, planned outbox.Progress) ([]string, error) {
	p := purged(planned)
	var lines []string
	if planned.Done > 0 {
		past, err := store.PastRate(ctx, "purge", mode)
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
	speed, basis := past, "as fast as the last time"
	if past == 0 {
		speed, basis = assumedRate, "as assumed before the first time"
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
var historyNouns = map[string]string{
	"attempts": "attempt", "rollup": "rollup row", "samples": "sample", "operations": "operation", "audit": "audit row",
}

// historyCounts lists what is counted: 1,204 attempts · 360 rollup rows.
func historyCounts(history map[string]int64) string {
	var words []string
	for _, table := range slices.Sorted(maps.Keys(history)) {
		words = append(words, counted(history[table], historyNouns[table]))
	}
	return strings.Join(words, " · ")
}

// purgeDocument is outboxctl.purge/v1. Its keys are an interface: they stay.
type purgeDocument struct {
	operationDocument
	Mode       string              `json:"mode"`    // delete, archive, redact, drop-archive
	History    map[string]int64    `json:"history"` // rows removed, by table
	Redacted   map[string]int64    `json:"redacted,omitempty"`
	Partitions []partitionDocument `json:"partitions,omitempty"`
	Bytes      int64               `json:"bytes,omitempty"` // this and the times are those of a dry run
	Oldest     time.Time           `json:"oldest,omitzero"`
	Newest     time.Time           `json:"newest,omitzero"`
}

func (o *purgeOptions) mode() string {
	switch {
	case o.archive:
		return modeArchive
	case o.redact:
		return modeRedact
	case o.dropArchive:
		return modeDrop
	}
	return "delete"
}

func (o *purgeOptions) newDocument(base operationDocument, progress outbox.Progress) purgeDocument {
	p := purged(progress)
	doc := purgeDocument{operationDocument: base, Mode: o.mode(), History: map[string]int64{}}
	if o.redact {
		doc.Redacted = p.History
	} else {
		maps.Copy(doc.History, p.History)
	}
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
