package simulation_test

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/outboxctl/outboxctl/outbox"
	"github.com/outboxctl/outboxctl/outbox/outboxtest/twin"
)

// world is everything outside of the dispatchers: the table, the receiver, the board with the pauses; and
// what is known of what has happened. The dispatchers' own word counts for nothing.
type world struct {
	plan  *plan
	began time.Time

	mu     sync.Mutex
	table  *twin.Table
	fate   map[int64]fate
	calls  map[int64][]*call // of each event
	claims map[key]*claim
	closed map[int64]time.Time  // when an event ended
	paused map[string]time.Time // until when, by tenant; "" is everything
	shut   time.Time            // until then some breaker is open
	lives  []*process           // all there ever were
	locks  map[int64]window     // of rows, by others
	trace  []entry
	wrong  string // what was found first
}

// fate is what is special about an event.
type fate int

const (
	ordinary fate = iota
	alwaysRefused
	alwaysFailing
	oversize
	invalid
	deferred   // its payload is read before it is sent
	unreadable // and that never works
)

// key names a claim of an event.
type key struct {
	id    int64
	lease string
}

// claim is one event once in a dispatcher's hands.
type claim struct {
	key
	by      *process
	ev      outbox.Event
	due     time.Time
	known   bool      // the dispatcher has heard of it
	call    *call     // nil = it was not sent
	back    bool      // the call has returned to the dispatcher
	unread  bool      // its payload was not to be had
	handed  time.Time // when its payload was asked for
	offered bool      // the dispatcher has said what became of it
	waits   bool      // for others who have locked its row
	sure    bool      // and has heard that this is settled or lost
	settled bool
	lost    bool
	out     outbox.Outcome
}

// entry is a line of the trace.
type entry struct {
	at   time.Duration
	id   int64 // the event that it is about; 0 = it concerns all
	text string
}

func newWorld(p *plan) *world {
	w := &world{
		plan: p, began: time.Now(), table: twin.New(), fate: map[int64]fate{}, calls: map[int64][]*call{}, claims: map[key]*claim{},
		closed: map[int64]time.Time{}, paused: map[string]time.Time{}, locks: map[int64]window{},
	}
	return w
}

// at is the time since the start.
func (w *world) at() time.Duration { return time.Since(w.began) }

// faulty reports whether faults may still begin.
func (w *world) faulty() bool { return w.at() < w.plan.heal }

// within is d, or less where faults end before.
func (w *world) within(d time.Duration) time.Duration { return max(min(d, w.plan.heal-w.at()), 0) }

func (w *world) note(id int64, format string, args ...any) {
	w.trace = append(w.trace, entry{w.at(), id, fmt.Sprintf(format, args...)})
}

// fail notes a broken promise; the first one counts.
func (w *world) fail(id int64, format string, args ...any) {
	if w.wrong != "" {
		return
	}
	w.note(id, "WRONG: "+format, args...)
	w.wrong = fmt.Sprintf("after %s: ", w.at()) + fmt.Sprintf(format, args...)
	if id == 0 {
		w.wrong += "\n" + w.story(func(e entry) bool { return e.id == 0 }, 60)
		return
	}
	w.wrong += fmt.Sprintf("\nevent %d and what concerned all:\n", id) + w.story(func(e entry) bool { return e.id == 0 || e.id == id }, 80)
}

// story is the end of the trace, as far as it is of interest.
func (w *world) story(of func(entry) bool, lines int) string {
	var b strings.Builder
	entries := slices.DeleteFunc(slices.Clone(w.trace), func(e entry) bool { return !of(e) })
	for _, e := range entries[max(0, len(entries)-lines):] {
		fmt.Fprintf(&b, "%12.6fs  %s\n", e.at.Seconds(), e.text)
	}
	return b.String()
}

// produce commits the events, each in its time.
func (w *world) produce(news func()) {
	order := make([]int, w.plan.events)
	when := make([]time.Duration, w.plan.events)
	for i := range order {
		order[i] = i
		switch r := w.plan.dice(ofEvent, uint64(i), 1); r.IntN(15) {
		case 0: // when the dispatchers have had nothing to do for long
			when[i] = w.plan.heal + 40*time.Second + between(r, 0, time.Minute)
		case 1, 2, 3, 4:
		default:
			when[i] = between(r, 0, w.plan.heal)
		}
	}
	slices.SortStableFunc(order, func(a, b int) int { return int(when[a] - when[b]) })
	for _, i := range order {
		time.Sleep(when[i] - w.at())
		w.mu.Lock()
		w.commit(i)
		w.mu.Unlock()
		news()
	}
}

func (w *world) commit(i int) {
	p := w.plan
	r := p.dice(ofEvent, uint64(i))
	ev := outbox.Event{
		TenantID: tenantOf(r.IntN(p.tenants)), AggregateType: "order", AggregateID: fmt.Sprint(r.IntN(p.aggregates)),
		Type: "order.paid", Key: uuid.UUID{byte(i), byte(i >> 8), 1}, Payload: []byte("{}"),
	}
	if r.IntN(8) == 0 {
		ev.AvailableAt = time.Now().Add(between(r, 0, 15*time.Second))
	}
	w.table.Append(time.Now(), ev)
	row := w.table.Rows[len(w.table.Rows)-1]
	switch roll := r.IntN(100); {
	case roll < 3 && p.poison:
		w.fate[row.ID] = alwaysRefused
	case roll < 6 && p.poison && !p.breaks():
		w.fate[row.ID] = alwaysFailing
	case roll < 8:
		w.fate[row.ID] = oversize
	case roll < 10:
		w.fate[row.ID] = invalid
	case roll < 20:
		w.fate[row.ID] = deferred
	case roll < 21:
		w.fate[row.ID] = unreadable
	}
	if lock := p.dice(ofLock, uint64(row.ID)); !p.calm && lock.IntN(12) == 0 {
		from := between(lock, 0, p.heal)
		w.locks[row.ID] = window{from, min(from+between(lock, 0, 12*time.Second), p.heal)}
	}
	w.note(row.ID, "event %d committed: aggregate %q of tenant %q, due in %s", row.ID, row.AggregateID, row.TenantID, time.Until(row.AvailableAt))
}

// event is the row as a claim hands it out.
func (w *world) event(r *twin.Row) outbox.Event {
	ev := outbox.Event{
		ID: r.ID, TenantID: r.TenantID, AggregateType: r.AggregateType, AggregateID: r.AggregateID, Type: r.EventType,
		Key: r.Key, Payload: []byte(r.Payload), Size: len(r.Payload), Attempts: r.Attempts, Lease: r.Lease, CreatedAt: r.CreatedAt, Due: r.Due(),
	}
	switch w.fate[r.ID] {
	case oversize:
		ev.Size = 101
	case invalid:
		ev.Invalid = "headers is not an object"
	case deferred, unreadable:
		ev.Payload, ev.Size, ev.Deferred = nil, 0, true
	}
	if ev.Attempts > w.plan.policy.MaxAttempts {
		ev.Shutdowns = w.shutdowns(r.ID)
	}
	return ev
}

// shutdowns counts the attempts that a stop cut off.
func (w *world) shutdowns(id int64) (n int) {
	for _, a := range w.table.Attempts {
		if a.EventID == id && a.ErrorKind == outbox.KindShutdown {
			n++
		}
	}
	return n
}

func (w *world) locked(id int64) bool {
	lock, ok := w.locks[id]
	return ok && lock.holds(w.at())
}

var errAway = errors.New("the table is away")

// exchange settles and claims, as the queue does over the table.
func (w *world) exchange(p *process, t trouble, outs []outbox.Outcome, want outbox.Want) (done outbox.Exchanged, mine []*claim, err error) {
	if p.dead || t.kind == away || w.isAway() {
		return outbox.Exchanged{Held: outs}, nil, errAway
	}
	slices.SortFunc(outs, func(a, b outbox.Outcome) int { return int(a.ID - b.ID) })
	for _, out := range outs {
		c := w.claims[key{out.ID, out.Lease}]
		switch {
		case w.locked(out.ID) && c.holds(w):
			done.Held = append(done.Held, out)
		case c.settled: // by an exchange whose reply was lost
		case !w.table.Settle(w.plan.queue, out, time.Now()):
			c.lost = true
			done.Lost = append(done.Lost, out)
			w.note(out.ID, "%s: settled as %s in vain: the lease of event %d is lost", p, out.Status, out.ID)
		default:
			w.settled(c, out)
		}
	}
	switch {
	case len(done.Held) > 0:
		return done, nil, nil
	case t.kind == claimFails:
		return done, nil, errAway
	case want.N > 0:
		mine, done.CameRound = w.claim(p, want)
	}
	for _, c := range mine {
		done.Events = append(done.Events, c.ev)
	}
	if t.kind == lostReply {
		return outbox.Exchanged{Held: outs}, nil, errAway
	}
	return done, mine, nil
}

// holds reports whether the claim's lease is still the row's.
func (c *claim) holds(w *world) bool {
	r := w.table.Row(c.id)
	return r.Lease == c.lease
}

func (w *world) isAway() bool {
	return slices.ContainsFunc(w.plan.away, func(o window) bool { return o.holds(w.at()) })
}

func (w *world) claim(p *process, want outbox.Want) (mine []*claim, all bool) {
	now := time.Now()
	lease := fmt.Sprintf("%s/%d", p, p.exchanges)
	rows, all := w.table.Pick(w.plan.queue, want, now, p.exchanges, func(r *twin.Row) bool { return w.locked(r.ID) })
	events := make([]outbox.Event, len(rows))
	for i, r := range rows {
		events[i] = outbox.Event{ID: r.ID, Attempts: r.Attempts + 1}
	}
	if err := w.table.Objection(w.plan.queue, want, events, now); err != nil {
		w.fail(0, "the model's own claim: %v", err)
	}
	for _, r := range rows {
		c := &claim{key: key{r.ID, lease}, by: p, due: r.Due()}
		w.table.Take(r, w.plan.queue, lease, now)
		c.ev = w.event(r)
		w.claims[c.key] = c
		mine = append(mine, c)
		w.note(r.ID, "%s: event %d claimed, attempt %d", p, r.ID, r.Attempts)
	}
	if w.plan.queue.Ordered {
		slices.SortFunc(mine, inOrder)
	}
	return mine, all
}

// inOrder keeps the events of an aggregate together, in order.
func inOrder(a, b *claim) int {
	return cmp.Or(cmp.Compare(a.ev.TenantID, b.ev.TenantID), cmp.Compare(a.ev.AggregateID, b.ev.AggregateID), cmp.Compare(a.id, b.id))
}

// trouble is what goes wrong with an exchange.
type trouble struct {
	kind          int
	before, after time.Duration // its work
}

const (
	none       = iota
	away       // it never arrives
	lostReply  // it is done, and nobody hears of it
	claimFails // when its settle is done
)

func (w *world) troubleOf(p *process) (t trouble) {
	r := w.plan.dice(ofExchange, uint64(p.number), uint64(p.life), uint64(p.exchanges))
	t.before, t.after = between(r, 1, w.plan.roundTrip), between(r, 1, w.plan.roundTrip)
	if !w.faulty() || r.IntN(100) >= w.plan.trouble {
		return t
	}
	switch r.IntN(6) {
	case 0:
		t.kind = away
	case 1, 2:
		t.kind = lostReply
	case 3:
		t.kind = claimFails
	case 4:
		t.before = w.within(between(r, 0, 14*time.Second))
	case 5:
		t.after = w.within(between(r, 0, 14*time.Second))
	}
	return t
}
