package check

import "github.com/outboxctl/outboxctl/outbox/outboxtest/storm/history"

// judgePhantoms looks for what should not be there: rows and requests of transactions that rolled back, requests of
// events that nobody wrote, and those that were sent before their commit was even asked for. Of a
// transaction whose answer was lost the table says whether it rolled back.
func judgePhantoms(s *story, v *verdict) {
	for i := range s.Writes {
		w := &s.Writes[i]
		v.saw(1)
		if s.committed(w) {
			continue
		}
		if l := s.lives[w.ID]; w.Fate == history.RolledBack && l != nil && w.ID != 0 {
			v.wrong("event %s (id %d) is in the table, and its transaction rolled back at %s", w.Key, w.ID, clock(w.Asked))
		}
	}
	byKey := make(map[string]*history.Write, len(s.Writes))
	for i := range s.Writes {
		byKey[s.Writes[i].Key] = &s.Writes[i]
	}
	for i := range s.Requests {
		if r := &s.Requests[i]; r.Key != "" {
			v.saw(1)
			s.judgePhantom(r, byKey[r.Key], v)
		}
	}
	s.judgeCopies(v)
}

// judgeCopies compares copies with their originals: they are the same event.
func (s *story) judgeCopies(v *verdict) {
	keys := make(map[int64]string, len(s.Rows))
	for i := range s.Rows {
		keys[s.Rows[i].ID] = s.Rows[i].Key
	}
	for i := range s.Rows {
		r := &s.Rows[i]
		if key, there := keys[r.Source]; r.Source != 0 && there && key != r.Key {
			v.wrong("row %d at %q is a copy of event %s (id %d), and has the key %s", r.ID, r.Dest, key, r.Source, r.Key)
		}
	}
}

func (s *story) judgePhantom(r *history.Request, w *history.Write, v *verdict) {
	switch {
	case w == nil && len(s.byKey[r.Key]) == 0 && !s.unknown[r.Dest]:
		v.wrong("request %d at %q (%s) has the key %s, which nobody wrote", r.N, r.Dest, clock(r.Began), r.Key)
	case w == nil:
	case w.Fate == history.RolledBack:
		v.wrong("request %d at %q (%s) is of event %s, whose transaction rolled back at %s", r.N, r.Dest, clock(r.Began), r.Key, clock(w.Asked))
	case !s.committed(w):
		v.wrong("request %d at %q (%s) is of event %s, whose commit at %s was not done", r.N, r.Dest, clock(r.Began), r.Key, clock(w.Asked))
	case !w.Asked.IsZero() && r.Began.Before(w.Asked):
		v.wrong("request %d at %q is of event %s: it was sent by %s, and its commit was asked for at %s", r.N, r.Dest, r.Key, clock(r.Began), clock(w.Asked))
	}
}
