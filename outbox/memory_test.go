package outbox_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/outboxctl/outboxctl/outbox"
)

// table is a Source in memory: a small model of the table and of its leases, for tests of the loop
// alone under a clock of their own. Its faults are set by the test.
type table struct {
	mu        sync.Mutex
	rows      []*row
	leases    int
	lease     time.Duration
	roundTrip time.Duration       // of an exchange; its work is done half-way
	fault     func(n int) fault   // of the n-th exchange, from 1; nil = none
	locked    func(id int64) bool // by somebody else; nil = none
	ordered   bool                // by aggregate
	turns     []turn              // every exchange
	unsettled int                 // claimed and unsettled, the most there ever were
}

// fault is what goes wrong with an exchange.
type fault int

const (
	none      fault = iota
	away            // it never arrives
	lostReply       // it is done, and its reply lost
)

var errAway = errors.New("the source is away")

// row is an event with its state.
type row struct {
	outbox.Event
	status  outbox.Status
	due     time.Time
	until   time.Time // the end of its lease
	kind    string
	orphan  bool            // claimed, and the reply lost
	settled map[string]bool // by lease
}

// turn is one exchange as the table saw it.
type turn struct {
	at      time.Time // when its work was done
	offered int
	want    outbox.Want
	events  int
	fault   fault
}

// newTable has n events that are due.
func newTable(n int) *table {
	t := &table{lease: 30 * time.Second, roundTrip: 2 * time.Millisecond}
	for range n {
		t.insert(0)
	}
	return t
}

// insert adds an event that is due after a while.
func (t *table) insert(after time.Duration) { t.insertOf("1", after) }

// insertOf inserts an event of that order and returns its id.
func (t *table) insertOf(order string, after time.Duration) int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	id := int64(len(t.rows) + 1)
	t.rows = append(t.rows, &row{
		Event:   outbox.Event{ID: id, AggregateType: "order", AggregateID: order, Type: "order.created"},
		status:  outbox.Pending,
		due:     time.Now().Add(after),
		settled: map[string]bool{},
	})
	return id
}

// Exchange implements [outbox.Source].
func (t *table) Exchange(_ context.Context, outs []outbox.Outcome, want outbox.Want) (outbox.Exchanged, error) {
	time.Sleep(t.roundTrip / 2)
	defer time.Sleep(t.roundTrip / 2)
	t.mu.Lock()
	defer t.mu.Unlock()
	tn := turn{at: time.Now(), offered: len(outs), want: want}
	if t.fault != nil {
		tn.fault = t.fault(len(t.turns) + 1)
	}
	var done outbox.Exchanged
	if tn.fault != away {
		done = t.work(outs, want)
		tn.events = len(done.Events)
	}
	t.turns = append(t.turns, tn)
	if tn.fault != none {
		for _, ev := range done.Events { // nobody knows of them until their leases lapse
			t.rows[ev.ID-1].orphan = true
		}
		return outbox.Exchanged{Held: outs}, errAway
	}
	return done, nil
}

// Payload implements [outbox.Source].
func (t *table) Payload(context.Context, *outbox.Event) ([]byte, error) {
	return nil, errors.New("the table defers no payloads")
}

func (t *table) work(outs []outbox.Outcome, want outbox.Want) (done outbox.Exchanged) {
	for _, out := range outs {
		switch r := t.rows[out.ID-1]; {
		case t.locked != nil && t.locked(out.ID):
			done.Held = append(done.Held, out)
		case r.settled[out.Lease]: // by an exchange whose reply was lost
		case r.Lease != out.Lease:
			done.Lost = append(done.Lost, out)
		default:
			r.settle(out)
		}
	}
	if len(done.Held) > 0 { // as the queue does: then it settles alone
		return done
	}
	if t.ordered {
		done.Events = t.claimRuns(want)
	} else {
		done.Events = t.claim(want)
	}
	done.CameRound = len(done.Events) < want.N
	t.unsettled = max(t.unsettled, t.leased())
	return done
}

func (r *row) settle(out outbox.Outcome) {
	r.settled[out.Lease] = true
	r.status, r.Lease, r.kind = out.Status, "", out.ErrorKind
	if out.Refund {
		r.Attempts--
	}
	if out.Status == outbox.Pending {
		r.due = time.Now().Add(out.Delay + time.Microsecond) // later than the now() of the claim beside it
	}
}

func (t *table) claim(want outbox.Want) (events []outbox.Event) {
	t.leases++
	now := time.Now()
	due := slices.DeleteFunc(slices.Clone(t.rows), func(r *row) bool {
		return r.status.Final() || r.due.After(now) || r.Lease != "" && !r.until.Before(now) ||
			t.locked != nil && t.locked(r.ID)
	})
	slices.SortStableFunc(due, func(a, b *row) int { return cmp.Or(a.due.Compare(b.due), cmp.Compare(a.ID, b.ID)) })
	taken := map[string]int{}
	due = slices.DeleteFunc(due, func(r *row) bool {
		room := outbox.NoLimit
		if want.Rooms != nil {
			room = want.Rooms.Each
			if own, ok := want.Rooms.Of[r.TenantID]; ok {
				room = own
			}
		}
		taken[r.TenantID]++
		return taken[r.TenantID] > room
	})
	return t.hand(due[:min(want.N, len(due))])
}

// claimRuns takes the due events at the head of each aggregate of which none is being sent.
func (t *table) claimRuns(want outbox.Want) (events []outbox.Event) {
	t.leases++
	now := time.Now()
	of := map[string][]*row{}
	for _, r := range t.rows {
		if !r.status.Final() {
			of[r.AggregateID] = append(of[r.AggregateID], r)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(of)) {
		if slices.ContainsFunc(of[id], func(r *row) bool { return r.Lease != "" && !r.until.Before(now) }) {
			continue
		}
		var run []*row
		for _, r := range of[id] {
			if r.due.After(now) || len(run) == want.Run || len(events)+len(run) == want.N || t.locked != nil && t.locked(r.ID) {
				break
			}
			run = append(run, r)
		}
		events = append(events, t.hand(run)...)
	}
	return events
}

// hand leases rows to who claims them.
func (t *table) hand(rows []*row) (events []outbox.Event) {
	for _, r := range rows {
		r.status, r.Lease, r.until = outbox.InProgress, fmt.Sprint("claim ", t.leases), time.Now().Add(t.lease)
		r.Attempts++
		r.orphan = false
		events = append(events, r.Event)
	}
	return events
}

// inProgress counts the events that are leased now.
func (t *table) inProgress() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.leased()
}

func (t *table) leased() (n int) {
	for _, r := range t.rows {
		if r.status == outbox.InProgress && !r.orphan && !r.until.Before(time.Now()) {
			n++
		}
	}
	return n
}

// leaseOf is when the present lease of an event ends.
func (t *table) leaseOf(id int64) time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.rows[id-1].until
}

// count counts the rows of a status.
func (t *table) count(status outbox.Status) (n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, r := range t.rows {
		if r.status == status {
			n++
		}
	}
	return n
}

// claims are the exchanges that asked for events.
func (t *table) claims() (turns []turn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, tn := range t.turns {
		if tn.want.N > 0 {
			turns = append(turns, tn)
		}
	}
	return turns
}

// gaps are the times between turns.
func gaps(turns []turn) (between []time.Duration) {
	for i := 1; i < len(turns); i++ {
		between = append(between, turns[i].at.Sub(turns[i-1].at))
	}
	return between
}

// gauge is a sink that counts: its calls, and how many are under way at once.
type gauge struct {
	mu     sync.Mutex
	calls  map[int64]int
	total  int
	now    int
	most   int
	answer func(ctx context.Context, ev outbox.Event) error // nil = at once and well
}

func newGauge(answer func(ctx context.Context, ev outbox.Event) error) *gauge {
	return &gauge{calls: map[int64]int{}, answer: answer}
}

// Deliver implements [outbox.Sink].
func (g *gauge) Deliver(ctx context.Context, ev outbox.Event) (outbox.Receipt, error) {
	g.enter(ev.ID)
	defer g.leave()
	if g.answer == nil {
		return outbox.Receipt{}, nil
	}
	return outbox.Receipt{}, g.answer(ctx, ev)
}

func (g *gauge) enter(id int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.calls[id]++
	g.total++
	g.now++
	g.most = max(g.most, g.now)
}

func (g *gauge) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.now--
}

// took waits for d, or for the end of ctx.
func took(d time.Duration) func(context.Context, outbox.Event) error {
	return func(ctx context.Context, _ outbox.Event) error {
		select {
		case <-time.After(d):
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// hang waits for the end of ctx.
func hang(ctx context.Context, _ outbox.Event) error {
	<-ctx.Done()
	return ctx.Err()
}

// newLoop is a dispatcher over a table in memory: the defaults, without jitter.
func newLoop(t *table, sink outbox.Sink) *outbox.Dispatcher {
	policy := outbox.DefaultPolicy()
	policy.Jitter = 0
	return &outbox.Dispatcher{
		Source: t, Sink: sink, Policy: policy,
		BatchSize: 100, Parallel: 10, Lease: t.lease, RequestTimeout: 5 * time.Second,
		PollInterval: 2 * time.Second, Grace: 20 * time.Second, Wait: 10 * time.Second,
	}
}

// ended is how a run ended.
type ended struct {
	summary outbox.Summary
	err     error
	after   time.Duration
}

// runFor runs d and stops it after a while.
func runFor(t *testing.T, d *outbox.Dispatcher, while time.Duration) ended {
	t.Helper()
	stop, cancel := context.WithTimeout(t.Context(), while)
	defer cancel()
	began := time.Now()
	summary, err := d.Run(stop, context.Background())
	return ended{summary, err, time.Since(began)}
}
