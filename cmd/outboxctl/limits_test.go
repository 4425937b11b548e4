package main_test

import (
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/outboxctl/outboxctl/outbox/outboxtest"
)

// command runs an operator's command that must go well.
func command(t *testing.T, url string, args ...string) string {
	t.Helper()
	code, out, words := run(t, url, args...)
	if code != 0 {
		t.Fatalf("outboxctl %s: exit code %d: %s%s", strings.Join(args, " "), code, out, words)
	}
	return out
}

// TestPauseHoldsForEveryDispatcher pauses in the middle of the work of two: within a poll nothing is sent
// and nothing is claimed any more, and no attempt is lost.
func TestPauseHoldsForEveryDispatcher(t *testing.T) {
	t.Parallel()
	const n = 600
	url, db := database(t)
	insert(t, db, "order.created", n)
	r := outboxtest.NewReceiver(t, outboxtest.Always(outboxtest.Answer{Delay: 50 * time.Millisecond}))
	var both []*process
	for range 2 {
		both = append(both, dispatch(t, url, r.URL, "--parallel", "4"))
	}
	r.Wait(t, 40, patience)
	command(t, url, "dispatch", "pause", "default", "--reason", "they move")
	for _, d := range both {
		d.says(`msg=paused for="until resumed" reason="they move"`)
	}
	eventually(t, "nothing is claimed", func() bool { return count(t, db, "in_progress") == 0 })
	sent := r.Count()
	time.Sleep(time.Second)
	if now := r.Count(); now != sent || sent == n {
		t.Fatalf("%d requests, and %d a second later, during a pause", sent, now)
	}
	if got := query[int](t, db, `select sum(attempts)::int from outbox`); got != sent {
		t.Errorf("%d attempts for %d requests", got, sent)
	}
	stats := command(t, url, "stats")
	if !strings.Contains(stats, "paused") || !strings.Contains(stats, "they move") {
		t.Errorf("stats does not show the pause:\n%s", stats)
	}
	third := dispatch(t, url, r.URL)
	third.says("msg=paused")
	command(t, url, "dispatch", "resume", "default", "--reason", "they are back")
	allDelivered(t, db, n)
	if r.Count() != n {
		t.Errorf("%d requests for %d events", r.Count(), n)
	}
	for _, d := range append(both, third) {
		d.says("msg=resumed")
		d.stop()
	}
}

// TestWrongSecretCostsFewRequests is the storm of 401: a receiver that refuses everything for a while.
func TestWrongSecretCostsFewRequests(t *testing.T) {
	t.Parallel()
	n, bad := 2000, 3*time.Second
	if long {
		n, bad = 10_000, time.Minute
	}
	url, db := database(t)
	insert(t, db, "order.created", n)
	began := sync.OnceValue(time.Now) // at the first request
	r := outboxtest.NewReceiver(t, func(int, *outboxtest.Request) outboxtest.Answer {
		if time.Since(began()) < bad {
			return outboxtest.Answer{Status: 401}
		}
		return outboxtest.Answer{}
	})
	d := dispatch(t, url, r.URL, "--breaker", "10", "--breaker-cooldown", (bad / 6).String(), "--backoff", "1s..2s")
	d.says(`msg="breaker open, nothing is sent"`)
	eventually(t, "the breaker is known", func() bool {
		return query[string](t, db, `select coalesce(max(breaker), '') from outbox_destinations`) != ""
	})
	time.Sleep(time.Until(began().Add(bad)))
	refused := r.Count()
	if t.Logf("%d requests in %s of 401, for %d events", refused, bad, n); refused > 200 {
		t.Errorf("%d requests while it said 401, want at most 200", refused)
	}
	allDelivered(t, db, n)
	d.says(`msg="breaker closed, events are sent again"`)
	eventually(t, "the breaker is closed", func() bool {
		return query[string](t, db, `select breaker from outbox_destinations where destination = ''`) == "closed"
	})
	if dead := count(t, db, "dead_letter") + count(t, db, "failed"); dead > 0 {
		t.Errorf("%d events died", dead)
	}
	if got := query[int](t, db, `select sum(attempts)::int from outbox`); got != r.Count() {
		t.Errorf("%d attempts for %d requests", got, r.Count())
	}
	d.stop()
}

// TestRetryAfterHoldsForEveryDispatcher has a receiver that asks one dispatcher for quiet.
func TestRetryAfterHoldsForEveryDispatcher(t *testing.T) {
	t.Parallel()
	url, db := database(t)
	quiet := 3 * time.Second
	r := outboxtest.NewReceiver(t, func(n int, _ *outboxtest.Request) outboxtest.Answer {
		if n == 1 {
			return outboxtest.Answer{Status: 429, Header: http.Header{"Retry-After": {"3"}}}
		}
		return outboxtest.Answer{}
	})
	one, other := dispatch(t, url, r.URL, "--parallel", "1"), dispatch(t, url, r.URL, "--parallel", "1")
	insert(t, db, "order.created", 1)
	r.Wait(t, 1, patience)
	one.says("msg=paused")
	other.says("msg=paused")
	began := r.Requests()[0].Done
	insert(t, db, "order.created", 20)
	allDelivered(t, db, 21)
	if first := r.Requests()[1].At.Sub(began); first < quiet-100*time.Millisecond {
		t.Errorf("the next request came %s after an answer that asked for %s", first, quiet)
	}
	one.stop()
	other.stop()
}

// TestGonePausesUntilResumed has a receiver that wants nothing any more: also a run that ends at once
// leaves word of it.
func TestGonePausesUntilResumed(t *testing.T) {
	t.Parallel()
	url, db := database(t)
	insert(t, db, "order.created", 5)
	r := outboxtest.NewReceiver(t, outboxtest.Script(outboxtest.Answer{Status: 410}, outboxtest.Answer{}))
	if code, words := once(t, url, r.URL, "--parallel", "1"); code != 3 || !strings.Contains(words, `msg=paused for="until resumed"`) {
		t.Errorf("exit code %d, want 3: %s", code, words)
	}
	if got := query[string](t, db, `select concat_ws(' ', paused_until, pause_reason, paused_by) from outbox_destinations`); got != "infinity answered 410 Gone the destination" {
		t.Errorf("the board has %q", got)
	}
	if code, words := once(t, url, r.URL); code != 3 || !strings.Contains(words, "work is left: the destination is paused: answered 410 Gone") || r.Count() != 1 {
		t.Errorf("exit code %d after %d requests, want 3 after one: %s", code, r.Count(), words)
	}
	command(t, url, "dispatch", "resume", "default", "--reason", "they changed their mind")
	if code, words := once(t, url, r.URL); code != 0 {
		t.Errorf("exit code %d, want 0: %s", code, words)
	}
	if delivered, dead := count(t, db, "delivered"), count(t, db, "dead_letter"); delivered != 4 || dead != 1 {
		t.Errorf("%d delivered, %d dead, want 4 and 1", delivered, dead)
	}
}

// TestRateHoldsOnTheWire counts the requests of every second.
func TestRateHoldsOnTheWire(t *testing.T) {
	t.Parallel()
	url, db := database(t)
	insert(t, db, "order.created", 300)
	r := outboxtest.NewReceiver(t, outboxtest.Always(outboxtest.Answer{}))
	code, words := once(t, url, r.URL, "--rate", "100/s")
	if code != 0 {
		t.Fatalf("exit code %d: %s", code, words)
	}
	requests := r.Requests()
	for i := range requests {
		j := i
		for j < len(requests) && requests[j].At.Sub(requests[i].At) < time.Second {
			j++
		}
		if j-i > 115 { // the way to the receiver may press them together a little
			t.Fatalf("%d requests in one second at 100/s", j-i)
		}
	}
	if got := query[int](t, db, `select sum(attempts)::int from outbox`); got != 300 || strings.Contains(words, "given back") {
		t.Errorf("%d attempts for 300 events", got)
	}
}
