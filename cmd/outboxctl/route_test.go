package main_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/outboxctl/outboxctl/outbox/outboxtest"
)

// configure writes a configuration file.
func configure(t testing.TB, text string, values ...any) (file string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "outboxctl.yaml")
	if err := os.WriteFile(file, fmt.Appendf(nil, text, values...), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// A router and a dispatcher without routes race for the same events. Both say so, whoever began first.
func TestRouterAndDispatcherWithoutRoutesWarn(t *testing.T) {
	t.Parallel()
	url, db := database(t)
	r := outboxtest.NewReceiver(t, nil)
	plain := dispatch(t, url, r.URL)
	eventually(t, "it is seen", func() bool { return query[int](t, db, `select count(*) from outbox_workers`) == 1 })
	router := start(t, url, "dispatch", "--config", configure(t, `
destinations:
  crm: {url: %q, allow_private: true}
routes:
  - {to: [crm]}
`, r.URL))
	router.says("another dispatcher takes events before they are routed")
	plain.says("another dispatcher routes the events that this one serves")
}

// Three processes route and deliver, one of them is killed again and again: every event arrives at
// each of its destinations, one that fails costs the other nothing, and what no route wants stays.
func TestRoutedEventsReachEachOfTheirDestinations(t *testing.T) {
	t.Parallel()
	const n = 300
	url, db := database(t)
	good := outboxtest.NewReceiver(t, nil)
	bad := outboxtest.NewReceiver(t, func(int, *outboxtest.Request) outboxtest.Answer {
		if rand.Float64() < 0.5 {
			return outboxtest.Answer{Status: 503}
		}
		return outboxtest.Answer{}
	})
	file := configure(t, `
poll_interval: 100ms
destinations:
  good: {url: %q, allow_private: true, lease: 4s, request_timeout: 1s}
  bad: {url: %q, allow_private: true, lease: 4s, request_timeout: 1s, retry: {max_attempts: 100, backoff: 50ms..200ms}, breaker: {failures: 0}}
routes:
  - {event_type: "order.*", to: [good, bad]}
`, good.URL, bad.URL)
	begin := func() *process { return start(t, url, "dispatch", "--config", file) }
	first, second, third := begin(), begin(), begin()
	for i := range 3 {
		insert(t, db, "order.created", n/3)
		insert(t, db, "other", 1)
		time.Sleep(200 * time.Millisecond) // some are under way
		third.kill()
		if i < 2 {
			third = begin()
		}
	}
	eventually(t, "all routed events have ended", func() bool {
		return query[int](t, db, `select count(*) from outbox where status = 'delivered'`) == 2*n
	})
	if left := query[int](t, db, `select count(*) from outbox where finished_at is null and destination = '' and error_kind = 'unrouted'`); left != 3 {
		t.Errorf("%d events are unrouted, want 3", left)
	}
	if len(good.ByKey()) != n || len(bad.ByKey()) != n {
		t.Errorf("%d and %d events arrived, want %d each", len(good.ByKey()), len(bad.ByKey()), n)
	}
	// Ten are sent at once, and each kill can repeat those.
	if repeats := good.Count() - n; repeats > 3*10 {
		t.Errorf("%d repeats at the destination that never fails", repeats)
	}
	first.stop()
	second.stop()
}
