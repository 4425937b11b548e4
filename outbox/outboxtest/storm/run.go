package storm

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxctl/outboxctl/outbox/outboxtest"
	"github.com/outboxctl/outboxctl/outbox/outboxtest/storm/history"
)

// run is a storm while it lasts.
type run struct {
	plan    Plan
	dir     string
	book    book
	cluster *outboxtest.Cluster
	server  string        // its address
	admin   *pgxpool.Pool // as superuser, past all wires
	vault   *vault
	leash   *outboxtest.Leash
	config  string // the dispatchers' file
	fleet   *fleet
	wires   map[string]*wire     // before the database, one for each dispatcher and for the producers; and before each receiver
	targets map[string]*receiver // by destination
	watch   *watch

	commands atomic.Int64 // of operators, so far

	once   sync.Once
	broken error // of the runner itself; set once
	cancel context.CancelFunc
}

// writesOn is how long producers write after the heal: what a recovery is worth is seen of events that come while it
// lasts.
const writesOn = 3 * time.Second

// settleWithin is how long after the heal all events have to be finished, beyond which the run ends as it is.
const settleWithin = 90 * time.Second

// Run does what a plan says and returns what was seen. Its error is the runner's own, not the program's: what the
// program did wrong is in the history.
func Run(ctx context.Context, plan Plan) (*history.History, error) {
	dir, err := filepath.Abs(plan.Dir)
	if err != nil {
		return nil, err
	}
	for _, file := range []*string{&plan.Binary, &plan.Armed} { // processes run in the folder
		if *file == "" {
			continue
		}
		if *file, err = filepath.Abs(*file); err != nil {
			return nil, err
		}
	}
	r := &run{plan: plan, dir: dir, wires: map[string]*wire{}, targets: map[string]*receiver{}}
	ctx, r.cancel = context.WithCancel(ctx)
	defer r.cancel()
	defer r.close()
	if err := r.prepare(ctx); err != nil {
		return nil, err
	}
	err = r.play(ctx)
	return &r.book.h, errors.Join(err, r.broken)
}

// fail ends the run by an error of its own.
func (r *run) fail(err error) {
	r.once.Do(func() {
		r.broken = err
		r.cancel()
	})
}

// prepare builds the stage: nothing moves yet.
func (r *run) prepare(ctx context.Context) error {
	var err error
	if r.leash, err = outboxtest.NewLeash(); err != nil {
		return err
	}
	if err := os.Remove(filepath.Join(r.dir, "postgres.log")); err != nil && !os.IsNotExist(err) {
		return err
	}
	if err := r.startDatabase(ctx); err != nil {
		return err
	}
	control := r.plan.Faults != nil && len(r.plan.Faults) == 0
	all := destinations(control)
	setup := &r.book.h.Setup
	*setup = history.Setup{
		Seed: r.plan.Seed, Control: control, Lease: lease, PollInterval: pollInterval, Grace: grace, Dispatchers: dispatchers, Destinations: all,
	}
	if control {
		setup.Lease = controlLease
	}
	var names []string
	for _, d := range all {
		names = append(names, d.Name)
	}
	if r.vault, err = newVault(r.dir, names); err != nil {
		return err
	}
	for _, name := range append(r.names(), "producer") {
		if r.wires[name], err = newWire(name, r.server); err != nil {
			return err
		}
	}
	urls := map[string]string{}
	n := new(numbers)
	for _, d := range all {
		v, err := r.newReceiver(d, n)
		if err != nil {
			return err
		}
		r.targets[d.Name] = v
		if r.wires[d.Name], err = newWire(d.Name, v.addr); err != nil {
			return err
		}
		v.url = "http://" + r.wires[d.Name].addr()
		urls[d.Name] = v.url
	}
	r.config, err = configFile(r.dir, setup, urls, r.vault)
	return err
}

// play is the storm, from the first write to the last look.
func (r *run) play(ctx context.Context) error {
	r.book.h.Began = time.Now()
	r.fleet = r.newFleet(ctx)
	defer r.fleet.close()
	if err := r.fleet.ready(ctx); err != nil {
		return err
	}
	r.watch = r.newWatch(ctx)
	defer r.watch.close()
	stopTelling := r.tell(ctx)
	defer stopTelling()

	busy, cancel := context.WithTimeout(ctx, r.plan.Duration)
	defer cancel()
	writing, stopWriting := context.WithCancel(ctx)
	awaitProducers := r.produce(writing)
	defer awaitProducers()
	defer stopWriting()
	awaitOperators := r.operate(busy)
	r.rage(ctx, busy)
	awaitOperators()
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := r.heal(ctx); err != nil {
		return err
	}
	pause(ctx, nil, writesOn)
	stopWriting()
	awaitProducers()
	if err := r.settle(ctx); err != nil {
		return err
	}
	r.fleet.close()
	r.watch.close()
	r.book.h.Ended = time.Now()
	return r.dump(ctx)
}

// heal ends what is left of the faults, and returns when everything is there and well.
func (r *run) heal(ctx context.Context) error {
	r.phase("heal")
	for _, w := range r.wires {
		w.calm()
	}
	for _, v := range r.targets {
		v.mood.Store(nil)
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if err := r.fleet.ready(ctx); err != nil {
		return err
	}
	r.book.h.Healed = time.Now()
	return nil
}

const openSQL = `
select count(*) filter (where finished_at is null),
       count(*) filter (where finished_at is not null)
  from outbox
 where finished_at is null
    or destination = $1 and status in ('failed', 'dead_letter')`

// settle returns when all events are finished, or no longer than it should take. What waits for a person gets one.
func (r *run) settle(ctx context.Context) error {
	r.phase("settle")
	person := &operators{run: r, random: rand.New(rand.NewPCG(r.plan.Seed, hash("person"))), safe: true}
	for deadline := time.Now().Add(settleWithin); time.Now().Before(deadline); {
		var open, dead int
		if err := r.admin.QueryRow(ctx, openSQL, held).Scan(&open, &dead); err != nil {
			return fmt.Errorf("count open events: %w", err)
		}
		switch {
		case dead > 0:
			person.release(ctx)
		case open == 0:
			return nil
		}
		if !pause(ctx, nil, 100*time.Millisecond) {
			return ctx.Err()
		}
	}
	return nil
}

// phase tells what is going on now.
func (r *run) phase(name string) {
	if r.plan.Progress != nil {
		r.plan.Progress(r.book.progress(name))
	}
}

// tell reports every second until the returned function is called.
func (r *run) tell(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() {
		for pause(ctx, nil, time.Second) {
			r.phase("storm")
		}
	})
	return func() { cancel(); wg.Wait() }
}

// close leaves nothing behind but the folder.
func (r *run) close() {
	for _, w := range r.wires {
		w.close()
	}
	for _, v := range r.targets {
		v.close()
	}
	if r.admin != nil {
		r.admin.Close()
	}
	if r.cluster != nil {
		r.cluster.Close()
	}
	if r.leash != nil {
		r.leash.Release()
	}
}
