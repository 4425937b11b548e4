package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxctl/outboxctl/outbox"
	"github.com/outboxctl/outboxctl/outbox/outboxtest"
)

// sinkFunc makes a sink of a function.
type sinkFunc func(ctx context.Context, ev outbox.Event) (outbox.Receipt, error)

func (f sinkFunc) Deliver(ctx context.Context, ev outbox.Event) (outbox.Receipt, error) {
	return f(ctx, ev)
}

// newDispatcher is one that drains db fast: short intervals, the defaults otherwise.
func newDispatcher(db *pgxpool.Pool, sink outbox.Sink) *outbox.Dispatcher {
	d := &outbox.Dispatcher{
		Sink:           sink,
		Policy:         outbox.DefaultPolicy(),
		BatchSize:      100,
		Parallel:       10,
		Lease:          30 * time.Second,
		RequestTimeout: 5 * time.Second,
		PollInterval:   100 * time.Millisecond,
		Grace:          5 * time.Second,
		Once:           true,
	}
	d.Source = queueFor(db, d)
	return d
}

func queueFor(db *pgxpool.Pool, d *outbox.Dispatcher) *outbox.Queue {
	return outbox.NewStore(db, "public").Queue(outbox.QueueOptions{
		Worker: "test", Lease: d.Lease, MaxAttempts: d.Policy.MaxAttempts, PollInterval: d.PollInterval,
	})
}

// run runs d to its end.
func run(t *testing.T, d *outbox.Dispatcher) outbox.Summary {
	t.Helper()
	summary, err := d.Run(t.Context(), context.Background())
	if err != nil {
		t.Fatalf("Run() = %v", err)
	}
	return summary
}

// insert adds n events of n aggregates.
func insert(t testing.TB, db *pgxpool.Pool, n int) {
	t.Helper()
	exec(t, db, `insert into outbox (aggregate_type, aggregate_id, event_type, payload)
		select 'order', i::text, 'order.created', jsonb_build_object('n', i) from generate_series(1, $1) i`, n)
}

func exec(t testing.TB, db *pgxpool.Pool, sql string, args ...any) {
	t.Helper()
	if _, err := db.Exec(context.Background(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// query returns the single value that sql selects.
func query[T any](t testing.TB, db *pgxpool.Pool, sql string, args ...any) (v T) {
	t.Helper()
	if err := db.QueryRow(context.Background(), sql, args...).Scan(&v); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return v
}

// recorder is a sink that keeps what it is given and answers with err.
type recorder struct {
	mu     sync.Mutex
	events []outbox.Event
	answer func(ev outbox.Event) error
}

func (r *recorder) Deliver(_ context.Context, ev outbox.Event) (outbox.Receipt, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, ev)
	if r.answer != nil {
		return outbox.Receipt{}, r.answer(ev)
	}
	return outbox.Receipt{Text: "200", Code: 200}, nil
}

func TestEveryCommittedEventIsDeliveredOnce(t *testing.T) {
	t.Parallel()
	db := outboxtest.DB(t)
	insert(t, db, 1000)
	sink := &recorder{}
	summary := run(t, newDispatcher(db, sink))
	if summary.Delivered != 1000 || len(sink.events) != 1000 {
		t.Errorf("delivered %d in %d calls, want 1000 in 1000", summary.Delivered, len(sink.events))
	}
	if n := query[int](t, db, `select count(*) from outbox where status = 'delivered' and attempts = 1 and receipt = '200'`); n != 1000 {
		t.Errorf("%d rows are delivered with one attempt and a receipt, want 1000", n)
	}
}

func TestPermanentErrorIsADeadLetterAtOnce(t *testing.T) {
	t.Parallel()
	db := outboxtest.DB(t)
	insert(t, db, 3)
	sink := &recorder{answer: func(outbox.Event) error { return outbox.Permanent(errors.New("no such account")) }}
	summary := run(t, newDispatcher(db, sink))
	if summary.Dead != 3 || len(sink.events) != 3 {
		t.Errorf("dead %d in %d calls, want 3 in 3", summary.Dead, len(sink.events))
	}
	if n := query[int](t, db, `select count(*) from outbox_attempts where outcome = 'dead_letter' and error = 'no such account'`); n != 3 {
		t.Errorf("history has %d rows, want 3", n)
	}
}

func TestRetryUntilSuccess(t *testing.T) {
	t.Parallel()
	db := outboxtest.DB(t)
	insert(t, db, 20)
	sink := &recorder{answer: func(ev outbox.Event) error {
		if ev.Attempts < 3 {
			return fmt.Errorf("attempt %d", ev.Attempts)
		}
		return nil
	}}
	d := newDispatcher(db, sink)
	d.Policy.Backoff = outbox.Backoff{Base: 20 * time.Millisecond, Cap: time.Second}
	d.Wait = 5 * time.Second
	summary := run(t, d)
	if summary.Delivered != 20 || summary.Retried != 40 {
		t.Errorf("delivered %d after %d retries, want 20 after 40", summary.Delivered, summary.Retried)
	}
}

func TestHangingDeliveriesHoldUpNobody(t *testing.T) {
	t.Parallel()
	db := outboxtest.DB(t)
	insert(t, db, 2000)
	var hanging atomic.Int32
	d := newDispatcher(db, sinkFunc(func(ctx context.Context, ev outbox.Event) (outbox.Receipt, error) {
		if ev.AggregateID == "1" || ev.AggregateID == "2" {
			hanging.Add(1)
			<-ctx.Done()
			return outbox.Receipt{}, ctx.Err()
		}
		time.Sleep(time.Millisecond)
		return outbox.Receipt{}, nil
	}))
	d.RequestTimeout = 2 * time.Second
	summary := run(t, d)
	if summary.Delivered != 1998 || summary.Retried != 2 {
		t.Errorf("delivered %d, retried %d; want 1998 and 2", summary.Delivered, summary.Retried)
	}
}
