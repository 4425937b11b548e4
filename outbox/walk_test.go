package outbox_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxctl/outboxctl/outbox"
	"github.com/outboxctl/outboxctl/outbox/outboxtest"
)

// tenants inserts per events of each of n tenants, named from 1 on with leading zeros.
func tenants(t testing.TB, db *pgxpool.Pool, n, per int) {
	t.Helper()
	exec(t, db, `insert into outbox (tenant_id, aggregate_type, aggregate_id, event_type, payload)
		select lpad(i::text, 4, '0'), 'order', j::text, 'order.created', '{}' from generate_series(1, $1::int) i, generate_series(1, $2::int) j`, n, per)
}

// next claims up to n events, from the marks on where the queue has some.
func next(t testing.TB, q *outbox.Queue, n int) outbox.Exchanged {
	t.Helper()
	done, err := q.Exchange(t.Context(), nil, outbox.Want{N: n})
	if err != nil {
		t.Fatalf("Exchange() = %v", err)
	}
	return done
}

func every(d time.Duration) func(*outbox.QueueOptions) {
	return func(o *outbox.QueueOptions) { o.PollInterval = d }
}

func TestClaimsFindTheEventsOfEveryTenant(t *testing.T) {
	t.Parallel()
	db := outboxtest.DB(t)
	for _, tt := range []struct{ tenants, per, want int }{
		{1200, 2, 100}, {1200, 1, 5000}, {1001, 1, 1000}, {1000, 1, 1000}, {3, 400, 100}, {40, 3, 7},
	} {
		t.Run(fmt.Sprintf("%d tenants, %d each, %d at once", tt.tenants, tt.per, tt.want), func(t *testing.T) {
			empty(t, db)
			tenants(t, db, tt.tenants, tt.per)
			q := newQueue(db)
			seen := map[int64]bool{}
			for claims := 0; ; claims++ {
				done := next(t, q, tt.want)
				for _, ev := range done.Events {
					if seen[ev.ID] {
						t.Fatalf("event %d was claimed twice", ev.ID)
					}
					seen[ev.ID] = true
				}
				if done.CameRound && len(seen) < tt.tenants*tt.per {
					t.Fatalf("claim %d came round with %d of %d events", claims, len(seen), tt.tenants*tt.per)
				}
				if done.CameRound && len(done.Events) == 0 {
					return
				}
				if claims > 2*tt.tenants*tt.per/min(tt.want, tt.tenants)+10 {
					t.Fatalf("%d claims have found %d of %d events and do not come round", claims, len(seen), tt.tenants*tt.per)
				}
			}
		})
	}
}

// Tenants with nothing due are passed by, however many: that is no reason to call it a day.
func TestClaimComesRoundOnlyAfterTheLastTenant(t *testing.T) {
	t.Parallel()
	db := outboxtest.DB(t)
	tenants(t, db, 2500, 1)
	exec(t, db, `update outbox set available_at = now() + interval '1 hour' where tenant_id < '2500'`)
	q := newQueue(db)
	for i, want := range []string{"[] false", "[] false", "[2500] true", "[] false", "[] false", "[] true"} {
		done := next(t, q, 10)
		if got := fmt.Sprint(ids(done.Events), " ", done.CameRound); got != want {
			t.Errorf("claim %d: %s, want %s", i, got, want)
		}
	}
}

// One with a mountain of events does not hold up the others: everybody's turn comes.
func TestBusyTenantDoesNotStarveTheOthers(t *testing.T) {
	t.Parallel()
	db := outboxtest.DB(t)
	exec(t, db, `insert into outbox (tenant_id, aggregate_type, aggregate_id, event_type, payload)
		select 'a', 'order', i::text, 'order.created', '{}' from generate_series(1, 10000) i`)
	tenants(t, db, 20, 30)
	q := newQueue(db, every(50*time.Millisecond)) // full walks all the time, and claims from the marks between them
	taken := map[string]int{}
	for range 30 {
		for _, ev := range next(t, q, 50).Events {
			taken[ev.TenantID]++
		}
		if taken["a"] > 1000 {
			break
		}
	}
	if len(taken) != 21 {
		t.Errorf("after %d events of the busy one, %d tenants had their turn, want 21", taken["a"], len(taken))
	}
	delete(taken, "a")
	for tenant, n := range taken {
		if n != 30 {
			t.Errorf("tenant %s had %d events taken, want its 30", tenant, n)
		}
	}
}

// Where all have a mountain, they take turns.
func TestBusyTenantsTakeTurns(t *testing.T) {
	t.Parallel()
	for _, interval := range []time.Duration{time.Hour, 0} { // from the marks, and full walks alone
		t.Run(fmt.Sprint("a full walk every ", interval), func(t *testing.T) {
			t.Parallel()
			db := outboxtest.DB(t)
			tenants(t, db, 8, 500)
			q := newQueue(db, every(interval))
			taken := map[string]int{}
			for range 80 {
				for _, ev := range next(t, q, 25).Events {
					taken[ev.TenantID]++
				}
			}
			counts := slices.Sorted(maps.Values(taken))
			if len(counts) != 8 || counts[7]-counts[0] > 25 {
				t.Errorf("the tenants had %v events taken, want eight times 250 ±25", counts)
			}
		})
	}
}

// What a claim from the marks cannot see, a full walk does: it is due once per poll interval, also
// while there is other work.
func TestFullWalkFindsWhatMarksPassOver(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, change string }{
		{"a new tenant", `insert into outbox (id, tenant_id, aggregate_type, aggregate_id, event_type, payload) values (-1, 'new', 'order', '1', 'late', '{}')`},
		{"a late commit", `insert into outbox (id, tenant_id, aggregate_type, aggregate_id, event_type, payload, available_at)
			values (-1, '0001', 'order', '1', 'late', '{}', now() - interval '1 minute')`},
		{"a lapsed lease", `update outbox set id = -1, status = 'in_progress', attempts = 1, lease = 'dead', lease_until = now() - interval '1 second',
			available_at = now() - interval '1 minute' where id = 1000`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			const interval = 300 * time.Millisecond
			db := outboxtest.DB(t)
			tenants(t, db, 2, 2000)
			exec(t, db, `update outbox set available_at = available_at - interval '10 seconds'`)
			q := newQueue(db, every(interval))
			for range 4 { // the first full walk is over, and marks are set
				next(t, q, 1)
			}
			exec(t, db, tt.change)
			began := time.Now()
			for claims := 0; ; claims++ {
				done := next(t, q, 1)
				found := slices.Contains(ids(done.Events), -1)
				if found && claims == 0 && time.Since(began) < interval/2 {
					t.Error("the marks passed over nothing")
				}
				if found {
					break
				}
				if len(done.Events) == 0 || time.Since(began) > 20*time.Second {
					t.Fatalf("not found after %s and %d claims", time.Since(began), claims)
				}
			}
		})
	}
}

// Without any other work it is found by the very next claims: an empty one is followed by a full walk.
func TestEmptyClaimIsFollowedByAFullWalk(t *testing.T) {
	t.Parallel()
	db := outboxtest.DB(t)
	tenants(t, db, 1, 3)
	q := newQueue(db)
	for range 2 {
		next(t, q, 10)
	}
	exec(t, db, `insert into outbox (tenant_id, aggregate_type, aggregate_id, event_type, payload, available_at)
		values ('new', 'order', '1', 'late', '{}', now() - interval '1 hour')`)
	if first, second := next(t, q, 10), next(t, q, 10); len(first.Events)+len(second.Events) != 1 {
		t.Errorf("two claims found %v and %v, want the new event", ids(first.Events), ids(second.Events))
	}
}

// What is given back is due at once, also by the marks.
func TestReleasedRowsAreClaimedAgainAtOnce(t *testing.T) {
	t.Parallel()
	db := outboxtest.DB(t)
	tenants(t, db, 3, 50)
	q := newQueue(db)
	events := next(t, q, 10).Events
	for round := range 10 {
		outs := outcomes(events, outbox.Pending)
		for i := range outs {
			outs[i].Refund = true
		}
		exchange(t, q, outs, 0)
		if n := query[int](t, db, `select count(*) from outbox where attempts <> 0 or lease is not null or next_attempt_at > clock_timestamp()`); n != 0 {
			t.Fatalf("round %d: %d rows are not as they were", round, n)
		}
		events = next(t, q, 10).Events
	}
	for left := 140; left > 0; {
		done := next(t, q, 40)
		left -= len(done.Events)
		if len(done.Events) == 0 && done.CameRound {
			t.Fatalf("%d events were not found", left)
		}
	}
}
