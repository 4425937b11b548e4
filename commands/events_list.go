package commands

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/outboxctl/outboxctl/outbox"
)

// eventsListOptions are the flags of events list.
type eventsListOptions struct {
	filterOptions
	limit int
	after placeValue
}

func newEventsList(a *app) *cobra.Command {
	var o eventsListOptions
	cmd := &cobra.Command{
		Use:   "list",
		Short: "list events, the newest first",
		Long: `List events, the newest first: by when they ended where only delivered, failed,
dead_letter or discarded ones are asked for, by id else. A listing holds what became of
an event, never what it says. The command for the next page is printed below a full
one. Open events, and those that were not delivered, are found by index among any
number of delivered ones.
` + exitCodes,
		Example: `  outboxctl events list --status dead_letter
  outboxctl events list --status pending --destination crm --error-code 503
  outboxctl events list --aggregate order:42 --since 2d -o jsonl`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.check(cmd.Flags()); err != nil {
				return err
			}
			return o.run(cmd.Context(), a)
		},
	}
	o.flags(cmd.Flags())
	outputs(cmd, "jsonl", "csv")
	return cmd
}

// maxPage is how many events a listing holds at most.
const maxPage = 10_000

func (o *eventsListOptions) flags(fs *pflag.FlagSet) {
	o.filterOptions.flags(fs)
	fs.IntVar(&o.limit, "limit", 50, "`number` of events in a page, at most")
	fs.Var(&o.after, "after", "begin after this `place`, which the page before has named")
	typed(fs, "limit", "after")
}

func (o *eventsListOptions) run(ctx context.Context, a *app) error {
	if o.limit < 1 || o.limit > maxPage {
		return usage(fmt.Errorf("--limit %d: want 1 to %d", o.limit, maxPage), "")
	}
	store, done, err := a.openStore(ctx, reads)
	if err != nil {
		return err
	}
	defer done()
	f, err := o.filter(ctx, store)
	if err != nil {
		return err
	}
	after, err := o.after.of(f)
	if err != nil {
		return err
	}
	page, err := store.List(ctx, f, after, o.limit)
	if err != nil {
		return slowList(err)
	}
	if !f.Since.IsZero() || !f.Until.IsZero() || !f.FinishedBefore.IsZero() || len(page.Rows) == 0 {
		fmt.Fprintf(a.Err, "%s (%s)\n", counted(int64(len(page.Rows)), "event"), filterWords(f))
	}
	if err := a.printEvents(page); err != nil {
		return err
	}
	if page.Next != nil {
		fmt.Fprintf(a.Err, "more: outboxctl events list%s --limit %d --after %s%s%s\n",
			o.command(f), o.limit, placeText(page.Next), a.outputFlag(), a.schemaFlag())
	}
	return nil
}

// slowList says how to ask for less.
func slowList(err error) error {
	const queryCanceled = "57014"
	if postgresCode(err) != queryCanceled {
		return err
	}
	return &failure{exitError, errors.New("list: given up, too many events had to be looked at for this filter"),
		"narrow it by --key, --id, an open or a failed --status with --destination and --tenant, or a --since not long ago"}
}

// outputFlag is what a command to run next needs to print in the same form.
func (a *app) outputFlag() string {
	if a.global.output == "table" {
		return ""
	}
	return " -o " + a.global.output
}

// eventsDocument is outboxctl.events/v1. Its keys are an interface: they stay.
type eventsDocument struct {
	Schema string          `json:"schema"`
	Events []eventDocument `json:"events"`
	Next   *string         `json:"next"` // for --after; null on the last page
}

// eventDocument is one event, but for what it says.
type eventDocument struct {
	ID            int64         `json:"id"`
	Key           uuid.UUID     `json:"key"`
	Status        outbox.Status `json:"status"`
	EventType     string        `json:"event_type"`
	SchemaVersion int           `json:"schema_version"`
	AggregateType string        `json:"aggregate_type"`
	AggregateID   string        `json:"aggregate_id"`
	TenantID      string        `json:"tenant_id"`
	Destination   string        `json:"destination"`
	Attempts      int           `json:"attempts"`
	CreatedAt     time.Time     `json:"created_at"`
	AvailableAt   time.Time     `json:"available_at"`
	NextAttemptAt *time.Time    `json:"next_attempt_at"`
	LastAttemptAt *time.Time    `json:"last_attempt_at"`
	FinishedAt    *time.Time    `json:"finished_at"`
	LeaseUntil    *time.Time    `json:"lease_until"`
	Worker        *string       `json:"worker"` // who holds the lease
	Receipt       *string       `json:"receipt"`
	ErrorKind     *string       `json:"error_kind"`
	ErrorCode     *int          `json:"error_code"`
	Error         *string       `json:"error"`
	Origin        string        `json:"origin"`
	SourceID      *int64        `json:"source_id"`
}

func newEventDocument(r *outbox.Row) eventDocument {
	return eventDocument{
		ID: r.ID, Key: r.Key, Status: r.Status, EventType: r.Type, SchemaVersion: r.SchemaVersion,
		AggregateType: r.AggregateType, AggregateID: r.AggregateID, TenantID: r.TenantID,
		Destination: destinationName(r.Destination), Attempts: r.Attempts,
		CreatedAt: r.CreatedAt, AvailableAt: r.AvailableAt, NextAttemptAt: r.NextAttemptAt,
		LastAttemptAt: r.LastAttemptAt, FinishedAt: r.FinishedAt, LeaseUntil: r.LeaseUntil,
		Worker: orNull(r.Worker()), Receipt: orNull(r.Receipt), ErrorKind: orNull(r.ErrorKind), ErrorCode: orNull(r.ErrorCode),
		Error: orNull(r.Error), Origin: r.Origin, SourceID: orNull(r.SourceID),
	}
}

// orNull is nil for a zero value, which is null in JSON.
func orNull[T comparable](v T) *T {
	var zero T
	if v == zero {
		return nil
	}
	return &v
}

func (a *app) printEvents(page outbox.Page) error {
	docs := make([]eventDocument, len(page.Rows))
	for i := range page.Rows {
		docs[i] = newEventDocument(&page.Rows[i])
	}
	switch a.global.output {
	case "json":
		doc := eventsDocument{Schema: "outboxctl.events/v1", Events: docs}
		if page.Next != nil {
			doc.Next = new(placeText(page.Next))
		}
		return a.printJSON(doc)
	case "jsonl":
		return printJSONLines(a, docs)
	case "csv":
		return a.printEventsCSV(docs)
	}
	return a.printEventTable(page.Rows, page.Now)
}

func (a *app) printEventsCSV(docs []eventDocument) error {
	head := []string{"id", "key", "status", "event_type", "schema_version", "aggregate_type", "aggregate_id", "tenant_id", "destination",
		"attempts", "created_at", "available_at", "next_attempt_at", "last_attempt_at", "finished_at", "lease_until", "worker",
		"receipt", "error_kind", "error_code", "error", "origin", "source_id"}
	var rows [][]string
	for _, d := range docs {
		rows = append(rows, []string{fmt.Sprint(d.ID), d.Key.String(), string(d.Status), d.EventType, fmt.Sprint(d.SchemaVersion),
			d.AggregateType, d.AggregateID, d.TenantID, d.Destination, fmt.Sprint(d.Attempts),
			csvValue(&d.CreatedAt), csvValue(&d.AvailableAt), csvValue(d.NextAttemptAt), csvValue(d.LastAttemptAt), csvValue(d.FinishedAt),
			csvValue(d.LeaseUntil), csvValue(d.Worker), csvValue(d.Receipt), csvValue(d.ErrorKind), csvValue(d.ErrorCode), csvValue(d.Error),
			d.Origin, csvValue(d.SourceID)})
	}
	return a.printCSV(head, rows)
}

// csvValue is a value that may be missing.
func csvValue[T any](v *T) string {
	if v == nil {
		return ""
	}
	if t, ok := any(*v).(time.Time); ok {
		return t.Format(time.RFC3339Nano)
	}
	return fmt.Sprint(*v)
}

// printEventTable leaves out the tenants where there are none.
func (a *app) printEventTable(events []outbox.Row, now time.Time) error {
	if len(events) == 0 {
		return nil
	}
	var tenants bool
	for i := range events {
		tenants = tenants || events[i].TenantID != ""
	}
	head, right := []string{"ID", "STATUS", "EVENT TYPE", "AGGREGATE", "DESTINATION", "ATTEMPTS", "WHEN", "ERROR"}, 5
	if tenants {
		head, right = append([]string{"ID", "STATUS", "EVENT TYPE", "AGGREGATE", "TENANT"}, head[4:]...), 6
	}
	var rows [][]string
	for i := range events {
		r := &events[i]
		row := []string{fmt.Sprint(r.ID), string(r.Status), cell(r.Type), cell(aggregateName(r.AggregateType, r.AggregateID))}
		if tenants {
			row = append(row, cell(r.TenantID))
		}
		rows = append(rows, append(row, cell(destinationName(r.Destination)), fmt.Sprint(r.Attempts), whenWords(r, now), shorten(cell(errorText(r)), 60)))
	}
	return a.printTable(head, rows, 0, right)
}

// whenWords says when an event ended, or when it goes on.
func whenWords(r *outbox.Row, now time.Time) string {
	switch {
	case r.FinishedAt != nil:
		return agoWords(*r.FinishedAt, now)
	case r.Leased(now):
		return "leased for " + age(r.LeaseUntil.Sub(now))
	case r.LeaseUntil != nil:
		return "lease lapsed " + agoWords(*r.LeaseUntil, now)
	case r.Due().After(now):
		return "due " + agoWords(r.Due(), now)
	}
	return "due for " + age(now.Sub(r.Due()))
}

// endOfTime is the year in which an event is due that somebody put off for ever.
const endOfTime = 9999

// agoWords says how far a time is from now: 3m12s ago, in 5h02m, never.
func agoWords(t, now time.Time) string {
	switch {
	case t.Year() >= endOfTime:
		return "never"
	case t.After(now):
		return "in " + age(t.Sub(now))
	}
	return age(now.Sub(t)) + " ago"
}

// errorText is an event's last error with its kind and code: http 503: answered 503.
func errorText(r *outbox.Row) string {
	name := errorName(r.ErrorKind, r.ErrorCode)
	switch {
	case r.Error == "":
		return name
	case name == "":
		return r.Error
	}
	return name + ": " + r.Error
}

// errorName is an error's kind and code: http 503.
func errorName(kind string, code int) string {
	if code == 0 {
		return kind
	}
	return strings.TrimSpace(kind + " " + strconv.Itoa(code))
}

// shorten cuts a text that is longer than n characters.
func shorten(s string, n int) string {
	runes := []rune(s)
	if len(runes) <= n {
		return s
	}
	return string(runes[:n-1]) + "…"
}

// placeValue is a flag's place in a listing: an id, or a time and an id.
type placeValue struct {
	text  string
	place outbox.Place
}

func (v *placeValue) String() string { return v.text }
func (v *placeValue) Type() string   { return "place" }

func (v *placeValue) Set(s string) error {
	bad := fmt.Errorf("%q is not a place in a listing: take it from the page before", s)
	ended, id, timed := strings.Cut(s, "/")
	if !timed {
		ended, id = "", s
	}
	var err error
	if v.place.ID, err = strconv.ParseInt(id, 10, 64); err != nil {
		return bad
	}
	if timed {
		if v.place.Ended, err = time.Parse(time.RFC3339Nano, ended); err != nil {
			return bad
		}
	}
	v.text = s
	return nil
}

// of is the place in the listing of f, nil for its start.
func (v *placeValue) of(f outbox.Filter) (*outbox.Place, error) {
	switch {
	case v.text == "":
		return nil, nil
	case f.ByEnd() == v.place.Ended.IsZero():
		return nil, usage(fmt.Errorf("--after %s is of a listing in another order: take it from the page before, with the same filter", v.text), "")
	}
	return &v.place, nil
}

func placeText(p *outbox.Place) string {
	if p.Ended.IsZero() {
		return fmt.Sprint(p.ID)
	}
	return p.Ended.Format(time.RFC3339Nano) + "/" + fmt.Sprint(p.ID)
}
