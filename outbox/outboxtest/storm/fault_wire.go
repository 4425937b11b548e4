package storm

import (
	"context"
	"math/rand/v2"
	"time"
)

func wireFaults() []fault {
	return []fault{
		{kind: "wire:" + wireLatency, weight: 5, targets: everyWire, strike: wireStrike(wireLatency)},
		{kind: "wire:" + wireBlackHole, weight: 5, targets: everyWire, strike: wireStrike(wireBlackHole)},
		{kind: "wire:" + wireReset, weight: 6, targets: everyWire, strike: wireStrike(wireReset)},
		{kind: "wire:" + wireCut, weight: 5, targets: everyWire, strike: wireStrike(wireCut)},
		{kind: "wire:" + wireBandwidth, weight: 3, targets: everyWire, strike: wireStrike(wireBandwidth)},
		{kind: "wire:" + wireCommit, weight: 8, targets: databaseWires, strike: wireStrike(wireCommit)},
	}
}

// databaseWires are those before the database.
func databaseWires(r *run) []string {
	var names []string
	for _, name := range append(r.names(), "producer") {
		names = append(names, "wire "+name)
	}
	return names
}

// everyWire is those, and those before the receivers.
func everyWire(r *run) []string {
	names := databaseWires(r)
	for _, d := range r.book.h.Setup.Destinations {
		names = append(names, "wire "+d.Name)
	}
	return names
}

// wireStrike has a wire suffer for a while, and until some bytes have met it.
func wireStrike(kind string) strike {
	return func(ctx context.Context, r *run, target string, random *rand.Rand) string {
		w := r.wires[target[len("wire "):]]
		m := &mood{kind: kind, tally: newTally(), lose: random.IntN(2) == 0,
			delay: between(random, 20*time.Millisecond, 400*time.Millisecond), rate: 8<<10 + random.IntN(56<<10)}
		d := between(random, 500*time.Millisecond, 3*time.Second)
		if kind == wireReset || kind == wireCut || kind == wireCommit {
			d = between(random, 50*time.Millisecond, 500*time.Millisecond) // what reconnects is hit again
		}
		w.suffer(m)
		pause(ctx, nil, d)
		wait(m.tally.met, patience)
		w.calm()
		return m.tally.proof("chunks")
	}
}
