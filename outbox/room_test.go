package outbox_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/outboxctl/outboxctl/outbox"
	"github.com/outboxctl/outboxctl/outbox/outboxtest"
)

// A claim takes no more of a tenant than there is room for, in a walk from the start and from the marks.
func TestClaimKeepsToTheRooms(t *testing.T) {
	t.Parallel()
	db := outboxtest.DB(t)
	tenants(t, db, 4, 10)
	exec(t, db, `insert into outbox (tenant_id, aggregate_type, aggregate_id, event_type, payload)
		select $1, 'order', i::text, 'order.created', '{}' from generate_series(1, 10) i`, `o"d\d <é>`)
	q := newQueue(db)
	rooms := &outbox.Rooms{Each: 3, Of: map[string]int{"0001": 0, "0002": 1, `o"d\d <é>`: 2, "0004": outbox.NoLimit}}
	for _, claim := range []string{"full", "marked"} {
		done, err := q.Exchange(t.Context(), nil, outbox.Want{N: 30, Rooms: rooms})
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]int{}
		for _, ev := range done.Events {
			got[ev.TenantID]++
		}
		want := map[string]int{"0002": 1, "0003": 3, "0004": 10, `o"d\d <é>`: 2}
		if claim == "marked" {
			delete(want, "0004") // has no more
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s claim (-want +got):\n%s", claim, diff)
		}
	}
}

// The same where events are ordered: what is left is the end of a run.
func TestOrderedClaimKeepsToTheRooms(t *testing.T) {
	t.Parallel()
	db := outboxtest.DB(t)
	exec(t, db, `insert into outbox (tenant_id, aggregate_type, aggregate_id, event_type, payload)
		select lpad(i::text, 4, '0'), 'order', (j % 2)::text, 'order.created', '{}' from generate_series(1, 4) i, generate_series(1, 10) j`)
	q := newQueue(db, func(o *outbox.QueueOptions) { o.Ordering = outbox.OrderingAggregate })
	rooms := &outbox.Rooms{Each: 3, Of: map[string]int{"0001": 0, "0002": 1, "0004": outbox.NoLimit}}
	got, sequence := map[string]int{}, map[string][]int64{}
	for range 20 {
		done, err := q.Exchange(t.Context(), nil, outbox.Want{N: 30, Run: 4, Rooms: rooms})
		if err != nil {
			t.Fatal(err)
		}
		for _, ev := range done.Events {
			got[ev.TenantID]++
			sequence[ev.TenantID+ev.AggregateID] = append(sequence[ev.TenantID+ev.AggregateID], ev.ID)
		}
		if done.CameRound {
			break
		}
	}
	if diff := cmp.Diff(map[string]int{"0002": 1, "0003": 3, "0004": 8}, got); diff != "" {
		t.Errorf("claimed (-want +got):\n%s", diff)
	}
	first := query[int64](t, db, `select min(id) from outbox where tenant_id = '0003' and aggregate_id = '0'`)
	for i, id := range sequence["00030"] {
		if id != first+2*int64(i) {
			t.Errorf("of one aggregate %v were claimed, from %d on: with a gap", sequence["00030"], first)
		}
	}
}

// The plan of a claim with rooms is the one without.
func TestClaimWithRoomsUsesTheIndex(t *testing.T) {
	t.Parallel()
	db := outboxtest.DB(t)
	tenants(t, db, 50, 100)
	q := newQueue(db)
	for _, want := range []outbox.Want{{N: 100, Fresh: true, Rooms: &outbox.Rooms{Each: 3}}, {N: 100, Rooms: &outbox.Rooms{Each: 3}}} {
		plan, err := q.ExplainClaim(t.Context(), want)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(plan, "Seq Scan on outbox") || !strings.Contains(plan, "outbox_due") {
			t.Errorf("the plan of %+v:\n%s", want, plan)
		}
		next(t, q, 10)
	}
}

// The backlog of one tenant does not hold up the few events of others: they wait for a batch or two of its
// events, however many there are.
func TestBacklogOfOneTenantDoesNotDelayOthers(t *testing.T) {
	t.Parallel()
	db := outboxtest.DB(t)
	exec(t, db, `insert into outbox (tenant_id, aggregate_type, aggregate_id, event_type, payload, available_at)
		select '0000', 'order', i::text, 'order.created', '{}', now() - interval '1 hour' from generate_series(1, 20000) i`)
	tenants(t, db, 20, 5)
	var mu sync.Mutex
	var noisy, small, before int
	done := make(chan struct{})
	d := newDispatcher(db, sinkFunc(func(_ context.Context, ev outbox.Event) (outbox.Receipt, error) {
		mu.Lock()
		defer mu.Unlock()
		if ev.TenantID == "0000" {
			noisy++
			return outbox.Receipt{}, nil
		}
		if small++; small == 100 {
			before = noisy
			close(done)
		}
		return outbox.Receipt{}, nil
	}))
	stop, cancel := context.WithCancel(t.Context())
	go func() { <-done; cancel() }()
	if _, err := d.Run(stop, context.Background()); err != nil {
		t.Fatal(err)
	}
	if before > 5*d.BatchSize {
		t.Errorf("%d events of the noisy tenant were sent before the last of the others', want a few batches of %d at most", before, d.BatchSize)
	}
	t.Logf("%d events of the noisy tenant were sent before the last of the others'", before)
}

// A thousand tenants without room, which a claim visits and leaves, cost it little.
func TestFullTenantsAreCheap(t *testing.T) {
	t.Parallel()
	db := outboxtest.DB(t)
	tenants(t, db, 900, 5)
	rooms := &outbox.Rooms{Each: 1, Of: map[string]int{}}
	for i := 1; i <= 890; i++ {
		rooms.Of[fmt.Sprintf("%04d", i)] = 0
	}
	q := newQueue(db)
	best := time.Hour
	for range 3 {
		began := time.Now()
		done, err := q.Exchange(t.Context(), nil, outbox.Want{N: 100, Rooms: rooms, Fresh: true})
		if err != nil || len(done.Events) != 10 {
			t.Fatalf("%d events, %v, want one of each of 10 tenants", len(done.Events), err)
		}
		best = min(best, time.Since(began))
	}
	if best > time.Second {
		t.Errorf("a claim beside 890 full tenants took %s", best)
	}
	t.Logf("a claim beside 890 full tenants took %s", best)
}
