package outbox_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxctl/outboxctl/outbox"
	"github.com/outboxctl/outboxctl/outbox/gate"
	"github.com/outboxctl/outboxctl/outbox/outboxtest"
)

// retriesAndFresh inserts due retries, and behind them fresh events that are due, too, of n tenants each.
func retriesAndFresh(t testing.TB, db *pgxpool.Pool, tenants, retries, fresh int) {
	t.Helper()
	const sql = `insert into outbox (tenant_id, aggregate_type, aggregate_id, event_type, payload, attempts, next_attempt_at, available_at)
		select i::text, 'order', j::text, $1, '{}', $2::int, case when $2::int > 0 then now() - interval '1 hour' end, now() - interval '1 minute'
		  from generate_series(1, $3::int) i, generate_series(1, $4::int) j`
	exec(t, db, sql, "retry", 1, tenants, retries)
	exec(t, db, sql, "fresh", 0, tenants, fresh)
}

func TestClaimsLeaveRetriesTheirShare(t *testing.T) {
	t.Parallel()
	db := outboxtest.DB(t)
	for _, tenants := range []int{1, 3} {
		t.Run(fmt.Sprint(tenants, " tenants"), func(t *testing.T) {
			empty(t, db)
			retriesAndFresh(t, db, tenants, 90/tenants, 150/tenants)
			q := newQueue(db, every(time.Hour))
			seen := map[int64]bool{}
			freshLeft, again, around := 150, 0, false
			for claim := 0; claim < 100 && !around; claim++ {
				share := outbox.Share{Retries: 2, Alone: 10}
				if again > 0 { // those of the last claim are still being sent
					share = outbox.Share{Alone: 10}
				}
				done, err := q.Exchange(t.Context(), nil, outbox.Want{N: 20, Share: &share})
				if err != nil {
					t.Fatal(err)
				}
				again = 0
				for _, ev := range done.Events {
					if seen[ev.ID] {
						t.Fatalf("event %d was claimed twice", ev.ID)
					}
					seen[ev.ID] = true
					if ev.Type == "retry" {
						again++
					} else {
						freshLeft--
					}
				}
				if most := map[bool]int{true: share.Retries, false: share.Alone}[freshLeft > 0]; again > most {
					t.Fatalf("claim %d took %d retries with %d fresh events waiting, want at most %d", claim, again, freshLeft, most)
				}
				if claim == 20 && freshLeft > 0 {
					t.Errorf("after 20 claims of 20 events %d of 150 fresh ones are left", freshLeft)
				}
				around = done.CameRound
			}
			if len(seen) != 240 || !around {
				t.Errorf("%d of 240 events were claimed, came round: %v", len(seen), around)
			}
		})
	}
}

// Retries that hang leave the other slots to fresh events, and have all of them afterwards.
func TestRetriesLeaveSlotsToFreshEvents(t *testing.T) {
	t.Parallel()
	db := outboxtest.DB(t)
	retriesAndFresh(t, db, 1, 40, 400)
	var mu sync.Mutex
	var now, most, fresh, alone int
	sink := sinkFunc(func(ctx context.Context, ev outbox.Event) (outbox.Receipt, error) {
		if ev.Type == "fresh" {
			time.Sleep(5 * time.Millisecond)
			mu.Lock()
			fresh++
			mu.Unlock()
			return outbox.Receipt{}, nil
		}
		mu.Lock()
		now++
		if fresh < 380 {
			most = max(most, now)
		}
		alone = max(alone, now)
		mu.Unlock()
		time.Sleep(300 * time.Millisecond)
		mu.Lock()
		now--
		mu.Unlock()
		return outbox.Receipt{}, nil
	})
	d := newDispatcher(db, sink)
	d.Gate = gate.New(gate.Limits{RetryShare: 0.2, Parallel: d.Parallel}, nil)
	s := run(t, d)
	if s.Delivered != 440 || s.Released > 0 {
		t.Errorf("%+v", counts(s))
	}
	if most > 2 || alone < 8 {
		t.Errorf("at most %d retries were sent at once beside fresh events, %d without, want 2 and all 10 slots", most, alone)
	}
}

// Many due retries in front do not slow the claims of fresh events down.
func TestRetriesInFrontAreNotReadAgainAndAgain(t *testing.T) {
	t.Parallel()
	db := outboxtest.DB(t)
	retriesAndFresh(t, db, 1, 20_000, 2000)
	q := newQueue(db, every(time.Hour))
	began := time.Now()
	fresh := 0
	for range 60 {
		done, err := q.Exchange(t.Context(), nil, outbox.Want{N: 100, Share: &outbox.Share{Retries: 2, Alone: 5}})
		if err != nil {
			t.Fatal(err)
		}
		for _, ev := range done.Events {
			if ev.Type == "fresh" {
				fresh++
			}
		}
	}
	took := time.Since(began)
	if fresh != 2000 || took > 10*time.Second {
		t.Errorf("%d of 2000 fresh events were claimed in %s", fresh, took)
	}
	t.Logf("60 claims behind 20,000 due retries took %s", took)
}
