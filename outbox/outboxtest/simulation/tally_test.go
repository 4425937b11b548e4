package simulation_test

import (
	"sync"
	"testing"

	"github.com/outboxctl/outboxctl/outbox"
)

// tally counts, over all simulations, what the promises were judged by: one that met nothing has proved
// nothing.
type tally struct {
	mu sync.Mutex
	n  map[string]int
}

func (t *tally) add(w *world) {
	seen := map[string]int{}
	for _, c := range w.claims {
		seen["claims"]++
		switch {
		case !c.known:
			seen["claims that nobody heard of"]++
		case c.lost:
			seen["outcomes of a lost lease"]++
		case c.call == nil && c.out.Status == outbox.Pending && c.settled:
			seen["given back unsent"]++
		case c.call == nil && c.out.Status == outbox.DeadLetter:
			seen["ended unsent: "+c.out.ErrorKind]++
		case c.call != nil:
			seen[c.call.String()]++
		}
		if c.settled && c.call != nil {
			seen["settled as "+string(c.out.Status)]++
		}
	}
	for _, p := range w.lives {
		for what, happened := range map[string]bool{
			"crashes": p.dead, "stops": !p.stoppedAt.IsZero(), "second signals": p.killed, "suspended": !p.frozen.IsZero(),
			"breakers opened": !p.changed.IsZero(), "pauses asked for": p.asked.to > 0,
		} {
			if happened {
				seen[what]++
			}
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for what, n := range seen {
		t.n[what] += n
	}
	t.n["simulations"]++
}

// wanted is what a run of all seeds has met.
var wanted = []string{
	"claims that nobody heard of", "outcomes of a lost lease", "given back unsent",
	"ended unsent: crashed", "ended unsent: invalid", "ended unsent: oversize",
	"taken", "failed", "rejected", "refused for good", "postponed", "connection closing",
	"cut off, context canceled", "cut off, context deadline exceeded",
	"settled as delivered", "settled as pending", "settled as failed", "settled as dead_letter",
	"crashes", "stops", "second signals", "suspended", "breakers opened", "pauses asked for",
}

func (t *tally) report(tb testing.TB) {
	tb.Logf("%d simulations, %d claims", t.n["simulations"], t.n["claims"])
	for _, what := range wanted {
		tb.Logf("%8d %s", t.n[what], what)
		if t.n["simulations"] >= 800 && t.n[what] == 0 {
			tb.Errorf("no simulation has met: %s", what)
		}
	}
}

func newTally() *tally { return &tally{n: map[string]int{}} }
