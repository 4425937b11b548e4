package main_test

import (
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxctl/outboxctl/outbox/outboxtest"
)

// ownClock is a migrated server whose clock can be moved.
func ownClock(t *testing.T) (*outboxtest.Cluster, string, *pgxpool.Pool) {
	t.Helper()
	c := cluster(t, outboxtest.Options{Clock: true})
	url := c.URL("postgres")
	return c, url, connect(t, url)
}

func shift(t *testing.T, c *outboxtest.Cluster, d time.Duration) {
	t.Helper()
	if err := c.Shift(d); err != nil {
		t.Fatal(err)
	}
}

// insertDue commits n events that are due after a while, by the server's clock, and returns when.
func insertDue(t *testing.T, db *pgxpool.Pool, n int, after time.Duration) time.Time {
	t.Helper()
	return query[time.Time](t, db, `
with due as (select clock_timestamp() + $2 as at),
new as (
	insert into outbox (aggregate_type, aggregate_id, event_type, payload, available_at)
	select 'order', i::text, 'order.due', '{}', at from due, generate_series(1, $1::int) i)
select at from due`, n, after)
}

// TestServersClockAloneSaysWhatIsDue moves the server's clock by an hour, both ways, under a running
// dispatcher: due times, leases and retries go by it, signatures by the dispatcher's own: B34.
func TestServersClockAloneSaysWhatIsDue(t *testing.T) {
	t.Parallel()
	const after, lease = time.Second, 20 * time.Second
	c, url, db := ownClock(t)
	held := make(chan struct{})
	r := outboxtest.NewReceiver(t, func(n int, r *outboxtest.Request) outboxtest.Answer {
		if r.Attempt == 1 {
			<-held
			return outboxtest.Answer{Status: 503}
		}
		return outboxtest.Answer{}
	})
	t.Cleanup(func() { close(held) })
	d := startWith(t, []string{"DATABASE_URL=" + url, "OUTBOXCTL_SECRET=a-secret-of-more-than-24-bytes"},
		"dispatch", "--to", r.URL, "--allow-private", "--poll-interval", "200ms", "--lease", lease.String(),
		"--request-timeout", "10s", "--backoff", "1s..1s", "--jitter", "0")
	for i, ahead := range []time.Duration{time.Hour, -time.Hour, 0} {
		shift(t, c, ahead)
		due := insertDue(t, db, 1, after).Add(-ahead) // by our clock
		r.Wait(t, 2*i+1, patience)
		request := r.Requests()[2*i]
		if late := request.At.Sub(due); late < 0 || late > slack {
			t.Errorf("%s ahead: sent %s after its time, want less than %s and not before", ahead, late, slack)
		}
		signed, err := strconv.ParseInt(request.Header.Get("Webhook-Timestamp"), 10, 64)
		if off := request.At.Sub(time.Unix(signed, 0)); err != nil || off.Abs() > 5*time.Second {
			t.Errorf("%s ahead: signed %s away from the dispatcher's time", ahead, off)
		}
		left := query[time.Duration](t, db, `select lease_until - clock_timestamp() from outbox where status = 'in_progress'`)
		if left > lease || left < lease-5*time.Second {
			t.Errorf("%s ahead: the lease has %s left, want about %s", ahead, left, lease)
		}
		held <- struct{}{}
		r.Wait(t, 2*i+2, patience)
		if wait := r.Requests()[2*i+1].At.Sub(r.Requests()[2*i].Done); wait < after || wait > after+slack {
			t.Errorf("%s ahead: sent again after %s, want %s", ahead, wait, after)
		}
		allDelivered(t, db, i+1)
	}
	d.stop()
}

// TestJumpOfTheServersClockRepeatsOnlyWhatWasClaimed lets the clock jump ten minutes ahead under load,
// which ends all leases at once, and back: B34.
func TestJumpOfTheServersClockRepeatsOnlyWhatWasClaimed(t *testing.T) {
	t.Parallel()
	const n, batch = 400, 20
	c, url, db := ownClock(t)
	insertDue(t, db, n, 0)
	r := outboxtest.NewReceiver(t, outboxtest.Always(outboxtest.Answer{Delay: 50 * time.Millisecond}))
	var workers []*process
	for range 2 {
		workers = append(workers, dispatch(t, url, r.URL, "--batch-size", "20", "--parallel", "4", "--log-level", "warn"))
	}
	r.Wait(t, n/4, patience)
	shift(t, c, 10*time.Minute)
	r.Wait(t, n/2, patience)
	shift(t, c, 0)
	allDelivered(t, db, n)
	for _, w := range workers {
		w.stop()
	}
	if twice := r.Count() - n; twice > 2*batch || len(r.ByKey()) != n {
		t.Errorf("%d events arrived, %d requests too many; want %d and no more than were claimed, %d", len(r.ByKey()), twice, n, 2*batch)
	}
	if again := query[int](t, db, `select count(*) from outbox where attempts = 2`); again == 0 {
		t.Error("no lease lapsed at the jump: the test has missed it")
	}
	for key, requests := range r.ByKey() {
		if len(requests) > 2 {
			t.Errorf("event %s was sent %d times, want one repeat at most", key, len(requests))
		}
	}
	fresh := insertDue(t, db, 1, 0)
	w := dispatch(t, url, r.URL)
	before := r.Count()
	r.Wait(t, before+1, patience)
	if late := r.Requests()[before].At.Sub(fresh); late > 5*time.Second {
		t.Errorf("after the jump back a new event took %s", late)
	}
	w.stop()
}

// TestDayIsADayAlsoWhenClocksChange has a server in Kyiv on the nights in which its day has 23 hours
// and 25: a wait of 1d is 24 hours: B35.
func TestDayIsADayAlsoWhenClocksChange(t *testing.T) {
	t.Parallel()
	c, url, db := ownClock(t)
	execute(t, db, `alter database postgres set timezone = 'Europe/Kyiv'`)
	r := outboxtest.NewReceiver(t, outboxtest.Always(outboxtest.Answer{Status: 503}))
	noons := []string{"2026-03-28T12:00:00+02:00", "2026-10-24T12:00:00+03:00"}
	if !long {
		noons = noons[:1]
	}
	for i, noon := range noons {
		at, err := time.Parse(time.RFC3339, noon)
		if err != nil {
			t.Fatal(err)
		}
		ahead := time.Until(at)
		for _, tt := range []struct {
			after time.Duration
			sent  int // so far
		}{{0, 1}, {23*time.Hour + 59*time.Minute, 1}, {24*time.Hour + time.Minute, 2}} {
			shift(t, c, ahead+tt.after)
			if tt.after == 0 {
				insertDue(t, db, 1, 0)
			}
			if code, words := once(t, url, r.URL, "--backoff", "1d..1d", "--jitter", "0", "--wait", "0"); code != 0 {
				t.Fatalf("exit code %d: %s", code, words)
			}
			if got := r.Count() - 2*i; got != tt.sent {
				t.Errorf("%s and %s: sent %d times, want %d", noon, tt.after, got, tt.sent)
			}
		}
		wait := query[float64](t, db, `select extract(epoch from next_attempt_at - last_attempt_at)::float8 from outbox`)
		if wait < 86400 || wait > 86410 {
			t.Errorf("from %s on, 1d is %.0f s, want 86400", noon, wait)
		}
		execute(t, db, `delete from outbox`)
	}
}
