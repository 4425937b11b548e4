package main_test

import (
	"context"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxctl/outboxctl/outbox/outboxtest"
)

// delivered inserts n events that were delivered over the day that ended an age ago.
func delivered(t *testing.T, db *pgxpool.Pool, n int, age time.Duration) {
	t.Helper()
	execute(t, db, `
insert into outbox (aggregate_type, aggregate_id, event_type, payload, status, finished_at)
select 'order', i::text, 'order.created', jsonb_build_object('n', i), 'delivered', now() - $2::interval - i * interval '24 hours' / $1::int
  from generate_series(1, $1::int) i`, n, age)
}

const month = 30 * 24 * time.Hour

// TestKilledPurgeDoublesNothing kills an archiving purge in the middle. What it did is done, to the
// row, and the next one does the rest.
func TestKilledPurgeDoublesNothing(t *testing.T) {
	t.Parallel()
	const n = 5000
	url, db := database(t)
	delivered(t, db, n, month)
	args := []string{"purge", "--older-than", "30d", "--archive", "--yes", "--batch-size", "50"}
	p := start(t, url, append(args, "--pause", "5ms")...)
	eventually(t, "something is archived", func() bool { return query[int](t, db, `select count(*) from outbox_archive`) > 200 })
	p.kill()
	if code, _, words := run(t, url, args...); code != 3 || !strings.Contains(words, "busy") {
		t.Errorf("at once again: exit %d, want 3 and busy: %s", code, words)
	}
	eventually(t, "the killed one's session has ended", func() bool {
		return query[int](t, db, `select count(*) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid() and xact_start is not null`) == 0
	})
	archived := query[int](t, db, `select count(*) from outbox_archive`)
	if archived == n || archived+query[int](t, db, `select count(*) from outbox`) != n {
		t.Fatalf("%d are archived, %d left, of %d", archived, query[int](t, db, `select count(*) from outbox`), n)
	}
	if done := query[int](t, db, `select sum(done) from outbox_operations`); done != archived {
		t.Errorf("the operation's row says %d, and %d are archived", done, archived)
	}
	execute(t, db, `update outbox_operations set heartbeat_at = now() - interval '31 s'`)
	if code, _, words := run(t, url, args...); code != 0 {
		t.Errorf("again: exit %d: %s", code, words)
	}
	got := query[int](t, db, `select count(distinct (id, payload)) from outbox_archive`)
	if total := query[int](t, db, `select count(*) from outbox_archive`); got != n || total != n || query[int](t, db, `select count(*) from outbox`) != 0 {
		t.Errorf("%d rows of %d events are archived, want %d", total, got, n)
	}
}

// TestStoppedPurgeKeepsWhatItDid stops one by a signal: between two transactions, with a word.
func TestStoppedPurgeKeepsWhatItDid(t *testing.T) {
	t.Parallel()
	const n = 3000
	url, db := database(t)
	delivered(t, db, n, month)
	p := start(t, url, "purge", "--older-than", "30d", "--yes", "--batch-size", "100", "--pause", "50ms")
	eventually(t, "something is gone", func() bool { return count(t, db, "delivered") < n-300 })
	p.signal(syscall.SIGTERM)
	if code := p.wait(patience); code != 3 || !strings.Contains(p.err.String(), "purge stopped: stopped by terminated") {
		t.Errorf("exit %d, want 3: %s", code, &p.err)
	}
	left := count(t, db, "delivered")
	if done := query[int](t, db, `select sum(done) from outbox_operations where ended_at is not null`); done != n-left || left == 0 {
		t.Errorf("the operation's row says %d, and %d are left of %d", done, left, n)
	}
	if code, out, _ := run(t, url, "purge", "--older-than", "30d", "--yes"); code != 0 || count(t, db, "delivered") != 0 {
		t.Errorf("again: exit %d, %d left: %s", code, count(t, db, "delivered"), out)
	}
}

// TestPurgeOfManyIsAGuest purges beside live deliveries, in the long form three million events: no
// transaction takes long, what is fresh stays, and a second run finds nothing to do: B57.
func TestPurgeOfManyIsAGuest(t *testing.T) {
	t.Parallel()
	n, fresh := 60_000, 1000
	if long {
		n, fresh = 3_000_000, 10_000
	}
	url, db := database(t)
	delivered(t, db, n, month)
	delivered(t, db, fresh, time.Hour)
	execute(t, db, `analyze outbox`)
	r := outboxtest.NewReceiver(t, nil)
	d := dispatch(t, url, r.URL, "--poll-interval", "100ms")
	ctx, stop := context.WithCancel(context.Background())
	live := make(chan int)
	go func() {
		total := 0
		for ctx.Err() == nil {
			insert(t, db, "order.live", 30)
			total += 30
			time.Sleep(100 * time.Millisecond)
		}
		live <- total
	}()
	p := start(t, url, "purge", "--older-than", "7d", "--yes", "--max-duration", "10m")
	var longest time.Duration
	for running := true; running; time.Sleep(5 * time.Millisecond) {
		longest = max(longest, query[time.Duration](t, db, `
select coalesce(max(clock_timestamp() - xact_start) filter (where query like '%d.ctid%'), '0') from pg_stat_activity where datname = current_database()`))
		select {
		case <-p.done:
			running = false
		default:
		}
	}
	if code := p.wait(patience); code != 0 {
		t.Errorf("purge = %d: %s", code, &p.err)
	}
	stop()
	total := <-live
	eventually(t, "the live events are delivered", func() bool {
		return query[int](t, db, `select count(*) from outbox where event_type = 'order.live' and status = 'delivered'`) == total
	})
	d.stop()
	t.Logf("the longest step was seen at %s; %d live events", longest, total)
	if longest == 0 || longest > time.Second {
		t.Errorf("a step of the purge took %s", longest)
	}
	if got := query[int](t, db, `select count(*) from outbox`); got != fresh+total {
		t.Errorf("%d events are left, want %d", got, fresh+total)
	}
	if !strings.Contains(p.err.String(), "dead rows are left to autovacuum") {
		t.Errorf("no word about dead rows: %s", &p.err)
	}
	if code, out, _ := run(t, url, "purge", "--older-than", "7d", "--yes"); code != 0 || !strings.HasPrefix(out, "nothing to do") {
		t.Errorf("again: exit %d: %s", code, out)
	}
}
