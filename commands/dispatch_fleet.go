package commands

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxctl/outboxctl/outbox"
)

// fleet is the loops of a run, one for each destination. Loops come and go when the configuration is
// read again; none waits for another.
type fleet struct {
	run     *dispatchRun
	db      *pgxpool.Pool
	stop    context.Context // no claims after it
	changed chan struct{}   // other destinations are served now
	wake    wakes

	mu    sync.Mutex
	loops []*serving // that have not ended
	ended []*serving
}

// serving is a loop.
type serving struct {
	*served
	end     context.CancelFunc
	done    chan struct{}
	leaving bool // another one takes its place, or nobody
	summary outbox.Summary
	err     error
}

func newFleet(stop context.Context, r *dispatchRun, db *pgxpool.Pool) *fleet {
	return &fleet{run: r, db: db, stop: stop, changed: make(chan struct{}, 1)}
}

// begin starts loops. The loop before on the same destination ends first: then nobody sees two.
func (f *fleet) begin(all []*served) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.stop.Err() != nil && len(f.loops) == 0 { // nobody waits for loops any more
		return
	}
	for _, s := range all {
		ctx, end := context.WithCancel(f.stop)
		l := &serving{served: s, end: end, done: make(chan struct{})}
		before := f.of(s.name)
		if before != nil {
			before.leaving = true
		}
		f.loops = append(f.loops, l)
		go f.serve(ctx, l, before)
	}
	offer(f.changed)
}

func (f *fleet) serve(ctx context.Context, l, before *serving) {
	defer close(l.done)
	if before != nil {
		before.end()
		<-before.done
	}
	l.summary, l.err = f.run.loop(ctx, f.db, l.served, f.wake.of(l.name))
	l.end()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.loops = slices.DeleteFunc(f.loops, func(other *serving) bool { return other == l })
	f.ended = append(f.ended, l)
	if l.leaving {
		l.close()
	}
}

// drop ends the loops of destinations that are served no more.
func (f *fleet) drop(l *serving) {
	f.mu.Lock()
	l.leaving = true
	f.mu.Unlock()
	l.end()
	offer(f.changed)
}

// of is the loop that serves a destination; the caller has the lock.
func (f *fleet) of(name string) *serving {
	i := slices.IndexFunc(f.loops, func(l *serving) bool { return l.name == name && !l.leaving })
	if i < 0 {
		return nil
	}
	return f.loops[i]
}

// serves lists the destinations that are served now.
func (f *fleet) serves() (all []*serving) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, l := range f.loops {
		if !l.leaving {
			all = append(all, l)
		}
	}
	return all
}

// wait returns when no loop is left.
func (f *fleet) wait() {
	for {
		f.mu.Lock()
		if len(f.loops) == 0 {
			f.mu.Unlock()
			return
		}
		l := f.loops[0]
		f.mu.Unlock()
		<-l.done
	}
}

// live keeps the heartbeat, a new one whenever other destinations are served.
func (f *fleet) live(ctx context.Context) {
	for ctx.Err() == nil {
		var all []*served
		for _, l := range f.serves() {
			all = append(all, l.served)
		}
		beat, end := context.WithCancel(ctx)
		var heart sync.WaitGroup
		if len(all) > 0 {
			heart.Go(func() { f.run.heart(f.db, all).Live(beat) })
		}
		select {
		case <-ctx.Done():
		case <-f.changed:
		}
		end()
		heart.Wait()
	}
}

// gotCopies are the destinations that dead events of this run were copied to: their loops may have
// ended before.
func (f *fleet) gotCopies() (all []*served) {
	for _, l := range f.ended {
		for _, target := range f.ended {
			if l.deadLetter != "" && target.name == l.deadLetter && l.summary.Failed+l.summary.Dead > 0 && !slices.Contains(all, target.served) {
				all = append(all, target.served)
			}
		}
	}
	return all
}

// sum is how many events have died, copies of shadow routes left out, and what went wrong with any loop.
func (f *fleet) sum() (died int, err error) {
	for _, l := range f.ended {
		died += l.summary.Failed + l.summary.Dead - l.summary.Shadows
		err = errors.Join(err, l.err)
	}
	return died, err
}

// declare says in the database how a destination's events are ordered, before any of them is claimed.
// A run that is to go on for ever waits until it can.
func (r *dispatchRun) declare(ctx context.Context, db *pgxpool.Pool, s *served) error {
	ordering := outbox.Ordering(s.ordering)
	store := outbox.NewStore(db, r.global.schema)
	for {
		was, err := store.Declare(ctx, s.name, ordering, outbox.OnDead(s.onDead))
		was.Others = slices.DeleteFunc(was.Others, func(name string) bool { return name == r.worker() })
		switch {
		case err == nil && was.Ordering != ordering && len(was.Others) > 0:
			r.logOf(s).Warn("others deliver to the same destination with another ordering: there is no order while they do",
				"ordering", ordering, "theirs", was.Ordering, "others", strings.Join(was.Others, ", "))
			return nil
		case err == nil, ctx.Err() != nil:
			return nil
		case r.o.once || !unreachable(err):
			r.logOf(s).Error("not delivering", "error", oneLine(explainPostgres(err).Error()))
			return err
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
}

// loop delivers one destination's events until it is stopped or, with --once, has none.
func (r *dispatchRun) loop(ctx context.Context, db *pgxpool.Pool, s *served, woken <-chan struct{}) (outbox.Summary, error) {
	if err := r.declare(ctx, db, s); err != nil || ctx.Err() != nil {
		return outbox.Summary{}, err
	}
	d := r.o.dispatcher(s.destination, r.o.queue(s.destination, db, r.app), s.target)
	observer, end := r.systemd.observe(r.observer(s))
	defer end()
	d.Observer, d.Woken = observer, woken
	var beside sync.WaitGroup
	defer beside.Wait()
	life, over := context.WithCancel(context.WithoutCancel(ctx))
	defer over()
	board, err := r.guard(ctx, db, s, d)
	if err != nil {
		return outbox.Summary{}, err
	}
	beside.Go(func() { board.Live(life) })
	r.logOf(s).Info("dispatching", "to", s.to(), "worker", r.worker(), "batch_size", d.BatchSize, "parallel", d.Parallel)
	summary, err := d.Run(ctx, r.kill)
	r.mu.Lock()
	delete(r.away, s)
	r.mu.Unlock()
	r.sumUp(s, summary)
	return summary, err
}
