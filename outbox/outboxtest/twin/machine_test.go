package twin_test

import (
	"context"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"pgregory.net/rapid"

	"github.com/outboxctl/outboxctl/outbox"
	"github.com/outboxctl/outboxctl/outbox/outboxtest/twin"
)

// machine does each thing twice: to PostgreSQL, and to its twin.
type machine struct {
	db     *pgxpool.Pool
	store  *outbox.Store
	twin   *twin.Table
	now    time.Time // by the database's clock, after the last action
	queues []*queue
	hand   []held // claims that nobody has settled, lost ones among them
	known  map[int64]bool
	keys   byte // given
}

// queue is one in both worlds.
type queue struct {
	*outbox.Queue
	rules twin.Queue
}

// held is a claim and whose it is.
type held struct {
	outbox.Event
	queue *queue
}

// The destinations: crm keeps an order and buries its dead, mail holds an order, staging is shadowed.
var (
	destinations = []string{"", "crm", "mail", "staging", "graveyard"}

	routes = outbox.Routes{
		{EventTypes: []string{"order.*"}, To: []string{"crm"}},
		{EventTypes: []string{"order.paid", "email.*"}, To: []string{"mail"}},
		{EventTypes: []string{"email.*"}, TenantIDs: []string{"acme"}, To: []string{"staging"}, Shadow: true},
	}
)

const lease = 30 * time.Second

func isOrdered(destination string) bool { return destination == "crm" || destination == "mail" }

// resetSQL empties the tables, and says which destinations keep an order, as their dispatchers do.
const resetSQL = `
truncate outbox, outbox_attempts, outbox_rollup, outbox_audit, outbox_archive, outbox_operations, outbox_destinations, outbox_tenant_pauses, outbox_late
 restart identity;
insert into outbox_destinations (destination, ordering) values ('crm', 'aggregate'), ('mail', 'aggregate');`

func newMachine(t *rapid.T, db *pgxpool.Pool) *machine {
	m := &machine{db: db, store: outbox.NewStore(db, "public"), twin: twin.New(), known: map[int64]bool{}}
	if _, err := db.Exec(context.Background(), resetSQL, pgx.QueryExecModeSimpleProtocol); err != nil {
		t.Fatal(err)
	}
	m.open()
	m.now = m.clock(t)
	return m
}

// open makes the queues anew, as workers do that start.
func (m *machine) open() {
	m.queues = nil
	for _, name := range destinations {
		rules := twin.Queue{Destination: name, Ordered: isOrdered(name), Hold: name == "mail", Lease: lease}
		o := outbox.QueueOptions{Destination: name, Worker: "w", Lease: lease, MaxAttempts: 3, PollInterval: time.Hour}
		if rules.Ordered {
			o.Ordering = outbox.OrderingAggregate
		}
		if rules.Hold {
			o.OnDead = outbox.OnDeadHold
		}
		if name == "crm" {
			o.DeadLetter, rules.DeadLetter = "graveyard", "graveyard"
		}
		m.queues = append(m.queues, &queue{m.store.Queue(o), rules})
	}
}

func (m *machine) clock(t *rapid.T) (now time.Time) {
	if err := m.db.QueryRow(context.Background(), `select clock_timestamp()`).Scan(&now); err != nil {
		t.Fatal(err)
	}
	return now.UTC()
}

func (m *machine) key() uuid.UUID {
	m.keys++
	return uuid.UUID{15: m.keys}
}

// Append writes events as producers do; some have a key that is there.
func (m *machine) Append(t *rapid.T) {
	var events []outbox.Event
	for range rapid.IntRange(1, 3).Draw(t, "events") {
		ev := outbox.Event{
			TenantID:      rapid.SampledFrom([]string{"", "", "", "acme", "globex"}).Draw(t, "tenant"),
			AggregateType: "order", AggregateID: rapid.SampledFrom([]string{"1", "1", "1", "2"}).Draw(t, "aggregate"),
			Type:        rapid.SampledFrom([]string{"order.paid", "order.sent", "email.sent", "other"}).Draw(t, "type"),
			Destination: rapid.SampledFrom([]string{"", "", "crm", "mail", "graveyard"}).Draw(t, "destination"),
			Key:         m.key(), Payload: []byte(`{"n": 1}`),
		}
		if n := len(m.twin.Rows); n > 0 && rapid.IntRange(0, 9).Draw(t, "again") == 0 {
			ev.Key = m.twin.Rows[rapid.IntRange(0, n-1).Draw(t, "of")].Key
		}
		if rapid.IntRange(0, 4).Draw(t, "later") == 0 {
			ev.AvailableAt = m.now.Add(time.Minute)
		}
		events = append(events, ev)
	}
	err := pgx.BeginFunc(context.Background(), m.db, func(tx pgx.Tx) error { return outbox.Append(context.Background(), tx, events...) })
	if err != nil {
		t.Fatalf("Append() = %v", err)
	}
	m.twin.Append(m.now, events...)
}

// Insert writes an event without looking for its key, as a plain INSERT does.
func (m *machine) Insert(t *rapid.T) {
	r := m.row(t)
	c := twin.Row{
		TenantID: r.TenantID, AggregateType: r.AggregateType, AggregateID: r.AggregateID, EventType: r.EventType, SchemaVersion: 1,
		Key: r.Key, Destination: rapid.SampledFrom(destinations).Draw(t, "destination"), Payload: `{"n": 2}`,
	}
	_, err := m.db.Exec(context.Background(), `
insert into outbox (tenant_id, aggregate_type, aggregate_id, event_type, idempotency_key, destination, payload)
values ($1, $2, $3, $4, $5::text::uuid, $6, $7::text::jsonb)
    on conflict do nothing`, c.TenantID, c.AggregateType, c.AggregateID, c.EventType, c.Key.String(), c.Destination, c.Payload)
	if err != nil {
		t.Fatal(err)
	}
	m.twin.Insert(m.now, c)
}

// row is any, if there is one.
func (m *machine) row(t *rapid.T) *twin.Row {
	if len(m.twin.Rows) == 0 {
		t.Skip("there is no row")
	}
	return m.twin.Rows[rapid.IntRange(0, len(m.twin.Rows)-1).Draw(t, "row")]
}

// queue is that of some row.
func (m *machine) queue(t *rapid.T) *queue {
	return m.queues[slices.Index(destinations, m.row(t).Destination)]
}

// Work settles some claims, and claims in the same exchange.
func (m *machine) Work(t *rapid.T) {
	q := m.queue(t)
	want := m.want(t)
	var outs []outbox.Outcome
	var left []held
	for _, h := range m.hand {
		if h.queue.rules.Destination != q.rules.Destination || rapid.Bool().Draw(t, "keep") {
			left = append(left, h)
			continue
		}
		outs = append(outs, m.outcome(t, h))
	}
	m.hand = left
	lost := map[int64]int{}
	slices.SortStableFunc(outs, func(a, b outbox.Outcome) int { return int(a.ID - b.ID) })
	for _, out := range outs {
		if !m.twin.Settle(q.rules, out, m.now) {
			lost[out.ID]++
		}
	}
	done := m.exchange(t, q, outs, want)
	for _, out := range done.Lost {
		lost[out.ID]--
	}
	for id, n := range lost {
		if n != 0 {
			t.Fatalf("of event %d %d outcomes are lost that are not, or the other way round", id, n)
		}
	}
}

func (m *machine) want(t *rapid.T) outbox.Want {
	want := outbox.Want{N: rapid.IntRange(0, 6).Draw(t, "n"), Run: rapid.IntRange(1, 3).Draw(t, "run"), Fresh: rapid.Bool().Draw(t, "fresh")}
	if rapid.IntRange(0, 3).Draw(t, "limits") == 0 {
		want.Rooms = &outbox.Rooms{Each: rapid.IntRange(1, 2).Draw(t, "each"), Of: map[string]int{"acme": rapid.IntRange(0, 2).Draw(t, "acme")}}
	}
	if rapid.IntRange(0, 3).Draw(t, "share") == 0 {
		want.Share = &outbox.Share{Retries: rapid.IntRange(0, 2).Draw(t, "retries"), Alone: rapid.IntRange(0, 3).Draw(t, "alone")}
	}
	return want
}

func (m *machine) outcome(t *rapid.T, h held) outbox.Outcome {
	out := outbox.Outcome{ID: h.ID, Lease: h.Lease, Latency: 3 * time.Millisecond}
	switch rapid.IntRange(0, 6).Draw(t, "outcome") {
	case 0:
		out.Status, out.Receipt, out.ErrorCode = outbox.Delivered, "200 yes", 200
	case 1:
		out.Status, out.Delay = outbox.Pending, rapid.SampledFrom([]time.Duration{0, 10 * time.Second}).Draw(t, "delay")
		out.Error, out.ErrorKind, out.ErrorCode = "answered 503", "http", 503
	case 2:
		out.Status, out.Refund = outbox.Pending, true
	case 3:
		out.Status, out.Error, out.ErrorKind, out.ErrorCode = outbox.Failed, "answered 500", "http", 500
	case 4:
		out.Status, out.Error, out.ErrorKind = outbox.DeadLetter, "connection refused", "network"
	case 5:
		out.Status, out.Refund, out.Error, out.ErrorKind = outbox.DeadLetter, true, "claimed too often", outbox.KindCrashed
	case 6:
		out.Status, out.Error, out.ErrorKind = outbox.Pending, "cut off", outbox.KindShutdown
	}
	return out
}

// exchange takes what PostgreSQL has claimed for the twin, too, if that may be claimed.
func (m *machine) exchange(t *rapid.T, q *queue, outs []outbox.Outcome, want outbox.Want) outbox.Exchanged {
	done, err := q.Exchange(context.Background(), outs, want)
	if err != nil || len(done.Held) > 0 {
		t.Fatalf("Exchange() = %+v, %v", done, err)
	}
	if err := m.twin.Objection(q.rules, want, done.Events, m.clock(t)); err != nil {
		t.Fatal(err)
	}
	for _, ev := range done.Events {
		r := m.twin.Row(ev.ID)
		m.twin.Take(r, q.rules, ev.Lease, m.now)
		m.hand = append(m.hand, held{ev, q})
	}
	return done
}

// Drain claims until there is nothing more: then there must be nothing.
func (m *machine) Drain(t *rapid.T) {
	q := m.queue(t)
	want := outbox.Want{N: rapid.IntRange(1, 5).Draw(t, "n"), Run: rapid.IntRange(1, 3).Draw(t, "run"), Fresh: true}
	for empty, claims := 0, 0; empty < 2; claims++ {
		if claims > 200 {
			t.Fatal("the claims do not end")
		}
		if done := m.exchange(t, q, nil, want); done.CameRound && len(done.Events) == 0 {
			empty++
		}
	}
	for _, run := range m.twin.Runs(q.rules, want.Run, m.now, nil) {
		t.Fatalf("event %d is due and was not found", run[0].ID)
	}
}

// Pass lets time go by, long enough for retries and leases or not. Workers start anew: rows that grow old are
// not what a mark on the time allows for.
func (m *machine) Pass(t *rapid.T) {
	d := rapid.SampledFrom([]time.Duration{11 * time.Second, 31 * time.Second, 61 * time.Second, 24 * time.Hour}).Draw(t, "time")
	m.exec(t, `
update outbox
   set available_at = available_at - $1::interval, next_attempt_at = next_attempt_at - $1::interval, lease_until = lease_until - $1::interval,
       last_attempt_at = last_attempt_at - $1::interval, finished_at = finished_at - $1::interval, created_at = created_at - $1::interval,
       updated_at = updated_at - $1::interval`, d)
	m.exec(t, `update outbox_destinations set paused_until = paused_until - $1::interval`, d)
	m.exec(t, `update outbox_tenant_pauses set paused_until = paused_until - $1::interval`, d)
	m.twin.Pass(d)
	m.open()
}

func (m *machine) exec(t *rapid.T, sql string, args ...any) {
	if _, err := m.db.Exec(context.Background(), sql, args...); err != nil {
		t.Fatal(err)
	}
}
