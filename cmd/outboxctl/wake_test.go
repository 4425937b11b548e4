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
