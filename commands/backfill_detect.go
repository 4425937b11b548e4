package commands

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/outboxctl/outboxctl/outbox"
)

// backfillDetectOptions are the flags of backfill detect.
type backfillDetectOptions struct {
	sourceOptions
	batchSize int
}

func newBackfillDetect(a *app) *cobra.Command {
	o := backfillDetectOptions{sourceOptions: sourceOptions{looks: true}}
	cmd := &cobra.Command{
		Use:   "detect",
		Short: "count the rows that have no event, by day and type",
		Long: `Count the rows of a table or view that have no event, by day (UTC) and type, with the same
flags or file as backfill; what events hold need not be said. It writes nothing. Exit code 3
when something is missing.
` + exitCodes,
		Example: `  outboxctl backfill detect --spec orders.yaml --since 30d
  outboxctl backfill detect --spec orders.yaml --since 2026-01-31 -o json | jq .missing`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			spec, err := o.spec(cmd.Flags())
			if err != nil {
				return err
			}
			return o.run(cmd.Context(), a, spec)
		},
	}
	o.flags(cmd.Flags())
	cmd.Flags().IntVar(&o.batchSize, "batch-size", 1000, "`number` of rows in one transaction")
	typed(cmd.Flags(), "batch-size")
	outputs(cmd, "csv")
	return cmd
}

func (o *backfillDetectOptions) run(ctx context.Context, a *app, spec outbox.BackfillSpec) error {
	if err := (&operateOptions{batchSize: o.batchSize}).check(); err != nil {
		return err
	}
	if err := o.window(&spec, time.Now()); err != nil { // and again by the database's clock
		return err
	}
	store, now, done, err := a.openStoreNow(ctx, reads)
	if err != nil {
		return err
	}
	defer done()
	if err := o.window(&spec, now); err != nil {
		return err
	}
	b, err := store.Backfill(ctx, spec)
	if err != nil {
		return backfillTrouble(err)
	}
	gaps, err := a.detect(ctx, b, o.batchSize)
	if err != nil {
		return backfillTrouble(fmt.Errorf("detect: %w", err))
	}
	return a.printGaps(b, gaps)
}

func (a *app) detect(ctx context.Context, b *outbox.Backfill, batch int) ([]outbox.Gap, error) {
	bar := a.newProgress(true)
	bar.begin("looking for what is missing", "rows", b.Estimate)
	defer bar.end()
	var looked int64
	return b.Detect(ctx, batch, func(n int) { looked += int64(n); bar.set(looked) })
}

// gapsDocument is outboxctl.backfill_detect/v1. Its keys are an interface: they stay.
type gapsDocument struct {
	Schema  string        `json:"schema"`
	Source  string        `json:"source"`
	Since   *time.Time    `json:"since"`
	Until   *time.Time    `json:"until"`
	Rows    int64         `json:"rows"`
	Present int64         `json:"present"`
	Missing int64         `json:"missing"`
	Invalid int64         `json:"invalid"`
	Days    []gapDocument `json:"days"`
}

type gapDocument struct {
	Day       string `json:"day"` // "" where rows have no time
	EventType string `json:"event_type"`
	Rows      int64  `json:"rows"`
	Present   int64  `json:"present"`
	Missing   int64  `json:"missing"`
	Invalid   int64  `json:"invalid"`
}

func (a *app) printGaps(b *outbox.Backfill, gaps []outbox.Gap) error {
	doc := gapsDocument{Schema: "outboxctl.backfill_detect/v1", Source: b.Spec.SourceName(),
		Since: instantOrNull(b.Spec.Since), Until: instantOrNull(b.Spec.Until), Days: []gapDocument{}}
	for _, g := range gaps {
		doc.Rows, doc.Present, doc.Missing, doc.Invalid = doc.Rows+g.Rows, doc.Present+g.Present, doc.Missing+g.Missing, doc.Invalid+g.Invalid
		doc.Days = append(doc.Days, gapDocument(g))
	}
	var err error
	switch a.global.output {
	case "json":
		err = a.printJSON(doc)
	case "csv":
		err = a.printCSV([]string{"day", "event_type", "rows", "present", "missing", "invalid"}, gapRows(doc.Days, false))
	default:
		err = a.printGapTable(backfillWords(b.Spec), doc)
	}
	if err == nil && doc.Missing > 0 {
		err = quietly(exitAttention)
	}
	return err
}

// printGapTable leaves out the days that lack nothing.
func (a *app) printGapTable(what string, doc gapsDocument) error {
	words := fmt.Sprintf("%s of %s without an event", thousands(doc.Missing), counted(doc.Rows, "row"))
	if doc.Missing == 0 {
		words = fmt.Sprintf("nothing is missing: %s", counted(doc.Rows, "row"))
	}
	if doc.Invalid > 0 {
		words += fmt.Sprintf("; %s that can have none", thousands(doc.Invalid))
	}
	if _, err := fmt.Fprintf(a.Out, "%s (%s)\n", words, what); err != nil {
		return err
	}
	rows := gapRows(doc.Days, true)
	if len(rows) == 0 {
		return nil
	}
	fmt.Fprintln(a.Out)
	return a.printTable([]string{"DAY", "EVENT TYPE", "ROWS", "PRESENT", "MISSING", "INVALID"}, rows, 2, 3, 4, 5)
}

func gapRows(days []gapDocument, forEyes bool) (rows [][]string) {
	for _, g := range days {
		day, number := g.Day, func(n int64) string { return fmt.Sprint(n) }
		if forEyes {
			if g.Missing+g.Invalid == 0 {
				continue
			}
			if day == "" {
				day = "-"
			}
			number = func(n int64) string { return countOrDash(n, false) }
		}
		rows = append(rows, []string{day, cell(g.EventType), number(g.Rows), number(g.Present), number(g.Missing), number(g.Invalid)})
	}
	return rows
}
