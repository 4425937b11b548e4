package commands

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/outboxctl/outboxctl/outbox"
)

// causesOptions are the flags of stats errors.
type causesOptions struct {
	since durationValue
	top   int
}

func newStatsErrors(a *app) *cobra.Command {
	var o causesOptions
	cmd := &cobra.Command{
		Use:   "errors",
		Short: "group what goes wrong by its cause",
		Long: `Group the errors of events that were given up, or that wait for another attempt, by
their cause: kind, code, and the text without ids, numbers, addresses and quoted
values. Each cause is shown by such a text, with the events that have it, where it
hits, and an event to go on with. It reads the newest 20,000 events that were given up
and 100,000 open ones at most, and says when there are more.
` + exitCodes,
		Example: `  outboxctl stats errors
  outboxctl stats errors --since 1h
  outboxctl stats errors -o json | jq '.causes[0]'`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context(), a) },
	}
	o.flags(cmd.Flags())
	outputs(cmd, "csv")
	return cmd
}

func (o *causesOptions) flags(fs *pflag.FlagSet) {
	o.since = durationValue(7 * 24 * time.Hour)
	fs.Var(&o.since, "since", "only what went wrong within this time")
	fs.IntVar(&o.top, "top", 10, "`number` of causes")
}

func (o *causesOptions) run(ctx context.Context, a *app) error {
	switch {
	case o.since <= 0:
		return usage(errors.New("--since must be longer than 0"), "")
	case o.top < 1:
		return usage(errors.New("--top must be 1 or more"), "")
	}
	store, done, err := a.openStore(ctx, reads)
	if err != nil {
		return err
	}
	defer done()
	c, err := store.Causes(ctx, time.Duration(o.since))
	if err != nil {
		return statsFailure(err)
	}
	shown := c.All[:min(o.top, len(c.All))]
	switch a.global.output {
	case "json":
		return a.printJSON(newCausesDocument(c, shown))
	case "csv":
		return a.printCSV(causesRecords(c, shown))
	}
	return a.printCauses(c, shown, time.Duration(o.since))
}

// mostFailures is what causes must explain before the rest is left out of the first line.
const mostFailures = 0.95

func (a *app) printCauses(c *outbox.Causes, shown []outbox.Cause, window time.Duration) error {
	if c.Failures == 0 {
		_, err := fmt.Fprintf(a.Out, "no event has an error of the last %s\n", printDuration(window))
		return err
	}
	n, part := c.Explain(mostFailures)
	verb := "explain"
	if n == 1 {
		verb = "explains"
	}
	of := thousands(c.Failures)
	if c.Capped {
		of = "the newest " + of
	}
	fmt.Fprintf(a.Out, "%s %s %.0f %% of %s failures\n", counted(int64(n), "cause"), verb, 100*part, of)
	for i, cause := range shown {
		a.printCause(c, i+1, cause)
	}
	if more := len(c.All) - len(shown); more > 0 {
		fmt.Fprintf(a.Out, "\n… and %s more: --top %d\n", thousands(int64(more)), len(c.All))
	}
	if c.Capped {
		fmt.Fprintln(a.Out, "\nThere are more failures than were read: --since narrows them.")
	}
	return nil
}

func (a *app) printCause(c *outbox.Causes, place int, cause outbox.Cause) {
	name := answerName(outbox.AnswerStats{Kind: cause.Kind, Code: cause.Code})
	fmt.Fprintf(a.Out, "\n%d. %s (%.0f %%)  %s  %s\n", place, counted(cause.N, "event"), 100*c.Share(cause), cell(name), cell(cause.Text))
	var counts []string
	for _, status := range outbox.Statuses() {
		if n := cause.Status[status]; n > 0 {
			counts = append(counts, thousands(n)+" "+string(status))
		}
	}
	fmt.Fprintf(a.Out, "   %s · to %s · %s\n", strings.Join(counts, ", "), some(destinationNames(cause.Destinations)), some(cause.EventTypes))
	fmt.Fprintf(a.Out, "   %s to %s · outboxctl events explain %d%s\n", moment(cause.First), moment(cause.Last), cause.EventID, a.schemaFlag())
}

// moment is a time for eyes, in the zone of who looks.
func moment(t time.Time) string {
	if t.IsZero() {
		return "?"
	}
	return t.Local().Format(time.DateTime)
}

// some lists the first few of many names.
func some(names []string) string {
	const most = 4
	var shown []string
	for _, name := range names[:min(most, len(names))] {
		shown = append(shown, cmp.Or(short(name), "-"))
	}
	text := strings.Join(shown, ", ")
	if more := len(names) - most; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// causesDocument is outboxctl.errors/v1.
type causesDocument struct {
	Schema   string          `json:"schema"`
	Failures int64           `json:"failures"`
	Capped   bool            `json:"capped"` // there are more, which were not read
	Causes   []causeDocument `json:"causes"`
	Total    int             `json:"total"` // causes that there are
}

type causeDocument struct {
	ErrorKind    string                  `json:"error_kind"`
	Code         int                     `json:"code"`
	Text         string                  `json:"text"` // without what is about one event alone
	Events       int64                   `json:"events"`
	Share        float64                 `json:"share"`
	Status       map[outbox.Status]int64 `json:"status"`
	Destinations []string                `json:"destinations"`
	EventTypes   []string                `json:"event_types"`
	First        *time.Time              `json:"first_at"`
	Last         *time.Time              `json:"last_at"`
	EventID      int64                   `json:"event_id"`
}

func newCausesDocument(c *outbox.Causes, shown []outbox.Cause) causesDocument {
	doc := causesDocument{Schema: "outboxctl.errors/v1", Failures: c.Failures, Capped: c.Capped, Causes: []causeDocument{}, Total: len(c.All)}
	for _, cause := range shown {
		d := causeDocument{
			ErrorKind: cause.Kind, Code: cause.Code, Text: cause.Text, Events: cause.N, Share: round(c.Share(cause), 4), Status: cause.Status,
			Destinations: destinationNames(cause.Destinations), EventTypes: cause.EventTypes, EventID: cause.EventID,
		}
		if !cause.Last.IsZero() {
			d.First, d.Last = &cause.First, &cause.Last
		}
		doc.Causes = append(doc.Causes, d)
	}
	return doc
}

func causesRecords(c *outbox.Causes, shown []outbox.Cause) (head []string, rows [][]string) {
	for _, cause := range shown {
		rows = append(rows, []string{cause.Kind, fmt.Sprint(cause.Code), cause.Text, fmt.Sprint(cause.N), number(c.Share(cause)),
			strings.Join(destinationNames(cause.Destinations), " "), strings.Join(cause.EventTypes, " "),
			instant(cause.First), instant(cause.Last), fmt.Sprint(cause.EventID)})
	}
	return []string{"error_kind", "code", "text", "events", "share", "destinations", "event_types", "first_at", "last_at", "event_id"}, rows
}
