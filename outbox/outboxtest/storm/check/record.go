package check

import (
	"slices"
	"strings"

	"github.com/outboxctl/outboxctl/outbox/outboxtest/storm/history"
)

// judgeRecord: every row of the record says who did it and, where the command gave one, why.
func (s *story) judgeRecord(owner map[int64]string, v *verdict) {
	for _, a := range s.Audits {
		v.saw(1)
		if a.Who == "" {
			v.wrong("operation %d (%s of event %d at %s) has nobody who did it", a.Operation, a.Action, a.Event, clock(a.At))
		}
		c := s.operators[owner[a.Operation]]
		if c == nil {
			continue
		}
		if reason, given := flag(c.Args, "--reason"); given && a.Reason != reason {
			v.wrong("operation %d (%s of event %d) has the reason %q; %s gave %q", a.Operation, a.Action, a.Event, a.Reason, c.Name, reason)
		}
	}
}

// judgeOperations: each operation on record is one of the commands that ran, says who, what and why, and how many events
// it has changed: also that of a command that died, for a step and the word of it are of one transaction. No command
// is without its operation.
func (s *story) judgeOperations(did map[string][]step, v *verdict) {
	known := map[int64]*history.Operation{}
	for i := range s.Operations {
		op := &s.Operations[i]
		known[op.ID] = op
		v.saw(1)
		s.judgeOperation(op, did[op.App], v)
	}
	for i := range s.Commands {
		c := &s.Commands[i]
		doc, ok := documentOf(c)
		if !ok || doc.Operation == 0 || len(s.Operations) == 0 {
			continue
		}
		switch op := known[doc.Operation]; {
		case op == nil:
			v.wrong("%s (%s) calls itself operation %d, which is not on record", c.Name, strings.Join(c.Args, " "), doc.Operation)
		case op.App != c.Name:
			v.wrong("%s calls itself operation %d, which is on record as that of %q", c.Name, doc.Operation, op.App)
		}
	}
}

func (s *story) judgeOperation(op *history.Operation, steps []step, v *verdict) {
	c := s.operators[op.App]
	switch {
	case c == nil:
		v.wrong("operation %d (%s) is no command's", op.ID, op.Command)
		return
	case op.Who == "":
		v.wrong("operation %d (%s) has nobody who did it", op.ID, op.Command)
	case !slices.Contains(c.Args, op.Command):
		v.wrong("operation %d is on record as %s; %s is %s", op.ID, op.Command, c.Name, strings.Join(c.Args, " "))
	case c.Exit == 0 && !op.Ended:
		v.wrong("operation %d (%s) has no end on record; %s came to its end", op.ID, op.Command, c.Name)
	}
	if reason, given := flag(c.Args, "--reason"); given && op.Reason != reason {
		v.wrong("operation %d (%s) has the reason %q; %s gave %q", op.ID, op.Command, op.Reason, c.Name, reason)
	}
	if how := changes[verb(c)]; how != nil && how.did != nil && !how.one && int64(len(steps)) != op.Done {
		v.wrong("operation %d (%s) is on record with %d events; %s changed %d", op.ID, op.Command, op.Done, c.Name, len(steps))
	}
}
