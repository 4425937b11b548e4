package check

import (
	"encoding/json"
	"slices"
	"time"

	"github.com/outboxctl/outboxctl/outbox/outboxtest/storm/history"
)

// noticing is how much later than a poll interval a dispatcher may learn of a pause: it has to ask, and a claim of its
// own may be under way.
const noticing = 500 * time.Millisecond

// pause is a time in which every dispatcher knows that nothing of a destination is to be claimed.
type pause struct {
	by       *history.Command
	dest     string
	from, to time.Time
}

// paused reports whether the run has such times.
func paused(s *story) bool { return len(s.pausesByHand()) > 0 }

// judgePauses: while all know of a pause, none claims; one that cannot ask, or could not stop a claim that it had sent,
// is excused.
func judgePauses(s *story, v *verdict) {
	all := map[string][]pause{}
	for _, p := range s.pausesByHand() {
		v.saw(1)
		all[p.dest] = append(all[p.dest], p)
	}
	for _, l := range s.ordered {
		for _, c := range l.claims {
			for _, p := range all[c.dest] {
				s.judgePaused(p, c, v)
			}
		}
	}
}

func (s *story) judgePaused(p pause, c *claim, v *verdict) {
	asked := p.by.Began
	if c.at.Before(p.from) || !c.at.Before(p.to) || s.hurt(c.app, c.dest, asked, c.at, ofProcesses, ofDatabase) != nil {
		return
	}
	if late := c.at.Sub(p.from); late <= s.starved(c.app, asked, c.at) {
		return
	}
	v.wrong("event %s (id %d) was claimed by %s at %s; %s had paused %q since %s, until %s",
		c.life.key, c.life.id, c.app, clock(c.at), p.by.Name, p.dest, clock(p.by.End), clock(p.to))
}

// pausesByHand are those that operators have begun. Of commands that died nobody knows what they did, and of those that
// ran beside others of the same destination, what came of it.
func (s *story) pausesByHand() (all []pause) {
	for i := range s.Commands {
		c := &s.Commands[i]
		doc, ok := pauseDocumentOf(c)
		if !ok || !slices.Contains(c.Args, "pause") || !doc.Paused || doc.Tenant != nil {
			continue
		}
		p := pause{by: c, dest: doc.Destination, from: c.End.Add(s.Setup.PollInterval + noticing), to: s.Ended}
		if doc.Until != nil {
			p.to = *doc.Until
		}
		for j := range s.Commands {
			if other := &s.Commands[j]; other != c && turns(other, p.dest) && !other.End.Before(c.Began) && other.Began.Before(p.to) {
				p.to = other.Began
			}
		}
		if p.to.After(p.from) {
			all = append(all, p)
		}
	}
	return all
}

// pauseDocument is what dispatch pause says.
type pauseDocument struct {
	Destination string
	Tenant      *string
	Paused      bool
	Until       *time.Time
}

func pauseDocumentOf(c *history.Command) (doc pauseDocument, ok bool) {
	if c.Exit != 0 || len(c.Document) == 0 {
		return doc, false
	}
	return doc, json.Unmarshal(c.Document, &doc) == nil
}

// turns reports whether a command begins or ends a pause of a destination.
func turns(c *history.Command, dest string) bool {
	has := func(word string) bool { return slices.Contains(c.Args, word) }
	return has("dispatch") && (has("pause") || has("resume")) && has(dest)
}
