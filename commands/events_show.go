package commands

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/outboxctl/outboxctl/outbox"
)

// eventsShowOptions are the flags of events show.
type eventsShowOptions struct {
	ref    outbox.Ref
	reveal bool
	reason string
}

func newEventsShow(a *app) *cobra.Command {
	var o eventsShowOptions
	cmd := &cobra.Command{
		Use:   "show ID|KEY",
		Short: "show an event with its history",
		Long: `Show all that is known of an event: where it stands, every attempt that went wrong, what
operators' commands did to it, and where else its key goes. An archived event is found, too; a
purged one has left its history. What it says is masked, values by their kind and length; with redact: in the
configuration, what the paths there name is.

--reveal shows the payload and the headers as they are. It needs a --reason, and leaves a
record in outbox_operations and outbox_audit of who looked and why.
` + exitCodes,
		Example: `  outboxctl events show 41372
  outboxctl events show 41372 --reveal --reason 'ticket 4711'
  outboxctl events show bc190815-3b11-4e28-877d-8735cbc66485 -o json`,
		Args: oneEvent(&o.ref),
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

func (o *eventsShowOptions) flags(fs *pflag.FlagSet) {
	fs.BoolVar(&o.reveal, "reveal", false, "show what the event says as it is; needs --reason and is noted")
	fs.StringVar(&o.reason, "reason", "", "`why`, for the record in outbox_operations")
	typed(fs, "reveal")
}

// oneEvent wants an event's id or key, and reads it into ref.
func oneEvent(ref *outbox.Ref) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) (err error) {
		switch {
		case len(args) == 0:
			return usage(fmt.Errorf("%s needs the id or the key of an event", cmd.CommandPath()), "find one: outboxctl events list --help")
		case len(args) > 1:
			return usage(fmt.Errorf("%s takes one event, and there is %q", cmd.CommandPath(), args[1]), helpHint(cmd))
		}
		*ref, err = parseRef(args[0])
		return err
	}
}

func parseRef(text string) (ref outbox.Ref, err error) {
	if ref.ID, err = strconv.ParseInt(text, 10, 64); err == nil && ref.ID > 0 {
		return ref, nil
	}
	if ref.Key, err = uuid.Parse(text); err == nil {
		return outbox.Ref{Key: ref.Key}, nil
	}
	return outbox.Ref{}, usage(fmt.Errorf("%q is neither an event's id, such as 41372, nor its key, a UUID", text), "")
}

func (o *eventsShowOptions) check(fs *pflag.FlagSet) error {
	switch {
	case o.reveal && strings.TrimSpace(o.reason) == "":
		return usage(errors.New("--reason is missing: say why you look"), "")
	case !o.reveal && fs.Changed("reason"):
		return usage(errors.New("--reason is for --reveal: nothing else is noted here"), "")
	}
	return nil
}

func (o *eventsShowOptions) run(ctx context.Context, a *app) error {
	need := reads
	if o.reveal {
		need = writes
	}
	store, done, err := a.openStore(ctx, need)
	if err != nil {
		return err
	}
	defer done()
	d, err := store.Show(ctx, o.ref)
	if err != nil {
		return a.whichEvent("show", err)
	}
	if o.reveal && d.Row != nil {
		if d.Content, err = a.reveal(ctx, store, d.ID, o.reason); err != nil {
			return err
		}
	}
	if a.global.output == "json" {
		doc, err := a.newDetailDocument(d, o.reveal)
		if err != nil {
			return err
		}
		return a.printJSON(doc)
	}
	return a.printDetail(d, o.reveal)
}

// whichEvent says what to do where a key names no event, or several.
func (a *app) whichEvent(verb string, err error) error {
	if several, ok := errors.AsType[*outbox.SeveralError](err); ok {
		var lines []string
		for _, r := range several.Rows {
			lines = append(lines, fmt.Sprintf("outboxctl events %s %d%s   # %s, %s", verb, r.ID, a.schemaFlag(), cell(destinationName(r.Destination)), whereWords(&r)))
		}
		return usage(fmt.Errorf("%w: give the id of one", several), strings.Join(lines, "\n  "))
	}
	if errors.Is(err, outbox.ErrNotFound) {
		return &failure{exitError, err, "find events: outboxctl events list" + a.schemaFlag()}
	}
	if errors.Is(err, outbox.ErrArchived) {
		return &failure{exitError, err, ""}
	}
	return err
}

// whereWords is an event's status, and whether it is archived.
func whereWords(r *outbox.Row) string {
	if r.ArchivedAt != nil {
		return string(r.Status) + ", archived"
	}
	return string(r.Status)
}

// reveal notes who looks and why, and reads what the event says.
func (a *app) reveal(ctx context.Context, store *outbox.Store, id int64, reason string) (outbox.Content, error) {
	run, err := store.Begin(ctx, a.signed(outbox.Operation{
		Command: "reveal", Filter: outbox.Filter{IDs: []int64{id}}, Reason: reason, Planned: 1,
	}))
	if err != nil {
		return outbox.Content{}, err
	}
	content, err := run.Reveal(ctx, id)
	return content, cmp.Or(err, run.End(ctx, endWords(err)))
}

// harmless are the headers that are shown as they are.
var harmless = map[string]bool{
	"traceparent": true, "tracestate": true, "content-type": true, "content-encoding": true, "occurred_at": true, "redacted": true,
}

// maskHeaders masks the values of all headers but the harmless ones.
func maskHeaders(doc []byte) ([]byte, error) {
	var headers map[string]json.RawMessage
	if err := json.Unmarshal(doc, &headers); err != nil {
		return outbox.MaskAll(doc)
	}
	for name, value := range headers {
		if harmless[strings.ToLower(name)] {
			continue
		}
		masked, err := outbox.MaskAll(value)
		if err != nil {
			return nil, err
		}
		headers[name] = masked
	}
	return marshal(headers)
}

// marshal is JSON without escapes for HTML.
func marshal(v any) ([]byte, error) {
	var text bytes.Buffer
	enc := json.NewEncoder(&text)
	enc.SetEscapeHTML(false)
	err := enc.Encode(v)
	return bytes.TrimSuffix(text.Bytes(), []byte("\n")), err
}

// shownContent is what of an event is shown: headers as JSON, the payload as JSON or as bytes.
func (a *app) shownContent(c outbox.Content, reveal bool) (headers, payload []byte, err error) {
	if reveal {
		return c.Headers, c.Payload, nil
	}
	if headers, err = maskHeaders(c.Headers); err != nil {
		return nil, nil, err
	}
	if c.Binary {
		payload, err = marshal(fmt.Sprintf("‹bytes, %d›", len(c.Payload)))
		return headers, payload, err
	}
	payload, err = a.mask(c.Payload)
	return headers, payload, err
}

// mask hides what the configuration's paths name in a payload, or every value where there are none.
func (a *app) mask(payload []byte) ([]byte, error) {
	if a.file != nil && !a.file.redact.Empty() {
		return a.file.redact.Mask(payload)
	}
	return outbox.MaskAll(payload)
}

// detailDocument is outboxctl.event/v1. Its keys are an interface: they stay.
type detailDocument struct {
	Schema        string            `json:"schema"`
	ID            int64             `json:"id"`
	Event         *eventDocument    `json:"event"`          // null = purged
	ArchivedAt    *time.Time        `json:"archived_at"`    // null = it is in the outbox
	Masked        bool              `json:"masked"`         // the payload and the headers are not as they are
	Headers       json.RawMessage   `json:"headers"`        // null = purged, or the role may not read it
	Payload       json.RawMessage   `json:"payload"`        // likewise, or not JSON
	PayloadBase64 *string           `json:"payload_base64"` // of what is not JSON, where it is revealed
	PayloadBytes  *int              `json:"payload_bytes"`  // its size
	Attempts      []attemptDocument `json:"attempts"`
	Operations    []noteDocument    `json:"operations"`
	Siblings      []siblingDocument `json:"siblings"` // the same key at other destinations
}

type attemptDocument struct {
	Attempt     int           `json:"attempt"`
	At          time.Time     `json:"at"`
	Outcome     outbox.Status `json:"outcome"`
	Destination string        `json:"destination"`
	ErrorKind   *string       `json:"error_kind"`
	ErrorCode   *int          `json:"error_code"`
	Error       *string       `json:"error"`
	Receipt     *string       `json:"receipt"`
	LatencyMS   *float64      `json:"latency_ms"`
	Worker      *string       `json:"worker"`
}

type noteDocument struct {
	Operation     int64         `json:"operation"`
	At            time.Time     `json:"at"`
	Action        string        `json:"action"`
	Who           string        `json:"who"`
	Host          string        `json:"host"`
	Reason        string        `json:"reason"`
	Status        outbox.Status `json:"status_before"`
	Attempts      int           `json:"attempts_before"`
	Destination   string        `json:"destination_before"`
	PayloadSHA256 *string       `json:"payload_sha256_before"` // null = it was not changed
}

type siblingDocument struct {
	ID          int64         `json:"id"`
	Destination string        `json:"destination"`
	Status      outbox.Status `json:"status"`
	ArchivedAt  *time.Time    `json:"archived_at"`
}

func (a *app) newDetailDocument(d *outbox.Detail, reveal bool) (doc detailDocument, err error) {
	doc = detailDocument{Schema: "outboxctl.event/v1", ID: d.ID, Attempts: []attemptDocument{}, Operations: []noteDocument{}, Siblings: []siblingDocument{}}
	if d.Row != nil {
		doc.Event, doc.ArchivedAt = new(newEventDocument(d.Row)), d.Row.ArchivedAt
	}
	if d.Content.Readable {
		doc.Masked, doc.PayloadBytes = !reveal, new(len(d.Content.Payload))
		if doc.Headers, doc.Payload, err = a.shownContent(d.Content, reveal); err != nil {
			return doc, err
		}
		if reveal && d.Content.Binary {
			doc.PayloadBase64, doc.Payload = new(base64.StdEncoding.EncodeToString(d.Content.Payload)), nil
		}
	}
	for _, at := range d.Attempts {
		doc.Attempts = append(doc.Attempts, newAttemptDocument(at))
	}
	for _, n := range d.Notes {
		doc.Operations = append(doc.Operations, noteDocument{n.Operation, n.At, n.Action, n.Who, n.Host, n.Reason,
			n.Status, n.Attempts, destinationName(n.Destination), orNull(hex.EncodeToString(n.PayloadHash))})
	}
	for _, r := range d.Siblings {
		doc.Siblings = append(doc.Siblings, siblingDocument{r.ID, destinationName(r.Destination), r.Status, r.ArchivedAt})
	}
	return doc, nil
}

func newAttemptDocument(at outbox.Attempt) attemptDocument {
	doc := attemptDocument{
		Attempt: at.Number, At: at.At, Outcome: at.Outcome, Destination: destinationName(at.Destination),
		ErrorKind: orNull(at.ErrorKind), ErrorCode: orNull(at.ErrorCode), LatencyMS: orNull(round(at.Latency.Seconds()*1000, 3)), Worker: orNull(at.Worker),
	}
	if at.Outcome == outbox.Delivered {
		doc.Receipt = orNull(at.Error)
	} else {
		doc.Error = orNull(at.Error)
	}
	return doc
}

func (a *app) printDetail(d *outbox.Detail, reveal bool) error {
	a.printRow(d)
	if err := a.printContent(d, reveal); err != nil {
		return err
	}
	for _, section := range []func(*outbox.Detail) error{a.printAttempts, a.printNotes, a.printSiblings} {
		if err := section(d); err != nil {
			return err
		}
	}
	return nil
}

func (a *app) printRow(d *outbox.Detail) {
	r := d.Row
	if r == nil {
		a.line("event", "%d · the row is gone; this is what is known", d.ID)
		return
	}
	a.line("event", "%d · %s", r.ID, whereWords(r))
	a.line("key", "%s", r.Key)
	a.line("type", "%s, schema version %d", cell(r.Type), r.SchemaVersion)
	a.line("aggregate", "%s", cell(aggregateName(r.AggregateType, r.AggregateID)))
	a.lineIf("tenant", cell(r.TenantID))
	a.line("destination", "%s", cell(destinationName(r.Destination)))
	if r.SourceID != 0 {
		a.line("copy of", "event %d", r.SourceID)
	}
	a.line("created", "%s", timeWords(r.CreatedAt, d.Now))
	if !r.AvailableAt.Equal(r.CreatedAt) {
		a.line("available", "%s", timeWords(r.AvailableAt, d.Now))
	}
	if r.NextAttemptAt != nil && r.FinishedAt == nil {
		a.line("next", "%s", timeWords(*r.NextAttemptAt, d.Now))
	}
	a.line("attempts", "%d%s", r.Attempts, lastWords(r.LastAttemptAt, d.Now))
	if r.LeaseUntil != nil {
		a.line("lease", "%s until %s", cell(r.Worker()), timeWords(*r.LeaseUntil, d.Now))
	}
	if r.FinishedAt != nil {
		a.line("ended", "%s", timeWords(*r.FinishedAt, d.Now))
	}
	if r.ArchivedAt != nil {
		a.line("archived", "%s", timeWords(*r.ArchivedAt, d.Now))
	}
	a.lineIf("receipt", cell(r.Receipt))
	a.lineIf("error", cell(errorText(r)))
	a.lineIf("origin", cell(r.Origin))
}

// lineIf prints a fact that there need not be.
func (a *app) lineIf(label, text string) {
	if text != "" {
		a.line(label, "%s", text)
	}
}

// timeWords is a time and how far it is from now.
func timeWords(t, now time.Time) string {
	if t.Year() >= endOfTime {
		return "never"
	}
	return instant(t) + " (" + agoWords(t, now) + ")"
}

func lastWords(last *time.Time, now time.Time) string {
	if last == nil {
		return ""
	}
	return ", the last begun " + timeWords(*last, now)
}

// printContent shows what the event says, for eyes: on a terminal nothing of it moves the cursor.
func (a *app) printContent(d *outbox.Detail, reveal bool) error {
	switch {
	case d.Row == nil:
		return nil
	case !d.Content.Readable:
		a.line("payload", "not shown: this database role may not read it")
		return nil
	}
	headers, payload, err := a.shownContent(d.Content, reveal)
	if err != nil {
		return err
	}
	size := counted(int64(len(d.Content.Payload)), "byte")
	if string(d.Content.Headers) != "{}" {
		a.line("headers", "%s", cell(string(headers)))
	}
	if reveal {
		a.line("payload", "%s", size)
	} else {
		a.line("payload", "%s, masked; as it is: outboxctl events show %d --reveal --reason WHY%s", size, d.ID, a.schemaFlag())
	}
	fmt.Fprintln(a.Out)
	return a.printTrimmed(payloadText(payload, reveal && d.Content.Binary))
}

// payloadText is a payload on lines of their own.
func payloadText(payload []byte, binary bool) string {
	if binary && !utf8.Valid(payload) {
		return base64.StdEncoding.EncodeToString(payload)
	}
	text := string(payload)
	var indented bytes.Buffer
	if !binary && json.Indent(&indented, payload, "", "  ") == nil {
		text = indented.String()
	}
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		lines[i] = cell(line)
	}
	return strings.Join(lines, "\n")
}

func (a *app) printAttempts(d *outbox.Detail) error {
	if len(d.Attempts) == 0 {
		return nil
	}
	var rows [][]string
	for _, at := range d.Attempts {
		said := at.Error
		if at.Outcome != outbox.Delivered {
			said = errorText(&outbox.Row{ErrorKind: at.ErrorKind, ErrorCode: at.ErrorCode, Error: at.Error})
		}
		latency := "-"
		if at.Latency > 0 {
			latency = printDuration(at.Latency.Round(100 * time.Microsecond))
		}
		rows = append(rows, []string{fmt.Sprint(at.Number), instant(at.At), string(at.Outcome), latency, cell(cmp.Or(at.Worker, "-")), cell(said)})
	}
	fmt.Fprintln(a.Out)
	return a.printTable([]string{"ATTEMPT", "AT", "THEN", "LATENCY", "WORKER", "ANSWER"}, rows, 0, 3)
}

func (a *app) printNotes(d *outbox.Detail) error {
	if len(d.Notes) == 0 {
		return nil
	}
	var rows [][]string
	for _, n := range d.Notes {
		was := fmt.Sprintf("%s, %s", n.Status, counted(int64(n.Attempts), "attempt"))
		if d.Row == nil || n.Destination != d.Row.Destination {
			was += ", " + destinationName(n.Destination)
		}
		if n.PayloadHash != nil {
			was += ", payload sha256 " + hex.EncodeToString(n.PayloadHash)[:12] + "…"
		}
		rows = append(rows, []string{fmt.Sprint(n.Operation), instant(n.At), cell(n.Action), cell(n.Who), cell(cmp.Or(n.Reason, "-")), cell(was)})
	}
	fmt.Fprintln(a.Out)
	return a.printTable([]string{"OPERATION", "AT", "ACTION", "WHO", "REASON", "IT WAS"}, rows, 0)
}

func (a *app) printSiblings(d *outbox.Detail) error {
	if len(d.Siblings) == 0 {
		return nil
	}
	var rows [][]string
	for i := range d.Siblings {
		r := &d.Siblings[i]
		rows = append(rows, []string{fmt.Sprint(r.ID), cell(destinationName(r.Destination)), whereWords(r), fmt.Sprint(r.Attempts), whenWords(r, d.Now)})
	}
	fmt.Fprintln(a.Out)
	return a.printTable([]string{"SAME KEY", "DESTINATION", "STATUS", "ATTEMPTS", "WHEN"}, rows, 0, 3)
}
