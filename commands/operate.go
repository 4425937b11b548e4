package commands

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/user"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/pflag"

	"github.com/outboxctl/outboxctl/outbox"
)

// operateOptions are the flags of the commands that change many events.
type operateOptions struct {
	all         bool
	dryRun      bool
	reason      string
	batchSize   int
	maxDuration durationValue
}

// flags takes the size of a batch that the command has set as its default.
func (o *operateOptions) flags(fs *pflag.FlagSet) {
	fs.BoolVar(&o.all, "all", false, "go on without a filter: every event that the command may touch")
	fs.BoolVar(&o.dryRun, "dry-run", false, "show what would be done and do nothing")
	fs.StringVar(&o.reason, "reason", "", "`why`, for the record in outbox_operations")
	fs.IntVar(&o.batchSize, "batch-size", cmp.Or(o.batchSize, 1000), "`number` of events in one transaction")
	fs.Var(&o.maxDuration, "max-duration", "stop after this long")
	typed(fs, "batch-size", "max-duration") // the variables are a dispatcher's
}

func (o *operateOptions) check() error {
	if o.batchSize < 1 || o.batchSize > 100_000 {
		return usage(errors.New("--batch-size must be 1 to 100000"), "")
	}
	return nil
}

// operation is one run of a command that changes many events, in the words of its command.
type operation struct {
	operateOptions
	verb string // replay
	act  string // what it does to the events, where the verb does not say; "" = it does
	done string // replayed
	noun string // failed event; of what is counted
	what string // which ones: the filter in words

	spec  outbox.Operation
	steps int64 // of the bar; operate sets it
	step  func(*outbox.Run) outbox.Step
	pace  outbox.Pace
	// begin returns the run of an operation that is resumed; nil begins a new one. before is what it
	// had done until then.
	begin  func(ctx context.Context) (*outbox.Run, error)
	before outbox.Progress
	again  string // what goes on with the rest of one that was stopped; "" = the same command again
	// drive makes the steps where there is more to it than one after the other; nil drains.
	drive func(ctx context.Context, run *outbox.Run, seen func(n int), say func(line string)) error

	// plan counts what will be done, without doing it; nil counts by a rehearsal of all steps.
	plan func(ctx context.Context) (outbox.Progress, error)
	// lines are shown below the plan: estimates, warnings.
	lines func(ctx context.Context, planned outbox.Progress) ([]string, error)
	// skipsAreFine are the reasons that do not make the exit code 3.
	skipsAreFine []string
	// idle says that a plan without events is nothing to do; nil says yes.
	idle func(planned outbox.Progress) bool
	// more is what the command says beside the count, "" for nothing; nil says nothing.
	more func(outbox.Progress) string
	// document adds to the document what only this command has; nil adds nothing.
	document func(operationDocument, outbox.Progress) any
}

// operate shows what the operation will do, asks, does it in short transactions, and says what was
// done: matched = done + skipped.
func (a *app) operate(ctx context.Context, store *outbox.Store, op operation) error {
	planned, err := a.planOperation(ctx, store, op)
	if err != nil {
		return err
	}
	if op.dryRun || planned.Done == 0 && (op.idle == nil || op.idle(planned)) {
		rehearsal := &outbox.Run{Progress: planned}
		if err := a.printOperation(op, rehearsal, 0); err != nil || op.dryRun {
			return err
		}
		return operationVerdict(op, rehearsal, nil)
	}
	if err := a.confirm(ctx, fmt.Sprintf("%s %s?", cmp.Or(op.act, op.verb), counted(planned.Done, op.noun))); err != nil {
		return err
	}
	op.spec.Planned, op.steps = planned.Done, planned.Matched()
	return a.runOperation(ctx, store, op)
}

// planOperation counts, and shows what it counted where somebody is to decide.
func (a *app) planOperation(ctx context.Context, store *outbox.Store, op operation) (planned outbox.Progress, err error) {
	if op.plan != nil {
		planned, err = op.plan(ctx)
	} else {
		run := store.Rehearse()
		err = outbox.Drain(ctx, op.step(run), outbox.Pace{Batch: op.pace.Batch}, nil)
		planned = run.Progress
	}
	if err != nil {
		return planned, fmt.Errorf("%s: %w", op.verb, err)
	}
	fmt.Fprintf(a.Err, "%s: %s (%s)%s\n", cmp.Or(op.act, op.verb), counted(planned.Done, op.noun), op.what, skippedWords(planned.Skipped, "; to be skipped: "))
	if op.lines == nil {
		return planned, nil
	}
	lines, err := op.lines(ctx, planned)
	for _, line := range lines {
		fmt.Fprintln(a.Err, "  "+line)
	}
	return planned, err
}

// runOperation does the work. The first signal and --max-duration end it between two steps; what is
// done then stays done, and the same command again goes on with the rest.
func (a *app) runOperation(ctx context.Context, store *outbox.Store, op operation) error {
	op.spec.Command, op.spec.Reason = op.verb, op.reason
	op.spec = a.signed(op.spec)
	if op.begin == nil {
		op.begin = func(ctx context.Context) (*outbox.Run, error) { return store.Begin(ctx, op.spec) }
	}
	run, err := op.begin(ctx)
	if errors.Is(err, outbox.ErrBusy) {
		return &failure{exitAttention, err, "wait for its end, or, if it died, " + outbox.DeadAfter.String() + " for its heartbeat to stop"}
	}
	if err != nil {
		return err
	}
	if op.maxDuration > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, time.Duration(op.maxDuration), errMaxDuration)
		defer cancel()
	}
	began := time.Now()
	err = a.drain(ctx, run, op)
	if endErr := run.End(ctx, endWords(err)); endErr != nil && err == nil {
		err = endErr
	}
	if printErr := a.printOperation(op, run, time.Since(began)); err == nil {
		err = printErr
	}
	return operationVerdict(op, run, err)
}

// drain makes the steps, with a heartbeat and a bar beside them.
func (a *app) drain(ctx context.Context, run *outbox.Run, op operation) error {
	var beside sync.WaitGroup
	defer beside.Wait()
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	beside.Go(func() { run.Live(life) })

	bar := a.newProgress(true)
	bar.begin(cmp.Or(op.act, op.verb), op.noun+"s", op.steps)
	defer bar.end()
	seen := func(int) { bar.set(run.Progress.Matched() - op.before.Matched()) }
	if op.drive != nil {
		return op.drive(ctx, run, seen, func(line string) { fmt.Fprintln(bar, op.verb+": "+line) })
	}
	return outbox.Drain(ctx, op.step(run), op.pace, seen)
}

// operationVerdict is the exit code: 3 when something was skipped or is left.
func operationVerdict(op operation, run *outbox.Run, err error) error {
	if stoppedEarly(err) {
		return &failure{exitAttention, fmt.Errorf("%s stopped: %s", op.verb, endWords(err)), cmp.Or(op.again, "the same command again") + " goes on with the rest"}
	}
	if errors.Is(err, outbox.ErrGaveUp) {
		return &failure{exitAttention, fmt.Errorf("%s stopped by itself: %w", op.verb, err), "the rest is as it was: the same command again goes on with it"}
	}
	if err != nil {
		return fmt.Errorf("%s: %w", op.verb, err)
	}
	for reason := range run.Progress.Skipped {
		if !slices.Contains(op.skipsAreFine, reason) {
			return quietly(exitAttention)
		}
	}
	return nil
}

func stoppedEarly(err error) bool {
	_, signalled := errors.AsType[stopped](err)
	return signalled || errors.Is(err, errMaxDuration) || errors.Is(err, context.Canceled)
}

// endWords says in outbox_operations why a run ended early.
func endWords(err error) string {
	if err == nil {
		return ""
	}
	return oneLine(explainPostgres(err).Error())
}

// operationDocument is outboxctl.<verb>/v1. Its keys are an interface: they stay.
type operationDocument struct {
	Schema    string           `json:"schema"`
	DryRun    bool             `json:"dry_run"`
	Matched   int64            `json:"matched"`
	Done      int64            `json:"done"`
	Skipped   map[string]int64 `json:"skipped"`
	Operation int64            `json:"operation"` // 0 = nothing was done
}

// printOperation says what was done, or what would be.
func (a *app) printOperation(op operation, run *outbox.Run, took time.Duration) error {
	p := run.Progress
	if a.global.output == "json" {
		doc := operationDocument{"outboxctl." + op.verb + "/v1", op.dryRun, p.Matched(), p.Done, map[string]int64{}, run.ID}
		maps.Copy(doc.Skipped, p.Skipped)
		if op.document != nil {
			return a.printJSON(op.document(doc, p))
		}
		return a.printJSON(doc)
	}
	words := op.done + " " + counted(p.Done, op.noun)
	if op.more != nil {
		words += op.more(p)
	}
	switch {
	case op.dryRun:
		words = "dry run: nothing was changed; would have " + words
	case run.ID == 0:
		words = "nothing to do"
	default:
		words += fmt.Sprintf(" in %s (%s/s), operation %d", age(took), perSecond(p.Done-op.before.Done, took), run.ID)
	}
	words += skippedWords(p.Skipped, "; skipped: ")
	_, err := fmt.Fprintln(a.Out, words)
	return err
}

func perSecond(n int64, took time.Duration) string {
	return thousands(int64(float64(n) / max(took.Seconds(), 0.001)))
}

// skippedWords lists the reasons, the most frequent first.
func skippedWords(skipped map[string]int64, before string) string {
	reasons := slices.SortedFunc(maps.Keys(skipped), func(x, y string) int {
		if d := skipped[y] - skipped[x]; d != 0 {
			return int(d)
		}
		return strings.Compare(x, y)
	})
	var words []string
	for _, reason := range reasons {
		words = append(words, thousands(skipped[reason])+" "+reason)
	}
	if len(words) == 0 {
		return ""
	}
	return before + strings.Join(words, " · ")
}

// signed adds to an operation who asks for it.
func (a *app) signed(op outbox.Operation) outbox.Operation {
	op.Who, op.Host, op.PID = operator(a.Getenv), hostName(), os.Getpid()
	return op
}

// operator is the person who runs this process, as far as the operating system knows.
func operator(getenv func(string) string) string {
	name := ""
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	if behind := getenv("SUDO_USER"); behind != "" && behind != name {
		return behind + " through sudo as " + name
	}
	return name
}

func hostName() string {
	name, _ := os.Hostname()
	return name
}
