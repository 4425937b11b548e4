package main_test

import (
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxctl/outboxctl/outbox/outboxtest"
)

// TestCrashOfPostgreSQLIsSurvivedCalmly crashes the server under load and keeps it away for three
// seconds. The dispatcher goes on within five of its return, loses nothing and says little.
func TestCrashOfPostgreSQLIsSurvivedCalmly(t *testing.T) {
	t.Parallel()
	const n, parallel = 1000, 8
	c := cluster(t, outboxtest.Options{})
	url := c.URL("postgres")
	db := connect(t, url)
	insert(t, db, "order.created", n)
	r := outboxtest.NewReceiver(t, outboxtest.Always(outboxtest.Answer{Delay: 10 * time.Millisecond}))
	dispatcher := dispatch(t, url, r.URL, "--parallel", "8", "--lease", "4s", "--request-timeout", "1s", "--log-level", "warn")
	r.Wait(t, n/4, patience)
	if err := c.Stop("immediate"); err != nil {
		t.Fatal(err)
	}
	dispatcher.says("PostgreSQL does not answer, trying again")
	time.Sleep(3 * time.Second)
	if err := c.Restart(); err != nil {
		t.Fatal(err)
	}
	r.Wait(t, r.Count()+1, 5*time.Second)
	db = connect(t, url) // the old sessions are gone
	allDelivered(t, db, n)
	dispatcher.stop()
	if twice := r.Count() - len(r.ByKey()); len(r.ByKey()) != n || twice > parallel {
		t.Errorf("%d events were received, %d twice; want %d and no more than were in flight, %d", len(r.ByKey()), twice, n, parallel)
	}
	if said := strings.Count(dispatcher.err.String(), "\n"); said > 5 {
		t.Errorf("%d lines in the log, want a few:\n%s", said, dispatcher.err.String())
	}

	// A run for cron does not wait for a server: neither at its begin nor in its middle.
	insert(t, db, "order.paid", 1)
	failing := outboxtest.NewReceiver(t, outboxtest.Always(outboxtest.Answer{Status: 503}))
	middle := dispatch(t, url, failing.URL, "--once", "--backoff", "2s..1m", "--wait", "1m")
	eventually(t, "its failure is written", func() bool {
		return query[int](t, db, `select count(*) from outbox where status = 'pending' and attempts = 1`) == 1
	})
	if err := c.Stop("fast"); err != nil {
		t.Fatal(err)
	}
	begin := dispatch(t, url, failing.URL, "--once")
	for _, p := range []*process{begin, middle} {
		if code := p.wait(patience); code != 4 {
			t.Errorf("exit code %d of --once without PostgreSQL, want 4: %s", code, p.err.String())
		}
	}
}

// connect opens a pool that ends with the test.
func connect(t *testing.T, url string) *pgxpool.Pool {
	t.Helper()
	db, err := pgxpool.New(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	return db
}
