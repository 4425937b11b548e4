package check

import (
	"slices"
	"strings"
	"time"

	"github.com/outboxctl/outboxctl/outbox/outboxtest/storm/history"
)

// The states of a row.
const (
	pending    = "pending"
	inProgress = "in_progress"
	delivered  = "delivered"
	failed     = "failed"
	dead       = "dead_letter"
	discarded  = "discarded"
)

// story is a history put in order: what happened to each row, who did it, and what was on the wire of it.
type story struct {
	*history.History
	lives     map[int64]*life
	ordered   []*life // by id
	byKey     map[string][]*life
	unknown   map[string]bool // destinations that had rows of which nobody knows the key any more
	dests     map[string]*history.Destination
	procs     map[string][]*history.Process // by name, in the order of their beginnings
	operators map[string]*history.Command   // by name
	writes    map[int64]*history.Write
	requests  map[string]*history.Request // by id
	ended     []time.Time                 // of each transition, a time by which its transaction had ended; zero = not known
	strays    []*history.Request          // of no row that is known

	backlogs   map[post]int // of rows at the heal, by destination and by tenant there
	pauses     map[string]time.Time
	duplicates map[string]int
	worst      int
	recovery   time.Duration
	void       []string // why the run proves nothing, beside what is seen at once
}

// life is all that is known of a row.
type life struct {
	id        int64
	row       *history.Row   // nil = it is gone
	write     *history.Write // nil = no producer wrote it: a copy
	key       string
	tenant    string
	kind, agg string // of its aggregate
	event     string
	sequence  int64
	steps     []step
	claims    []*claim
	requests  []*request
	edited    bool // its payload was changed by an operator
}

// step is one transition of a row.
type step struct {
	*history.Transition
	i     int // in the history
	epoch int // how often the row had begun anew by then, this step included
}

// ending is how a claim ended.
type ending int

// The endings of a claim.
const (
	open      ending = iota // it has not ended, or only the run has
	settled                 // by who had made it
	reclaimed               // its lease lapsed and another claim took the row
	taken                   // somebody else ended it: a router, an operator
	gone                    // the row was deleted
)

// claim is one lease of one row.
type claim struct {
	life     *life
	at       time.Time
	n        int64 // of the transition
	xid      uint64
	app      string
	lease    string
	until    time.Time
	attempt  int
	due      time.Time // when the row was due before it
	dest     string
	epoch    int
	how      ending
	end      *history.Transition // nil = open
	refunded bool                // its attempt was given back
	request  *request            // that was made under it; nil = none came in
	again    []*request          // more of these: there should be none
}

// over is when the claim ended: at the latest when its lease did.
func (c *claim) over() time.Time {
	if c.end != nil && c.end.At.Before(c.until) {
		return c.end.At
	}
	return c.until
}

// request is one on the wire and the claim under which it was made.
type request struct {
	*history.Request
	life  *life
	claim *claim // nil = none can be behind it
}

// newStory puts a history in order.
func newStory(h *history.History) *story {
	s := &story{
		History: h, lives: make(map[int64]*life, len(h.Rows)), byKey: make(map[string][]*life, len(h.Rows)),
		unknown: map[string]bool{}, dests: map[string]*history.Destination{}, procs: map[string][]*history.Process{},
		operators: map[string]*history.Command{}, writes: make(map[int64]*history.Write, len(h.Writes)),
		requests: make(map[string]*history.Request, len(h.Requests)), duplicates: map[string]int{},
	}
	s.name()
	s.live()
	s.endings()
	s.identify()
	s.match()
	return s
}

// name indexes what has names.
func (s *story) name() {
	for i := range s.Setup.Destinations {
		s.dests[s.Setup.Destinations[i].Name] = &s.Setup.Destinations[i]
	}
	for i := range s.Processes {
		p := &s.Processes[i]
		s.procs[p.Name] = append(s.procs[p.Name], p)
	}
	for i := range s.Commands {
		s.operators[s.Commands[i].Name] = &s.Commands[i]
	}
	for i := range s.Writes {
		if w := &s.Writes[i]; w.ID != 0 {
			s.writes[w.ID] = w
		}
	}
	for i := range s.Requests {
		if r := &s.Requests[i]; r.ID != "" {
			s.requests[r.ID] = r
		}
	}
}

// live gives each row its transitions and claims.
func (s *story) live() {
	for i := range s.Transitions {
		t := &s.Transitions[i]
		l := s.lives[t.ID]
		if l == nil {
			l = &life{id: t.ID, sequence: t.ID}
			s.lives[t.ID] = l
			s.ordered = append(s.ordered, l)
		}
		l.take(t, i)
	}
	slices.SortFunc(s.ordered, func(a, b *life) int { return int(a.id - b.id) })
}

// take adds a transition.
func (l *life) take(t *history.Transition, i int) {
	epoch := 0
	if n := len(l.steps); n > 0 {
		epoch = l.steps[n-1].epoch
		if anew(t) {
			epoch++
		}
	}
	l.steps = append(l.steps, step{t, i, epoch})
	if n := len(l.claims); n > 0 && l.claims[n-1].end == nil && leaves(l.claims[n-1], t) {
		l.claims[n-1].close(t)
	}
	if claims(t) {
		l.claims = append(l.claims, &claim{
			life: l, at: t.At, n: t.N, xid: t.Xid, app: t.App, lease: t.New.Lease, until: deref(t.New.LeaseUntil),
			attempt: t.New.Attempts, due: dueOf(t.Old), dest: t.New.Dest, epoch: epoch,
		})
	}
}

// anew reports whether a row begins from the start: it had ended and is open again, or a copy for a dead letter was
// there already and waits for its first attempt once more.
func anew(t *history.Transition) bool {
	if t.Old == nil || t.New == nil || ended(t.New) {
		return false
	}
	return ended(t.Old) || t.New.Attempts == 0 && t.New.Lease == "" && !t.New.Available.Equal(t.Old.Available)
}

// claims reports whether t gives a row a new lease.
func claims(t *history.Transition) bool {
	return t.New != nil && t.New.Lease != "" && (t.Old == nil || t.Old.Lease != t.New.Lease)
}

// leaves reports whether t takes the row from c.
func leaves(c *claim, t *history.Transition) bool {
	return t.Old != nil && t.Old.Lease == c.lease && (t.New == nil || t.New.Lease != c.lease)
}

func (c *claim) close(t *history.Transition) {
	c.end = t
	switch {
	case t.New == nil:
		c.how = gone
	case t.New.Lease != "":
		c.how = reclaimed
	case t.App == c.app:
		c.how = settled
		c.refunded = t.New.Attempts < t.Old.Attempts && !anew(t)
	default:
		c.how = taken
	}
}

func ended(st *history.State) bool { return st.Finished != nil }

// dueOf is when a row in that state can be claimed.
func dueOf(st *history.State) time.Time {
	switch {
	case st == nil:
		return time.Time{}
	case st.Next != nil:
		return *st.Next
	}
	return st.Available
}

func deref(t *time.Time) time.Time {
	if t == nil {
		return time.Time{}
	}
	return *t
}

// endings finds for each transition a time by which its transaction had ended: the next one of the same session is
// another's, or another transaction has changed the same row.
func (s *story) endings() {
	s.ended = make([]time.Time, len(s.Transitions))
	type transaction struct {
		xid  uint64
		from []int
	}
	under := map[int]*transaction{} // by pid
	for i := range s.Transitions {
		t := &s.Transitions[i]
		tx := under[t.Pid]
		if tx == nil {
			tx = &transaction{xid: t.Xid}
			under[t.Pid] = tx
		}
		if tx.xid != t.Xid {
			for _, j := range tx.from {
				s.ended[j] = t.At
			}
			tx.xid, tx.from = t.Xid, tx.from[:0]
		}
		tx.from = append(tx.from, i)
	}
	last := make(map[int64]int, len(s.lives))
	for i := range s.Transitions {
		t := &s.Transitions[i]
		if j, ok := last[t.ID]; ok && s.Transitions[j].Xid != t.Xid && (s.ended[j].IsZero() || t.At.Before(s.ended[j])) {
			s.ended[j] = t.At
		}
		last[t.ID] = i
	}
}

// identify gives the lives what never changes of a row.
func (s *story) identify() {
	for i := range s.Rows {
		r := &s.Rows[i]
		l := s.lives[r.ID]
		if l == nil { // no transition was seen of it
			l = &life{id: r.ID}
			s.lives[r.ID] = l
			s.ordered = append(s.ordered, l)
		}
		l.row, l.key, l.tenant, l.kind, l.agg, l.event = r, r.Key, r.Tenant, r.Type, r.Agg, r.Event
		if l.sequence = r.ID; r.Source != 0 {
			l.sequence = r.Source
		}
	}
	for _, l := range s.ordered {
		l.write = s.writes[l.id]
		if w := l.write; w != nil && l.row == nil {
			l.key, l.tenant, l.kind, l.agg, l.event = w.Key, w.Tenant, w.Type, w.Agg, w.Event
		}
		if l.key == "" {
			for _, st := range l.steps {
				s.unknown[destOf(st.Transition)] = true
			}
			continue
		}
		s.byKey[l.key] = append(s.byKey[l.key], l)
	}
	for _, a := range s.Audits {
		if l := s.lives[a.Event]; l != nil && (a.Action == "edit" || a.Action == "redact") {
			l.edited = true
		}
	}
}

func destOf(t *history.Transition) string {
	if t.New != nil {
		return t.New.Dest
	}
	return t.Old.Dest
}

// been reports whether the row was at a destination.
func (l *life) been(dest string) bool {
	return slices.ContainsFunc(l.steps, func(st step) bool { return destOf(st.Transition) == dest })
}

// match finds the claim behind each request.
func (s *story) match() {
	byTime := make([]*history.Request, 0, len(s.Requests))
	for i := range s.Requests {
		if s.Requests[i].Key != "" {
			byTime = append(byTime, &s.Requests[i])
		}
	}
	slices.SortStableFunc(byTime, func(a, b *history.Request) int { return a.Began.Compare(b.Began) })
	for _, r := range byTime {
		if l := s.owner(r); l != nil {
			l.requests = append(l.requests, &request{Request: r, life: l})
		} else {
			s.strays = append(s.strays, r)
		}
	}
	for _, l := range s.ordered {
		s.matchNamed(l)
		for _, r := range l.requests {
			if r.claim == nil {
				r.match(l.candidate(r))
			}
		}
	}
}

// owner is the row that a request is of.
func (s *story) owner(r *history.Request) *life {
	for _, l := range s.byKey[r.Key] {
		if l.been(r.Dest) {
			return l
		}
	}
	return nil
}

func (r *request) match(c *claim) {
	if r.claim = c; c == nil {
		return
	}
	if c.request == nil {
		c.request = r
	} else {
		c.again = append(c.again, r)
	}
}

// matchNamed gives the claims that ended well the requests that their receipts name.
func (s *story) matchNamed(l *life) {
	for _, c := range l.claims {
		if c.how != settled || c.end.New.Status != delivered {
			continue
		}
		named := requestOf(c.end.New.Receipt)
		for _, r := range l.requests {
			if named != "" && r.ID == named && r.claim == nil && r.Attempt == c.attempt && !r.Began.Before(c.at) {
				r.match(c)
				break
			}
		}
	}
}

// requestOf is the request that a receipt names.
func requestOf(receipt string) string {
	_, id, _ := strings.Cut(receipt, " ")
	return id
}

// candidate is the likeliest claim behind a request: of its attempt and made before it. One under way beats one that
// is over, a younger an older, and one that kept its attempt another. It has no request yet unless all have.
func (l *life) candidate(r *request) (best *claim) {
	rank := func(c *claim) int {
		n := 0
		if c.request == nil {
			n += 4
		}
		if !c.refunded {
			n += 2
		}
		if !r.Began.After(c.over()) {
			n++
		}
		return n
	}
	for _, c := range l.claims {
		if c.attempt != r.Attempt || c.dest != r.Dest || c.at.After(r.Began) {
			continue
		}
		if best == nil || rank(c) >= rank(best) {
			best = c
		}
	}
	return best
}

// committed reports whether a write's transaction did commit: of those whose answer was lost, the rows say it.
func (s *story) committed(w *history.Write) bool {
	switch w.Fate {
	case history.Committed:
		return true
	case history.Unknown:
		return s.lives[w.ID] != nil && w.ID != 0 || len(s.byKey[w.Key]) > 0
	}
	return false
}

// at is the state of a row at a time; nil = it was not there.
func (l *life) at(t time.Time) *history.State {
	var st *history.State
	for _, step := range l.steps {
		if step.At.After(t) {
			break
		}
		st = step.New
	}
	return st
}

// process is the life of a program in which it was at work at a time; nil when nobody noted one.
func (s *story) process(app string, at time.Time) (found *history.Process) {
	for _, p := range s.procs[app] {
		if p.Began.After(at) {
			break
		}
		found = p
	}
	return found
}

// operator reports whether a transition is an operator's.
func (s *story) operator(app string) bool {
	if s.operators[app] != nil {
		return true
	}
	return slices.ContainsFunc(s.procs[app], func(p *history.Process) bool { return p.Role == "operator" })
}
