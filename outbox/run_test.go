package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/outboxctl/outboxctl/outbox"
)

// The loop's part in the order of an aggregate's events, against a source in memory.

// newOrdered is a table of n events for each of so many aggregates, in turns, and a loop over it.
func newOrdered(aggregates, n int, sink outbox.Sink) (*table, *outbox.Dispatcher) {
	rows := newTable(aggregates * n)
	rows.ordered = true
	for i, r := range rows.rows {
		r.AggregateID = fmt.Sprint(i % aggregates)
	}
	d := newLoop(rows, sink)
	d.Ordering = outbox.OrderingAggregate
	return rows, d
}

// watch is a sink that notes what is sent when, and fails its test when two events of an aggregate are
// on their way at once.
type watch struct {
	t      *testing.T
	mu     sync.Mutex
	open   map[string]int64
	sent   map[string][]int64
	times  map[int64][]time.Time
	answer func(ctx context.Context, ev outbox.Event) error
}

func newWatch(t *testing.T, answer func(context.Context, outbox.Event) error) *watch {
	return &watch{t: t, open: map[string]int64{}, sent: map[string][]int64{}, times: map[int64][]time.Time{}, answer: answer}
}

// Deliver implements [outbox.Sink].
func (w *watch) Deliver(ctx context.Context, ev outbox.Event) (outbox.Receipt, error) {
	w.mu.Lock()
	if other, busy := w.open[ev.AggregateID]; busy {
		w.t.Errorf("event %d is sent while %d is, both of aggregate %s", ev.ID, other, ev.AggregateID)
	}
	w.open[ev.AggregateID] = ev.ID
	w.sent[ev.AggregateID] = append(w.sent[ev.AggregateID], ev.ID)
	w.times[ev.ID] = append(w.times[ev.ID], time.Now())
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.open, ev.AggregateID)
	}()
	return outbox.Receipt{}, w.answer(ctx, ev)
}

// inOrder checks that each aggregate's events came in order, but that an event may be repeated.
func (w *watch) inOrder() {
	w.t.Helper()
	for id, sent := range w.sent {
		if !slices.IsSorted(sent) {
			w.t.Errorf("aggregate %s: sent %v, want ascending", id, sent)
		}
	}
}

func TestRunIsSentBackToBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWatch(t, took(20*time.Millisecond))
		_, d := newOrdered(1, 50, w)
		d.Once = true
		end := runFor(t, d, time.Hour)
		if w.inOrder(); end.summary.Delivered != 50 || len(w.sent["0"]) != 50 {
			t.Errorf("delivered %d in %d calls, want 50 in 50", end.summary.Delivered, len(w.sent["0"]))
		}
		// Runs of ten, each with a claim before it that follows on the last result.
		if most := 50*20*time.Millisecond + 6*15*time.Millisecond; end.after > most {
			t.Errorf("it took %s, want at most %s", end.after, most)
		}
	})
}

func TestAggregatesAreSentSideBySide(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWatch(t, took(20*time.Millisecond))
		_, d := newOrdered(10, 100, w)
		d.Once = true
		end := runFor(t, d, time.Hour)
		if w.inOrder(); end.summary.Delivered != 1000 {
			t.Errorf("delivered %d, want 1000", end.summary.Delivered)
		}
		if most := 1000 / 10 * 20 * time.Millisecond * 13 / 10; end.after > most {
			t.Errorf("it took %s, want at most %s: ten at once", end.after, most)
		}
	})
}

func TestFailureEndsTheRun(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		onDead outbox.OnDead
		err    error
		sent   []int64 // within the first second
	}{
		{"a retry", outbox.OnDeadContinue, errors.New("not now"), []int64{1, 2, 3}},
		{"a dead letter", outbox.OnDeadContinue, outbox.Permanent(errors.New("never")), []int64{1, 2, 3, 4, 5}},
		{"a dead letter that holds", outbox.OnDeadHold, outbox.Permanent(errors.New("never")), []int64{1, 2, 3}},
		{"nothing sent", outbox.OnDeadContinue, outbox.Postpone(time.Minute), []int64{1, 2, 3}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWatch(t, func(_ context.Context, ev outbox.Event) error {
					if ev.ID == 3 {
						return tt.err
					}
					return nil
				})
				rows, d := newOrdered(1, 5, w)
				d.OnDead = tt.onDead
				var released []int64
				d.Observer.Settled = func(r outbox.Report) {
					if r.Outcome.Refund && r.Event.ID != 3 {
						released = append(released, r.Event.ID)
					}
				}
				rows.fault = func(n int) fault { // what the first claim has brought is what counts
					if n > 2 {
						return away
					}
					return none
				}
				runFor(t, d, time.Second)
				if got := w.sent["0"]; !slices.Equal(got, tt.sent) {
					t.Errorf("sent %v, want %v", got, tt.sent)
				}
				if want := []int64{4, 5}; len(tt.sent) == 3 && !slices.Equal(released, want) {
					t.Errorf("given back %v, want %v", released, want)
				}
			})
		})
	}
}

// What the lease does not cover goes back as soon as that can be seen, not when the lease is over.
func TestRunIsCutToItsLease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWatch(t, took(3*time.Second))
		rows, d := newOrdered(1, 40, w)
		rows.lease, d.Lease = 20*time.Second, 20*time.Second
		d.Parallel = 1
		var first time.Duration
		began := time.Now()
		d.Observer.Settled = func(r outbox.Report) {
			if r.Outcome.Refund && first == 0 {
				first = time.Since(began)
			}
		}
		runFor(t, d, time.Minute)
		if w.inOrder(); first < 3*time.Second || first > 3100*time.Millisecond {
			t.Errorf("the first was given back after %s, want after the first delivery", first)
		}
		for _, r := range rows.rows {
			if calls := len(w.times[r.ID]); calls > 1 || calls != r.Attempts {
				t.Errorf("event %d: %d calls, %d attempts, want as many, once at most", r.ID, calls, r.Attempts)
			}
		}
		if n := rows.count(outbox.Delivered); n < 18 {
			t.Errorf("%d delivered in a minute, want about 20", n)
		}
	})
}

func TestStopGivesBackTheRestOfARun(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rows, d := newOrdered(3, 10, newWatch(t, took(4*time.Second)))
		var released []time.Duration
		began := time.Now()
		d.Observer.Settled = func(r outbox.Report) {
			if r.Outcome.Refund {
				released = append(released, time.Since(began))
			}
		}
		end := runFor(t, d, time.Second)
		if got, want := counts(end.summary), (totals{Sent: 3, Delivered: 3, Released: 27}); got != want || end.err != nil {
			t.Errorf("Run() = %+v, %v; want %+v", got, end.err, want)
		}
		if last := released[len(released)-1]; last > 1100*time.Millisecond {
			t.Errorf("the last was given back after %s, want at once after the stop", last)
		}
		if n := rows.count(outbox.Pending); n != 27 {
			t.Errorf("%d events are pending, want 27", n)
		}
	})
}

// One with a mountain of events leaves room for others: however slow its receiver is, theirs are sent
// at once.
func TestHotAggregateLeavesRoom(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWatch(t, func(ctx context.Context, ev outbox.Event) error {
			if ev.AggregateID == "0" {
				return took(100*time.Millisecond)(ctx, ev)
			}
			return took(time.Millisecond)(ctx, ev)
		})
		rows, d := newOrdered(1, 1000, w)
		inserted := map[int64]time.Time{}
		go func() {
			for i := range 60 {
				if i%20 == 0 {
					time.Sleep(time.Second)
				}
				inserted[rows.insertOf(fmt.Sprint("late ", i), 0)] = time.Now()
			}
		}()
		runFor(t, d, 10*time.Second)
		if w.inOrder(); len(w.sent) != 61 {
			t.Fatalf("%d aggregates had their turn, want 61", len(w.sent))
		}
		for id, at := range inserted {
			if wait := w.times[id][0].Sub(at); wait > 300*time.Millisecond {
				t.Errorf("event %d waited %s", id, wait)
			}
		}
		if n := len(w.sent["0"]); n < 90 {
			t.Errorf("the busy one has sent %d in ten seconds, want nearly 100", n)
		}
	})
}

// A row that is locked when its event is settled keeps its followers; when it has been settled they
// are due, and a run with --once has not seen that yet.
func TestOnceLooksAgainAfterAHeldSettle(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rows, d := newOrdered(1, 3, newWatch(t, took(time.Millisecond)))
		began := time.Now()
		rows.locked = func(id int64) bool {
			return id == 1 && rows.rows[0].status == outbox.InProgress && time.Since(began) < 5*time.Second
		}
		d.Once, d.BatchSize = true, d.Parallel // runs of one
		if s := runFor(t, d, time.Hour).summary; s.Delivered != 3 {
			t.Errorf("delivered %d, want 3", s.Delivered)
		}
	})
}

// Whatever goes wrong between the loop and its source, an aggregate's events are sent one at a time and
// in order, and none is lost.
func TestAnyMixOfFaultsKeepsTheOrder(t *testing.T) {
	t.Parallel()
	for seed := range uint64(30) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { mixOrder(t, rand.New(rand.NewPCG(seed, 2))) })
		})
	}
}

func mixOrder(t *testing.T, r *rand.Rand) {
	var mu sync.Mutex
	w := newWatch(t, func(ctx context.Context, ev outbox.Event) error {
		mu.Lock()
		roll, delay := r.IntN(100), time.Duration(r.IntN(200))*time.Millisecond
		mu.Unlock()
		switch {
		case roll < 10 && ev.Attempts < 3:
			return errors.New("not yet")
		case roll < 12:
			return outbox.Permanent(errors.New("never"))
		case roll < 13 && ev.Attempts == 1:
			return hang(ctx, ev)
		}
		return took(delay)(ctx, ev)
	})
	rows, d := newOrdered(1+r.IntN(20), 1+r.IntN(20), w)
	rows.lease, rows.roundTrip = 8*time.Second, time.Duration(r.IntN(20))*time.Millisecond
	d.Lease, d.BatchSize, d.Parallel = rows.lease, 1+r.IntN(60), 1+r.IntN(20)
	began := time.Now()
	faults := rand.New(rand.NewPCG(r.Uint64(), 3))
	rows.fault = func(int) fault {
		if time.Since(began) > time.Minute {
			return none
		}
		return fault(max(0, faults.IntN(12)-9))
	}
	runFor(t, d, 20*time.Minute)
	w.inOrder()
	for _, row := range rows.rows {
		if !row.status.Final() {
			t.Errorf("event %d is %s", row.ID, row.status)
		}
		if calls := len(w.times[row.ID]); calls > row.Attempts {
			t.Errorf("event %d: %d calls, %d attempts", row.ID, calls, row.Attempts)
		}
	}
}
