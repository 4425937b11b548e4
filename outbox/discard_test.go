package outbox_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/outboxctl/outboxctl/outbox"
	"github.com/outboxctl/outboxctl/outbox/outboxtest"
)

// discardOf gives up all events of these statuses.
func discardOf(statuses ...outbox.Status) outbox.Discard {
	return outbox.Discard{Filter: outbox.Filter{Statuses: statuses}, Before: time.Now().Add(time.Second), Reason: "never\x00 mind"}
}

// Due times at the ends of time, many at one moment and many tenants: the walk over open events finds
// each of them once, in windows of any size.
func TestDiscardFindsEveryOpenEvent(t *testing.T) {
	t.Parallel()
	db := outboxtest.DB(t)
	store := outbox.NewStore(db, "public")
	insert(t, db, 60)
	exec(t, db, `update outbox set tenant_id = (id % 5)::text, destination = (array['','a','Z'])[1 + id % 3],
	       available_at = case when id % 7 = 0 then '-infinity' when id % 7 = 1 then 'infinity' else available_at end,
	       next_attempt_at = case when id % 4 = 0 then now() + interval '1 hour' end`)
	for _, batch := range []int{1, 7, 100} {
		if got := rehearse(t, db, store.Discard(discardOf(outbox.Pending)), batch); got.Done != 60 {
			t.Errorf("in windows of %d it finds %d events, want 60", batch, got.Done)
		}
	}
	if got := operate(t, db, "discard", store.Discard(discardOf(outbox.Pending)), 7); got.Progress.Done != 60 {
		t.Errorf("discarded %d events, want 60", got.Progress.Done)
	}
	const ended = `select count(*) from outbox where status = 'discarded' and error = 'never  mind' and error_kind = 'discarded' and finished_at > now() - interval '1 minute'`
	if n := query[int](t, db, ended); n != 60 {
		t.Errorf("%d of 60 are as they should be", n)
	}
	if n := query[int](t, db, `select count(*) from outbox_audit where action = 'discard' and status = 'pending'`); n != 60 {
		t.Errorf("%d of 60 are in the audit", n)
	}
}

func TestDiscardLeavesWhatWasInsertedAfterItsBegin(t *testing.T) {
	t.Parallel()
	db := outboxtest.DB(t)
	insert(t, db, 3)
	d := discardOf(outbox.Pending)
	d.Before = query[time.Time](t, db, `select clock_timestamp()`)
	insert(t, db, 4)
	if got := operate(t, db, "discard", outbox.NewStore(db, "public").Discard(d), 10); got.Progress.Done != 3 {
		t.Errorf("discarded %d events, want the three that were there", got.Progress.Done)
	}
}

// Claims and a discard side by side: an event is sent or given up, and never both.
func TestDiscardBesideADispatcher(t *testing.T) {
	t.Parallel()
	db := outboxtest.DB(t)
	insert(t, db, 2000)
	sink := &recorder{}
	var wg sync.WaitGroup
	wg.Go(func() { run(t, newDispatcher(db, sink)) })
	change := outbox.NewStore(db, "public").Discard(discardOf(outbox.Pending))
	made := operate(t, db, "discard", change, 50)
	wg.Wait()
	got := query[string](t, db, `select string_agg(status || ' ' || n, ', ' order by status) from (select status, count(*) as n from outbox group by 1) g`)
	if n := query[int64](t, db, `select count(*) from outbox where status = 'discarded'`); n != made.Progress.Done || int64(len(sink.events))+n != 2000 {
		t.Errorf("discarded %d, sent %d of 2000: %s; skipped %v", made.Progress.Done, len(sink.events), got, made.Progress.Skipped)
	}
}

func TestMoveTakesNoKeyTwice(t *testing.T) {
	t.Parallel()
	db := outboxtest.DB(t)
	bury(t, db, 6)
	exec(t, db, `insert into outbox (destination, idempotency_key, aggregate_type, aggregate_id, event_type, payload)
		select 'new', idempotency_key, 'order', '1', 'order.created', '{}' from outbox where id = 2`)
	to := "new"
	r := failed(t, db)
	r.Filter.Destinations, r.MoveTo = []string{""}, &to

	// Somebody inserts the key of event 4 and has not committed when it is looked at.
	tx, err := db.Begin(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(context.Background(), `insert into outbox (destination, idempotency_key, aggregate_type, aggregate_id, event_type, payload)
		select 'new', idempotency_key, 'order', '1', 'order.created', '{}' from outbox where id = 4`); err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(300*time.Millisecond, func() { _ = tx.Commit(context.Background()) })
	if diff := cmp.Diff(tally{4, map[string]int64{outbox.SkipDuplicate: 2}}, tallied(replay(t, db, r, 100))); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestDiscardLeavesWhatIsInFlight(t *testing.T) {
	t.Parallel()
	db := outboxtest.DB(t)
	q := newQueue(db)
	events := claimed(t, db, q, 3)
	insert(t, db, 2)
	got := tallied(operate(t, db, "discard", outbox.NewStore(db, "public").Discard(discardOf(outbox.Pending)), 10))
	if diff := cmp.Diff(tally{2, map[string]int64{outbox.SkipInFlight: 3}}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if done := exchange(t, q, outcomes(events, outbox.Delivered), 0); len(done.Lost) > 0 {
		t.Errorf("%d leases were lost", len(done.Lost))
	}
}
