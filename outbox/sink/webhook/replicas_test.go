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

// B29: four dispatchers keep the schedule of one. With a base b attempts begin at 0, b, 3b, 7b, 15b …;
// the test ends half-way between two of them. The long form is a minute with the default base.
func TestReplicasDoNotMultiplyRetries(t *testing.T) {
	t.Parallel()
	const events, replicas, poll = 250, 4, 100 * time.Millisecond
	base, span := 500*time.Millisecond, 11*500*time.Millisecond
	if os.Getenv("OUTBOXCTL_TEST_LONG") != "" {
		base, span = 2*time.Second, 47*2*time.Second
	}
	attempts := bits.Len(uint(span / base)) // 1 at 0, 2 from b on, 3 from 3b on …

	db := outboxtest.DB(t)
	to := newReceiver(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) })
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
	time.Sleep(time.Until(began.Add(span)))
	requests := len(to.requests())
	for _, end := range ends {
		end()
	}

	if want := events * attempts; requests < want*95/100 || requests > want*105/100 {
		t.Errorf("%d requests in %s, want %d ± 5 %%", requests, span, want)
	}
	var least, most int
	if err := db.QueryRow(t.Context(), `select min(attempts), max(attempts) from outbox`).Scan(&least, &most); err != nil {
		t.Fatal(err)
	}
	if least < attempts-1 || most > attempts+1 {
		t.Errorf("events had %d to %d attempts, want %d ± 1", least, most, attempts)
	}
	// Idle dispatchers claim once per interval, after each wave a few times more while they slow down;
	// in a wave claims ride on settles, which wait for company.
	idle := replicas * int(span/poll)
	waves := replicas * attempts * bits.Len(uint(poll/(10*time.Millisecond)))
	if limit := int64(idle + waves + requests/5); claims.Load() > limit {
		t.Errorf("%d claims for %d requests, want at most %d", claims.Load(), requests, limit)
	}
	t.Logf("%d claims for %d requests in %s", claims.Load(), requests, span)
}
