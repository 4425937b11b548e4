package main_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxctl/outboxctl/outbox/outboxtest"
)

// bury inserts n events that failed an hour ago, one millisecond after the other.
func bury(t testing.TB, db *pgxpool.Pool, n int) {
	t.Helper()
	execute(t, db, `insert into outbox (aggregate_type, aggregate_id, event_type, payload, status, attempts, created_at, finished_at, error, error_kind, error_code)
		select 'order', i::text, 'order.created', '{}', 'failed', 10, at, at, 'answered 503', 'http', 503
		  from (select i, now() - interval '1 hour' + i * interval '1 ms' as at from generate_series(1, $1::int) i) g`, n)
}

// replayed reads the document of a replay.
func replayed(t testing.TB, out string) (doc struct {
	Matched, Done int64
	Skipped       map[string]int64
	Operation     int64
}) {
	t.Helper()
	if err := json.Unmarshal([]byte(out), &doc); err != nil {
		t.Fatalf("%q: %v", out, err)
	}
	return doc
}

// TestReplaysOfThreeProcessesMoveEachEventOnce has three of them meet at every row.
func TestReplaysOfThreeProcessesMoveEachEventOnce(t *testing.T) {
	t.Parallel()
	url, db := database(t)
	bury(t, db, 3000)
	processes := make([]*process, 3)
	for i := range processes {
		processes[i] = start(t, url, "replay", "--status=failed", "--yes", "--batch-size", "50", "-o", "json")
	}
	var done int64
	for _, p := range processes {
		code := p.wait(patience)
		doc := replayed(t, p.out.String())
		done += doc.Done
		skipped := doc.Matched - doc.Done
		if (code == 3) != (skipped > 0) || code != 0 && code != 3 {
			t.Errorf("exit code %d with %d skipped: %s", code, skipped, p.err.String())
		}
		for reason, n := range doc.Skipped {
			if reason != "state" && n > 0 {
				t.Errorf("%d are skipped as %s; the others only can be faster", n, reason)
			}
		}
	}
	audited := query[int](t, db, `select count(distinct event_id) from outbox_audit`)
	if n := query[int](t, db, `select count(*) from outbox_audit`); done != 3000 || n != 3000 || audited != 3000 || count(t, db, "pending") != 3000 {
		t.Errorf("replayed %d, in the audit %d of %d events, pending %d; want 3,000 of each", done, n, audited, count(t, db, "pending"))
	}
}

// TestKilledReplayIsFinishedByTheSameCommand kills one again and again, at any moment.
func TestKilledReplayIsFinishedByTheSameCommand(t *testing.T) {
	t.Parallel()
	const events = 4000
	url, db := database(t)
	bury(t, db, events)
	command := []string{"replay", "--status=failed", "--yes", "--batch-size", "20", "--rate", "1000/s"}
	kills := 0
	for kills < 6 {
		p := start(t, url, command...)
		begun := query[int](t, db, `select count(*) from outbox_audit`)
		eventually(t, "it is at work", func() bool {
			return query[int](t, db, `select count(*) from outbox_audit`) > begun || count(t, db, "failed") == 0
		})
		time.Sleep(rand.N(40 * time.Millisecond)) // any moment will do
		p.kill()
		kills++
	}
	// Each run's row is right about what it did, to the event.
	const wrong = `select count(*) from outbox_operations o
		where done <> (select count(*) from outbox_audit a where a.operation = o.id) or done <> (select count(*) from outbox e where e.origin = 'replay:' || o.id)`
	eventually(t, "the last transactions have ended", func() bool { return query[int](t, db, wrong) == 0 })
	if code, out, words := run(t, url, command...); code != 0 {
		t.Fatalf("exit code %d, want 0: %s%s", code, out, words)
	}
	if n := query[int](t, db, `select count(*) from outbox_audit`); n != events || count(t, db, "pending") != events {
		t.Errorf("%d events were replayed, %d are pending, want each of %d once", n, count(t, db, "pending"), events)
	}
	if n := query[int](t, db, wrong); n != 0 {
		t.Errorf("%d rows of outbox_operations are wrong about what was done", n)
	}
	// The spread goes on behind that of the run before.
	perSecond := query[int](t, db, `select max(n) from (select count(*) as n from outbox group by floor(extract(epoch from available_at))) g`)
	if perSecond > 1050 {
		t.Errorf("%d events become due in one second, want 1,000", perSecond)
	}
}

// TestReplayStoppedByASignalSaysHowFarItCame stops one between two batches.
func TestReplayStoppedByASignalSaysHowFarItCame(t *testing.T) {
	t.Parallel()
	url, db := database(t)
	bury(t, db, 5000)
	p := start(t, url, "replay", "--status=failed", "--yes", "--batch-size", "1", "-o", "json")
	eventually(t, "it is at work", func() bool { return query[int](t, db, `select count(*) from outbox_audit`) > 10 })
	p.signal(15)
	if code := p.wait(patience); code != 3 {
		t.Errorf("exit code %d, want 3", code)
	}
	doc := replayed(t, p.out.String())
	if pending := count(t, db, "pending"); doc.Done != int64(pending) || pending == 5000 {
		t.Errorf("it says that it replayed %d, and %d are pending", doc.Done, pending)
	}
	if !strings.Contains(p.err.String(), "replay stopped: stopped by terminated\n  the same command again goes on with the rest\n") {
		t.Errorf("it says %q", p.err.String())
	}
	if why := query[string](t, db, `select error from outbox_operations where ended_at is not null`); why != "stopped by terminated" {
		t.Errorf("its row says %q", why)
	}
}

// TestReplayIsInNobodysDeadlock has dispatchers settle, a replay and somebody who locks rows in the
// opposite order at work on the same rows: B17.
func TestReplayIsInNobodysDeadlock(t *testing.T) {
	t.Parallel()
	const events = 300
	url, db := database(t)
	bury(t, db, events)
	refusals := 0
	var mu sync.Mutex
	r := outboxtest.NewReceiver(t, func(int, *outboxtest.Request) outboxtest.Answer {
		mu.Lock()
		defer mu.Unlock()
		if refusals++; refusals%3 == 0 {
			return outboxtest.Answer{Status: 422}
		}
		return outboxtest.Answer{}
	})
	var dispatchers []*process
	for range 2 {
		dispatchers = append(dispatchers, dispatch(t, url, r.URL, "--parallel", "4", "--batch-size", "20"))
	}
	while := 8 * time.Second
	if long {
		while = 2 * time.Minute
	}
	ctx, cancel := context.WithTimeout(context.Background(), while)
	defer cancel()
	var wg sync.WaitGroup
	wg.Go(func() {
		for ctx.Err() == nil {
			lockDescending(t, db)
		}
	})
	for ctx.Err() == nil {
		code, out, words := run(t, url, "replay", "--status", "failed,dead_letter,delivered", "--include-delivered", "--reason", "B17", "--yes", "--batch-size", "50")
		if code != 0 && code != 3 {
			t.Errorf("exit code %d: %s%s", code, out, words)
		}
	}
	wg.Wait()
	for _, d := range dispatchers {
		eventually(t, "nothing is open", func() bool { return query[int](t, db, `select count(*) from outbox where finished_at is null`) == 0 })
		d.stop()
	}
	moved := query[int](t, db, `select count(*) from outbox_audit`)
	sent := query[int](t, db, `select count(*) from outbox where attempts <> 1 and id in (select event_id from outbox_audit)`)
	if r.Count() != moved || sent != 0 {
		t.Errorf("%d requests for %d events replayed, %d with other than one attempt; want one for each", r.Count(), moved, sent)
	}
	if n := query[int](t, db, `select deadlocks from pg_stat_database where datname = current_database()`); n != 0 {
		t.Errorf("PostgreSQL has found %d deadlocks", n)
	}
}

// lockDescending locks all rows one after the other as a session does that knows no better, and gives
// up when that takes long.
func lockDescending(t *testing.T, db *pgxpool.Pool) {
	tx, err := db.Begin(context.Background())
	if err != nil {
		t.Error(err)
		return
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	_, err = tx.Exec(context.Background(), `set local lock_timeout = '5s'`)
	for id := 300; id > 0 && err == nil; id -= 1 + rand.N(3) {
		_, err = tx.Exec(context.Background(), fmt.Sprintf(`select from outbox where id = %d for update`, id))
	}
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok && pg.Code == "55P03" {
		return
	}
	if err != nil {
		t.Errorf("the locking session: %v", err)
	}
}

// TestOperatorsReplayAndDiscardAndDispatchersDoNot has each do it with the rights of its role alone.
func TestOperatorsReplayAndDiscardAndDispatchersDoNot(t *testing.T) {
	t.Parallel()
	r := newRoles(t)
	execute(t, r.db, r.in(`insert into {schema}.outbox (aggregate_type, aggregate_id, event_type, payload, status, finished_at, error_kind)
		select 'order', i::text, 'order.created', '{}', 'failed', now(), 'http' from generate_series(1, 4) i`))
	for _, role := range []string{"producer", "dispatcher", "reader"} {
		for _, command := range []string{"replay --all --yes", "events discard --all --reason x --yes"} {
			if code, _, words := r.run(t, role, strings.Fields(command)...); code != 4 || !refused(words) {
				t.Errorf("%s as %s = %d, want 4 and a line: %s", command, role, code, words)
			}
		}
	}
	for _, command := range []string{"replay --aggregate order:1 --yes", "replay --destination default --move-to new --aggregate order:2 --yes", "events discard --all --reason x --yes"} {
		if code, out, words := r.run(t, "operator", strings.Fields(command)...); code != 0 {
			t.Errorf("%s = %d: %s%s", command, code, out, words)
		}
	}
}
