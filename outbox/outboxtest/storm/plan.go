// Package storm runs outboxctl's real processes on one machine, breaks everything around them, and keeps the history.
//
// A run has a PostgreSQL of its own, dispatchers, producers, receivers that record the wire, proxies before both, a nemesis with a
// seed, and operators at work. What it leaves is a [history.History]; package check says whether the promises were kept.
package storm

import "time"

// Plan is what one run does. Runs with the same plan do the same things in the same order, as far as a machine
// lets them.
type Plan struct {
	Seed     uint64
	Binary   string        // outboxctl to run
	Dir      string        // for logs and the history; must exist
	Duration time.Duration // of writing and breaking; what follows is healing
	Rate     float64       // events per second
	Faults   []string      // kinds to choose from, as in the history, "receiver:*" for all of a sort; nil = every kind, empty = a control run
	Every    time.Duration // between two faults, on average
	Armed    string        // the same with the points of package crash, for lives that are to end at one; "" = there are no such faults
	Quiet    bool          // no operators

	// Progress is called about once a second while the run lasts. Nil is nobody.
	Progress func(Progress)
}
