package main_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxctl/outboxctl/outbox/outboxtest"
)

// traffic writes two hundred live events a second.
type traffic struct {
	db        *pgxpool.Pool
	mu        sync.Mutex
	committed map[string]time.Time // by aggregate
}

// run writes until ctx is done.
func (v *traffic) run(ctx context.Context, t *testing.T) {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for i := 0; ctx.Err() == nil; i++ {
		<-tick.C
		id := fmt.Sprint("live ", i)
		if _, err := v.db.Exec(context.Background(), `insert into outbox (aggregate_type, aggregate_id, event_type, payload) values ('order', $1, 'live', '{}')`, id); err != nil {
			t.Errorf("live event: %v", err)
			return
		}
		v.mu.Lock()
		v.committed[id] = time.Now()
		v.mu.Unlock()
	}
}

// TestReplayAtARateLeavesLiveEventsTheirPace replays a mountain of failed events at 500 a second beside 200 live
// ones a second: it keeps to its rate, the live ones take no more than twice as long as before, and what
// fails again stays: B60.
func TestReplayAtARateLeavesLiveEventsTheirPace(t *testing.T) {
	t.Parallel()
	const perSecond = 500
	mountain, before := 3000, 3*time.Second
	if long {
		mountain, before = 100_000, 30*time.Second
	}
	url, db := database(t)
	bury(t, db, mountain)
	r := outboxtest.NewReceiver(t, func(_ int, r *outboxtest.Request) outboxtest.Answer {
		if e := envelope(t, r.Body); e.EventType == "order.created" && strings.HasSuffix(e.AggregateID, "00") {
			return outboxtest.Answer{Status: 422}
		}
		return outboxtest.Answer{}
	})
	dispatch(t, url, r.URL, "--log-level", "error")
	ctx, cancel := context.WithCancel(context.Background())
	live := &traffic{db: db, committed: map[string]time.Time{}}
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	wg.Go(func() { live.run(ctx, t) })
	time.Sleep(before)
	began := time.Now()
	replay := start(t, url, "replay", "--status=failed", "--rate", fmt.Sprintf("%d/s", perSecond), "--yes")
	if code := replay.wait(patience); code != 0 {
		t.Fatalf("replay: exit code %d: %s", code, replay.err.String())
	}
	time.Sleep(time.Until(began.Add(time.Duration(mountain/perSecond) * time.Second)))
	eventually(t, "what is replayed has ended again", func() bool {
		return query[int](t, db, `select count(*) from outbox where event_type = 'order.created' and finished_at is null`) == 0
	})
	cancel()
	wg.Wait()
	var alone, beside []time.Duration
	var again []outboxtest.Request
	for _, request := range r.Requests() {
		e := envelope(t, request.Body)
		if e.EventType != "live" {
			again = append(again, request)
			continue
		}
		wait := max(request.At.Sub(live.committed[e.AggregateID]), 0) // the commit's reply may come later
		if request.At.Before(began) {
			alone = append(alone, wait)
		} else {
			beside = append(beside, wait)
		}
	}
	slices.Sort(alone)
	slices.Sort(beside)
	rate := float64(len(again)) / again[len(again)-1].At.Sub(began).Seconds()
	due := query[int](t, db, `select max(n) from (select count(*) as n from outbox where origin like 'replay:%' group by floor(extract(epoch from available_at))) g`)
	p99, limit := beside[len(beside)*99/100], 2*alone[len(alone)*99/100]
	t.Logf("%d replayed at %.1f/s, %d in a second at most, %d due in one; live events wait %s (p99), %s before (p50 %s, %s)",
		len(again), rate, inASecond(again), due, p99, limit/2, beside[len(beside)/2], alone[len(alone)/2])
	if rate > 1.05*perSecond || due > 1.05*perSecond { // what was held up for a moment comes at once then
		t.Errorf("%.1f replayed events a second, %d due in one at most, want %d and 5 %% at most", rate, due, perSecond)
	}
	if !long {
		limit = max(limit, time.Second) // of a machine that is busy with other tests
	}
	if p99 > limit {
		t.Errorf("live events wait %s (p99) beside the replay, want %s at most", p99, limit)
	}
	if dead := count(t, db, "dead_letter"); dead != mountain/100 || len(again) != mountain {
		t.Errorf("%d replayed events were sent, %d are dead letters again, want %d and %d", len(again), dead, mountain, mountain/100)
	}
}
