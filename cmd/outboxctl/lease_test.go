package main_test

import (
	"strings"
	"testing"
	"time"

	"github.com/outboxctl/outboxctl/outbox/outboxtest"
)

// TestRowLockedBeyondItsLeaseIsSettledOrFenced has a session that keeps an event's row locked for two
// leases while the event is in flight. Then the result is written, or another worker was first and it
// changes nothing; all other events are settled meanwhile: B11.
func TestRowLockedBeyondItsLeaseIsSettledOrFenced(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name    string
		workers int
	}{{"alone", 1}, {"with another worker", 2}} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			const lease = 3 * time.Second
			url, db := database(t)
			insert(t, db, "order.created", 1)
			inFlight := make(chan struct{})
			r := outboxtest.NewReceiver(t, func(n int, _ *outboxtest.Request) outboxtest.Answer {
				if n == 1 {
					<-inFlight
				}
				return outboxtest.Answer{}
			})
			flags := []string{"--lease", lease.String(), "--request-timeout", "1s"}
			workers := []*process{dispatch(t, url, r.URL, flags...)}
			r.Wait(t, 1, patience)
			lock := begin(t, db)
			if _, err := lock.Exec(t.Context(), `select from outbox where id = 1 for update`); err != nil {
				t.Fatal(err)
			}
			close(inFlight)
			for range tt.workers - 1 {
				workers = append(workers, dispatch(t, url, r.URL, flags...))
			}
			insert(t, db, "others", 20)
			eventually(t, "the others are delivered", func() bool { return count(t, db, "delivered") == 20 })
			eventually(t, "two leases pass", func() bool {
				return query[bool](t, db, `select lease_until + $1 < clock_timestamp() from outbox where id = 1`, lease)
			})
			commit(t, lock)
			allDelivered(t, db, 21)
			lost := 0
			for _, w := range workers {
				w.stop()
				lost += strings.Count(w.err.String(), "lease lost")
			}
			attempts := query[int](t, db, `select attempts from outbox where id = 1`)
			if attempts != 1+lost || r.Count() != 21+lost || attempts > 2 {
				t.Errorf("%d attempts, %d requests too many, %d results were dropped; want as many as were claimed twice", attempts, r.Count()-21, lost)
			}
			if bad := query[int](t, db, `select count(*) from outbox where lease is not null or finished_at is null`); bad != 0 {
				t.Errorf("%d rows are not finished", bad)
			}
		})
	}
}
