package storm

import (
	"context"
	"fmt"
	"sync"
	"syscall"
	"time"
)

// fleet keeps dispatchers alive: who dies is started anew, as a service manager does it.
type fleet struct {
	run  *run
	wg   sync.WaitGroup
	stop context.CancelFunc

	mu    sync.Mutex
	live  map[string]*process
	armed map[string]*arms // the next lives that are to end at a crash point
}

// restart is how long a service manager waits.
const restart = 200 * time.Millisecond

func (r *run) newFleet(ctx context.Context) *fleet {
	f := &fleet{run: r, live: map[string]*process{}, armed: map[string]*arms{}}
	ctx, f.stop = context.WithCancel(ctx)
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
	env := []string{"DATABASE_URL=" + f.run.url(dispatcherRole, f.run.wires[name].addr(), name)}
	for ctx.Err() == nil {
		p, err := f.run.launch(name, "dispatcher", f.disarm(name), env, nil, "dispatch", "--config", f.run.config, "--worker-id", name)
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
		case <-ctx.Done():
			f.end(p)
		}
	}
}

// arm has the name's next life end at a crash point.
func (f *fleet) arm(name string, a *arms) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.armed[name] = a
}

// disarm takes what the name's next life is armed with; nil is nothing.
func (f *fleet) disarm(name string) *arms {
	f.mu.Lock()
	defer f.mu.Unlock()
	a := f.armed[name]
	delete(f.armed, name)
	return a
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

// reload tells all to read their secrets again. One that has just been started may have read them already, and is told
// as soon as it works, for before that SIGHUP is its end; one that is suspended hears of it later.
func (f *fleet) reload(ctx context.Context) {
	ctx = context.WithoutCancel(ctx) // the last ones, too
	for _, name := range f.run.names() {
		p := f.now(name)
		if p == nil {
			continue
		}
		f.wg.Go(func() {
			for !f.reached(p) {
				if !p.alive() || !pause(ctx, nil, 100*time.Millisecond) {
					return
				}
			}
			p.signal(syscall.SIGHUP)
		})
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
	return p != nil && state(p.pid()) != "T" && f.reached(p)
}

// reached reports whether a process has a session, or had one lately.
func (f *fleet) reached(p *process) bool {
	var there bool
	err := f.run.admin.QueryRow(context.Background(), heartbeatSQL, p.name, p.began.Add(-time.Millisecond)).Scan(&there)
	return err == nil && there
}
