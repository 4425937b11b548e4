package main_test

import (
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxctl/outboxctl/outbox/outboxtest"
)

// The limits of each tenant in these tests, and the most that a second may have of them: a burst is a
// tenth, and the way to the receiver may press requests together a little.
const (
	tenantParallel = 4
	tenantRate     = 20
	tenantSecond   = tenantRate + tenantRate/10 + 2
	tenantTimeout  = 2 * time.Second
)

// household is a database whose twenty small tenants write five events a second each, and its dispatcher.
type household struct {
	db        *pgxpool.Pool
	receiver  *outboxtest.Receiver
	committed map[string]time.Time // by aggregate
}

// newHousehold starts one; the events of the tenant acme hang while hang says so.
func newHousehold(t *testing.T, hang *atomic.Bool) *household {
	t.Helper()
	url, db := database(t)
	h := &household{db: db, committed: map[string]time.Time{}}
	h.receiver = outboxtest.NewReceiver(t, func(_ int, r *outboxtest.Request) outboxtest.Answer {
		if hang.Load() && envelope(t, r.Body).TenantID == "acme" {
			return outboxtest.Answer{Hang: true}
		}
		return outboxtest.Answer{Delay: 10 * time.Millisecond}
	})
	dispatch(t, url, h.receiver.URL, "--tenant-parallel", fmt.Sprint(tenantParallel), "--tenant-rate", fmt.Sprintf("%d/s", tenantRate),
		"--request-timeout", tenantTimeout.String(), "--log-level", "error")
	return h
}

// write has the small tenants write for a while and returns how long their events were on their way, the
// shortest first.
func (h *household) write(t *testing.T, while time.Duration) (waits []time.Duration) {
	t.Helper()
	written := map[string]bool{}
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for range while / (10 * time.Millisecond) {
		<-tick.C
		id := fmt.Sprint(len(h.committed))
		execute(t, h.db, `insert into outbox (tenant_id, aggregate_type, aggregate_id, event_type, payload) values ($1, 'order', $2, 'order.created', '{}')`,
			fmt.Sprint("tenant ", len(h.committed)%20), id)
		h.committed[id], written[id] = time.Now(), true
	}
	h.receiver.WaitFor(t, patience, func(all []outboxtest.Request) bool {
		waits = waits[:0]
		for _, r := range all {
			if e := envelope(t, r.Body); written[e.AggregateID] && e.TenantID != "acme" {
				waits = append(waits, max(r.At.Sub(h.committed[e.AggregateID]), 0)) // the commit's reply may come later
			}
		}
		return len(waits) >= len(written)
	})
	slices.Sort(waits)
	return waits
}

// noisy are the requests of acme since a moment.
func (h *household) noisy(t *testing.T, since time.Time) (all []outboxtest.Request) {
	t.Helper()
	for _, r := range h.receiver.Requests() {
		if r.At.After(since) && envelope(t, r.Body).TenantID == "acme" {
			all = append(all, r)
		}
	}
	return all
}

// atOnce is how many requests were open at the same time, at most. One that hangs ends for its sender when its
// time is over, which the receiver may notice later.
func atOnce(requests []outboxtest.Request) (most int) {
	for i, r := range requests {
		open := 1
		for _, before := range requests[:i] {
			end := before.At.Add(tenantTimeout - 50*time.Millisecond)
			if !before.Done.IsZero() && before.Done.Before(end) {
				end = before.Done
			}
			if r.At.Before(end) {
				open++
			}
		}
		most = max(most, open)
	}
	return most
}

// inASecond is how many requests came within one second, at most.
func inASecond(requests []outboxtest.Request) (most int) {
	first := 0
	for i, r := range requests {
		for r.At.Sub(requests[first].At) >= time.Second {
			first++
		}
		most = max(most, i-first+1)
	}
	return most
}

// TestNoisyTenantDoesNotSlowTheOthers puts a mountain of one tenant's events beside twenty small tenants, whose
// events then take no longer than where there is no such tenant; it gets no more than its
// limits, while its requests hang and afterwards: B52. The two outboxes are measured in turns.
func TestNoisyTenantDoesNotSlowTheOthers(t *testing.T) {
	t.Parallel()
	mountain, rounds, while := 20_000, 1, 3*time.Second
	if long {
		mountain, rounds, while = 100_000, 4, 10*time.Second
	}
	var hang atomic.Bool
	hang.Store(true)
	quiet, noisy := newHousehold(t, &hang), newHousehold(t, &hang)
	execute(t, noisy.db, `insert into outbox (tenant_id, aggregate_type, aggregate_id, event_type, payload)
		select 'acme', 'order', 'acme ' || i, 'order.created', '{}' from generate_series(1, $1::int) i`, mountain)
	noisy.receiver.Wait(t, tenantParallel, patience)
	for _, phase := range []string{"hangs", "floods"} {
		hang.Store(phase == "hangs")
		var alone, beside []time.Duration
		began := time.Now()
		for range rounds {
			alone = append(alone, quiet.write(t, while)...)
			beside = append(beside, noisy.write(t, while)...)
		}
		slices.Sort(alone)
		slices.Sort(beside)
		p99, limit := beside[len(beside)*99/100], 2*alone[len(alone)*99/100]
		requests := noisy.noisy(t, began.Add(2*tenantTimeout))
		most, second := atOnce(requests), inASecond(requests)
		t.Logf("acme %s: the others wait %s (p99), %s without it (p50 %s, %s); it has %d requests at once and %d in a second",
			phase, p99, limit/2, beside[len(beside)/2], alone[len(alone)/2], most, second)
		if !long {
			limit = max(limit, time.Second) // of a machine that is busy with other tests
		}
		if p99 > limit {
			t.Errorf("while acme %s the others wait %s (p99), want %s at most", phase, p99, limit)
		}
		if most > tenantParallel || second > tenantSecond || len(requests) == 0 {
			t.Errorf("while acme %s it has %d requests, %d at once and %d in a second; want some, at most %d and %d", phase, len(requests), most, second, tenantParallel, tenantSecond)
		}
	}
}
