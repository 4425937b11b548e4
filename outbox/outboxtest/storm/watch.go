package storm

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outboxctl/outboxctl/outbox/outboxtest/storm/history"
)

const (
	sampleEvery  = time.Second
	sessionEvery = 100 * time.Millisecond
	idleFor      = 200 * time.Millisecond // in a transaction; beyond, it is kept
	tickEvery    = 10 * time.Millisecond
	waitEvery    = 100 * time.Millisecond
	waitedFor    = 5 * time.Millisecond  // between two looks; less is not kept
	stalledFor   = 60 * time.Millisecond // between two ticks; beyond, the machine had no time for us, nor for others
)

// watch looks at the processes from outside while the run lasts.
type watch struct {
	run   *run
	stop  context.CancelFunc
	wg    sync.WaitGroup
	lines map[string]bool // of commands, as the process list shows them
}

func (r *run) newWatch(ctx context.Context) *watch {
	w := &watch{run: r, lines: map[string]bool{}}
	ctx, w.stop = context.WithCancel(ctx)
	w.wg.Go(func() { w.sample(ctx) })
	w.wg.Go(func() { w.sessions(ctx) })
	w.wg.Go(func() { w.stalls(ctx) })
	w.wg.Go(func() { w.waits(ctx) })
	return w
}

// close ends it. It may be called twice.
func (w *watch) close() {
	w.stop()
	w.wg.Wait()
}

// sample measures the dispatchers and notes what the process list says of them.
func (w *watch) sample(ctx context.Context) {
	for pause(ctx, nil, sampleEvery) {
		for _, name := range w.run.names() {
			p := w.run.fleet.now(name)
			if p == nil {
				continue
			}
			sample := w.run.footprint(p)
			line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", p.pid()))
			w.lines[strings.ReplaceAll(string(line), "\x00", " ")] = true
			if sample.RSS > 0 {
				add(&w.run.book, &w.run.book.h.Samples, sample)
			}
		}
	}
}

// Sessions of the run's own tools and producers may idle in a transaction: they are told to.
const sessionsSQL = `
select application_name, clock_timestamp(), clock_timestamp() - state_change, left(regexp_replace(btrim(query), '\s+', ' ', 'g'), 80)
  from pg_stat_activity
 where state like 'idle in transaction%'
   and state_change < clock_timestamp() - $1::interval
   and application_name not in ('producer', 'storm')`

// sessions looks for those that idle in a transaction.
func (w *watch) sessions(ctx context.Context) {
	for pause(ctx, nil, sessionEvery) {
		rows, err := w.run.admin.Query(ctx, sessionsSQL, idleFor)
		if err != nil {
			continue // PostgreSQL is away
		}
		seen, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (s history.Session, err error) {
			return s, row.Scan(&s.App, &s.At, &s.Since, &s.After)
		})
		if err == nil {
			w.run.book.looked(seen)
		}
	}
}

// stalls notes when the machine itself stood still: a process that got no time is none that idles.
func (w *watch) stalls(ctx context.Context) {
	for last := time.Now(); pause(ctx, nil, tickEvery); last = time.Now() {
		if now := time.Now(); now.Sub(last) > stalledFor {
			add(&w.run.book, &w.run.book.h.Stalls, history.Stall{From: last, To: now})
		}
	}
}

// waits notes how long the processes waited for a processor: one that wants to go on and is not let does not idle.
func (w *watch) waits(ctx context.Context) {
	type look struct {
		at    time.Time
		total time.Duration
	}
	last := map[int]look{}
	for pause(ctx, nil, waitEvery) {
		now := map[int]look{}
		for name, pid := range w.pids() {
			was, seen := last[pid]
			is := look{time.Now(), queued(pid)}
			now[pid] = is
			if waited := min(is.total-was.total, is.at.Sub(was.at)); seen && waited >= waitedFor {
				add(&w.run.book, &w.run.book.h.Waits, history.Wait{Name: name, From: was.at, To: is.at, Waited: waited})
			}
		}
		last = now
	}
}

// pids are those of the dispatchers that live, and the run's own.
func (w *watch) pids() map[string]int {
	pids := map[string]int{history.Runner: os.Getpid()}
	for _, name := range w.run.names() {
		if p := w.run.fleet.now(name); p != nil {
			pids[name] = p.pid()
		}
	}
	return pids
}
