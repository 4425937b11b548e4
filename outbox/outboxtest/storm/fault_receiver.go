package storm

import (
	"context"
	"maps"
	"math/rand/v2"
	"slices"
	"time"
)

// patience is how long a fault waits for something to meet it. Other faults may keep everybody away for a while.
const patience = time.Minute

func receiverFaults() []fault {
	var all []fault
	for _, b := range []struct {
		name   string
		weight int
	}{
		{"500", 5}, {"503", 4}, {"429", 4}, {"401", 2}, {"413", 2}, {behaveHang, 4}, {behaveSlow, 4}, {behaveDrip, 3},
		{behaveRedirect, 2}, {behaveHuge, 3}, {behaveReset, 4}, {behaveHalfClose, 3},
	} {
		all = append(all, fault{kind: "receiver:" + b.name, weight: b.weight, targets: receivers, strike: behave(b.name)})
	}
	return all
}

func receivers(r *run) []string {
	var names []string
	for _, name := range slices.Sorted(maps.Keys(r.targets)) {
		names = append(names, "receiver "+name)
	}
	return names
}

// behave has a receiver do something to a share of its requests, until one has met it at least.
func behave(name string) strike {
	return func(ctx context.Context, r *run, target string, random *rand.Rand) string {
		over, end := context.WithCancel(ctx)
		defer end()
		b := &behaviour{name: name, share: 0.2 + 0.8*random.Float64(), tally: newTally(), over: over}
		if name == "503" || name == "429" {
			b.retryAfter = random.IntN(3)
		}
		if name == "413" {
			b.share = 0.05 // what is refused for good needs a person
		}
		v := r.targets[target[len("receiver "):]]
		v.mood.Store(b)
		pause(ctx, nil, between(random, 500*time.Millisecond, 3*time.Second))
		b.await(ctx)
		v.mood.Store(nil)
		return b.tally.proof("requests")
	}
}

// await returns when a request has met the behaviour, or none does.
func (b *behaviour) await(ctx context.Context) {
	t := time.NewTimer(patience)
	defer t.Stop()
	select {
	case <-b.tally.met:
	case <-t.C:
	case <-ctx.Done():
	}
}
