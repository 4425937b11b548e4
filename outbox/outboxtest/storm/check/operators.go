package check

import (
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/outboxctl/outboxctl/outbox/outboxtest/storm/history"
)

// operated reports whether an operator changed events in the run.
func operated(s *story) bool {
	return slices.ContainsFunc(s.Commands, func(c history.Command) bool { return changes[verb(&c)] != nil })
}

// change says what a command does to a row, and which audit rows it leaves; "" = none.
type change struct {
	did    func(t *history.Transition) bool
	action string
	one    bool // event, of which the document has no count
}

var changes = map[string]*change{
	"replay": {action: "replay", did: func(t *history.Transition) bool {
		return t.New != nil && t.Old != nil && ended(t.Old) && t.New.Status == pending && t.New.Attempts == 0 && t.New.Dest == t.Old.Dest
	}},
	"discard": {action: "discard", did: func(t *history.Transition) bool { return t.New != nil && t.New.Status == discarded }},
	"purge":   {did: func(t *history.Transition) bool { return t.New == nil }},
	"move": {action: "move", did: func(t *history.Transition) bool {
		return t.New != nil && t.Old != nil && t.New.Status == pending && t.New.Dest != t.Old.Dest
	}},
	"redact": {action: "redact"},
	"edit":   {action: "edit", one: true, did: func(t *history.Transition) bool { return reflect.DeepEqual(t.Old, t.New) }},
}

// verb is what a command does.
func verb(c *history.Command) string {
	has := func(word string) bool { return slices.Contains(c.Args, word) }
	name := ""
	for _, word := range []string{"replay", "discard", "purge", "edit"} {
		if has(word) {
			name = word
			break
		}
	}
	_, moves := flag(c.Args, "--move-to")
	switch {
	case has("--dry-run"):
		return ""
	case name == "purge" && has("--redact"):
		return "redact"
	case name == "purge" && has("--drop-archive"):
		return ""
	case name == "replay" && moves:
		return "move"
	}
	return name
}

// flag finds the value of a flag; of one that is repeated, the list of its values.
func flag(args []string, name string) (value string, ok bool) {
	var all []string
	for i, arg := range args {
		if text, found := strings.CutPrefix(arg, name+"="); found {
			all = append(all, text)
		} else if arg == name && i+1 < len(args) {
			all = append(all, args[i+1])
		}
	}
	return strings.Join(all, ","), len(all) > 0
}

// document is what a command that changes events says of itself. It is judged, not believed.
type document struct {
	DryRun    bool  `json:"dry_run"`
	Done      int64 `json:"done"`
	Matched   int64 `json:"matched"`
	Skipped   map[string]int64
	Operation int64
}

// judgeOperators compares what each command says that it did with what it did, and with the record of it.
func judgeOperators(s *story, v *verdict) {
	did := map[string][]step{}
	for _, l := range s.ordered {
		for _, st := range l.steps {
			if s.operators[st.App] != nil {
				did[st.App] = append(did[st.App], st)
			}
		}
	}
	recorded, owner := s.records()
	for i := range s.Commands {
		c := &s.Commands[i]
		steps := did[c.Name]
		switch how := changes[verb(c)]; {
		case how != nil:
			v.saw(1)
			s.judgeCommand(c, how, steps, recorded[c.Name], v)
		case len(steps) > 0 && verb(c) == "" && slices.ContainsFunc(c.Args, func(arg string) bool { return arg == "--dry-run" || arg == "stats" }):
			v.wrong("%s (%s) changed %d rows", c.Name, strings.Join(c.Args, " "), len(steps))
		}
	}
	s.judgeRecord(owner, v)
	s.judgeOperations(did, v)
}

// records are the audit rows of each command, and whose each operation is.
func (s *story) records() (byApp map[string][]history.Audit, owner map[int64]string) {
	byApp, owner = map[string][]history.Audit{}, map[int64]string{}
	for i := range s.Commands {
		if doc, ok := documentOf(&s.Commands[i]); ok && doc.Operation != 0 {
			owner[doc.Operation] = s.Commands[i].Name
		}
	}
	for _, a := range s.Audits {
		app := a.App
		if app == "" {
			app = owner[a.Operation]
		}
		byApp[app] = append(byApp[app], a)
	}
	return byApp, owner
}

func documentOf(c *history.Command) (doc document, ok bool) {
	if len(c.Document) == 0 {
		return doc, false
	}
	return doc, json.Unmarshal(c.Document, &doc) == nil
}

func (s *story) judgeCommand(c *history.Command, how *change, steps []step, record []history.Audit, v *verdict) {
	changed := map[int64]int{}
	for _, st := range steps {
		if how.did == nil || !how.did(st.Transition) {
			v.wrong("%s (%s) made event %d %s at %s, which is not what it is for", c.Name, verb(c), st.ID, after(st), clock(st.At))
			continue
		}
		changed[st.ID]++
		if why := s.outside(c, st); why != "" {
			v.wrong("%s (%s) made event %d %s at %s, which %s", c.Name, strings.Join(c.Args, " "), st.ID, after(st), clock(st.At), why)
		}
	}
	if how.action != "" {
		s.judgeAudits(c, how, changed, record, v)
	}
	doc, ok := documentOf(c)
	if !ok || doc.DryRun || how.did == nil {
		return
	}
	if how.one && doc.Operation != 0 { // of an event that is already as it shall be nothing is changed
		doc.Done = 1
	}
	if n := total(changed); int64(n) != doc.Done {
		v.wrong("%s says that it did %d events, and did %d", c.Name, doc.Done, n)
	}
}

func total(of map[int64]int) (n int) {
	for _, x := range of {
		n += x
	}
	return n
}

func after(st step) string {
	if st.New == nil {
		return "go"
	}
	return st.New.Status
}

// judgeAudits: each event that was changed has its row in the record, once for each time, and no other has.
func (s *story) judgeAudits(c *history.Command, how *change, changed map[int64]int, record []history.Audit, v *verdict) {
	noted := map[int64]int{}
	for _, a := range record {
		if a.Action == how.action {
			noted[a.Event]++
		}
	}
	if how.did == nil {
		doc, ok := documentOf(c)
		if ok && int64(total(noted)) != doc.Done {
			v.wrong("%s says that it did %d events, and %d are on record", c.Name, doc.Done, total(noted))
		}
		return
	}
	for _, id := range slices.Sorted(maps.Keys(changed)) {
		if noted[id] != changed[id] {
			v.wrong("%s changed event %d %d times, and %d are on record", c.Name, id, changed[id], noted[id])
		}
	}
	for _, id := range slices.Sorted(maps.Keys(noted)) {
		if changed[id] == 0 {
			v.wrong("%s has event %d on record, and did not change it", c.Name, id)
		}
	}
}

// outside says why a row is not one that a command selects; "" = it is.
func (s *story) outside(c *history.Command, st step) string {
	l, old := s.lives[st.ID], st.Old
	if old == nil {
		return "was not there"
	}
	for _, rule := range []struct{ flag, got string }{
		{"--status", old.Status}, {"--tenant", l.tenant}, {"--destination", destName(old.Dest)}, {"--key", l.key},
		{"--id", strconv.FormatInt(l.id, 10)}, {"--error-kind", old.Kind}, {"--error-code", strconv.Itoa(old.Code)},
		{"--aggregate", l.kind + ":" + l.agg},
	} {
		if want, given := flag(c.Args, rule.flag); given && !selects(rule.flag, want, rule.got) {
			return fmt.Sprintf("is not selected by %s %s: it is %q", rule.flag, want, rule.got)
		}
	}
	if want, given := flag(c.Args, "--event-type"); given && l.event != "" && !slices.ContainsFunc(strings.Split(want, ","), func(p string) bool { return globs(p, l.event) }) {
		return fmt.Sprintf("is not selected by --event-type %s: it is %q", want, l.event)
	}
	if _, given := flag(c.Args, "--status"); !given {
		if why := unnamed(verb(c), old); why != "" {
			return why
		}
	}
	if text, given := flag(c.Args, "--older-than"); given {
		if age, err := time.ParseDuration(text); err == nil && (old.Finished == nil || old.Finished.Add(age).After(st.At)) {
			return "is not older than " + text
		}
	}
	return ""
}

func destName(dest string) string {
	if dest == "" {
		return "default"
	}
	return dest
}

// selects reports whether a list selects a value. A command that means pending events means those whose lease has
// lapsed, too.
func selects(name, list, got string) bool {
	all := strings.Split(list, ",")
	if name == "--status" && got == inProgress && slices.Contains(all, pending) {
		return true
	}
	return got == "" || slices.Contains(all, got)
}

// globs matches a type with a pattern in which * stands for anything.
func globs(pattern, event string) bool {
	ok, _ := path.Match(strings.ReplaceAll(pattern, "/", "\x00"), strings.ReplaceAll(event, "/", "\x00"))
	return ok
}

// unnamed says what a command must not touch unless it is named.
func unnamed(verb string, old *history.State) string {
	meant := map[string][]string{
		"replay": {failed}, "discard": {failed, dead}, "purge": {delivered}, "move": {pending, inProgress, failed},
	}[verb]
	if len(meant) == 0 || slices.Contains(meant, old.Status) {
		return ""
	}
	return fmt.Sprintf("was %s; without --status it means %s", old.Status, strings.Join(meant, ", "))
}
