package webhook_test

import (
	"context"
	"math/bits"
	"net/http"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/outboxctl/outboxctl/outbox"
	"github.com/outboxctl/outboxctl/outbox/outboxtest"
	"github.com/outboxctl/outboxctl/outbox/sink/webhook"
)

// counted counts the claims that a source is asked for.
type counted struct {
	outbox.Source
	claims *atomic.Int64
}

func (c counted) Exchange(ctx context.Context, outs []outbox.Outcome, want outbox.Want) (outbox.Exchanged, error) {
	if want.N > 0 {
		c.claims.Add(1)
	}
	return c.Source.Exchange(ctx, outs, want)
}

// B29: four dispatchers keep the schedule of one. With a base b an event's attempts begin at 0, b, 3b,
// 7b, 15b … at the earliest, and every event gets each of them. The long form goes on for a minute.
func TestReplicasDoNotMultiplyRetries(t *testing.T) {
	t.Parallel()
	const events, replicas, poll, base = 250, 4, 100 * time.Millisecond, 500 * time.Millisecond
	attempts := 4
	if os.Getenv("OUTBOXCTL_TEST_LONG") != "" {
		attempts = 7
	}
	db := outboxtest.DB(t)
	to := outboxtest.NewReceiver(t, outboxtest.Always(outboxtest.Answer{Status: http.StatusInternalServerError}))
	if _, err := db.Exec(t.Context(), `insert into outbox (aggregate_type, aggregate_id, event_type, payload)
		select 'order', i::text, 'order.created', '{}' from generate_series(1, $1) i`, events); err != nil {
		t.Fatal(err)
	}
	var claims atomic.Int64
	began := time.Now()
	var ends []func() outbox.Summary
	for range replicas {
		d := newDispatcher(db, newSink(t, webhook.Config{URL: to.URL}), 5*time.Second)
		d.PollInterval = poll
		d.Policy.Backoff, d.Policy.Jitter = outbox.Backoff{Base: base, Cap: time.Hour}, 0
		d.Source = counted{d.Source, &claims}
		ends = append(ends, begin(t, d))
	}
	to.Wait(t, events*attempts, 2*time.Minute)
	took := time.Since(began)
	for _, end := range ends {
		end()
	}

	requests := to.Requests()
	if schedule := events * bits.Len(uint(took/base)+1); len(requests) > schedule*105/100 {
		t.Errorf("%d requests in %s, want %d and 5 %% at most", len(requests), took, schedule)
	}
	byKey := to.ByKey()
	for key, arrivals := range byKey {
		if n := len(arrivals); n < attempts-1 || n > attempts+1 {
			t.Errorf("%s came %d times, want %d ± 1", key, n, attempts)
		}
		for i := 1; i < len(arrivals); i++ {
			if gap, least := arrivals[i].At.Sub(arrivals[i-1].At), base<<(i-1); gap < least || arrivals[i].Attempt != i+1 {
				t.Errorf("%s: attempt %d came %s after the one before it, want attempt %d and %s or more", key, arrivals[i].Attempt, gap, i+1, least)
			}
		}
	}
	if len(byKey) != events {
		t.Errorf("%d events came, want %d", len(byKey), events)
	}
	// Idle dispatchers claim once per interval, after each wave a few times more while they slow down;
	// in a wave claims ride on settles, which wait for company.
	idle := replicas * int(took/poll)
	waves := replicas * attempts * bits.Len(uint(poll/(10*time.Millisecond)))
	if limit := int64(idle + waves + len(requests)/5); claims.Load() > limit {
		t.Errorf("%d claims for %d requests, want at most %d", claims.Load(), len(requests), limit)
	}
	t.Logf("%d claims for %d requests in %s", claims.Load(), len(requests), took)
}
