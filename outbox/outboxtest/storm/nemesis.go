package storm

import (
	"context"
	"math/rand/v2"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/outboxctl/outboxctl/outbox/outboxtest/storm/history"
)

// fault is a kind of misfortune.
type fault struct {
	kind    string
	weight  int
	targets func(*run) []string
	needs   []string // what it needs for itself beside its target
	strike  strike
}

// strike does it to a target, undoes it, and returns the proof that it happened, "" when there is none.
// What it chooses comes from random.
type strike func(ctx context.Context, r *run, target string, random *rand.Rand) (proof string)

// kinds is all that can happen, with how often.
func kinds() []fault {
	return slices.Concat(processFaults(), crashFaults(), databaseFaults(), wireFaults(), receiverFaults())
}

// chosen are the kinds that a plan wants.
func (p Plan) chosen() []fault {
	return slices.DeleteFunc(kinds(), func(f fault) bool { return !p.wants(f.kind) })
}

// wants reports whether a plan has a kind of fault. Its words are patterns.
func (p Plan) wants(kind string) bool {
	if p.Armed == "" && strings.HasPrefix(kind, "crash:") {
		return false
	}
	return p.Faults == nil ||
		slices.ContainsFunc(p.Faults, func(word string) bool { ok, _ := path.Match(word, kind); return ok })
}

// nemesis injects one fault after the other, and several at once where they do not need the same.
type nemesis struct {
	run    *run
	random *rand.Rand
	kinds  []fault
	wg     sync.WaitGroup

	mu   sync.Mutex
	busy map[string]bool // what running faults have for themselves
}

// rage injects faults until busy ends, and returns when all are over. They are brought to their end unless ctx ends, too.
func (r *run) rage(ctx, busy context.Context) {
	n := &nemesis{run: r, random: rand.New(rand.NewPCG(r.plan.Seed, hash("nemesis"))), kinds: r.plan.chosen(), busy: map[string]bool{}}
	defer n.wg.Wait()
	if len(n.kinds) == 0 {
		<-busy.Done()
		return
	}
	for {
		gap := time.Duration(n.random.ExpFloat64() * float64(r.plan.Every))
		if !pause(busy, nil, min(gap, 4*r.plan.Every)) {
			return
		}
		n.next(ctx)
	}
}

// next draws until it finds one that nothing stands in the way of. The draws are the same for one seed.
func (n *nemesis) next(ctx context.Context) {
	for range 50 {
		f := n.draw()
		all := f.targets(n.run)
		target := all[n.random.IntN(len(all))]
		own := rand.New(rand.NewPCG(n.random.Uint64(), n.random.Uint64()))
		needs := append([]string{target}, f.needs...)
		if !n.take(needs) {
			continue
		}
		n.wg.Go(func() {
			defer n.give(needs)
			done := history.Fault{Kind: f.kind, Target: target, Began: time.Now()}
			done.Proof = f.strike(ctx, n.run, target, own)
			done.End = time.Now()
			n.run.book.fault(done)
		})
		return
	}
}

func (n *nemesis) draw() fault {
	all := 0
	for _, f := range n.kinds {
		all += f.weight
	}
	roll := n.random.IntN(all)
	for _, f := range n.kinds {
		if roll -= f.weight; roll < 0 {
			return f
		}
	}
	return n.kinds[0]
}

func (n *nemesis) take(needs []string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, name := range needs {
		if n.busy[name] {
			return false
		}
	}
	for _, name := range needs {
		n.busy[name] = true
	}
	return true
}

func (n *nemesis) give(needs []string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, name := range needs {
		delete(n.busy, name)
	}
}

// between draws a duration.
func between(random *rand.Rand, least, most time.Duration) time.Duration {
	return least + time.Duration(random.Int64N(int64(most-least)))
}
