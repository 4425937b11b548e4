package main_test

import (
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxctl/outboxctl/outbox/outboxtest"
)

// TestLateCommitOfALowerIDIsDelivered commits ids out of order and leaves gaps: B01.
func TestLateCommitOfALowerIDIsDelivered(t *testing.T) {
	t.Parallel()
	const poll = 500 * time.Millisecond
	url, db := database(t)
	r := outboxtest.NewReceiver(t, nil)
	late := begin(t, db)
	add(t, late, "late")
	insert(t, db, "early", 1)
	dispatch(t, url, r.URL, "--poll-interval", poll.String())
	r.Wait(t, 1, patience)

	commit(t, late)
	r.Wait(t, 2, 2*poll)
	gap := begin(t, db)
	for range 5 {
		add(t, gap, "never")
	}
	if err := gap.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	insert(t, db, "behind the gap", 1)
	r.Wait(t, 3, 2*poll)
	for i, want := range []string{"early", "late", "behind the gap"} {
		if got := envelope(t, r.Requests()[i].Body).EventType; got != want {
			t.Errorf("event %d is %q, want %q", i+1, got, want)
		}
	}
}

// add writes an event in a transaction.
func add(t testing.TB, tx pgx.Tx, eventType string) {
	t.Helper()
	if _, err := tx.Exec(context.Background(), insertSQL, eventType, 1); err != nil {
		t.Fatal(err)
	}
}

// sent is what a test reads of a body.
type sent struct {
	EventType   string          `json:"event_type"`
	AggregateID string          `json:"aggregate_id"`
	TenantID    string          `json:"tenant_id"`
	Sequence    string          `json:"sequence"`
	Payload     json.RawMessage `json:"payload"`
}

func envelope(t testing.TB, body []byte) (s sent) {
	t.Helper()
	if err := json.Unmarshal(body, &s); err != nil {
		t.Fatalf("body %s: %v", body, err)
	}
	return s
}

// TestEachCommittedEventIsDeliveredOnceAndNoOther has eight producers whose transactions are open
// for random times and are rolled back now and then, and two dispatchers: B01.
func TestEachCommittedEventIsDeliveredOnceAndNoOther(t *testing.T) {
	t.Parallel()
	rounds, hold := 20, 30*time.Millisecond
	if long {
		rounds, hold = 200, 300*time.Millisecond
	}
	url, db := database(t)
	r := outboxtest.NewReceiver(t, nil)
	first, second := dispatch(t, url, r.URL), dispatch(t, url, r.URL)
	var producers sync.WaitGroup
	for i := range 8 {
		producers.Go(func() { produceAtRandom(t, db, i, rounds, hold) })
	}
	producers.Wait()
	n := query[int](t, db, `select count(*) from outbox`)
	allDelivered(t, db, n)
	first.stop()
	second.stop()
	if n == 0 || r.Count() != n || len(r.ByKey()) != n {
		t.Errorf("%d requests for %d events, want %d of each", r.Count(), len(r.ByKey()), n)
	}
	for _, request := range r.Requests() {
		if envelope(t, request.Body).EventType != "committed" {
			t.Fatalf("an event was sent that was rolled back: %s", request.Body)
		}
	}
}

var errChangedMind = errors.New("the customer changed his mind")

// produceAtRandom runs transactions; every fourth is rolled back.
func produceAtRandom(t *testing.T, db *pgxpool.Pool, seed, rounds int, hold time.Duration) {
	random := rand.New(rand.NewPCG(uint64(seed), 1))
	for range rounds {
		eventType, end := "committed", error(nil)
		if random.IntN(4) == 0 {
			eventType, end = "rolled back", errChangedMind
		}
		err := pgx.BeginFunc(context.Background(), db, func(tx pgx.Tx) error {
			if _, err := tx.Exec(context.Background(), insertSQL, eventType, 1+random.IntN(3)); err != nil {
				return err
			}
			time.Sleep(time.Duration(random.Int64N(int64(hold)))) // the rest of the business
			return end
		})
		if err != end {
			t.Errorf("produce: %v", err)
			return
		}
	}
}

// TestOneSenderDeliversInOrderOfID stores the rows of one statement in reverse: B14.
func TestOneSenderDeliversInOrderOfID(t *testing.T) {
	t.Parallel()
	const n = 1000
	url, db := database(t)
	execute(t, db, `insert into outbox (id, aggregate_type, aggregate_id, event_type, payload)
		select i, 'order', '42', 'order.changed', '{}' from generate_series($1::int, 1, -1) i`, n)
	execute(t, db, `analyze outbox`)
	r := outboxtest.NewReceiver(t, nil)
	if code, words := once(t, url, r.URL, "--parallel", "1", "--batch-size", "100", "--log-level", "warn"); code != 0 {
		t.Fatalf("exit code %d, want 0: %s", code, words)
	}
	if r.Count() != n {
		t.Fatalf("%d requests, want %d", r.Count(), n)
	}
	for i, request := range r.Requests() {
		if got, want := envelope(t, request.Body).Sequence, strconv.Itoa(i+1); got != want {
			t.Fatalf("request %d is event %s, want %s", i+1, got, want)
		}
	}
}
