// Package simulation_test lets dispatchers decide in a world that is out to get them, thousands of times: the
// real loop, policy and gate over a model of the table, with a receiver, operators and a clock of the
// test's own. They crash, stop and are suspended, replies get lost and receivers fail. Each promise is
// checked as it happens or when all is over, by what the world has seen and not by their word.
package simulation_test

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// seedsVar names other seeds than those of every run: one, or from one to another.
const seedsVar = "OUTBOXCTL_TEST_SEEDS"

// TestSimulation runs 800 simulations, and 10,000 in the long form and in .ci/run.
func TestSimulation(t *testing.T) {
	t.Parallel()
	from, to := seeds(t)
	met := newTally()
	t.Cleanup(func() { met.report(t) })
	for seed := from; seed <= to; seed++ {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { simulate(t, newPlan(seed), met) })
		})
	}
}

func seeds(t *testing.T) (from, to uint64) {
	first, last, isRange := strings.Cut(os.Getenv(seedsVar), "-")
	if first == "" {
		if os.Getenv("OUTBOXCTL_TEST_LONG") != "" {
			return 1, 10_000
		}
		return 1, 800
	}
	if !isRange {
		last = first
	}
	from, err := strconv.ParseUint(first, 10, 64)
	if err == nil {
		to, err = strconv.ParseUint(last, 10, 64)
	}
	if err != nil || to < from {
		t.Fatalf("%s=%q names no seeds such as 7 or 1-100", seedsVar, os.Getenv(seedsVar))
	}
	return from, to
}

func simulate(t *testing.T, p *plan, met *tally) {
	w := newWorld(p)
	w.run()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.judge()
	met.add(w)
	if w.wrong != "" {
		t.Errorf("seed %d, %s\n%s\n\nOnce more: %s=%d go test ./outbox/outboxtest/simulation", p.seed, w.wrong, p, seedsVar, p.seed)
	}
}

// run plays the plan until every event has ended, and then stops the dispatchers.
func (w *world) run() {
	var all, lives sync.WaitGroup
	over := make(chan struct{})
	w.operate()
	for n := range w.plan.processes {
		all.Go(func() { w.live(n, over, &lives) })
		all.Go(func() { w.read(n, over) })
	}
	all.Go(func() { w.produce(w.news) })
	time.Sleep(w.plan.heal)
	for range 1800 {
		if w.finished() {
			break
		}
		time.Sleep(time.Second)
	}
	close(over)
	all.Wait()
	lives.Wait()
	time.Sleep(time.Minute) // a killed dispatcher's exchange may be under way; what is left then never ends
}

// news wakes the dispatchers that listen.
func (w *world) news() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, p := range w.lives {
		select {
		case p.woken <- struct{}{}:
		default:
		}
	}
}
