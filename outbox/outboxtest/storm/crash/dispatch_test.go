package crash_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxctl/outboxctl/outbox/outboxtest"
)

// The settings of the dispatchers.
const (
	lease    = 2500 * time.Millisecond
	poll     = 100 * time.Millisecond
	parallel = 4
	batch    = 8
)

// dispatches are deaths of a dispatcher, with and without an order to keep.
func dispatches() (all []crashed) {
	for _, ordering := range []string{"none", "aggregate"} {
		for point, nths := range map[string][]int{
			"after-claim":        times([]int{1, 4}, 2, 9),
			"claim-under-way":    times([]int{3}, 1, 8, 15),
			"before-request":     times([]int{1, 12}, 3, 40),
			"after-request":      times([]int{1, 12}, 3, 40),
			"after-2xx":          times([]int{1, 9}, 4, 30),
			"before-settle":      times([]int{1, 3}, 2, 7),
			"settle-under-way":   times([]int{1, 3}, 2, 7),
			"after-settle":       times([]int{1, 3}, 2, 7),
			"after-settle-alone": times([]int{1}, 2),
			"heartbeat":          times([]int{1}),
			"at-stop":            times([]int{1}),
		} {
			for _, nth := range nths {
				all = append(all, crashed{"ordering " + ordering, point, nth, func(t *testing.T, s *stage) { s.dispatch(t, ordering) }})
			}
		}
	}
	return all
}

// dispatch has a dispatcher die while events come in, and another deliver the rest.
func (s *stage) dispatch(t *testing.T, ordering string) {
	db := outboxtest.DB(t)
	s.url = db.Config().ConnString()
	r := outboxtest.NewReceiver(t, fails)
	args := []string{"dispatch", "--to", r.URL, "--allow-private", "--poll-interval", poll.String(), "--lease", lease.String(), "--request-timeout", "500ms",
		"--parallel", strconv.Itoa(parallel), "--batch-size", strconv.Itoa(batch), "--backoff", "100ms..200ms", "--ordering", ordering}
	victim := s.victim(t, args...)
	s.trouble(t, db, r, victim)
	produce(t, db, victim)
	died := s.dies(t, victim)
	healthy := s.healthy(t, args...)
	allDelivered(t, db)
	healthy.stop()
	s.judge(t, db, died, destination{"", r, ordering == "aggregate"})
}

// fails refuses the first attempt of some.
func fails(_ int, r *outboxtest.Request) outboxtest.Answer {
	a := outboxtest.Answer{Delay: 2 * time.Millisecond}
	if r.Attempt == 1 && r.Key[0] == '7' {
		a.Status = 503
	}
	return a
}

// trouble brings a victim to points that it does not come by every day.
func (s *stage) trouble(t *testing.T, db *pgxpool.Pool, r *outboxtest.Receiver, victim *process) {
	var trouble func()
	switch s.point {
	case "at-stop":
		told := false // once: the second time, it leaves at once
		trouble = func() {
			if r.Count() > 20 && !told {
				told = victim.cmd.Process.Signal(syscall.SIGTERM) == nil
			}
		}
	case "after-settle-alone":
		trouble = func() {
			_, _ = db.Exec(context.Background(), `do $$ begin
				perform from outbox where id = (select id from outbox where status = 'in_progress' limit 1) for update skip locked;
				if found then perform pg_sleep(0.7); end if; end $$`)
		}
	default:
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	t.Cleanup(func() { cancel(); wg.Wait() })
	wg.Go(func() {
		for {
			select {
			case <-victim.done:
				return
			case <-ctx.Done():
				return
			case <-time.After(10 * time.Millisecond):
				trouble()
			}
		}
	})
}

// produce inserts events of a few aggregates, one transaction after the other, while the victim lives.
func produce(t *testing.T, db *pgxpool.Pool, victim *process) {
	t.Helper()
	for n, deadline := 0, time.Now().Add(patience); time.Now().Before(deadline); n++ {
		execute(t, db, `insert into outbox (aggregate_type, aggregate_id, event_type, payload)
			select 'order', (($1::int + i) % 7)::text, 'order.changed', jsonb_build_object('n', $1::int * 4 + i) from generate_series(1, 4) i`, n)
		select {
		case <-victim.done:
			return
		case <-time.After(40 * time.Millisecond):
		}
	}
}

func allDelivered(t *testing.T, db *pgxpool.Pool) {
	t.Helper()
	eventually(t, "no event is open", func() bool {
		return query[int](t, db, `select count(*) from outbox where finished_at is null`) == 0
	})
	equal(t, db, "events that are not delivered", `select count(*) from outbox where status <> 'delivered'`, 0)
}

// destination is one to be judged.
type destination struct {
	name     string
	receiver *outboxtest.Receiver
	ordered  bool
}

// judge compares what a destination has seen with its rows.
func (s *stage) judge(t *testing.T, db *pgxpool.Pool, died time.Time, d destination) {
	t.Helper()
	var attempts map[string]int // by key
	text := query[string](t, db, `select jsonb_object_agg(idempotency_key, attempts)::text from outbox where destination = '`+d.name+`'`)
	if err := json.Unmarshal([]byte(text), &attempts); err != nil {
		t.Fatal(err)
	}
	seen := d.receiver.ByKey()
	repeats, accused := 0, 0
	for key, requests := range seen {
		if _, ok := attempts[key]; !ok {
			t.Errorf("%q: event %s was sent, and nobody has written it", d.name, key)
		}
		accepted := 0
		for _, r := range requests {
			if !bytes.Equal(r.Body, requests[0].Body) {
				t.Errorf("%q: event %s was sent as %s and as %s", d.name, key, requests[0].Body, r.Body)
			}
			if r.Answer.Status == 0 {
				accepted++
			}
		}
		repeats += max(accepted-1, 0)
	}
	for key, n := range attempts {
		switch sent := len(seen[key]); {
		case sent == 0:
			t.Errorf("%q: event %s is delivered, and nobody has received it", d.name, key)
		case n < sent || n > sent+1:
			t.Errorf("%q: event %s has %d attempts, and was sent %d times", d.name, key, n, sent)
		case n > sent:
			accused++ // the victim had it in hand
		}
	}
	if repeats > batch || accused > batch {
		t.Errorf("%q: %d events were taken twice and %d attempts sent nothing, want what was in hand, %d, at most", d.name, repeats, accused, batch)
	}
	if d.ordered {
		inOrder(t, d.receiver.Requests())
	}
	const busy = 15 * time.Second // for a machine that has more to do
	last := query[time.Time](t, db, `select max(finished_at) from outbox`)
	if after := last.Sub(died); after > lease+poll+2*time.Second+busy {
		t.Errorf("the last event was delivered %s after the crash", after)
	}
	t.Logf("%q: %d events, %d requests, %d taken twice, %d attempts of the dead that sent nothing; all done %s after its death",
		d.name, len(attempts), d.receiver.Count(), repeats, accused, last.Sub(died).Round(time.Millisecond))
}

// inOrder has each event of an aggregate come first when all before it have been taken, and none while another is
// being sent.
func inOrder(t *testing.T, requests []outboxtest.Request) {
	t.Helper()
	type aggregate struct {
		open  outboxtest.Request
		taken map[int64]bool
	}
	all := map[string]*aggregate{}
	for _, r := range requests {
		var e struct {
			AggregateID string `json:"aggregate_id"`
			Sequence    int64  `json:"sequence,string"`
		}
		if err := json.Unmarshal(r.Body, &e); err != nil {
			t.Fatal(err)
		}
		a := all[e.AggregateID]
		if a == nil {
			a = &aggregate{taken: map[int64]bool{}}
			all[e.AggregateID] = a
		}
		if a.open.N > 0 && (a.open.Done.IsZero() || r.At.Before(a.open.Done)) {
			t.Errorf("aggregate %s: event %d is sent while another is", e.AggregateID, e.Sequence)
		}
		for sequence, taken := range a.taken {
			if sequence < e.Sequence && !taken {
				t.Errorf("aggregate %s: event %d is sent, and %d has not been taken", e.AggregateID, e.Sequence, sequence)
			}
		}
		a.taken[e.Sequence] = a.taken[e.Sequence] || r.Answer.Status == 0
		a.open = r
	}
}

// routings are deaths of a router, between two destinations.
func routings() (all []crashed) {
	for _, point := range []string{"route-before-commit", "route-after-commit"} {
		for _, nth := range times([]int{1, 3}, 2, 8) {
			all = append(all, crashed{"routes", point, nth, func(t *testing.T, s *stage) { s.route(t) }})
		}
	}
	return all
}

// route has a dispatcher die that also routes.
func (s *stage) route(t *testing.T) {
	db := outboxtest.DB(t)
	s.url = db.Config().ConnString()
	crm, mail := outboxtest.NewReceiver(t, fails), outboxtest.NewReceiver(t, fails)
	args := []string{"dispatch", "--config", theRoutes(t, crm.URL, mail.URL)}
	victim := s.victim(t, args...)
	produce(t, db, victim)
	died := s.dies(t, victim)
	healthy := s.healthy(t, args...)
	allDelivered(t, db)
	healthy.stop()
	equal(t, db, "events without one row for each of two destinations", `select count(*) from (
		select idempotency_key from outbox group by 1 having count(*) <> 2 or count(*) filter (where destination = '') > 0) wrong`, 0)
	s.judge(t, db, died, destination{"crm", crm, true})
	s.judge(t, db, died, destination{"mail", mail, false})
}

// theRoutes is a configuration with two destinations of every event.
func theRoutes(t *testing.T, crm, mail string) string {
	t.Helper()
	settings := fmt.Sprintf("allow_private: true, lease: %s, request_timeout: 500ms, parallel: %d, batch_size: %d, retry: {backoff: 100ms..200ms}, breaker: {failures: 0}",
		lease, parallel, batch)
	text := strings.NewReplacer("POLL", poll.String(), "CRM", crm, "MAIL", mail, "SETTINGS", settings).Replace(`
poll_interval: POLL
destinations:
  crm: {url: "CRM", ordering: aggregate, SETTINGS}
  mail: {url: "MAIL", SETTINGS}
routes:
  - {event_type: "order.*", to: [crm, mail]}
`)
	file := filepath.Join(t.TempDir(), "outboxctl.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}
