package commands

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/pflag"

	"github.com/outboxctl/outboxctl/outbox"
)

// filterOptions are the flags that select events. They have no twin in the environment.
type filterOptions struct {
	ids          []int64
	keys         []string
	statuses     []string
	eventTypes   []string
	aggregates   []string
	tenants      []string
	destinations []string
	since, until momentValue
	olderThan    durationValue
	errorKinds   []string
	errorCodes   []int
}

// filterFlags are their names. Not every command has them all.
var filterFlags = []string{"id", "key", "status", "event-type", "aggregate", "tenant", "destination",
	"since", "until", "older-than", "error-kind", "error-code"}

// flags adds the filter's flags but for those that the command does without.
func (o *filterOptions) flags(fs *pflag.FlagSet, without ...string) {
	all := pflag.NewFlagSet("", pflag.ContinueOnError)
	all.Int64SliceVar(&o.ids, "id", nil, "only events with these `ids`")
	all.Lookup("id").DefValue = "" // else the help shows an empty list
	all.StringSliceVar(&o.keys, "key", nil, "only events with these idempotency `keys`")
	all.StringSliceVar(&o.statuses, "status", nil, "only events of these `statuses`")
	all.StringSliceVar(&o.eventTypes, "event-type", nil, "only these `types`; * stands for any text")
	all.StringArrayVar(&o.aggregates, "aggregate", nil, "only events of this `type:id`, such as order:42")
	all.StringSliceVar(&o.tenants, "tenant", nil, "only these `tenants`")
	all.StringSliceVar(&o.destinations, "destination", nil, "only these `destinations`")
	all.Var(&o.since, "since", "only events created since this `time`: 2026-01-31, 2026-01-31T14:00:00Z, or 2h for two hours ago")
	all.Var(&o.until, "until", "only events created before this `time`")
	all.Var(&o.olderThan, "older-than", "only events that ended longer ago than this")
	all.StringSliceVar(&o.errorKinds, "error-kind", nil, "only events whose last error is of these `kinds`")
	all.IntSliceVar(&o.errorCodes, "error-code", nil, "only events whose last error has these `codes`")
	all.VisitAll(func(f *pflag.Flag) {
		if !slices.Contains(without, f.Name) {
			fs.AddFlag(f)
		}
	})
	fs.SetNormalizeFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		if name == "topic" { // others call an event's type so
			name = "event-type"
		}
		return pflag.NormalizedName(name)
	})
}

// check refuses empty values, which would select more than was meant.
func (o *filterOptions) check(fs *pflag.FlagSet) error {
	var lists []string
	for _, name := range filterFlags {
		if fs.Lookup(name) != nil {
			lists = append(lists, name)
		}
	}
	return checkLists(fs, lists...)
}

// statusWords are other words for a status.
var statusWords = map[string]outbox.Status{"delivering": outbox.InProgress, "dead": outbox.DeadLetter}

// resolve makes the filter, with now, the database's clock, as the end of what is ago.
func (o *filterOptions) resolve(now time.Time) (f outbox.Filter, err error) {
	f = outbox.Filter{
		IDs: o.ids, EventTypes: o.eventTypes, Tenants: o.tenants, ErrorKinds: o.errorKinds, ErrorCodes: o.errorCodes,
		Since: o.since.at(now), Until: o.until.at(now),
	}
	for _, code := range o.errorCodes {
		if code < math.MinInt32 || code > math.MaxInt32 {
			return f, usage(fmt.Errorf("--error-code %d: there is no such code", code), "")
		}
	}
	for _, text := range o.keys {
		key, err := uuid.Parse(text)
		if err != nil {
			return f, usage(fmt.Errorf("--key %q is not a UUID", text), "")
		}
		f.Keys = append(f.Keys, key)
	}
	for _, text := range o.statuses {
		status, err := parseStatus(text)
		if err != nil {
			return f, err
		}
		f.Statuses = append(f.Statuses, status)
	}
	for _, text := range o.aggregates {
		a, err := parseAggregate(text)
		if err != nil {
			return f, err
		}
		f.Aggregates = append(f.Aggregates, a)
	}
	for _, name := range o.destinations {
		f.Destinations = append(f.Destinations, typedDestination(name))
	}
	if o.olderThan > 0 {
		f.FinishedBefore = now.Add(-time.Duration(o.olderThan))
	}
	if !f.Since.IsZero() && !f.Until.IsZero() && !f.Since.Before(f.Until) {
		return f, usage(fmt.Errorf("--since %s is not before --until %s", instant(f.Since), instant(f.Until)), "")
	}
	return f, nil
}

// whyNone says where to look when nothing of what was named by its id or key is selected.
func whyNone(f outbox.Filter, planned outbox.Progress, flags string) []string {
	if planned.Matched() > 0 || len(f.IDs)+len(f.Keys) == 0 {
		return nil
	}
	ref := ""
	if len(f.IDs) > 0 {
		ref = fmt.Sprint(f.IDs[0])
	} else {
		ref = f.Keys[0].String()
	}
	return []string{"why not: outboxctl events explain " + ref + flags}
}

func parseStatus(text string) (outbox.Status, error) {
	if status, ok := statusWords[text]; ok {
		return status, nil
	}
	if status := outbox.Status(text); slices.Contains(outbox.Statuses(), status) {
		return status, nil
	}
	var known []string
	for _, status := range outbox.Statuses() {
		known = append(known, string(status))
	}
	return "", usage(fmt.Errorf("--status %q: want %s", text, strings.Join(known, ", ")), "")
}

// parseAggregate cuts at the first colon; one that belongs to the type is written \: .
func parseAggregate(text string) (outbox.Aggregate, error) {
	var kind strings.Builder
	for i := 0; i < len(text); i++ {
		switch {
		case text[i] == '\\' && i+1 < len(text) && (text[i+1] == ':' || text[i+1] == '\\'):
			i++
			kind.WriteByte(text[i])
		case text[i] == ':' && kind.Len() > 0 && i+1 < len(text):
			return outbox.Aggregate{Type: kind.String(), ID: text[i+1:]}, nil
		default:
			kind.WriteByte(text[i])
		}
	}
	return outbox.Aggregate{}, usage(fmt.Errorf("--aggregate %q: want type:id, such as order:42", text), "")
}

// typedDestination is what a person means by a destination's name.
func typedDestination(name string) string {
	if name == destinationName("") {
		return ""
	}
	return name
}

// filterWords says what f selects, with all times resolved: "failed, order.*, since 2026-01-31T00:00:00Z".
func filterWords(f outbox.Filter) string {
	var words []string
	add := func(label string, values ...string) {
		if len(values) > 0 {
			words = append(words, label+strings.Join(values, " or "))
		}
	}
	add("", texts(f.Statuses)...)
	add("type ", f.EventTypes...)
	for i, a := range f.Aggregates {
		if i == 0 {
			add("aggregate ", aggregateName(a.Type, a.ID))
			continue
		}
		words[len(words)-1] += " or " + aggregateName(a.Type, a.ID)
	}
	add("tenant ", f.Tenants...)
	add("destination ", destinationNames(f.Destinations)...)
	add("error ", f.ErrorKinds...)
	add("code ", texts(f.ErrorCodes)...)
	add("id ", texts(f.IDs)...)
	add("key ", texts(f.Keys)...)
	if !f.Since.IsZero() {
		add("created since ", instant(f.Since))
	}
	if !f.Until.IsZero() {
		add("created before ", instant(f.Until))
	}
	if !f.FinishedBefore.IsZero() {
		add("ended before ", instant(f.FinishedBefore))
	}
	if len(words) == 0 {
		return "all"
	}
	return oneLine(strings.Join(words, ", "))
}

// texts prints each value; of a long list, the first few and how many more there are.
func texts[T any](values []T) []string {
	const shown = 10
	var all []string
	for i, v := range values {
		if i == shown {
			return append(all, fmt.Sprintf("one of %d more", len(values)-shown))
		}
		all = append(all, fmt.Sprint(v))
	}
	return all
}

// aggregateName is what --aggregate takes.
func aggregateName(kind, id string) string {
	return strings.NewReplacer(`\`, `\\`, `:`, `\:`).Replace(kind) + ":" + id
}

// instant prints a time as filters take it.
func instant(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// momentValue is a flag's instant: a date, a time, or a duration for as long ago.
type momentValue struct {
	text string
	abs  time.Time
	ago  time.Duration
}

func (v *momentValue) String() string { return v.text }
func (v *momentValue) Type() string   { return "time" }

func (v *momentValue) Set(s string) error {
	for _, layout := range []string{time.RFC3339Nano, "2006-01-02T15:04:05", "2006-01-02T15:04", "2006-01-02 15:04:05", "2006-01-02 15:04", time.DateOnly} {
		if t, err := time.ParseInLocation(layout, s, time.UTC); err == nil {
			*v = momentValue{text: s, abs: t.UTC()}
			return nil
		}
	}
	ago, err := parseDuration(s)
	if err != nil {
		return fmt.Errorf("%q is neither a time such as 2026-01-31 or 2026-01-31T14:00:00Z nor a duration such as 2h or 7d", s)
	}
	*v = momentValue{text: s, ago: ago}
	return nil
}

// at is the instant, or zero when the flag was not given.
func (v *momentValue) at(now time.Time) time.Time {
	if v.text == "" || !v.abs.IsZero() {
		return v.abs
	}
	return now.Add(-v.ago).Truncate(time.Second)
}

// filter resolves the flags by the database's clock.
func (o *filterOptions) filter(ctx context.Context, store *outbox.Store) (outbox.Filter, error) {
	now, err := store.Now(ctx)
	if err != nil {
		return outbox.Filter{}, err
	}
	return o.resolve(now)
}

// errNoFilter refuses a command that would change every event unless that is said.
var errNoFilter = errors.New("this would select every event")

func needFilter(f outbox.Filter, all bool) error {
	if f.Empty() && !all {
		return usage(errNoFilter, "select some with --status, --event-type, --id … (see --help), or say --all")
	}
	return nil
}
