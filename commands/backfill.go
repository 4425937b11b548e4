package commands

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/outboxctl/outboxctl/outbox"
)

// sourceOptions are the flags that say which events a table's rows stand for.
type sourceOptions struct {
	looks         bool // nothing is written: nobody has to say what events hold
	file          string
	table         string
	source        string
	key           []string
	timeColumn    string
	eventType     string
	aggregateType string
	aggregateID   string
	tenantColumn  string
	schemaVersion int
	destination   string
	payload       []string
	payloadColumn string
	existing      string
	since, until  momentValue
	force         bool
}

// specFlags are in a file what --spec names.
var specFlags = []string{"table", "source", "key", "time-column", "event-type", "aggregate-type", "aggregate-id", "tenant-column",
	"schema-version", "destination", "payload", "payload-column", "existing"}

func (o *sourceOptions) flags(fs *pflag.FlagSet) {
	own := pflag.NewFlagSet("", pflag.ContinueOnError)
	own.StringVar(&o.file, "spec", "", "`file` that says all that the flags below do, and more: constants and columns for every field, headers")
	own.StringVar(&o.table, "table", "", "`table` or view, as schema.table; without a schema it is in public")
	own.StringVar(&o.source, "source", "", "`name` of the source in keys (default: schema.table)")
	own.StringSliceVar(&o.key, "key", nil, "`columns` that make a row one (default: the primary key)")
	own.StringVar(&o.timeColumn, "time-column", "", "`column` with the time of what happened")
	own.StringVar(&o.eventType, "event-type", "", "`type` of the events")
	own.StringVar(&o.aggregateType, "aggregate-type", "", "`type` of what they are about")
	own.StringVar(&o.aggregateID, "aggregate-id", "", "`column` with its id")
	own.StringVar(&o.tenantColumn, "tenant-column", "", "`column` with the tenant")
	own.IntVar(&o.schemaVersion, "schema-version", 1, "`version` of the payload")
	own.StringVar(&o.destination, "destination", "", "`destination` of the events (default: routed, or the only one)")
	own.StringSliceVar(&o.payload, "payload", nil, "`columns` of the payload, name=column to rename one, or * for all")
	own.StringVar(&o.payloadColumn, "payload-column", "", "`column` of type jsonb that is the payload")
	own.StringVar(&o.existing, "existing", "", "`what` tells an event that is there: aggregate (and type), or key alone (default: aggregate, where each has one row)")
	own.Var(&o.since, "since", "only rows since this `time`, by the time column: 2026-01-31, 2026-01-31T14:00:00Z, or 2h for two hours ago")
	own.Var(&o.until, "until", "only rows before this `time` (default: now)")
	own.BoolVar(&o.force, "force", false, "go on with a large source that no index leads through, and beside open transactions whose events may be doubled")
	own.VisitAll(func(f *pflag.Flag) { // they all select or consent
		fs.AddFlag(f)
		typed(fs, f.Name)
	})
}

// spec reads the file, or the flags.
func (o *sourceOptions) spec(fs *pflag.FlagSet) (outbox.BackfillSpec, error) {
	if o.file != "" {
		for _, name := range specFlags {
			if fs.Changed(name) {
				return outbox.BackfillSpec{}, usage(fmt.Errorf("--%s and --spec: what an event is stands in one place", name), "write it into the file")
			}
		}
		return readSpec(o.file, o.looks)
	}
	return o.fromFlags()
}

func (o *sourceOptions) fromFlags() (spec outbox.BackfillSpec, err error) {
	for _, need := range []struct{ flag, value string }{
		{"table", o.table}, {"event-type", o.eventType}, {"aggregate-type", o.aggregateType}, {"aggregate-id", o.aggregateID},
	} {
		if need.value == "" {
			return spec, usage(fmt.Errorf("--%s is missing", need.flag), "or give all of it in a file: --spec FILE")
		}
	}
	spec = outbox.BackfillSpec{
		Source: o.source, Key: o.key, TimeColumn: o.timeColumn,
		EventType: outbox.Field{Value: o.eventType}, AggregateType: outbox.Field{Value: o.aggregateType}, AggregateID: outbox.Field{Column: o.aggregateID},
		Tenant: outbox.Field{Column: o.tenantColumn}, Destination: outbox.Field{Value: typedDestination(o.destination)},
		SchemaVersion: outbox.Field{Value: strconv.Itoa(o.schemaVersion)}, PayloadColumn: o.payloadColumn, Existing: outbox.Existing(o.existing),
	}
	if spec.Schema, spec.Table, err = parseTable(o.table); err != nil {
		return spec, usage(fmt.Errorf("--table %q: %w", o.table, err), "")
	}
	if !isVersion(spec.SchemaVersion.Value) {
		return spec, usage(fmt.Errorf("--schema-version %d: want a whole number above 0", o.schemaVersion), "")
	}
	if err := checkExisting(spec.Existing); err != nil {
		return spec, usage(fmt.Errorf("--existing %w", err), "")
	}
	if none, both := len(o.payload) == 0 && o.payloadColumn == "", len(o.payload) > 0 && o.payloadColumn != ""; both || none && !o.looks {
		return spec, usage(errors.New("give --payload or --payload-column, one of the two"), "such as --payload id,customer_id")
	}
	return spec, o.payloadFields(&spec)
}

func (o *sourceOptions) payloadFields(spec *outbox.BackfillSpec) error {
	names := map[string]bool{}
	for _, text := range o.payload {
		if text == "*" && len(o.payload) == 1 {
			spec.PayloadAll = true
			return nil
		}
		name, column, renamed := strings.Cut(text, "=")
		if !renamed {
			column = name
		}
		if name == "" || column == "" || names[name] {
			return usage(fmt.Errorf("--payload %q: want columns, or name=column, each name once", strings.Join(o.payload, ",")), "")
		}
		names[name] = true
		spec.Payload = append(spec.Payload, outbox.PayloadField{Name: name, Column: column})
	}
	return nil
}

// window resolves the times. Without an end the window ends now: so does the work.
func (o *sourceOptions) window(spec *outbox.BackfillSpec, now time.Time) error {
	spec.Since, spec.Until, spec.Force = o.since.at(now), o.until.at(now), o.force
	if spec.TimeColumn == "" {
		if !spec.Since.IsZero() || !spec.Until.IsZero() {
			return usage(errors.New("--since and --until need the column that they are about"), "name it with --time-column, or time_column in the file")
		}
		return nil
	}
	if spec.Until.IsZero() {
		spec.Until = now
	}
	if !spec.Since.IsZero() && !spec.Since.Before(spec.Until) {
		return usage(fmt.Errorf("--since %s is not before --until %s", instant(spec.Since), instant(spec.Until)), "")
	}
	return nil
}

// backfillOptions are the flags of backfill.
type backfillOptions struct {
	sourceOptions
	operateOptions
	rate       rateValue
	maxPending int
	name       string
	resume     string
}

func newBackfill(a *app) *cobra.Command {
	var o backfillOptions
	cmd := &cobra.Command{
		Use:   "backfill",
		Short: "write the events that are missing, from the tables that they tell of",
		Long: `Write events for the rows of a table or view that have none: after a gap, or for what was
there before the outbox was. What a row's event is called and holds, flags or a file say;
docs/operations.md has the file's grammar. What needs an expression needs a view.

A row has one event, whoever runs this and how often: its key is computed from the source,
the row's key, the type and the version. What producers wrote under keys of their own is
known by its type and aggregate, in the outbox and in the archive.

It works in pages along an index, each in a transaction with the place where it stands. It
can be stopped or killed at any time: the same command again goes on, and with --name and
--resume exactly from that place. Events become due now, at --rate, and have the time of
their row in the header occurred_at.
` + exitCodes,
		Example: `  outboxctl backfill --table orders --event-type order.created --aggregate-type order --aggregate-id id \
    --time-column created_at --payload order_id=id,customer_id,amount_cents --since 2026-01-31 --dry-run
  outboxctl backfill --spec orders.yaml --since 2026-01-31 --until 2026-02-03 --rate 200/s --name gap
  outboxctl backfill --spec orders.yaml --resume gap
  outboxctl backfill detect --spec orders.yaml --since 30d`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			spec, err := o.check(cmd.Flags())
			if err != nil {
				return err
			}
			return o.run(cmd.Context(), a, spec)
		},
	}
	o.flags(cmd.Flags())
	cmd.AddCommand(newBackfillDetect(a), newBackfillKeyFunction(a))
	return cmd
}

func (o *backfillOptions) flags(fs *pflag.FlagSet) {
	o.sourceOptions.flags(fs)
	o.operateOptions.flags(fs)
	fs.Var(&o.rate, "rate", "how many events in a time, such as 200/s: live traffic goes on beside them (default: as fast as it goes)")
	fs.IntVar(&o.maxPending, "max-pending", 0, "wait while the outbox holds this `number` of open events (default: never)")
	fs.StringVar(&o.name, "name", "", "`name` of this run, to resume it by")
	fs.StringVar(&o.resume, "resume", "", "go on with the run of this `name`, under the same specification")
	typed(fs, "rate", "max-pending", "name", "resume")
}

func (o *backfillOptions) check(fs *pflag.FlagSet) (outbox.BackfillSpec, error) {
	spec, err := o.spec(fs)
	if err != nil {
		return spec, err
	}
	if err := o.operateOptions.check(); err != nil {
		return spec, err
	}
	if err := o.window(&spec, time.Now()); err != nil { // and again by the database's clock
		return spec, err
	}
	switch {
	case o.maxPending < 0 || fs.Changed("max-pending") && o.maxPending == 0:
		return spec, usage(errors.New("--max-pending must be 1 or more"), "")
	case o.name != "" && o.resume != "":
		return spec, usage(errors.New("--name begins a run, --resume goes on with one"), "")
	case o.resume == "" && o.since.text == "" && o.until.text == "" && !o.all:
		return spec, usage(errors.New("this would select every row"), "give --since or --until, or say --all")
	}
	return spec, nil
}

// backfillRecord is what outbox_operations keeps of the command line.
type backfillRecord struct {
	outbox.BackfillSpec
	Hash       string `json:"hash"`
	Rate       string `json:"rate,omitempty"`
	MaxPending int    `json:"max_pending,omitempty"`
}

func (o *backfillOptions) run(ctx context.Context, a *app, spec outbox.BackfillSpec) error {
	need := writes
	if o.dryRun {
		need = reads
	}
	store, now, done, err := a.openStoreNow(ctx, need)
	if err != nil {
		return err
	}
	defer done()
	if err := o.window(&spec, now); err != nil {
		return err
	}
	past, err := o.past(ctx, store, &spec)
	if err != nil {
		return err
	}
	b, err := store.Backfill(ctx, spec)
	if err != nil {
		return backfillTrouble(err)
	}
	if past != nil && recordOf(past).Hash != b.Spec.Hash() {
		return usage(fmt.Errorf("--resume %s: it was begun under another specification", o.resume), "use the one that it was begun with, or begin a new run: no row gets a second event")
	}
	return o.operate(ctx, a, store, b, past)
}

func recordOf(past *outbox.Past) (r backfillRecord) {
	_ = json.Unmarshal(past.Filter, &r) // what it does not have, does not match
	return r
}

// past finds the run to go on with, and takes its window over.
func (o *backfillOptions) past(ctx context.Context, store *outbox.Store, spec *outbox.BackfillSpec) (*outbox.Past, error) {
	if o.name == "" && o.resume == "" {
		return nil, nil
	}
	past, err := store.Past(ctx, "backfill", o.name+o.resume)
	if err != nil {
		return nil, err
	}
	switch {
	case o.name != "" && past != nil && !past.Finished:
		return nil, usage(fmt.Errorf("--name %s: a run of this name has not come to its end", o.name), "go on with it by --resume "+shellWord(o.name)+", or take another name")
	case o.name != "":
		return nil, nil
	case past == nil:
		return nil, usage(fmt.Errorf("--resume %s: there is no run of this name", o.resume), "")
	case past.Finished:
		return nil, usage(fmt.Errorf("--resume %s: it has come to its end", o.resume), "")
	case past.Alive && !(past.Host == hostName() && gone(past.PID)):
		return nil, &failure{exitAttention, fmt.Errorf("busy: operation %d is at work", past.ID),
			"wait for its end, or, if it died, " + outbox.DeadAfter.String() + " for its heartbeat to stop"}
	}
	return past, o.takeWindow(past, spec)
}

// takeWindow goes on in the window that the run was begun in; one that is given must be the same.
func (o *backfillOptions) takeWindow(past *outbox.Past, spec *outbox.BackfillSpec) error {
	was := recordOf(past)
	differs := func(v momentValue, is, was time.Time) bool { return !v.abs.IsZero() && !is.Equal(was) }
	if differs(o.since, spec.Since, was.Since) || differs(o.until, spec.Until, was.Until) {
		return usage(fmt.Errorf("--resume %s: it was begun in another window", o.resume), "leave --since and --until out: it has its own")
	}
	spec.Since, spec.Until = was.Since, was.Until
	return nil
}

// gone reports whether a process of this host has ended.
func gone(pid int) bool {
	p, err := os.FindProcess(pid)
	return err != nil || errors.Is(p.Signal(syscall.Signal(0)), os.ErrProcessDone)
}

// backfillTrouble gives an error its exit code and its hint.
func backfillTrouble(err error) error {
	if bad, ok := errors.AsType[*outbox.SpecError](err); ok {
		return usage(err, bad.Hint)
	}
	if denied, ok := errors.AsType[*outbox.SourceDenied](err); ok {
		return &failure{exitUnreachable, err, denied.Hint}
	}
	if errors.Is(err, outbox.ErrBusy) {
		return &failure{exitAttention, err, "end it, or wait for its end and run this again; --force goes on, and its events may be doubled"}
	}
	return err
}

func (o *backfillOptions) operate(ctx context.Context, a *app, store *outbox.Store, b *outbox.Backfill, past *outbox.Past) error {
	op := operation{
		operateOptions: o.operateOptions,
		verb:           "backfill", done: "backfilled", noun: "event", what: backfillWords(b.Spec),
		spec: outbox.Operation{Name: o.name, Filter: backfillRecord{b.Spec, b.Spec.Hash(), o.rate.String(), o.maxPending}},
		plan: func(ctx context.Context) (outbox.Progress, error) {
			return a.rehearse(ctx, store, b, past, o.batchSize)
		},
		drive: o.drive(store, b),
		lines: func(ctx context.Context, planned outbox.Progress) ([]string, error) {
			return o.lines(ctx, b, past, planned)
		},
		skipsAreFine: []string{"exists", "repeat"},
		document:     func(doc operationDocument, _ outbox.Progress) any { return a.newBackfillDocument(doc, b) },
	}
	if past != nil {
		op.begin = func(ctx context.Context) (*outbox.Run, error) { return store.Resume(ctx, past.ID) }
		op.before = past.Progress
		op.idle = func(outbox.Progress) bool { return false } // it has an end to come to
	}
	if name := o.name + o.resume; name != "" {
		op.again = "--resume " + shellWord(name) + " in the place of --name"
	}
	if err := a.operate(ctx, store, op); err != nil {
		return backfillTrouble(err)
	}
	if o.dryRun && a.global.output == "table" {
		return a.printSamples(b)
	}
	return nil
}

// rehearse looks at all rows that are left, without writing.
func (a *app) rehearse(ctx context.Context, store *outbox.Store, b *outbox.Backfill, past *outbox.Past, batch int) (outbox.Progress, error) {
	if err := b.Gather(ctx); err != nil {
		return outbox.Progress{}, err
	}
	run := store.Rehearse()
	if past != nil {
		run.Progress.Cursor = past.Progress.Cursor
	}
	bar := a.newProgress(true)
	bar.begin("looking for what is missing", "rows", b.Estimate)
	defer bar.end()
	err := outbox.Drain(ctx, b.Step(run, 0), outbox.Pace{Batch: batch}, func(int) { bar.set(run.Progress.Matched()) })
	return run.Progress, err
}

// drive spreads the events by the rate, and waits while the outbox is full.
func (o *backfillOptions) drive(store *outbox.Store, b *outbox.Backfill) func(context.Context, *outbox.Run, func(int), func(string)) error {
	return func(ctx context.Context, run *outbox.Run, seen func(int), say func(string)) error {
		pace := outbox.Pace{Batch: o.batchSize, Rate: float64(o.rate)}
		if o.maxPending > 0 {
			pace.Batch = min(pace.Batch, o.maxPending)
			pace.Ready = func(ctx context.Context) error { return waitForRoom(ctx, store, o.maxPending, say) }
		}
		var spread time.Duration
		if o.rate > 0 {
			spread = time.Duration(float64(time.Second) / float64(o.rate))
		}
		return outbox.Drain(ctx, b.Step(run, spread), pace, seen)
	}
}

// waitForRoom returns when there are fewer open events than most.
func waitForRoom(ctx context.Context, store *outbox.Store, most int, say func(string)) error {
	var told time.Time
	for {
		open, err := store.Open(ctx, most)
		if err != nil || open < most {
			return err
		}
		if time.Since(told) >= progressLines {
			told = time.Now()
			say(fmt.Sprintf("waiting: the outbox holds %s open events or more", thousands(int64(most))))
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(time.Second):
		}
	}
}

// lines say how long it takes, and what is not in the count.
func (o *backfillOptions) lines(ctx context.Context, b *outbox.Backfill, past *outbox.Past, planned outbox.Progress) (lines []string, err error) {
	if past != nil {
		lines = append(lines, fmt.Sprintf("operation %d goes on; before it had %s", past.ID, counted(past.Progress.Done, "event")))
	}
	if o.rate > 0 && planned.Done > 0 {
		seconds := float64(planned.Done) / float64(o.rate)
		if seconds > maxDuration.Seconds() {
			return nil, usage(fmt.Errorf("--rate %s would take more than 36500d", o.rate.String()), "")
		}
		lines = append(lines, fmt.Sprintf("takes %s at %s", age(time.Duration(seconds*float64(time.Second))), o.rate.String()))
	}
	nameless, err := b.Nameless(ctx)
	if nameless > 0 {
		lines = append(lines, fmt.Sprintf("left out: %s whose time or key is null", counted(nameless, "row")))
	}
	return lines, err
}

// backfillWords says what is made of what: "public.orders → order.created, created_at since …".
func backfillWords(spec outbox.BackfillSpec) string {
	eventType := spec.EventType.Value
	if spec.EventType.Column != "" {
		eventType = "types by " + spec.EventType.Column
	}
	words := spec.Schema + "." + spec.Table + " → " + eventType
	if !spec.Since.IsZero() {
		words += ", " + spec.TimeColumn + " since " + instant(spec.Since)
	}
	if !spec.Until.IsZero() {
		words += ", " + spec.TimeColumn + " before " + instant(spec.Until)
	}
	return oneLine(words)
}

// backfillDocument is outboxctl.backfill/v1.
type backfillDocument struct {
	operationDocument
	Source  string            `json:"source"`
	Since   *time.Time        `json:"since"`
	Until   *time.Time        `json:"until"`
	Samples []json.RawMessage `json:"samples,omitempty"` // of a dry run: envelopes of the first events
}

func (a *app) newBackfillDocument(doc operationDocument, b *outbox.Backfill) backfillDocument {
	d := backfillDocument{operationDocument: doc, Source: b.Spec.SourceName(), Since: instantOrNull(b.Spec.Since), Until: instantOrNull(b.Spec.Until)}
	if doc.DryRun {
		for _, envelope := range a.samples(b) {
			d.Samples = append(d.Samples, envelope)
		}
	}
	return d
}

func instantOrNull(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	t = t.UTC()
	return &t
}

// samples are envelopes as a receiver would get them, but for what is hidden, and for the sequence,
// which nobody knows yet.
func (a *app) samples(b *outbox.Backfill) (envelopes [][]byte) {
	rules := a.redaction()
	for _, ev := range b.Samples() {
		payload, err := rules.Mask(ev.Payload)
		if err != nil {
			payload = []byte(`"‹hidden›"`) // it cannot be judged
		}
		ev.Payload = payload
		envelopes = append(envelopes, ev.AppendEnvelope(nil, time.Time{}))
	}
	return envelopes
}

func (a *app) printSamples(b *outbox.Backfill) error {
	all := a.samples(b)
	if len(all) == 0 {
		return nil
	}
	fmt.Fprintln(a.Out, "\nthe first of them:")
	for _, envelope := range all {
		if _, err := fmt.Fprintf(a.Out, "%s\n", envelope); err != nil {
			return err
		}
	}
	return nil
}
