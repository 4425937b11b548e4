package main_test

import (
	"testing"
	"time"

	"github.com/outboxctl/outboxctl/outbox/outboxtest"
)

// A dispatcher that listens sends what is committed at once, however long its poll interval is, also
// when its session is ended again and again and events come while it is away.
func TestListenerSendsAtOnce(t *testing.T) {
	t.Parallel()
	rounds := 5
	if long {
		rounds = 50
	}
	url, db := database(t)
	if code, _, words := run(t, url, "migrate", "--with", "notify"); code != 0 {
		t.Fatal(words)
	}
	r := outboxtest.NewReceiver(t, nil)
	d := dispatch(t, url, r.URL, "--wake", "listen", "--poll-interval", "60s")
	listening := `select count(*) from pg_stat_activity where query like 'listen %' and datname = current_database()`
	for round := range rounds {
		eventually(t, "it listens", func() bool { return query[int](t, db, listening) == 1 })
		begin := time.Now()
		insert(t, db, "order.created", 1)
		r.Wait(t, 2*round+1, patience)
		execute(t, db, `select pg_terminate_backend(pid) from pg_stat_activity where query like 'listen %' and datname = current_database()`)
		insert(t, db, "order.created", 1)
		r.Wait(t, 2*round+2, patience)
		if took := time.Since(begin); took > patience/2 {
			t.Errorf("round %d took %s, the poll interval is a minute", round, took)
		}
	}
	allDelivered(t, db, 2*rounds)
	d.says("news are heard again")
	d.stop()
}

// B24: what is notified is a destination's name, so that no payload is too large for it, nor is a name.
func TestNotifyTakesAnyPayload(t *testing.T) {
	t.Parallel()
	url, db := database(t)
	if code, _, words := run(t, url, "migrate", "--with", "notify"); code != 0 {
		t.Fatal(words)
	}
	r := outboxtest.NewReceiver(t, nil)
	d := dispatch(t, url, r.URL, "--wake", "listen", "--poll-interval", "60s")
	eventually(t, "it listens", func() bool {
		return query[int](t, db, `select count(*) from pg_stat_activity where query like 'listen %' and datname = current_database()`) == 1
	})
	for i, size := range []int{7_999, 8_000, 1_000_000} {
		execute(t, db, `insert into outbox (aggregate_type, aggregate_id, event_type, payload) values ('file', '1', 'file.added', to_jsonb(repeat('x', $1 - 2)))`, size)
		r.Wait(t, i+1, patience/2)
		if got := len(r.Requests()[i].Body); got < size {
			t.Errorf("%d bytes arrived of a payload of %d", got, size)
		}
	}
	allDelivered(t, db, 3)
	execute(t, db, `insert into outbox (aggregate_type, aggregate_id, event_type, destination, payload) values ('file', '1', 'file.added', repeat('d', 200), '{}')`)
	d.stop()
}
