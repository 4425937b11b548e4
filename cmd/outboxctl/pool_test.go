package main_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxctl/outboxctl/outbox/outboxtest"
)

// TestManySendersShareTwoConnections has 32 deliveries at once, all of which are answered in the
// same moment, and a pool of two connections: B26.
func TestManySendersShareTwoConnections(t *testing.T) {
	t.Parallel()
	n, delay := 256, 300*time.Millisecond
	if long {
		n, delay = 500, time.Second
	}
	url, db := database(t)
	insert(t, db, "order.created", n)
	r := outboxtest.NewReceiver(t, outboxtest.Always(outboxtest.Answer{Delay: delay}))
	dispatcher := dispatch(t, withSetting(url, "pool_max_conns=2"), r.URL, "--once", "--parallel", "32")
	r.Wait(t, 1, patience)
	began := time.Now()
	looks, idle, most := 0, 0, 0
	for running := true; running; {
		select {
		case <-dispatcher.done:
			running = false
		case <-time.After(20 * time.Millisecond):
			waiting, sessions := sessionsOf(t, db)
			looks, idle, most = looks+1, idle+waiting, max(most, sessions)
		}
	}
	took, limit := time.Since(began), time.Duration(n)*delay/32*3/2
	if code := dispatcher.wait(patience); code != 0 || took > limit {
		t.Errorf("exit code %d after %s, want 0 within %s", code, took, limit)
	}
	// A transaction that is held while events are sent is seen in nearly every look; a process that waits for
	// its processor, in a few.
	if idle > looks/10 || most > 2 {
		t.Errorf("in %d of %d looks a session was idle in a transaction for 100 ms, and there were %d sessions; want next to none and 2",
			idle, looks, most)
	}
	if r.Count() != n || count(t, db, "delivered") != n {
		t.Errorf("%d requests, %d delivered; want %d of each", r.Count(), count(t, db, "delivered"), n)
	}
}

// sessionsOf counts a dispatcher's sessions, and those that sit in a transaction.
func sessionsOf(t *testing.T, db *pgxpool.Pool) (waiting, all int) {
	t.Helper()
	err := db.QueryRow(context.Background(), `
		select count(*) filter (where state like 'idle in transaction%' and clock_timestamp() - state_change > interval '100 ms'), count(*)
		  from pg_stat_activity
		 where datname = current_database() and application_name = 'outboxctl'`).Scan(&waiting, &all)
	if err != nil {
		t.Fatal(err)
	}
	return waiting, all
}

// withSetting adds a setting to a connection string.
func withSetting(url, setting string) string {
	switch {
	case !strings.Contains(url, "://"):
		return url + " " + setting
	case strings.Contains(url, "?"):
		return url + "&" + setting
	}
	return url + "?" + setting
}
