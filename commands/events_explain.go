package commands

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/outboxctl/outboxctl/outbox"
)

func newEventsExplain(a *app) *cobra.Command {
	var ref outbox.Ref
	return withArgs(oneEvent(&ref), &cobra.Command{
		Use:   "explain ID|KEY",
		Short: "say why an event does not move, and what helps",
		Long: `Say why an event is where it is, what happens next and when, and which command helps, to
be pasted as it is printed. It changes nothing.

Reasons of an open event: future, backing_off, leased, lapsed, due (it waits for its
turn), blocked (behind an earlier event of its aggregate), paused, breaker_open,
unserved, unrouted. Of one that has ended: delivered, failed, dead_letter, discarded,
archived, purged.
` + exitCodes,
		Example: `  outboxctl events explain 41372
  outboxctl events explain bc190815-3b11-4e28-877d-8735cbc66485 -o json`,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.explain(cmd.Context(), ref) },
	})
}

func withArgs(args cobra.PositionalArgs, cmd *cobra.Command) *cobra.Command {
	cmd.Args = args
	return cmd
}

func (a *app) explain(ctx context.Context, ref outbox.Ref) error {
	store, done, err := a.openStore(ctx, reads)
	if err != nil {
		return err
	}
	defer done()
	f, err := store.Explain(ctx, ref)
	if err != nil {
		return a.whichEvent("explain", err)
	}
	x := a.explainer(f)
	if a.global.output == "json" {
		return a.printJSON(x.document())
	}
	return a.printExplanation(x)
}

// explainer puts an explanation into words.
type explainer struct {
	*outbox.Facts
	outbox.Explanation
	flags string // that every command needs to find the same schema

	says  []string // the first says why, the others what more is known
	tries []try
}

// try is a command that may help.
type try struct{ command, why string }

func (a *app) explainer(f *outbox.Facts) *explainer {
	x := &explainer{Facts: f, Explanation: f.Explain(), flags: a.schemaFlag()}
	x.because(x.Reason)
	for _, reason := range x.Also {
		x.because(reason)
	}
	x.try("its whole story", "events show %d", x.ID)
	return x
}

func (x *explainer) say(format string, args ...any) {
	x.says = append(x.says, cell(fmt.Sprintf(format, args...)))
}

// try adds a command, once.
func (x *explainer) try(why, format string, args ...any) {
	command := "outboxctl " + fmt.Sprintf(format, args...) + x.flags
	for _, t := range x.tries {
		if t.command == command {
			return
		}
	}
	x.tries = append(x.tries, try{command, why})
}

// because says what a reason means for this event.
func (x *explainer) because(reason outbox.Reason) {
	switch reason {
	case outbox.ReasonPurged:
		x.purged()
	case outbox.ReasonArchived:
		x.archived()
	case outbox.ReasonDelivered:
		x.delivered()
	case outbox.ReasonFailed:
		x.failed()
	case outbox.ReasonDeadLetter:
		x.dead()
	case outbox.ReasonDiscarded:
		x.discarded()
	case outbox.ReasonLeased:
		x.leased()
	case outbox.ReasonFuture:
		x.say("it is not to be sent before %s: the producer wants it so", timeWords(x.Row.Due(), x.Now))
		x.try("if nobody needs it", "events discard --id %d --status pending --reason 'not needed'", x.ID)
	case outbox.ReasonBackingOff:
		x.backingOff()
	case outbox.ReasonUnserved:
		x.unserved()
	case outbox.ReasonUnrouted:
		if x.Row.ErrorKind == outbox.KindUnrouted {
			x.say("a router has looked at it, and no route matches %s; it looks again every minute, and when its routes change", x.Row.Type)
		} else {
			x.say("no route has taken it, and no dispatcher alive serves events without a destination; a route that matches %s would", x.Row.Type)
		}
		x.try("who is alive and serves what", "stats")
		x.try("what the routes are", "config show")
	case outbox.ReasonPaused:
		x.paused()
	case outbox.ReasonBreakerOpen:
		x.say("the breaker of %s is %s%s: its answers were errors; it is tried again by itself, one event at first",
			x.destination(), strings.ReplaceAll(x.Place.Breaker, "_", " "), sinceWords(x.Place.BreakerAt, x.Now))
		x.try("what it answers", "stats errors")
	case outbox.ReasonBlocked:
		x.blocked()
	case outbox.ReasonLapsed:
		x.say("the lease of %s lapsed %s: it died or lost its connection; the event is due again", x.Row.Worker(), agoWords(*x.Row.LeaseUntil, x.Now))
		x.turn()
	case outbox.ReasonDue:
		x.say("it is due since %s and waits for its turn", timeWords(x.Row.Due(), x.Now))
		x.turn()
	}
}

func (x *explainer) destination() string { return "destination " + destinationName(x.Row.Destination) }

func (x *explainer) purged() {
	x.say("the row is gone: purged, or deleted by hand")
	if at := x.Last; at != nil {
		x.say("the last attempt that is known, number %d, ended %s as %s", at.Number, timeWords(at.At, x.Now), at.Outcome)
	}
}

func (x *explainer) archived() {
	r := x.Row
	x.say("it ended %s as %s: %s", timeWords(*r.FinishedAt, x.Now), r.Status, cmp.Or(errorText(r), r.Receipt, "no receipt"))
	x.say("it was moved to outbox_archive %s: from there nothing is sent again, and nothing changes it but purge", timeWords(*r.ArchivedAt, x.Now))
	if x.Redacted {
		x.say("its payload was redacted: it is not what happened any more")
	}
}

func (x *explainer) delivered() {
	r := x.Row
	x.say("it was delivered %s: %s", timeWords(*r.FinishedAt, x.Now), cmp.Or(r.Receipt, "no receipt"))
	x.say("it was sent %s", timesWords(r.Attempts))
	x.try("if the receiver has lost it: it gets it again", "replay --id %d --status delivered --include-delivered --reason 'event %d: lost by the receiver'", x.ID, x.ID)
}

func timesWords(n int) string {
	if n == 1 {
		return "once"
	}
	return fmt.Sprintf("%d times", n)
}

func (x *explainer) failed() {
	r := x.Row
	x.say("its %s failed, the last with %s; nothing is tried any more", counted(int64(r.Attempts), "attempt"), cmp.Or(errorText(r), "no error"))
	x.alike("ended so,")
	if x.redacted() {
		return
	}
	x.try("send it again", "replay --id %d", x.ID)
	if x.Alike.Same > 1 {
		x.try("send all again that failed so", "replay%s --dry-run", x.group())
	}
}

func (x *explainer) dead() {
	r := x.Row
	x.say("%s", x.verdict())
	x.alike("ended so,")
	if x.redacted() {
		return
	}
	x.try("change what is refused", "events edit %d --reason 'refused: %s'", x.ID, shellInside(cmp.Or(errorName(r.ErrorKind, r.ErrorCode), "unknown")))
	x.try("send it again, when the receiver has been mended", "replay --id %d --status dead_letter", x.ID)
	x.try("give it up", "events discard --id %d --reason 'not needed'", x.ID)
	if x.Alike.Same > 1 {
		x.try("all that ended so", "events list%s", x.group())
	}
}

// verdict says why an event is a dead letter.
func (x *explainer) verdict() string {
	r := x.Row
	switch r.ErrorKind {
	case outbox.KindCrashed:
		return "it was claimed again and again, and each time its worker died: the event itself may kill it; see what is in it before it is sent again"
	case outbox.KindOversize:
		return "its payload is larger than the dispatcher may send: make it smaller, or raise --max-payload and replay it"
	case outbox.KindInvalid:
		return "its row cannot be turned into a request: " + cmp.Or(r.Error, "no error is known")
	case "":
		return "somebody made it a dead letter by hand: no error is known"
	}
	return "the receiver refuses it, and would again: " + errorText(r)
}

// shellInside is text for the inside of single quotes.
func shellInside(s string) string { return strings.ReplaceAll(cell(s), "'", `'\''`) }

func (x *explainer) redacted() bool {
	if x.Redacted {
		x.say("its payload was redacted: it is not what happened any more, and replay leaves it alone")
	}
	return x.Redacted
}

// alike says how many share the error.
func (x *explainer) alike(what string) {
	if others := x.Alike.Same - 1; others > 0 {
		more := ""
		if x.Alike.Looked >= outbox.MaxCount {
			more = " and more"
		}
		x.say("others that %s with %s: %s%s", what, errorName(x.Row.ErrorKind, x.Row.ErrorCode), counted(others, "event"), more)
	}
}

// group is the filter of the events that ended as this one did.
func (x *explainer) group() string {
	r := x.Row
	words := listed("status", []outbox.Status{r.Status}) + listed("destination", []string{destinationName(r.Destination)}) + listed("error-kind", []string{r.ErrorKind})
	if r.ErrorCode != 0 {
		words += listed("error-code", []int{r.ErrorCode})
	}
	return words
}

func (x *explainer) discarded() {
	x.say("it was given up %s%s", timeWords(*x.Row.FinishedAt, x.Now), x.byWhom())
	if x.Row.Error != "" && x.Discarder() == nil {
		x.say("it says: %s", x.Row.Error)
	}
	x.try("take it back", "replay --id %d --status discarded", x.ID)
}

func (x *explainer) byWhom() string {
	n := x.Discarder()
	if n == nil {
		return ""
	}
	return fmt.Sprintf(" by %s: %s (operation %d)", cmp.Or(n.Who, "somebody"), cmp.Or(n.Reason, "no reason given"), n.Operation)
}

func (x *explainer) leased() {
	r := x.Row
	alive := "it is alive"
	switch {
	case x.Place.HolderSeen == nil:
		alive = "no dispatcher of that name is known: it ended or was killed"
	case !x.HolderAlive():
		alive = "it was last seen " + agoWords(*x.Place.HolderSeen, x.Now) + ": it has died, or cannot reach the database"
	}
	x.say("%s has leased it until %s, and %s", r.Worker(), timeWords(*r.LeaseUntil, x.Now), alive)
	if !x.HolderAlive() {
		x.say("when the lease ends it is due again, and whoever comes takes it")
	}
	x.try("look again", "events explain %d", x.ID)
}

func (x *explainer) backingOff() {
	r := x.Row
	x.say("attempt %d did not succeed: %s; the next one is at %s", r.Attempts, cmp.Or(errorText(r), "no error"), timeWords(r.Due(), x.Now))
	x.alike("wait at its destination")
	if r.ErrorKind != "" {
		group := listed("status", []outbox.Status{r.Status}) + listed("destination", []string{destinationName(r.Destination)}) + listed("error-kind", []string{r.ErrorKind})
		if r.ErrorCode != 0 {
			group += listed("error-code", []int{r.ErrorCode})
		}
		x.try("all that wait with this error", "events list%s", group)
	}
}

func (x *explainer) unserved() {
	start := "start one: outboxctl dispatch --to URL"
	if x.Row.Destination != "" {
		start = "start one with it in its configuration"
	}
	if x.Place.Dispatchers == 0 {
		x.say("no dispatcher is alive; %s (a run of dispatch --once from cron is one while it lasts)", start)
	} else {
		x.say("no dispatcher alive serves %s; %s", x.destination(), start)
	}
	x.try("who is alive and serves what", "stats")
}

func (x *explainer) paused() {
	for _, p := range x.Place.Pauses {
		what, tenant := x.destination(), ""
		if p.Tenant != "" {
			what, tenant = "tenant "+p.Tenant+" of "+what, " --tenant "+shellWord(p.Tenant)
		}
		until := "until somebody resumes it"
		if !p.Until.IsZero() {
			until = "until " + timeWords(p.Until, x.Now)
		}
		x.say("%s is paused %s, by %s: %s", what, until, cmp.Or(p.By, "somebody"), cmp.Or(p.Reason, "no reason given"))
		x.try("end the pause", "dispatch resume %s%s --reason 'event %d waits'", shellWord(destinationName(p.Destination)), tenant, x.ID)
	}
}

func (x *explainer) blocked() {
	root := x.Root
	what := aggregateName(x.Row.AggregateType, x.Row.AggregateID)
	switch {
	case x.Behind == 1:
		x.say("it comes after event %d of %s: %s keeps their order", root.ID, what, x.destination())
	default:
		x.say("it comes after %s of %s, event %d just before it, event %d the first: %s keeps their order",
			countedUpTo(x.Behind, "event"), what, x.Prior, root.ID, x.destination())
	}
	e := root.Explain()
	words := "event " + fmt.Sprint(root.ID) + " is " + string(e.Reason)
	if e.NextAt != nil {
		words += ", until " + timeWords(*e.NextAt, x.Now)
	}
	x.say("%s", words)
	x.try("why the first of them does not move", "events explain %d", root.ID)
}

// turn says how many are before a due event.
func (x *explainer) turn() {
	p := x.Place
	words := "nothing at its destination was due before it"
	if p.Before > 0 {
		words = countedUpTo(p.Before, "event") + " of its destination became due before it"
	}
	if p.PerMinute > 0 {
		words += fmt.Sprintf("; %s a minute are delivered there", rate(p.PerMinute))
	} else {
		words += "; none was delivered there in the last 15 minutes"
	}
	x.say("%s", words)
	x.try("what is due, and who delivers", "stats")
}

func countedUpTo(n int64, noun string) string {
	if n >= outbox.MaxCount {
		return thousands(outbox.MaxCount) + " " + noun + "s and more"
	}
	return counted(n, noun)
}

func sinceWords(t *time.Time, now time.Time) string {
	if t == nil {
		return ""
	}
	return " since " + timeWords(*t, now)
}

// explainDocument is outboxctl.explain/v1. Its keys are an interface: they stay.
type explainDocument struct {
	Schema      string          `json:"schema"`
	ID          int64           `json:"id"`
	Key         *uuid.UUID      `json:"key"`    // null = purged
	Status      *outbox.Status  `json:"status"` // likewise
	Destination *string         `json:"destination"`
	Reason      outbox.Reason   `json:"reason"`
	Also        []outbox.Reason `json:"also"`    // what else is in the way
	NextAt      *time.Time      `json:"next_at"` // when it goes on by itself; null = nobody knows, or never
	Attempts    int             `json:"attempts"`
	ErrorKind   *string         `json:"error_kind"`
	ErrorCode   *int            `json:"error_code"`
	Error       *string         `json:"error"`
	Worker      *string         `json:"worker"` // who has it leased
	WorkerAlive *bool           `json:"worker_alive"`
	LeaseUntil  *time.Time      `json:"lease_until"`
	ArchivedAt  *time.Time      `json:"archived_at"` // null = it is in the outbox
	Before      *int64          `json:"before"`      // due earlier at its destination, up to 5,000
	BlockedBy   *int64          `json:"blocked_by"`  // the first open event of its aggregate
	SameError   *int64          `json:"same_error"`  // events that have the same error, this one included, up to 5,000
	Words       []string        `json:"words"`       // for people: not an interface
	Commands    []string        `json:"commands"`
}

func (x *explainer) document() explainDocument {
	doc := explainDocument{Schema: "outboxctl.explain/v1", ID: x.ID, Reason: x.Reason, Also: []outbox.Reason{}, NextAt: x.NextAt, Words: x.says}
	doc.Also = append(doc.Also, x.Also...)
	for _, t := range x.tries {
		doc.Commands = append(doc.Commands, t.command)
	}
	r := x.Row
	if r == nil {
		return doc
	}
	doc.Key, doc.Status, doc.Destination, doc.Attempts = &r.Key, &r.Status, new(destinationName(r.Destination)), r.Attempts
	doc.ErrorKind, doc.ErrorCode, doc.Error = orNull(r.ErrorKind), orNull(r.ErrorCode), orNull(r.Error)
	doc.SameError, doc.ArchivedAt = orNull(x.Alike.Same), r.ArchivedAt
	if r.LeaseUntil != nil {
		doc.Worker, doc.WorkerAlive, doc.LeaseUntil = orNull(r.Worker()), new(x.HolderAlive()), r.LeaseUntil
	}
	if x.Reason == outbox.ReasonDue || x.Reason == outbox.ReasonLapsed {
		doc.Before = &x.Place.Before
	}
	if x.Root != nil {
		doc.BlockedBy = &x.Root.ID
	}
	return doc
}

func (a *app) printExplanation(x *explainer) error {
	status := "purged"
	if x.Row != nil {
		status = fmt.Sprintf("%s · %s · %s", x.Row.Status, cell(x.Row.Type), cell(aggregateName(x.Row.AggregateType, x.Row.AggregateID)))
	}
	a.line("event", "%d · %s", x.ID, status)
	a.line("reason", "%s: %s", x.Reason, x.says[0])
	for _, words := range x.says[1:] {
		a.line("", "%s", words)
	}
	switch {
	case x.NextAt != nil && x.NextAt.After(x.Now):
		a.line("next", "%s", timeWords(*x.NextAt, x.Now))
	case x.NextAt != nil:
		a.line("next", "now")
	case x.Reason == outbox.ReasonDue, x.Reason == outbox.ReasonLapsed:
		a.line("next", "when its turn comes")
	case x.Row != nil && !x.Row.Status.Final():
		a.line("next", "when that has changed")
	}
	if x.Row != nil {
		a.line("error", "%s", cell(cmp.Or(errorText(x.Row), "none")))
	}
	return a.printTries(x.tries)
}

// tryColumns is how wide a line of tries may be for its comment to be seen at its end.
const tryColumns = 100

// printTries puts what a command is for behind it, in a column, or above it where that would be too
// far to the right.
func (a *app) printTries(tries []try) error {
	wide, why := 0, 0
	for _, t := range tries {
		wide, why = max(wide, len([]rune(t.command))), max(why, len([]rune(t.why)))
	}
	label := "try"
	for _, t := range tries {
		if len("try         ")+wide+len("   # ")+why <= tryColumns {
			a.line(label, "%-*s   # %s", wide, t.command, t.why)
		} else {
			a.line(label, "# %s", t.why)
			a.line("", "%s", t.command)
		}
		label = ""
	}
	return nil
}
