package main_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxctl/outboxctl/outbox/outboxtest"
)

// TestKilledAfterThe2xxSendsTheSameAgain kills a dispatcher (SIGKILL) between a receiver's 2xx and
// its own note of it, again and again: B07.
func TestKilledAfterThe2xxSendsTheSameAgain(t *testing.T) {
	t.Parallel()
	kills := 4
	if long {
		kills = 50
	}
	for _, tt := range []struct {
		name string
		die  func(t *testing.T, db *pgxpool.Pool, c *crash)
	}{
		{"before it has read the answer", dieUnread},
		{"before it has written the result", dieUnwritten},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			url, db := database(t)
			c := &crash{answer: make(chan struct{}), received: make(chan outboxtest.Request), end: newGate()}
			c.receiver = c.end.receiver(t, c.give)
			for i := range kills {
				c.dispatcher = dispatch(t, url, c.receiver.URL)
				eventually(t, "the last crash is mended", func() bool { return count(t, db, "delivered") == i })
				insert(t, db, "order.created", 1)
				tt.die(t, db, c)
				lapse(t, db)
			}
			dispatch(t, url, c.receiver.URL)
			allDelivered(t, db, kills)
			byKey := c.receiver.ByKey()
			if len(byKey) != kills {
				t.Errorf("%d events were received, want %d", len(byKey), kills)
			}
			for key, requests := range byKey {
				if err := sameTwice(requests); err != nil {
					t.Errorf("event %s: %v", key, err)
				}
			}
		})
	}
}

// crash is a receiver whose first answer for each event waits for the test, and the dispatcher that
// is to die of it.
type crash struct {
	receiver   *outboxtest.Receiver
	dispatcher *process
	received   chan outboxtest.Request
	answer     chan struct{}
	end        gate
}

func (c *crash) give(_ int, r *outboxtest.Request) outboxtest.Answer {
	if r.Attempt > 1 {
		return outboxtest.Answer{}
	}
	select {
	case c.received <- *r:
		<-c.answer
	case <-c.end.opened:
	}
	return outboxtest.Answer{}
}

// next is the first request for an event.
func (c *crash) next(t *testing.T) outboxtest.Request {
	t.Helper()
	select {
	case r := <-c.received:
		return r
	case <-time.After(patience):
		t.Fatal("no request came")
		return outboxtest.Request{}
	}
}

// dieUnread kills the dispatcher in the moment of the 2xx.
func dieUnread(t *testing.T, _ *pgxpool.Pool, c *crash) {
	c.next(t)
	c.dispatcher.kill()
	c.answer <- struct{}{}
}

// dieUnwritten keeps the dispatcher from writing what it has read by a lock on the row.
func dieUnwritten(t *testing.T, db *pgxpool.Pool, c *crash) {
	r := c.next(t)
	lock := begin(t, db)
	_, err := lock.Exec(t.Context(), `select from outbox where idempotency_key = $1 for update`, r.Key)
	c.answer <- struct{}{}
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the dispatcher wants to write", func() bool {
		return query[bool](t, db, `select exists (select from pg_stat_activity
			where datname = current_database() and application_name = 'outboxctl' and wait_event_type = 'Lock')`)
	})
	c.dispatcher.kill()
	// Its server process still waits for the lock; it must not find the row free.
	execute(t, db, `select pg_terminate_backend(pid, 10000) from pg_stat_activity
		where datname = current_database() and application_name = 'outboxctl'`)
	commit(t, lock)
}

// sameTwice reports what is wrong with the two requests of an event that a crash came between.
func sameTwice(requests []outboxtest.Request) error {
	if len(requests) != 2 {
		return fmt.Errorf("%d requests, want 2", len(requests))
	}
	first, second := requests[0], requests[1]
	if first.Attempt != 1 || second.Attempt != 2 {
		return fmt.Errorf("attempts %d and %d, want 1 and 2", first.Attempt, second.Attempt)
	}
	if !bytes.Equal(first.Body, second.Body) {
		return fmt.Errorf("body %s, then %s", first.Body, second.Body)
	}
	var envelope struct {
		EventID string `json:"event_id"`
	}
	if err := json.Unmarshal(second.Body, &envelope); err != nil || envelope.EventID != second.Key || second.Key == "" {
		return fmt.Errorf("event_id %q in the body, key %q in the header (%v)", envelope.EventID, second.Key, err)
	}
	return nil
}

// TestReceiverThatKnowsKeysActsOnce is what consumers are told to do about the duplicate that a
// crash makes.
func TestReceiverThatKnowsKeysActsOnce(t *testing.T) {
	t.Parallel()
	url, db := database(t)
	insert(t, db, "order.paid", 1)
	var dispatcher atomic.Pointer[process]
	ready := newGate()
	known := map[string]bool{}
	charged := 0
	r := ready.receiver(t, func(_ int, r *outboxtest.Request) outboxtest.Answer {
		<-ready.opened
		if known[r.Key] { // an INSERT of the key in the consumer's transaction
			return outboxtest.Answer{}
		}
		known[r.Key] = true
		charged++
		dispatcher.Load().kill()
		return outboxtest.Answer{}
	})
	dispatcher.Store(dispatch(t, url, r.URL))
	ready.open()
	dispatcher.Load().wait(patience)
	lapse(t, db)
	if code, words := once(t, url, r.URL); code != 0 {
		t.Fatalf("exit code %d, want 0: %s", code, words)
	}
	if r.Count() != 2 || charged != 1 {
		t.Errorf("charged %d times by %d requests, want once by 2", charged, r.Count())
	}
}

// TestKilledBeforeSendingLosesNothing kills a dispatcher that has claimed ten events and sent one.
func TestKilledBeforeSendingLosesNothing(t *testing.T) {
	t.Parallel()
	url, db := database(t)
	insert(t, db, "order.created", 10)
	r := outboxtest.NewReceiver(t, outboxtest.Script(outboxtest.Answer{Hang: true}, outboxtest.Answer{}))
	dispatcher := dispatch(t, url, r.URL, "--parallel", "1", "--batch-size", "10")
	r.Wait(t, 1, patience)
	if n := count(t, db, "in_progress"); n != 10 {
		t.Fatalf("%d events are claimed, want 10", n)
	}
	dispatcher.kill()
	lapse(t, db)
	dispatch(t, url, r.URL)
	allDelivered(t, db, 10)
	if n := r.Count(); n != 11 {
		t.Errorf("%d requests, want 11: only the one in flight is a duplicate", n)
	}
}

// TestKilledUnderLoadLosesNothing kills a dispatcher while it claims, sends and writes results, all
// at once.
func TestKilledUnderLoadLosesNothing(t *testing.T) {
	t.Parallel()
	url, db := database(t)
	insert(t, db, "order.created", 300)
	r := outboxtest.NewReceiver(t, nil)
	kills := 3
	for i := range kills {
		dispatcher := dispatch(t, url, r.URL, "--parallel", "8", "--batch-size", "20")
		r.Wait(t, 50*(i+1), patience)
		dispatcher.kill()
		lapse(t, db)
	}
	dispatch(t, url, r.URL)
	allDelivered(t, db, 300)
	extra := r.Count() - len(r.ByKey())
	if len(r.ByKey()) != 300 || extra > 20*kills {
		t.Errorf("%d events received, %d more than once; want 300 and at most those claimed at a kill, %d", len(r.ByKey()), extra, 20*kills)
	}
}

// TestDeadWorkersLeasesLapseUnderAnyName gives three dispatchers one name. One dies, another takes
// its events over, and those of the third, which lives, stay its own: B08.
func TestDeadWorkersLeasesLapseUnderAnyName(t *testing.T) {
	t.Parallel()
	const lease = 2500 * time.Millisecond
	url, db := database(t)
	insert(t, db, "mine", 20)
	insert(t, db, "healthy", 3)
	held := newGate()
	r := held.receiver(t, func(_ int, r *outboxtest.Request) outboxtest.Answer {
		switch {
		case strings.Contains(string(r.Body), `"healthy"`):
			<-held.opened
		case r.Attempt == 1 && strings.Contains(r.Path, "hang"):
			return outboxtest.Answer{Hang: true}
		}
		return outboxtest.Answer{}
	})
	ours := []string{"--worker-id", "w1", "--event-type", "mine", "--lease", lease.String(), "--request-timeout", "500ms"}
	healthy := dispatch(t, url, r.URL, "--worker-id", "w1", "--event-type", "healthy", "--request-timeout", "25s")
	r.Wait(t, 3, patience)
	dead := dispatch(t, url, r.URL+"/hang", append(ours, "--parallel", "8", "--batch-size", "8")...)
	r.Wait(t, 3+8, patience)
	dead.kill()
	before := healthyRows(t, db)

	eventually(t, "stats shows 8 lapsed leases", func() bool {
		return strings.Contains(stats(t, url), `"lapsed_leases": 8,`)
	})
	again := dispatch(t, url, r.URL, ours...)
	eventually(t, "all 20 are delivered", func() bool { return count(t, db, "delivered") == 20 })
	if after := healthyRows(t, db); before != after {
		t.Errorf("the living worker's rows were\n%s\nand are\n%s", before, after)
	}
	held.open()
	allDelivered(t, db, 23)
	if n := r.Count(); n != 20+3+8 {
		t.Errorf("%d requests, want 31: the 8 in flight at the kill twice, the others once", n)
	}
	again.stop()
	healthy.stop()
}

// TestDeadWorkersEventsAreSentAgainWithinTheLease has another worker ready when one dies: its events
// come within the lease and two polls.
func TestDeadWorkersEventsAreSentAgainWithinTheLease(t *testing.T) {
	t.Parallel()
	const lease, poll = 2500 * time.Millisecond, 500 * time.Millisecond
	url, db := database(t)
	insert(t, db, "order.created", 4)
	r := outboxtest.NewReceiver(t, func(_ int, r *outboxtest.Request) outboxtest.Answer {
		return outboxtest.Answer{Hang: r.Attempt == 1}
	})
	flags := []string{"--lease", lease.String(), "--poll-interval", poll.String(), "--request-timeout", "500ms", "--batch-size", "4"}
	dead := dispatch(t, url, r.URL, flags...)
	r.Wait(t, 4, patience)
	dead.kill()
	dispatch(t, url, r.URL, flags...)
	claimed := query[time.Time](t, db, `select min(last_attempt_at) from outbox`)
	allDelivered(t, db, 4)
	for _, request := range r.Requests()[4:] {
		if after := request.At.Sub(claimed); after < lease || after > lease+2*poll {
			t.Errorf("sent again %s after its claim, want after the lease (%s) and within two polls (%s)", after, lease, 2*poll)
		}
	}
}

// healthyRows is all there is to see of the rows that the third worker holds.
func healthyRows(t *testing.T, db *pgxpool.Pool) string {
	t.Helper()
	return query[string](t, db, `select jsonb_agg(o order by id)::text from outbox o where event_type = 'healthy'`)
}

func stats(t *testing.T, url string) string {
	t.Helper()
	code, out, words := run(t, url, "stats", "-o", "json")
	if code != 0 {
		t.Fatalf("stats: exit code %d: %s", code, words)
	}
	return out
}

// TestStoppedWorkerChangesNothingWhenItWakes suspends a dispatcher (SIGSTOP) past its lease.
// Meanwhile another delivers; what the first comes back with is not written.
func TestStoppedWorkerChangesNothingWhenItWakes(t *testing.T) {
	t.Parallel()
	url, db := database(t)
	insert(t, db, "order.created", 1)
	held := newGate()
	r := held.receiver(t, func(n int, _ *outboxtest.Request) outboxtest.Answer {
		if n == 1 {
			<-held.opened
			return outboxtest.Answer{Status: 422} // would bury the event
		}
		return outboxtest.Answer{}
	})
	sleeper := dispatch(t, url, r.URL)
	r.Wait(t, 1, patience)
	sleeper.signal(syscall.SIGSTOP)
	lapse(t, db)
	if code, words := once(t, url, r.URL); code != 0 {
		t.Fatalf("exit code %d, want 0: %s", code, words)
	}
	row := func() string { return query[string](t, db, `select to_jsonb(o)::text from outbox o`) }
	before := row()
	held.open()
	sleeper.signal(syscall.SIGCONT)
	sleeper.says("lease lost, outcome dropped")
	if after := row(); count(t, db, "delivered") != 1 || before != after {
		t.Errorf("the row was\n%s\nand is\n%s", before, after)
	}
	if n := query[int](t, db, `select count(*) from outbox_attempts`); n != 0 {
		t.Errorf("the history has %d rows, want none", n)
	}
	insert(t, db, "order.paid", 1)
	allDelivered(t, db, 2) // it works on
	sleeper.stop()
}
