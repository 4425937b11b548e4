package commands

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/outboxctl/outboxctl/outbox"
)

// eventsEditOptions are the flags of events edit.
type eventsEditOptions struct {
	ref     outbox.Ref
	changes []placeChange
	newKey  bool
	reason  string
	dryRun  bool
}

// placeChange is --set or --unset as it was typed.
type placeChange struct {
	pointer string
	value   string // of --set
	set     bool
}

func newEventsEdit(a *app) *cobra.Command {
	var o eventsEditOptions
	cmd := &cobra.Command{
		Use:   "edit ID|KEY",
		Short: "change what an event says",
		Long: `Change the payload of an event: in your editor (VISUAL, or EDITOR), or by --set and
--unset, which take places as JSON pointers (RFC 6901): /customer/email, /items/0,
/items/- for a new last element. A value is JSON if it parses, and a string else.

Values of --set can be seen by others in the process list and stay in the shell's
history; --set /email=@FILE reads one from a file, --set /email=@- from standard input.
A text that begins with @ is written '"@text"'.

It shows the change as a JSON patch (RFC 6902) and asks. The event keeps its key, unless
--new-key gives it one by which receivers take it for another event, its status and its
history; a dead letter is sent when it is replayed. What was changed is not recorded but
for the SHA-256 of the payload before, with who did it and why. An event that is being
sent, or that changes meanwhile, is left alone.
` + strings.Replace(exitCodes, "finished,\nbut events failed or work remains", "the\nevent is in flight, or has changed meanwhile", 1),
		Example: `  outboxctl events edit 41372 --reason 'ticket 4711: wrong currency'
  outboxctl events edit 41372 --set /currency=EUR --unset /note --reason 'ticket 4711'
  outboxctl events edit 41372 --set /email=@- --reason 'ticket 4711' --yes < address.txt`,
		Args: oneEvent(&o.ref),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.check(); err != nil {
				return err
			}
			return o.run(cmd.Context(), a)
		},
	}
	o.flags(cmd.Flags())
	return cmd
}

func (o *eventsEditOptions) flags(fs *pflag.FlagSet) {
	fs.Var(&changeValue{&o.changes, true}, "set", "give a place a value: `/pointer=value`; may be repeated")
	fs.Var(&changeValue{&o.changes, false}, "unset", "take what is at a place away: `/pointer`; may be repeated")
	fs.BoolVar(&o.newKey, "new-key", false, "give the event a new key: receivers take it for another event")
	fs.StringVar(&o.reason, "reason", "", "`why`, for the record in outbox_operations; required")
	fs.BoolVar(&o.dryRun, "dry-run", false, "show the change and do nothing")
	typed(fs, "set", "unset", "new-key")
}

// changeValue is a flag that adds a change; --set and --unset share the list, which is in the order in
// which they were typed.
type changeValue struct {
	all *[]placeChange
	set bool
}

func (v *changeValue) String() string { return "" }
func (v *changeValue) Type() string   { return "place" }

func (v *changeValue) Set(s string) error {
	c := placeChange{pointer: s, set: v.set}
	if v.set {
		var found bool
		if c.pointer, c.value, found = strings.Cut(s, "="); !found {
			return errors.New("want /pointer=value, as in /currency=EUR")
		}
	}
	if c.pointer != "" && c.pointer[0] != '/' {
		return errors.New("a place begins with /, as in /customer/email")
	}
	*v.all = append(*v.all, c)
	return nil
}

func (o *eventsEditOptions) check() error {
	if !o.dryRun && strings.TrimSpace(o.reason) == "" {
		return usage(errors.New("--reason is missing: say why the event is changed"), "")
	}
	return nil
}

func (o *eventsEditOptions) run(ctx context.Context, a *app) error {
	need := writes
	if o.dryRun {
		need = reads
	}
	store, done, err := a.openStore(ctx, need)
	if err != nil {
		return err
	}
	defer done()
	e, err := store.Editable(ctx, o.ref)
	if err != nil {
		return a.whichEvent("edit", err)
	}
	if err := a.mayEdit(e); err != nil {
		return err
	}
	payload, err := o.payload(ctx, a, e)
	if err != nil {
		return err
	}
	ed := edit{eventsEditOptions: *o, Editable: e, payload: payload}
	if ed.patch, err = ed.steps(); err != nil {
		return err
	}
	return ed.finish(ctx, a, store)
}

func (a *app) mayEdit(e *outbox.Editable) error {
	switch {
	case e.Row.Leased(e.Now):
		return inFlight(e.Row.ID, a)
	case !e.Content.Readable:
		return usage(errors.New("this database role may not read what events say"), "each command's role: outboxctl migrate grants --help")
	case e.Row.Status == outbox.Delivered:
		fmt.Fprintf(a.Err, "event %d was delivered: what was sent stays sent; this changes what is kept, and what a replay would send\n", e.Row.ID)
	}
	return nil
}

func inFlight(id int64, a *app) error {
	return &failure{exitAttention, fmt.Errorf("event %d is being sent: %w", id, outbox.ErrInFlight),
		fmt.Sprintf("who has it, and until when: outboxctl events explain %d%s", id, a.schemaFlag())}
}

// payload is the new one: by the flags, or from the editor. A new key alone needs neither.
func (o *eventsEditOptions) payload(ctx context.Context, a *app, e *outbox.Editable) ([]byte, error) {
	switch {
	case len(o.changes) > 0 && e.Content.Binary:
		return nil, usage(fmt.Errorf("the payload of event %d is bytes: --set and --unset are for JSON", e.Row.ID), "leave them out to edit it as text")
	case len(o.changes) > 0:
		return o.assign(a, e.Content.Payload)
	case o.newKey:
		return e.Content.Payload, nil
	}
	return a.editText(ctx, e)
}

func (o *eventsEditOptions) assign(a *app, payload []byte) ([]byte, error) {
	var all []outbox.Assignment
	for _, c := range o.changes {
		as := outbox.Assignment{Pointer: c.pointer}
		if c.set {
			value, err := a.typedValue(c)
			if err != nil {
				return nil, err
			}
			as.Value = value
		}
		all = append(all, as)
	}
	changed, err := outbox.Assign(payload, all)
	if err != nil {
		return nil, usage(err, "places are JSON pointers; the payload's shape: outboxctl events show "+o.refText()+a.schemaFlag())
	}
	return changed, nil
}

func (o *eventsEditOptions) refText() string {
	if o.ref.ID != 0 {
		return fmt.Sprint(o.ref.ID)
	}
	return o.ref.Key.String()
}

// maxValue is more than anybody puts into one event by hand.
const maxValue = 64 << 20

// typedValue is the value of a --set as JSON. One that was typed is in the process list.
func (a *app) typedValue(c placeChange) ([]byte, error) {
	text := c.value
	if file, isFile := strings.CutPrefix(text, "@"); isFile {
		content, err := a.readValue(file)
		if err != nil {
			return nil, usage(fmt.Errorf("--set %s: %w", c.pointer, err), "")
		}
		text = strings.TrimSuffix(strings.TrimSuffix(string(content), "\n"), "\r")
	} else {
		a.warnOnce("values of --set can be seen in the process list and stay in the shell's history; --set /pointer=@FILE or @- keeps them out")
	}
	if json.Valid([]byte(text)) {
		if _, err := outbox.MaskAll([]byte(text)); err != nil { // of two values PostgreSQL would keep one
			return nil, usage(fmt.Errorf("--set %s: the value has a name twice in one object", c.pointer), "")
		}
		return []byte(text), nil
	}
	if !utf8.ValidString(text) {
		return nil, usage(fmt.Errorf("--set %s: the value is not UTF-8", c.pointer), "")
	}
	return marshal(text)
}

func (a *app) readValue(file string) ([]byte, error) {
	in := a.In
	if file != "-" {
		f, err := os.Open(file)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		in = f
	}
	content, err := io.ReadAll(io.LimitReader(in, maxValue+1))
	if err == nil && len(content) > maxValue {
		err = fmt.Errorf("more than %s", printSize(maxValue))
	}
	return content, err
}

// edit is a change that is known and not made yet.
type edit struct {
	eventsEditOptions
	*outbox.Editable
	payload []byte
	patch   []outbox.PatchStep // of JSON
}

func (ed *edit) steps() ([]outbox.PatchStep, error) {
	if ed.Content.Binary {
		return nil, nil
	}
	if _, err := outbox.MaskAll(ed.payload); err != nil { // a name twice, of which PostgreSQL would keep one
		return nil, usage(err, "")
	}
	return outbox.Patch(ed.Content.Payload, ed.payload)
}

func (ed *edit) same() bool {
	if ed.Content.Binary {
		return bytes.Equal(ed.Content.Payload, ed.payload)
	}
	return len(ed.patch) == 0
}

// finish shows the change, asks, and makes it.
func (ed *edit) finish(ctx context.Context, a *app, store *outbox.Store) error {
	if ed.same() && !ed.newKey {
		return ed.print(a, "nothing to do: the payload is the same", 0, ed.Row.Key)
	}
	shown, err := ed.shown(a)
	if err != nil {
		return err
	}
	ed.show(a, shown)
	if ed.dryRun {
		return ed.print(a, "dry run: nothing was changed", 0, ed.Row.Key)
	}
	if err := a.confirm(ctx, fmt.Sprintf("change event %d?", ed.Row.ID)); err != nil {
		return err
	}
	key, operation, err := ed.write(ctx, a, store)
	if err != nil {
		return ed.refusal(a, err)
	}
	return ed.print(a, fmt.Sprintf("edited event %d, operation %d", ed.Row.ID, operation), operation, key)
}

func (ed *edit) write(ctx context.Context, a *app, store *outbox.Store) (key uuid.UUID, operation int64, err error) {
	key = ed.Row.Key
	var newKey *uuid.UUID
	if ed.newKey {
		key = uuid.New()
		newKey = &key
	}
	run, err := store.Begin(ctx, a.signed(outbox.Operation{
		Command: "edit", Filter: outbox.Filter{IDs: []int64{ed.Row.ID}}, Reason: ed.reason, Planned: 1,
	}))
	if err != nil {
		return key, 0, err
	}
	err = run.Edit(ctx, ed.Editable, ed.payload, newKey)
	return key, run.ID, cmp.Or(err, run.End(ctx, endWords(err)))
}

// refusal says what to do where the event could not be changed.
func (ed *edit) refusal(a *app, err error) error {
	const unsupportedEscape, invalidText = "22P05", "22P02"
	switch {
	case errors.Is(err, outbox.ErrInFlight):
		return inFlight(ed.Row.ID, a)
	case errors.Is(err, outbox.ErrChanged), errors.Is(err, outbox.ErrNotFound):
		return &failure{exitAttention, err, fmt.Sprintf("see what became of it and edit it again: outboxctl events show %d%s", ed.Row.ID, a.schemaFlag())}
	case postgresCode(err) == unsupportedEscape, postgresCode(err) == invalidText:
		return usage(errors.New("PostgreSQL cannot keep this payload: it holds \\u0000 or half of a surrogate pair, which jsonb has not"), "")
	}
	return err
}

// postgresCode is the code of an error of PostgreSQL's, "" of another.
func postgresCode(err error) string {
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		return pg.Code
	}
	return ""
}

// shown is the patch without what the configuration hides.
func (ed *edit) shown(a *app) ([]outbox.PatchStep, error) {
	if a.file == nil || a.file.redact.Empty() || ed.Content.Binary {
		return ed.patch, nil
	}
	before, err := a.file.redact.Mask(ed.Content.Payload)
	if err != nil {
		return nil, err
	}
	after, err := a.file.redact.Mask(ed.payload)
	if err != nil {
		return nil, err
	}
	hidden, err := outbox.Patch(before, after)
	if err != nil || len(hidden) == len(ed.patch) {
		return hidden, err
	}
	shown := make([]outbox.PatchStep, len(ed.patch))
	for i, step := range ed.patch {
		if shown[i] = step; step.Value != nil {
			shown[i].Value = json.RawMessage(`"‹hidden›"`)
		}
	}
	return shown, nil
}

// show prints what will be changed where somebody is to decide.
func (ed *edit) show(a *app, patch []outbox.PatchStep) {
	fmt.Fprintf(a.Err, "edit: event %d (%s, %s, %s)\n", ed.Row.ID, ed.Row.Status, cell(ed.Row.Type), cell(aggregateName(ed.Row.AggregateType, ed.Row.AggregateID)))
	for _, step := range patch {
		line, err := marshal(step)
		if err == nil {
			fmt.Fprintln(a.Err, "  "+cell(string(line)))
		}
	}
	if ed.Content.Binary && !ed.same() {
		fmt.Fprintf(a.Err, "  %s become %s\n", counted(int64(len(ed.Content.Payload)), "byte"), counted(int64(len(ed.payload)), "byte"))
	}
	if ed.newKey {
		fmt.Fprintf(a.Err, "  and gets a new key: receivers take it for another event than %s\n", ed.Row.Key)
	}
}

// editDocument is outboxctl.edit/v1. Its keys are an interface: they stay.
type editDocument struct {
	Schema    string             `json:"schema"`
	DryRun    bool               `json:"dry_run"`
	ID        int64              `json:"id"`
	Key       uuid.UUID          `json:"key"` // as it is now
	Status    outbox.Status      `json:"status"`
	Patch     []outbox.PatchStep `json:"patch"`     // of JSON; what the configuration hides is masked
	Operation int64              `json:"operation"` // 0 = nothing was done
	Commands  []string           `json:"commands"`  // what comes next
}

func (ed *edit) print(a *app, words string, operation int64, key uuid.UUID) error {
	next := []string{}
	if operation != 0 && ed.Row.Status.Final() {
		next = append(next, ed.replayCommand(a))
	}
	if a.global.output == "json" {
		shown, err := ed.shown(a)
		if err != nil {
			return err
		}
		return a.printJSON(editDocument{"outboxctl.edit/v1", ed.dryRun, ed.Row.ID, key, ed.Row.Status, append([]outbox.PatchStep{}, shown...), operation, next})
	}
	if key != ed.Row.Key {
		words += "; its key is " + key.String()
	}
	if _, err := fmt.Fprintln(a.Out, words); err != nil {
		return err
	}
	for _, command := range next {
		fmt.Fprintln(a.Out, "send it: "+command)
	}
	return nil
}

// replayCommand sends an event again that has ended.
func (ed *edit) replayCommand(a *app) string {
	command := fmt.Sprintf("outboxctl replay --id %d --status %s", ed.Row.ID, ed.Row.Status)
	if ed.Row.Status == outbox.Delivered {
		command += fmt.Sprintf(" --include-delivered --reason 'event %d was edited'", ed.Row.ID)
	}
	return command + a.schemaFlag()
}
