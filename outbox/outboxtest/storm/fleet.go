package storm

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/outboxctl/outboxctl/outbox/outboxtest/storm/history"
)

// fleet keeps dispatchers alive: who dies is started anew, as a service manager does it.
type fleet struct {
	run   *run
	wg    sync.WaitGroup
	stop  context.CancelFunc
	calm  context.Context // no crash points any more
	peace context.CancelFunc

	mu   sync.Mutex
	live map[string]*process
}

// restart is how long a service manager waits.
const restart = 200 * time.Millisecond

func (r *run) newFleet(ctx context.Context) *fleet {
	f := &fleet{run: r, live: map[string]*process{}}
	ctx, f.stop = context.WithCancel(ctx)
	f.calm, f.peace = context.WithCancel(context.Background())
	for _, name := range r.names() {
		f.wg.Go(func() { f.keep(ctx, name) })
	}
	return f
}

// names are the dispatchers': application_name, worker-id and log.
func (r *run) names() []string {
	var names []string
	for i := range dispatchers {
		names = append(names, fmt.Sprintf("d%d", i+1))
	}
	return names
}

// keep lives one name's lives until ctx ends, the last one until it has stopped by itself.
func (f *fleet) keep(ctx context.Context, name string) {
	random := rand.New(rand.NewPCG(f.run.plan.Seed, hash(name)))
	for life := 1; ctx.Err() == nil; life++ {
		env, proof := f.environment(name, life, random)
		p, err := f.run.launch(name, "dispatcher", env, nil, "dispatch", "--config", f.run.config, "--worker-id", name)
		if err != nil {
			f.run.fail(err)
			return
		}
		f.mu.Lock()
		f.live[name] = p
		f.mu.Unlock()
		select {
		case <-p.done:
			pause(ctx, nil, restart)
			f.crashed(p, proof)
		case <-ctx.Done():
			f.end(p)
		}
	}
}

// environment is a dispatcher's, with the crash point of its plan. The file is where the point leaves its proof.
func (f *fleet) environment(name string, life int, random *rand.Rand) (env []string, proof string) {
	env = []string{"DATABASE_URL=" + f.run.url(dispatcherRole, f.run.wires[name].addr(), name)}
	nth := 1 + random.IntN(40)
	if f.run.plan.Crash == "" || f.calm.Err() != nil {
		return env, ""
	}
	return f.run.crashAt(env, fmt.Sprintf("%s-%d", name, life), nth)
}

// crashAt tells a process to die at the plan's crash point, when it comes there for the nth time.
func (r *run) crashAt(env []string, life string, nth int) (more []string, proof string) {
	proof = filepath.Join(r.dir, "crash-"+life)
	return append(env, fmt.Sprintf("OUTBOXCTL_CRASH_AT=%s:%d", r.plan.Crash, nth), "OUTBOXCTL_CRASH_PROOF="+proof), proof
}

// crashed keeps the fault of a process that died at its crash point, and returns when all is written.
func (f *fleet) crashed(p *process, proof string) { f.run.crashed(p, proof) }

func (r *run) crashed(p *process, proof string) {
	if proof == "" {
		return
	}
	text, err := os.ReadFile(proof)
	if err != nil {
		return // it did not come so far
	}
	fault := history.Fault{Kind: "crash:" + r.plan.Crash, Target: p.name, Began: p.end, End: time.Now()}
	if p.how() == "signal killed" {
		fault.Proof = fmt.Sprintf("%s; pid %d: %s", strings.TrimSpace(string(text)), p.pid(), p.how())
	}
	r.book.fault(fault)
}

// end asks a process to stop, and makes it when it does not.
func (f *fleet) end(p *process) {
	p.signal(syscall.SIGCONT)
	p.signal(syscall.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(grace + 20*time.Second):
		p.signal(syscall.SIGKILL)
		<-p.done
	}
}

// close stops all and returns when they are gone.
func (f *fleet) close() {
	f.stop()
	f.wg.Wait()
}

// now is the name's process at this moment; nil between two lives.
func (f *fleet) now(name string) *process {
	f.mu.Lock()
	defer f.mu.Unlock()
	if p := f.live[name]; p != nil && p.alive() {
		return p
	}
	return nil
}

// reload tells all to read their secrets again.
func (f *fleet) reload() {
	for _, name := range f.run.names() {
		if p := f.now(name); p != nil && f.working(name) { // before that, SIGHUP is its end
			p.signal(syscall.SIGHUP)
		}
	}
}

// another returns the name's process that comes after p.
func (f *fleet) another(ctx context.Context, p *process) *process {
	for ctx.Err() == nil {
		if next := f.now(p.name); next != nil && next != p {
			return next
		}
		pause(ctx, nil, 10*time.Millisecond)
	}
	return nil
}

// ready returns when every dispatcher has a life in which it has begun to work.
func (f *fleet) ready(ctx context.Context) error {
	for _, name := range f.run.names() {
		for !f.working(name) {
			if !pause(ctx, nil, 20*time.Millisecond) {
				return fmt.Errorf("%s does not begin to work: see %s", name, f.run.logFile(name))
			}
		}
	}
	return nil
}

const heartbeatSQL = `
select exists (
  select
    from pg_stat_activity
   where application_name = $1
     and backend_start > $2)`

// working reports whether a name's process has come as far as the database.
func (f *fleet) working(name string) bool {
	p := f.now(name)
	if p == nil || state(p.pid()) == "T" {
		return false
	}
	var there bool
	err := f.run.admin.QueryRow(context.Background(), heartbeatSQL, name, p.began.Add(-time.Millisecond)).Scan(&there)
	return err == nil && there
}
