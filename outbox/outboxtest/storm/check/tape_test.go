package check_test

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/outboxctl/outboxctl/outbox/outboxtest/storm/history"
)

// began is when every history made by hand begins. Times in them are milliseconds from there.
var began = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func at(ms int) time.Time { return began.Add(time.Duration(ms) * time.Millisecond) }

// The destinations of a tape: one of each sort.
const (
	plain  = "plain"
	orders = "orders" // ordered
	strict = "strict" // ordered, on_dead hold
	slow   = "slow"   // a rate of 10/s, two of a tenant at once
)

// tape is a history being made. Its dispatchers are d1 and d2, its operators begin with op.
type tape struct {
	h      history.History
	xid    uint64
	leases int
	ids    int64
	events []*event
}

func newTape() *tape {
	usual := history.Destination{
		RequestTimeout: time.Second, Parallel: 3, BatchSize: 6, MaxAttempts: 4, Base: time.Second, Cap: 8 * time.Second, Jitter: 0.2,
	}
	a, b, c, d := usual, usual, usual, usual
	a.Name, b.Name, c.Name, d.Name = plain, orders, strict, slow
	b.Ordered, c.Ordered, c.Hold = true, true, true
	d.Rate, d.TenantParallel, d.BatchSize, d.Parallel = 10, 2, 100, 100
	return &tape{h: history.History{
		Setup: history.Setup{
			Seed: 1, Lease: 5 * time.Second, PollInterval: time.Second, Grace: time.Second, Dispatchers: 2,
			Destinations: []history.Destination{a, b, c, d},
		},
		Processes: []history.Process{
			{Name: "d1", Role: "dispatcher", Pid: 1, Began: began, End: at(200_000), How: "exit 0"},
			{Name: "d2", Role: "dispatcher", Pid: 2, Began: began, End: at(200_000), How: "exit 0"},
		},
		Looks:    100,
		Secrets:  []history.Secret{{Name: "first", Began: began}},
		Searches: []history.Search{{Place: "log d1", Bytes: 1000}},
		Began:    began, Healed: at(50_000), Ended: at(200_000),
	}}
}

// fault adds one, with its proof.
func (t *tape) fault(kind, target string, from, to int) {
	t.h.Faults = append(t.h.Faults, history.Fault{N: len(t.h.Faults) + 1, Kind: kind, Target: target, Began: at(from), End: at(to), Proof: "seen"})
}

// kill ends the life of a dispatcher, and begins its next one a second later.
func (t *tape) kill(app string, ms int) {
	t.fault("kill", app, ms, ms)
	t.end(app, ms, "signal killed")
}

func (t *tape) end(app string, ms int, how string) {
	for i := range t.h.Processes {
		if p := &t.h.Processes[i]; p.Name == app && p.End.After(at(ms)) {
			p.End, p.How = at(ms), how
		}
	}
	t.h.Processes = append(t.h.Processes, history.Process{Name: app, Role: "dispatcher", Pid: 100 + ms, Began: at(ms + 1000), End: at(200_000), How: "exit 0"})
}

// command adds an operator's.
func (t *tape) command(name string, ms int, document string, args ...string) {
	t.h.Commands = append(t.h.Commands, history.Command{Name: name, Args: args, Began: at(ms), End: at(ms + 1000), Document: []byte(document)})
}

// operation adds one to the record, which has come to its end.
func (t *tape) operation(id int64, app, command string, done int64) {
	t.h.Operations = append(t.h.Operations, history.Operation{ID: id, App: app, Command: command, Who: "ops", Done: done, Ended: true})
}

// pause has an operator pause plain, which is done within a second.
func (t *tape) pause(name string, ms, until int) {
	t.command(name, ms, fmt.Sprintf(`{"paused": true, "destination": "plain", "until": %q}`, at(until).Format(time.RFC3339Nano)), "dispatch", "pause", plain)
}

// audit adds a row to the record.
func (t *tape) audit(app string, operation int64, action string, ms int, e *event) {
	t.h.Audits = append(t.h.Audits, history.Audit{Operation: operation, Who: "ops", App: app, Event: e.id, At: at(ms), Action: action})
}

// event is a row being lived.
type event struct {
	t       *tape
	id      int64
	key     string
	st      *history.State
	app     string // of the lease
	write   *history.Write
	source  int64
	tenant  string
	agg     string
	payload string
	gone    bool
	archive bool
	names   string // the request of the last attempt
}

// insert writes an event of an aggregate: it is committed 10 ms later.
func (t *tape) insert(dest, agg string, ms int) *event {
	return t.insertDue(dest, agg, ms, ms)
}

func (t *tape) insertDue(dest, agg string, ms, due int) *event {
	t.ids++
	e := &event{t: t, id: t.ids, key: fmt.Sprintf("key-%d", t.ids), tenant: "acme", agg: agg, payload: fmt.Sprintf("payload-%d", t.ids)}
	e.write = &history.Write{
		Key: e.key, ID: e.id, Tx: e.id, Tenant: e.tenant, Type: "order", Agg: agg, Event: "order.paid", Dest: dest, Payload: e.payload,
		Due: at(due), Written: at(ms + 2), Asked: at(ms + 5), Known: at(ms + 10), Fate: history.Committed,
	}
	t.events = append(t.events, e)
	return e.to("producer", ms, history.State{Dest: dest, Status: "pending", Available: at(due)})
}

// copyOf adds a router's copy.
func (t *tape) copyOf(o *event, dest string, ms int) *event {
	t.ids++
	e := &event{t: t, id: t.ids, key: o.key, tenant: o.tenant, agg: o.agg, payload: o.payload, source: o.id}
	t.events = append(t.events, e)
	return e.to("d1", ms, history.State{Dest: dest, Status: "pending", Available: o.st.Available})
}

// to writes a transition.
func (e *event) to(app string, ms int, st history.State) *event {
	e.t.xid++
	tr := history.Transition{At: at(ms), Xid: e.t.xid, App: app, Pid: len(app) + int(app[len(app)-1]), ID: e.id, Old: e.st, New: &st}
	e.t.h.Transitions = append(e.t.h.Transitions, tr)
	e.st = &st
	return e
}

// claimed has a dispatcher claim the event.
func (e *event) claimed(app string, ms int) *event {
	e.t.claim(app, ms, e)
	return e
}

// claim has a dispatcher claim several events at once.
func (t *tape) claim(app string, ms int, all ...*event) {
	t.leases++
	lease := fmt.Sprintf("%s/%d", app, t.leases)
	xid := t.xid + 1
	for _, e := range all {
		st := *e.st
		until := at(ms).Add(t.h.Setup.Lease)
		st.Status, st.Lease, st.LeaseUntil, st.Attempts = "in_progress", lease, &until, st.Attempts+1
		e.app = app
		e.to(app, ms, st)
		t.h.Transitions[len(t.h.Transitions)-1].Xid = xid
	}
	t.xid = xid
}

// requested has a request come in, which is answered after 20 ms.
func (e *event) requested(ms, status int) *event { return e.requestedFor(ms, 20, status) }

func (e *event) requestedFor(ms, took, status int) *event {
	seq := e.id
	if e.source != 0 {
		seq = e.source
	}
	r := history.Request{
		ID: fmt.Sprintf("r%d", len(e.t.h.Requests)+1), Dest: e.st.Dest, Began: at(ms), At: at(ms + 1), Done: at(ms + took),
		Key: e.key, WebhookID: e.key, Attempt: e.st.Attempts, Sequence: seq, Body: "body-" + e.payload, Payload: e.payload,
		Signed: []string{"first"}, Hmac: "first", Status: status, Behaviour: "ok", Accepted: status/100 == 2,
	}
	if status/100 != 2 {
		r.Behaviour = fmt.Sprint(status)
	}
	e.names = r.ID
	e.t.h.Requests = append(e.t.h.Requests, r)
	return e
}

// last is the last request.
func (t *tape) last() *history.Request { return &t.h.Requests[len(t.h.Requests)-1] }

// settled ends the claim.
func (e *event) settled(ms int, change func(*history.State)) *event {
	st := *e.st
	st.Lease, st.LeaseUntil = "", nil
	change(&st)
	if st.Status != "pending" {
		now := at(ms)
		st.Finished = &now
	}
	return e.to(e.app, ms, st)
}

func (e *event) delivered(ms int) *event {
	return e.settled(ms, func(st *history.State) {
		st.Status, st.Receipt, st.Kind, st.Code = "delivered", "200 "+e.names, "", 0
	})
}

// retried puts the next attempt off for wait milliseconds.
func (e *event) retried(ms, wait int, kind string, code int) *event {
	return e.settled(ms, func(st *history.State) {
		next := at(ms + wait)
		st.Status, st.Next, st.Kind, st.Code = "pending", &next, kind, code
	})
}

func (e *event) released(ms int) *event {
	return e.settled(ms, func(st *history.State) {
		next := at(ms)
		st.Status, st.Next, st.Attempts = "pending", &next, st.Attempts-1
	})
}

func (e *event) ended(ms int, status, kind string, code int) *event {
	return e.settled(ms, func(st *history.State) { st.Status, st.Kind, st.Code = status, kind, code })
}

// replayed puts the event back.
func (e *event) replayed(app string, ms int) *event {
	return e.to(app, ms, history.State{Dest: e.st.Dest, Status: "pending", Available: at(ms)})
}

func (e *event) discarded(app string, ms int) *event {
	now := at(ms)
	return e.to(app, ms, history.State{Dest: e.st.Dest, Status: "discarded", Attempts: e.st.Attempts, Available: e.st.Available, Finished: &now, Kind: "discarded"})
}

// purged deletes the row.
func (e *event) purged(app string, ms int) *event {
	e.t.xid++
	e.t.h.Transitions = append(e.t.h.Transitions, history.Transition{At: at(ms), Xid: e.t.xid, App: app, Pid: 7, ID: e.id, Old: e.st})
	e.gone = true
	return e
}

// sent is the usual life: claimed by d1, taken, settled.
func (e *event) sent(ms int) *event {
	return e.claimed("d1", ms).requested(ms+5, 200).delivered(ms + 40)
}

// history numbers all in the order of time, and dumps the table.
func (t *tape) history() *history.History {
	h := &t.h
	slices.SortStableFunc(h.Transitions, func(a, b history.Transition) int { return a.At.Compare(b.At) })
	for i := range h.Transitions {
		h.Transitions[i].N = int64(i + 1)
	}
	slices.SortStableFunc(h.Requests, func(a, b history.Request) int { return cmp.Compare(a.At.UnixNano(), b.At.UnixNano()) })
	for i := range h.Requests {
		h.Requests[i].N = int64(i + 1)
	}
	for _, e := range t.events {
		if e.write != nil {
			h.Writes = append(h.Writes, *e.write)
		}
		if !e.gone || e.archive {
			h.Rows = append(h.Rows, history.Row{
				State: *e.st, ID: e.id, Source: e.source, Key: e.key, Tenant: e.tenant, Type: "order", Agg: e.agg, Event: "order.paid",
				Payload: e.payload, Archived: e.archive,
			})
		}
	}
	slices.SortStableFunc(h.Processes, func(a, b history.Process) int { return a.Began.Compare(b.Began) })
	return h
}

// answersLater leaves the answer's meaning out of a history that is about something else.
func (t *tape) answersLater(e *event) {
	for i := range t.h.Transitions {
		if st := t.h.Transitions[i].New; st != nil && t.h.Transitions[i].ID == e.id && st.Kind == "http" {
			st.Kind, st.Code = "error", 0
		}
	}
	if e.st.Kind == "http" {
		e.st.Kind, e.st.Code = "error", 0
	}
}

// crashed gives an event up that was claimed too often: its attempt is given back.
func crashed(st *history.State) {
	st.Status, st.Kind, st.Code, st.Attempts = "dead_letter", "crashed", 0, st.Attempts-1
}
