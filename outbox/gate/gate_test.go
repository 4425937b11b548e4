package gate_test

import (
	"fmt"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/outboxctl/outboxctl/outbox"
	"github.com/outboxctl/outboxctl/outbox/gate"
)

// world is a loop reduced to what a gate sees of it: events in hand, by tenant.
type world struct {
	gate outbox.Gate
	hand outbox.InHand
}

func newWorld(l gate.Limits, changed func(gate.Change)) *world {
	if l.Parallel == 0 {
		l.RetryShare = 1
	}
	return &world{gate.New(l, changed), outbox.InHand{Tenants: map[string]outbox.Hand{}}}
}

func (w *world) move(tenant string, waiting, sending int) {
	w.hand.Waiting += waiting
	w.hand.Sending += sending
	h := w.hand.Tenants[tenant]
	h.Waiting += waiting
	h.Sending += sending
	w.hand.Tenants[tenant] = h
	if h == (outbox.Hand{}) {
		delete(w.hand.Tenants, tenant)
	}
}

func (w *world) claim(tenant string, n int) { w.move(tenant, n, 0) }

func (w *world) send(tenant string) *outbox.Event {
	w.move(tenant, -1, 1)
	ev := &outbox.Event{TenantID: tenant, Attempts: 1}
	w.gate.Record(ev, nil)
	return ev
}

func (w *world) back(ev *outbox.Event, out outbox.Outcome) (shut bool) {
	w.move(ev.TenantID, 0, -1)
	return w.gate.Record(ev, &out)
}

func (w *world) room(tenant string) int {
	a := w.gate.Admit(w.hand)
	if a.Rooms == nil {
		return a.N
	}
	if n, ok := a.Rooms.Of[tenant]; ok {
		return min(a.N, n)
	}
	return min(a.N, a.Rooms.Each)
}

var (
	delivered = outbox.Outcome{Status: outbox.Delivered}
	retry     = outbox.Outcome{Status: outbox.Pending, ErrorKind: "http", ErrorCode: 401, Error: "answered 401"}
	refused   = outbox.Outcome{Status: outbox.DeadLetter, ErrorKind: "http", ErrorCode: 422}
	unsent    = outbox.Outcome{Status: outbox.Pending, Refund: true}
	cutOff    = outbox.Outcome{Status: outbox.Pending, ErrorKind: outbox.KindShutdown}
)

func TestNoLimitsNoGate(t *testing.T) {
	t.Parallel()
	if g := gate.New(gate.Limits{RetryShare: 1, Parallel: 10}, nil); g != nil {
		t.Errorf("New() = %v, want none", g)
	}
}

// Whatever is claimed can be sent at once, and no second sees more requests than the rate and a
// burst of a tenth of it.
func TestRateBoundsEverySecond(t *testing.T) {
	t.Parallel()
	for _, perSecond := range []float64{0.5, 1, 7, 10, 100, 5000} {
		t.Run(fmt.Sprint(perSecond), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(gate.Limits{Rate: perSecond}, nil)
				var sent []time.Time
				began := time.Now()
				asked := 0
				for time.Since(began) < time.Minute {
					asked++
					a := w.gate.Admit(w.hand)
					if a.N == 0 {
						if !a.Next.After(time.Now()) {
							t.Fatalf("nothing admitted, and asked to come again at %s, which is not later", a.Next)
						}
						time.Sleep(time.Until(a.Next))
						continue
					}
					w.claim("", a.N)
					if again := w.gate.Admit(w.hand); again.N != 0 {
						t.Fatalf("admitted %d beside the %d that wait for their tokens", again.N, a.N)
					}
					for range a.N {
						w.back(w.send(""), delivered)
						sent = append(sent, time.Now())
					}
				}
				burst := math.Max(1, math.Floor(perSecond/10))
				end := 0
				for i, at := range sent {
					for end < len(sent) && sent[end].Sub(at) < time.Second {
						end++
					}
					if most := math.Ceil(perSecond) + burst; float64(end-i) > most {
						t.Fatalf("%d requests in one second, want at most %v", end-i, most)
					}
				}
				if got := float64(len(sent)) / 60; got < 0.95*perSecond || got > perSecond+burst/60+1.0/60 {
					t.Errorf("%.2f requests a second, want %v", got, perSecond)
				}
				if most := 2 * 60 * math.Max(math.Min(25, perSecond), 1); float64(asked) > most+2 {
					t.Errorf("asked %d times, want at most %v: a claim must be worth its trip", asked, most)
				}
			})
		})
	}
}

// What goes back unsent has cost nothing.
func TestRateIsNotSpentByWhatIsNotSent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(gate.Limits{Rate: 100}, nil)
		for range 3 {
			n := w.room("")
			if n != 10 {
				t.Fatalf("Admit() = %d, want the burst of 10", n)
			}
			w.claim("", n)
			w.move("", -n, 0)
		}
	})
}

func TestTenantsHaveTheirOwnLimits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(gate.Limits{Tenants: gate.TenantLimits{
			TenantLimit: gate.TenantLimit{Parallel: 4},
			Overrides:   map[string]gate.TenantLimit{"acme": {Parallel: 8}, "globex": {Rate: 20}, "free": {Parallel: 1000}},
		}}, nil)
		w.claim("small", 3)
		ev := w.send("small")
		w.claim("acme", 8)
		w.claim("globex", 2)
		w.send("globex")
		want := map[string]int{"small": 1, "acme": 0, "globex": 0, "free": 1000, "unheard": 4}
		got := map[string]int{}
		for tenant := range want {
			got[tenant] = w.room(tenant)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("rooms (-want +got):\n%s", diff)
		}
		w.back(ev, delivered)
		if got := w.room("small"); got != 2 {
			t.Errorf("room after an answer = %d, want 2", got)
		}
	})
}

// What is claimed and has not been sent yet has its tokens still in a bucket that nobody has begun.
func TestTenantRateCountsWhatWaitsToBeSentFirst(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(gate.Limits{Tenants: gate.TenantLimits{
			TenantLimit: gate.TenantLimit{Rate: 30},
			Overrides:   map[string]gate.TenantLimit{"both": {Parallel: 10, Rate: 30}},
		}}, nil)
		got := map[string]int{}
		for _, tenant := range []string{"rate", "both"} {
			for range 3 {
				n := min(w.room(tenant), 2)
				w.claim(tenant, n)
				got[tenant] += n
			}
		}
		if want := map[string]int{"rate": 3, "both": 3}; !cmp.Equal(got, want) {
			t.Errorf("claimed %v before anything was sent, want %v", got, want)
		}
	})
}

func TestTenantRateOpensAgainWhenItSays(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(gate.Limits{Tenants: gate.TenantLimits{TenantLimit: gate.TenantLimit{Rate: 0.5}}}, nil)
		w.claim("slow", 1)
		w.back(w.send("slow"), delivered)
		if got, other := w.room("slow"), w.room("other"); got != 0 || other != 1 {
			t.Errorf("rooms = %d and %d, want 0 and 1", got, other)
		}
		next := w.gate.Admit(w.hand).Next
		if wait := time.Until(next); wait < 1999*time.Millisecond || wait > 2001*time.Millisecond {
			t.Errorf("the next token comes in %s, want 2s", wait)
		}
		time.Sleep(time.Until(next))
		if got := w.room("slow"); got != 1 {
			t.Errorf("room when the time has come = %d, want 1", got)
		}
	})
}

// A tenant that has been quiet is not remembered, so that a hundred thousand of them cost nothing.
func TestTenantsAreForgottenWhenTheirBucketIsFull(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(gate.Limits{Tenants: gate.TenantLimits{TenantLimit: gate.TenantLimit{Parallel: 4, Rate: 10}}}, nil)
		for i := range 10_000 {
			tenant := fmt.Sprint(i)
			w.claim(tenant, 1)
			w.back(w.send(tenant), delivered)
			time.Sleep(time.Millisecond)
			if i%500 == 499 {
				if known := len(w.gate.Admit(w.hand).Rooms.Of); known > 250 {
					t.Fatalf("%d tenants remembered, want those of the last moments", known)
				}
			}
		}
	})
}

func TestSmallestAdmissionWins(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(gate.Limits{
			Rate: 50, Parallel: 10, RetryShare: 0.2,
			Tenants: gate.TenantLimits{TenantLimit: gate.TenantLimit{Parallel: 3}},
			Breaker: gate.Breaker{Failures: 3, Cooldown: time.Minute},
		}, nil)
		if got, want := w.gate.Admit(w.hand), (outbox.Admission{N: 5, Share: &outbox.Share{Retries: 2, Alone: 10}, Rooms: &outbox.Rooms{Each: 3, Of: map[string]int{}}}); !cmp.Equal(got, want) {
			t.Errorf("Admit() = %+v, want %+v", got, want)
		}
		w.claim("a", 3)
		for range 3 {
			w.back(w.send("a"), retry)
		}
		if a := w.gate.Admit(w.hand); a.N != 0 || !a.Shut {
			t.Errorf("Admit() behind an open breaker = %+v, want nothing", a)
		}
	})
}

func TestRetriesHaveTheirShare(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		share                             float64
		parallel, waiting, sending, again int
		want                              *outbox.Share
	}{
		{0.2, 10, 0, 0, 0, &outbox.Share{Retries: 2, Alone: 10}},
		{0.2, 10, 5, 3, 1, &outbox.Share{Retries: 1, Alone: 2}},
		{0.2, 10, 50, 10, 5, &outbox.Share{}},
		{0.2, 3, 0, 0, 0, &outbox.Share{Retries: 1, Alone: 3}},
		{0, 10, 0, 0, 0, &outbox.Share{Retries: 1, Alone: 10}},
		{0.5, 9, 0, 0, 0, &outbox.Share{Retries: 4, Alone: 9}},
		{1, 10, 0, 9, 9, nil},
	} {
		w := newWorld(gate.Limits{Rate: 1, Parallel: tt.parallel, RetryShare: tt.share}, nil)
		w.hand.Waiting, w.hand.Sending, w.hand.Retries = tt.waiting, tt.sending, tt.again
		if got := w.gate.Admit(w.hand).Share; !cmp.Equal(got, tt.want) {
			t.Errorf("share %v of %d slots with %+v: %+v, want %+v", tt.share, tt.parallel, w.hand, got, tt.want)
		}
	}
}

// Open from three failures in a row until the cooldown is over; then one event decides.
func TestBreakerTriesOneEventAfterItsCooldown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var changes []gate.Change
		w := newWorld(gate.Limits{Breaker: gate.Breaker{Failures: 3, Cooldown: 30 * time.Second}}, func(c gate.Change) { changes = append(changes, c) })
		w.claim("", 10)
		var sent []*outbox.Event
		for range 5 {
			sent = append(sent, w.send(""))
		}
		for i, out := range []outbox.Outcome{retry, retry, refused, retry, unsent} { // a refusal is the event's own
			if w.back(sent[i], out) {
				t.Fatalf("open after outcome %d", i+1)
			}
		}
		late := w.send("")
		for i := range 2 {
			if shut := w.back(w.send(""), retry); shut != (i == 1) {
				t.Fatalf("failure %d in a row: shut is %v", i+2, shut)
			}
		}
		w.move("", -w.hand.Waiting, 0)
		a := w.gate.Admit(w.hand)
		if wait := time.Until(a.Next); a.N != 0 || !a.Shut || wait < 30*time.Second || wait > 30*time.Second+10*time.Millisecond {
			t.Fatalf("Admit() when open = %+v, next in %s", a, wait)
		}
		for round, out := range []outbox.Outcome{retry, cutOff, delivered} {
			if round != 2 {
				time.Sleep(time.Until(w.gate.Admit(w.hand).Next))
			}
			if a := w.gate.Admit(w.hand); a.N != 1 || a.Shut {
				t.Fatalf("round %d: Admit() after the cooldown = %+v, want one event", round, a)
			}
			w.claim("", 1)
			if got := w.room(""); got != 0 {
				t.Fatalf("round %d: %d more admitted beside the one that is tried", round, got)
			}
			ev := w.send("")
			if round == 0 {
				w.back(late, delivered) // from before: its word counts no more
			}
			if got := w.room(""); got != 0 {
				t.Fatalf("round %d: %d more admitted beside the one that is tried", round, got)
			}
			w.back(ev, out)
		}
		if a := w.gate.Admit(w.hand); a.N != outbox.NoLimit {
			t.Errorf("Admit() when closed again = %+v", a)
		}
		want := []gate.Change{
			{From: gate.Closed, To: gate.Open, For: 30 * time.Second, Failure: "answered 401"}, {From: gate.Open, To: gate.HalfOpen},
			{From: gate.HalfOpen, To: gate.Open, For: 30 * time.Second, Failure: "answered 401"}, {From: gate.Open, To: gate.HalfOpen},
			{From: gate.HalfOpen, To: gate.Closed},
		}
		if diff := cmp.Diff(want, changes); diff != "" {
			t.Errorf("changes (-want +got):\n%s", diff)
		}
	})
}

func TestBreakerCountsASuccess(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(gate.Limits{Breaker: gate.Breaker{Failures: 3, Cooldown: time.Second}}, nil)
		for i := range 100 {
			out := retry
			if i%3 == 2 {
				out = delivered
			}
			w.claim("", 1)
			if w.back(w.send(""), out) {
				t.Fatal("open without three failures in a row")
			}
		}
	})
}

func TestBreakerOpensOnARatio(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		every int // one success in so many
		pause time.Duration
		want  int // requests until it opens; 0 = never
	}{
		{"half of them fail", 2, time.Second, 20},
		{"a third fails", 0, 10 * time.Millisecond, 0},
		{"too few in a minute", 2, 4 * time.Second, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(gate.Limits{Breaker: gate.Breaker{Ratio: 0.5, Cooldown: time.Minute}}, nil)
				got := 0
				for i := 1; i <= 200 && got == 0; i++ {
					out := retry
					if tt.every > 0 && i%tt.every == 1 || tt.every == 0 && i%3 != 0 {
						out = delivered
					}
					w.claim("", 1)
					if w.back(w.send(""), out) {
						got = i
					}
					time.Sleep(tt.pause)
				}
				if got != tt.want {
					t.Errorf("open after %d requests, want %d", got, tt.want)
				}
			})
		})
	}
}
