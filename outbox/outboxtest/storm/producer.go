package storm

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/time/rate"

	"github.com/outboxctl/outboxctl/outbox/outboxtest/storm/history"
)

// What producers write.
const (
	producers  = 40
	aggregates = 2000
	tenants    = 20
	smallest   = 200      // bytes of a payload
	largest    = 64 << 10 // likewise
	canaryText = "CANARY-payload"
)

// producer writes transactions one after the other, as a part of an application does.
type producer struct {
	run    *run
	random *rand.Rand
	zipf   *rand.Zipf
	pace   *rate.Limiter // of all producers
	conn   *pgx.Conn     // nil = none yet, or broken
	txs    *atomic.Int64
}

// produce starts all producers. The function that it returns waits for them, after ctx has ended.
func (r *run) produce(ctx context.Context) (await func()) {
	var wg sync.WaitGroup
	var txs atomic.Int64
	pace := rate.NewLimiter(rate.Limit(r.plan.Rate), max(int(2*r.plan.Rate), 8)) // what a restart of PostgreSQL costs is made up for
	for i := range producers {
		random := rand.New(rand.NewPCG(r.plan.Seed, hash("producer")+uint64(i)))
		p := &producer{run: r, random: random, zipf: rand.NewZipf(random, 1.1, 20, aggregates-1), pace: pace, txs: &txs}
		wg.Go(func() { p.work(ctx) })
	}
	return wg.Wait
}

func hash(text string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(text))
	return h.Sum64()
}

// work writes until ctx ends. A transaction that has begun is brought to its end.
func (p *producer) work(ctx context.Context) {
	defer func() {
		if p.conn != nil {
			p.conn.Close(context.WithoutCancel(ctx))
		}
	}()
	for {
		order := p.order()
		if p.pace.WaitN(ctx, len(order.events)) != nil {
			return
		}
		own, cancel := context.WithTimeout(context.WithoutCancel(ctx), 20*time.Second)
		if err := p.place(own, order); err != nil {
			p.hangUp(own)
			pause(ctx, nil, 100*time.Millisecond)
		}
		cancel()
	}
}

// order is what one transaction is about: an aggregate, and what happens to it.
type order struct {
	aggregate int
	tenant    string
	kind      string
	events    []event
	locks     bool          // takes turns with others that write of the same aggregate
	open      time.Duration // between its events and its end
	fails     bool          // it is rolled back
}

type event struct {
	kind, dest, payload string
	delay               time.Duration
}

// shares are those of the destinations, in percent.
var shares = []struct {
	dest  string
	share int
}{{"orders", 35}, {held, 10}, {"plain", 15}, {"partner", 15}, {"limited", 10}, {"", 15}}

// ordered reports whether the events of an aggregate wait for each other there.
func ordered(dest string) bool { return dest == "orders" || dest == held }

func (p *producer) order() order {
	o := order{aggregate: 1 + int(p.zipf.Uint64()), kind: "order", fails: p.random.IntN(100) < 15}
	o.tenant = "tenant-" + strconv.Itoa(o.aggregate%tenants)
	if o.aggregate%3 == 0 {
		o.kind = "user"
	}
	dest := p.destination()
	o.locks = ordered(dest)
	if p.random.IntN(10) == 0 {
		o.open = time.Duration(p.random.Int64N(int64(2 * time.Second)))
	} else {
		o.open = time.Duration(p.random.Int64N(int64(40 * time.Millisecond)))
	}
	for range 1 + p.random.IntN(3) {
		o.events = append(o.events, p.event(dest))
	}
	return o
}

func (p *producer) destination() string {
	n := p.random.IntN(100)
	for _, s := range shares {
		if n -= s.share; n < 0 {
			return s.dest
		}
	}
	return ""
}

func (p *producer) event(dest string) event {
	e := event{kind: "changed", dest: dest, payload: p.payload()}
	if dest == "" {
		e.kind = "copied"
	}
	e.kind += "." + strconv.Itoa(p.random.IntN(5))
	// An event that is not due yet holds those behind it, so that few are where order counts.
	if n := p.random.IntN(100); !ordered(dest) && n < 15 || n < 2 {
		e.delay = time.Duration(p.random.Int64N(int64(5 * time.Second)))
	}
	return e
}

// noise is what fills payloads: text that does not shrink.
var noise = func() string {
	b := make([]byte, largest)
	random := rand.New(rand.NewPCG(1, 2))
	for i := range b {
		b[i] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_"[random.IntN(64)]
	}
	return string(b)
}()

// payload is JSON with all that a careless sender would change: numbers of many digits, characters that some escape,
// keys out of order. Most are small.
func (p *producer) payload() string {
	u := p.random.Float64()
	size := int(smallest * math.Pow(float64(largest)/smallest, u*u*u))
	fill := max(0, size-150)
	at := p.random.IntN(largest - fill)
	return fmt.Sprintf(`{"zeta": 1.10, "amount": %d%018d, "html": "<a href='x'>&amp;</a>", "name": "Zoë ☂ %s", "alpha": [null, true], "text": "%s"}`,
		1+p.random.IntN(9), p.random.Int64N(1e18), canaryText, noise[at:at+fill])
}

const (
	lockSQL = `
update storm.aggregates
   set changes = changes + 1
 where id = $1`

	insertSQL = `
insert into outbox (tenant_id, aggregate_type, aggregate_id, event_type, destination, payload, available_at)
select $1, $2, $3, e.kind, e.dest, e.payload::jsonb, now() + e.delay
  from unnest($4::text[], $5::text[], $6::text[], $7::interval[]) e (kind, dest, payload, delay)
returning id, idempotency_key::text, event_type, destination,
          encode(sha256(convert_to(payload::text, 'UTF8')), 'hex'), octet_length(payload::text), available_at`
)

// place is one transaction.
func (p *producer) place(ctx context.Context, o order) error {
	if p.conn == nil {
		conn, err := pgx.Connect(ctx, p.run.url(producerRole, p.run.wires["producer"].addr(), "producer"))
		if err != nil {
			return err
		}
		p.conn = conn
	}
	tx, err := p.conn.Begin(ctx)
	if err != nil {
		return err
	}
	if o.locks {
		if _, err := tx.Exec(ctx, lockSQL, o.aggregate); err != nil {
			return err
		}
	}
	writes, err := p.insert(ctx, tx, o)
	if err != nil {
		return err
	}
	pause(ctx, nil, o.open)
	p.finish(ctx, tx, o, writes)
	if p.conn.IsClosed() {
		return errors.New("the connection is gone")
	}
	return nil
}

func (p *producer) insert(ctx context.Context, tx pgx.Tx, o order) ([]history.Write, error) {
	var kinds, dests, payloads []string
	var delays []time.Duration
	for _, e := range o.events {
		kinds, dests, payloads, delays = append(kinds, e.kind), append(dests, e.dest), append(payloads, e.payload), append(delays, e.delay)
	}
	rows, err := tx.Query(ctx, insertSQL, o.tenant, o.kind, strconv.Itoa(o.aggregate), kinds, dests, payloads, delays)
	if err != nil {
		return nil, err
	}
	n := p.txs.Add(1)
	writes, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (history.Write, error) {
		w := history.Write{Tx: n, Tenant: o.tenant, Type: o.kind, Agg: strconv.Itoa(o.aggregate)}
		return w, row.Scan(&w.ID, &w.Key, &w.Event, &w.Dest, &w.Payload, &w.Size, &w.Due)
	})
	now := time.Now()
	for i := range writes {
		writes[i].Written = now
		if writes[i].Dest == "" {
			writes[i].To = []string{"plain", "audit"}
		}
	}
	return writes, err
}

// finish ends a transaction and keeps how. A commit without an answer may have happened or not.
func (p *producer) finish(ctx context.Context, tx pgx.Tx, o order, writes []history.Write) {
	asked := time.Now()
	fate := history.RolledBack
	var err error
	if o.fails {
		err = tx.Rollback(ctx)
	} else if err = tx.Commit(ctx); err == nil {
		fate = history.Committed
	} else if !errors.Is(err, pgx.ErrTxCommitRollback) {
		fate = history.Unknown
	}
	for i := range writes {
		writes[i].Asked, writes[i].Fate = asked, fate
		if err == nil {
			writes[i].Known = time.Now()
		}
	}
	add(&p.run.book, &p.run.book.h.Writes, writes...)
}

// hangUp ends a connection that has seen an error; the next transaction has a new one.
func (p *producer) hangUp(ctx context.Context) {
	if p.conn == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	p.conn.Close(ctx)
	p.conn = nil
}
