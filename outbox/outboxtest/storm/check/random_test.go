package check_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/outboxctl/outboxctl/outbox/outboxtest/storm/check"
)

// A dispatcher that keeps to the rules is never said to break one, whatever befalls it.
func TestRandomLegalHistoriesBreakNothing(t *testing.T) {
	t.Parallel()
	for seed := range uint64(300) {
		tape := newTape()
		live(tape, rand.New(rand.NewPCG(seed, 1)))
		r := check.Run(tape.history())
		if got := broken(r); len(got) > 0 {
			t.Fatalf("seed %d: broken are %q\n%s", seed, got, r.String())
		}
	}
}

// live has events come and go, one after the other, with all sorts of endings.
func live(t *tape, random *rand.Rand) {
	ms := 0
	for range 1 + random.IntN(30) {
		dest := []string{plain, orders}[random.IntN(2)]
		e := t.insertDue(dest, fmt.Sprint(random.IntN(3)), ms, ms+random.IntN(500))
		ms = e.live(ms+600, random) + random.IntN(300)
	}
	t.h.Healed, t.h.Ended = at(ms+1000), at(ms+100_000)
	for i := range t.h.Processes {
		if t.h.Processes[i].How == "exit 0" {
			t.h.Processes[i].End = t.h.Ended
		}
	}
}

// live is one event's life from a time on, and returns when it was over.
func (e *event) live(ms int, random *rand.Rand) int {
	for e.st.Finished == nil {
		app := []string{"d1", "d2"}[random.IntN(2)]
		e.claimed(app, ms)
		switch chance := random.IntN(20); {
		case e.st.Attempts > 4: // whoever had it before died or was stopped
			e.settled(ms+10, crashed)
			ms += 60
		case chance < 8:
			e.requested(ms+10, 200).delivered(ms + 50)
			ms += 60
		case chance < 9:
			e.requested(ms+10, 422).ended(ms+50, "dead_letter", "http", 422)
			ms += 60
		case chance < 11:
			e.released(ms + 20)
			ms += 30
		case chance < 13:
			e.requested(ms+10, 200)
			e.t.kill(app, ms+12)
			ms += 6100 // when the lease has lapsed and the next life has begun
		case chance < 15:
			e.requestedFor(ms+10, 30, 200)
			e.t.fault("stop", app, ms+20, ms+6050)
			ms += 6100
		case e.st.Attempts == 4:
			e.requested(ms+10, 500).ended(ms+50, "failed", "http", 500)
			ms += 60
		default:
			ms = e.fail(ms, random)
		}
	}
	return ms
}

// fail is an attempt with a failure that is retried.
func (e *event) fail(ms int, random *rand.Rand) int {
	wait := int(float64(int(1000)<<(e.st.Attempts-1)) * (0.81 + 0.38*random.Float64()))
	switch random.IntN(3) {
	case 0:
		e.requestedFor(ms+10, 990, 200) // too late
		e.t.last().Left = true
		e.retried(ms+1020, wait, "timeout", 0)
		return ms + 1030 + wait
	case 1:
		e.requested(ms+10, 503)
		e.t.last().Wait = 3 * time.Second
		wait = max(wait, 3000)
		e.retried(ms+50, wait, "http", 503)
	default:
		e.requested(ms+10, 500).retried(ms+50, wait, "http", 500)
	}
	return ms + 60 + wait
}

// The history of an hour is judged within a minute, in less than 2 GB beside it.
func TestLongHistoriesAreJudgedSoon(t *testing.T) {
	events := 20_000
	if os.Getenv("OUTBOXCTL_TEST_LONG") != "" {
		events = 500_000
	}
	tape := newTape()
	for i := range events {
		dest := []string{plain, orders}[i%2]
		e := tape.insert(dest, fmt.Sprint(i%2000), i*10)
		if i%5 == 0 {
			e.claimed("d1", i*10+4000).requested(i*10+4005, 500).retried(i*10+4030, 1000, "http", 500)
			e.sent(i*10 + 5040)
		} else {
			e.sent(i*10 + 4000)
		}
	}
	h := tape.history()
	h.Healed, h.Ended = at(events*10-1000), at(events*10+100_000)
	for i := range h.Processes {
		h.Processes[i].End = h.Ended
	}
	tape = nil
	runtime.GC()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	began := time.Now()
	r := check.Run(h)
	took := time.Since(began)
	runtime.ReadMemStats(&after)
	memory := after.TotalAlloc - before.TotalAlloc // as if nothing were freed
	t.Logf("%d events, %d transitions: %s, %d MB beside the history's %d MB", events, len(h.Transitions), took.Round(time.Millisecond), memory>>20, before.HeapAlloc>>20)
	for _, res := range r.Results {
		if res.Total > 0 && res.Name != "limits" && res.Name != "order" { // a tape has a parallelism of its own
			t.Errorf("broken is %s: %s", res.Name, res.Violations[0])
		}
	}
	if took > time.Minute || memory > 2<<30 {
		t.Errorf("judging %d events took %s and %d MB; want a minute and 2 GB", events, took, memory>>20)
	}
}
