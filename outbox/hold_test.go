package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/outboxctl/outboxctl/outbox"
	"github.com/outboxctl/outboxctl/outbox/gate"
)

// calls is a sink that notes when each event was sent, and how many of a tenant at once.
type calls struct {
	mu     sync.Mutex
	at     []time.Time
	events []outbox.Event
	now    map[string]int
	most   map[string]int
	answer func(ctx context.Context, ev outbox.Event) error
}

func newCalls(answer func(ctx context.Context, ev outbox.Event) error) *calls {
	return &calls{now: map[string]int{}, most: map[string]int{}, answer: answer}
}

// Deliver implements [outbox.Sink].
func (c *calls) Deliver(ctx context.Context, ev outbox.Event) (outbox.Receipt, error) {
	c.enter(ev)
	defer c.leave(ev)
	return outbox.Receipt{}, c.answer(ctx, ev)
}

func (c *calls) enter(ev outbox.Event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at, c.events = append(c.at, time.Now()), append(c.events, ev)
	c.now[ev.TenantID]++
	c.most[ev.TenantID] = max(c.most[ev.TenantID], c.now[ev.TenantID])
}

func (c *calls) leave(ev outbox.Event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now[ev.TenantID]--
}

func (c *calls) total() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.at)
}

// tenants gives every row a tenant.
func (t *table) tenants(of func(id int64) string) *table {
	for _, r := range t.rows {
		r.TenantID = of(r.ID)
	}
	return t
}

// attempts is the sum of all rows'.
func (t *table) attempts() (n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, r := range t.rows {
		n += r.Attempts
	}
	return n
}

func TestLoopKeepsToTheRate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rows, sink := newTable(2000), newCalls(took(30*time.Millisecond))
		d := newLoop(rows, sink)
		d.Gate = gate.New(gate.Limits{Rate: 100, RetryShare: 1}, nil)
		s := runFor(t, d, 10*time.Second).summary
		if n := len(sink.at); n < 950 || n > 1011 {
			t.Errorf("%d requests in 10 s at 100/s", n)
		}
		if s.Released > 0 || rows.unsettled > 10+10 {
			t.Errorf("%d given back, %d claimed at once: a claimed event waited for its token", s.Released, rows.unsettled)
		}
		if claims := len(rows.claims()); claims > 10*100 {
			t.Errorf("%d claims in 10 s", claims)
		}
	})
}

// A tenant with a backlog that hangs holds no more than its slots, and the others have theirs.
func TestLoopKeepsTenantsToTheirLimits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rows := newTable(1000).tenants(func(id int64) string {
			if id <= 800 {
				return "noisy"
			}
			return fmt.Sprint("small ", id%5)
		})
		sink := newCalls(func(ctx context.Context, ev outbox.Event) error {
			if ev.TenantID == "noisy" {
				return hang(ctx, ev)
			}
			return took(10*time.Millisecond)(ctx, ev)
		})
		d := newLoop(rows, sink)
		d.Gate = gate.New(gate.Limits{RetryShare: 1, Tenants: gate.TenantLimits{TenantLimit: gate.TenantLimit{Parallel: 3}}}, nil)
		s := runFor(t, d, 4*time.Second).summary
		if s.Delivered != 200 || sink.most["noisy"] != 3 || sink.most["small 1"] > 3 {
			t.Errorf("delivered %d of 200, at most %v at once, want 3", s.Delivered, sink.most)
		}
	})
}

// A tenant out of tokens leaves the loop awake for when it has some again, also with --once.
func TestTenantRateDrainsInItsTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rows := newTable(60).tenants(func(id int64) string { return fmt.Sprint(id % 2) })
		d := newLoop(rows, newCalls(took(time.Millisecond)))
		d.Once = true
		d.Gate = gate.New(gate.Limits{RetryShare: 1, Tenants: gate.TenantLimits{TenantLimit: gate.TenantLimit{Rate: 10}}}, nil)
		e := runFor(t, d, time.Hour)
		if e.summary.Delivered != 60 || e.after < 2900*time.Millisecond || e.after > 3500*time.Millisecond {
			t.Errorf("delivered %d in %s, want 60 in 3s", e.summary.Delivered, e.after)
		}
	})
}

// Ten thousand events against a receiver that says 401 for a minute: next to no requests, nothing dies, and
// all is delivered afterwards.
func TestBreakerSavesAttempts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		rows := newTable(10_000)
		sink := newCalls(func(context.Context, outbox.Event) error {
			time.Sleep(time.Millisecond)
			if time.Since(began) < time.Minute {
				return outbox.Slow(errors.New("answered 401"))
			}
			return nil
		})
		d := newLoop(rows, sink)
		var changes []gate.Change
		d.Gate = gate.New(gate.Limits{RetryShare: 1, Breaker: gate.Breaker{Failures: 10, Cooldown: 10 * time.Second}},
			func(c gate.Change) { changes = append(changes, c) })
		during := 0
		time.AfterFunc(time.Minute, func() { during = sink.total() })
		s := runFor(t, d, 7*time.Minute).summary
		if during > 10+10+6 || s.Delivered != 10_000 || s.Dead+s.Failed != 0 {
			t.Errorf("%d requests in the bad minute, then %+v", during, counts(s))
		}
		if got := rows.attempts(); got != s.Sent {
			t.Errorf("%d attempts for %d requests", got, s.Sent)
		}
		if n := len(changes); n < 3 || changes[0].To != gate.Open || changes[n-1].To != gate.Closed {
			t.Errorf("the breaker's changes: %+v", changes)
		}
		for _, c := range rows.claims() {
			if at := c.at.Sub(began); at > 2*time.Second && at < time.Minute && c.want.N > 1 {
				t.Errorf("%d events wanted at %s", c.want.N, at)
			}
		}
	})
}

func TestOnceEndsAtAnOpenBreaker(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newLoop(newTable(100), newCalls(func(context.Context, outbox.Event) error { return errors.New("no") }))
		d.Once, d.Policy.Backoff.Base = true, time.Second
		d.Gate = gate.New(gate.Limits{RetryShare: 1, Breaker: gate.Breaker{Failures: 5, Cooldown: time.Second}}, nil)
		e := runFor(t, d, time.Hour)
		if e.summary.Held != "the breaker is open" || e.summary.Sent > 15 || e.after > time.Second {
			t.Errorf("ended after %s with %d sent: %q", e.after, e.summary.Sent, e.summary.Held)
		}
	})
}

// standings lets a test say what is paused, when.
func standings(s ...outbox.Standing) chan outbox.Standing {
	c := make(chan outbox.Standing, 1)
	if len(s) > 0 {
		c <- s[0]
	}
	return c
}

func TestPauseStopsClaimsAndGivesBackTheUnsent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rows, sink := newTable(500), newCalls(took(time.Second))
		d := newLoop(rows, sink)
		pauses := standings()
		d.Standings = pauses
		var told []outbox.Standing
		d.Observer.Stands = func(s outbox.Standing) { told = append(told, s) }
		go func() {
			time.Sleep(2500 * time.Millisecond)
			pauses <- outbox.Standing{For: outbox.Forever, Reason: "they move"}
			time.Sleep(500 * time.Millisecond)
			if n := rows.inProgress(); n != 10 {
				t.Errorf("%d events are claimed, want the 10 that are being sent", n)
			}
			time.Sleep(time.Hour)
			if n := rows.inProgress(); n != 0 || sink.total() != 30 {
				t.Errorf("%d events are claimed, %d were sent, want none and 30", n, sink.total())
			}
			pauses <- outbox.Standing{}
		}()
		s := runFor(t, d, time.Hour+time.Minute).summary
		if s.Delivered != 500 || rows.attempts() != 500 {
			t.Errorf("delivered %d with %d attempts, want 500", s.Delivered, rows.attempts())
		}
		if len(told) != 2 || told[0].Reason != "they move" || told[1].For != 0 {
			t.Errorf("told: %+v", told)
		}
		if first := rows.claims(); !first[len(first)-1].want.Fresh {
			t.Error("the last claim was not a full walk")
		}
	})
}

func TestPauseEndsByItsTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		sink := newCalls(took(time.Millisecond))
		d := newLoop(newTable(5), sink)
		d.Standings = standings(outbox.Standing{For: 90 * time.Second})
		if s := runFor(t, d, 2*time.Minute).summary; s.Delivered != 5 {
			t.Errorf("delivered %d, want 5", s.Delivered)
		}
		if at := sink.at[0].Sub(began); at < 90*time.Second || at > 91*time.Second {
			t.Errorf("the first was sent after %s, want 90s", at)
		}
	})
}

func TestPausedTenantIsLeftAlone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rows := newTable(40).tenants(func(id int64) string { return []string{"acme", "globex"}[id%2] })
		sink := newCalls(took(time.Second))
		d := newLoop(rows, sink)
		d.Once = true
		pauses := standings()
		d.Standings = pauses
		go func() {
			time.Sleep(500 * time.Millisecond)
			pauses <- outbox.Standing{Tenants: map[string]time.Duration{"acme": outbox.Forever}}
		}()
		s := runFor(t, d, time.Hour).summary
		acme := 0
		for _, ev := range sink.events {
			if ev.TenantID == "acme" {
				acme++
			}
		}
		if s.Delivered != 20+acme || acme > 5 || s.Held != "a tenant is paused" || rows.attempts() != s.Delivered {
			t.Errorf("delivered %d, of the paused tenant %d, attempts %d, held: %q", s.Delivered, acme, rows.attempts(), s.Held)
		}
	})
}

func TestOnceEndsAtALongPause(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		pause time.Duration
		want  string
	}{{time.Hour, "the destination is paused: why not"}, {outbox.Forever, "the destination is paused: why not"}, {5 * time.Second, ""}} {
		synctest.Test(t, func(t *testing.T) {
			d := newLoop(newTable(1), newCalls(took(time.Millisecond)))
			d.Once, d.Standings = true, standings(outbox.Standing{For: tt.pause, Reason: "why not"})
			e := runFor(t, d, 2*time.Hour)
			if e.summary.Held != tt.want || (e.summary.Delivered == 1) != (tt.want == "") || e.after > 10*time.Second {
				t.Errorf("paused for %s: delivered %d after %s, held: %q, want %q", tt.pause, e.summary.Delivered, e.after, e.summary.Held, tt.want)
			}
		})
	}
}

// A destination that asks for quiet has it: from the answer on, for as long as it says.
func TestRetryAfterPausesTheDestination(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		sink := newCalls(func(_ context.Context, ev outbox.Event) error {
			time.Sleep(100 * time.Millisecond)
			if time.Since(began) < time.Second {
				return &outbox.DeliveryError{Kind: "http", Code: 429, After: time.Minute, Pause: time.Minute, Err: errors.New("answered 429")}
			}
			return nil
		})
		rows := newTable(100)
		d := newLoop(rows, sink)
		var asked []outbox.Hold
		d.Observer.Asked = func(h outbox.Hold) { asked = append(asked, h) }
		s := runFor(t, d, 3*time.Minute).summary
		if s.Delivered != 100 || len(sink.at) != 110 {
			t.Errorf("delivered %d with %d requests, want 100 with the 10 that were refused", s.Delivered, len(sink.at))
		}
		if quiet := sink.at[10].Sub(sink.at[9]); quiet < time.Minute {
			t.Errorf("the next request came after %s, want a minute", quiet)
		}
		if len(asked) != 1 || asked[0].For != time.Minute || !strings.Contains(asked[0].Reason, "429") {
			t.Errorf("asked for %+v, want a minute, once", asked)
		}
	})
}

// What an answer asked for goes on until the board has heard of it; then the board's word counts.
func TestBoardsWordEndsAnAskedPause(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sink := newCalls(func(_ context.Context, ev outbox.Event) error {
			if ev.Attempts == 1 && ev.ID == 1 {
				return &outbox.DeliveryError{Verdict: outbox.VerdictPermanent, Code: 410, Pause: outbox.Forever, Err: errors.New("answered 410")}
			}
			return nil
		})
		d := newLoop(newTable(30), sink)
		d.Parallel = 1
		pauses := standings()
		d.Standings = pauses
		go func() {
			time.Sleep(time.Minute)
			pauses <- outbox.Standing{} // read before it was written there
			time.Sleep(time.Minute)
			if n := sink.total(); n != 1 {
				t.Errorf("%d requests before it was resumed, want 1", n)
			}
			pauses <- outbox.HeardOf(outbox.Standing{}, 1)
		}()
		if s := runFor(t, d, 10*time.Minute).summary; s.Delivered != 29 || s.Dead != 1 {
			t.Errorf("delivered %d, dead %d", s.Delivered, s.Dead)
		}
	})
}
