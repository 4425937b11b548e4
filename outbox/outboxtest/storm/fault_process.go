package storm

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"syscall"
	"time"
)

func processFaults() []fault {
	return []fault{
		{kind: "kill", weight: 12, targets: (*run).names, strike: kill},
		{kind: "stop", weight: 6, targets: (*run).names, strike: stop},
		{kind: "term", weight: 4, targets: (*run).names, strike: terminate},
	}
}

// kill ends a dispatcher as a crash does. It is over when its next life works.
func kill(ctx context.Context, r *run, target string, _ *rand.Rand) string {
	for range 5 {
		p := r.fleet.await(ctx, target)
		if p == nil || p.signal(syscall.SIGKILL) != nil {
			continue
		}
		<-p.done
		r.fleet.another(ctx, p)
		if p.how() == "signal killed" { // else it was faster
			return fmt.Sprintf("pid %d: %s", p.pid(), p.how())
		}
	}
	return ""
}

// stop suspends a dispatcher for longer than its leases last: a little longer, or several of them.
func stop(ctx context.Context, r *run, target string, random *rand.Rand) string {
	d := lease * 12 / 10
	if random.IntN(3) == 0 {
		d = lease * 3
	}
	p := r.fleet.await(ctx, target)
	if p == nil || p.signal(syscall.SIGSTOP) != nil {
		return ""
	}
	proof := ""
	if stopped(ctx, p.pid()) {
		proof = fmt.Sprintf("pid %d: state T in /proc, for %s", p.pid(), d)
	}
	pause(ctx, nil, d)
	p.signal(syscall.SIGCONT)
	return proof
}

// stopped reports whether a process is seen to stand still soon.
func stopped(ctx context.Context, pid int) bool {
	for range 100 {
		if state(pid) == "T" {
			return true
		}
		pause(ctx, nil, 5*time.Millisecond)
	}
	return false
}

// terminate asks a dispatcher to stop, two or three times in a row: as soon as its next life works.
func terminate(ctx context.Context, r *run, target string, random *rand.Rand) string {
	var proofs []string
	for range 1 + random.IntN(3) {
		p := r.fleet.await(ctx, target)
		r.fleet.awaitWorking(ctx, target)
		if p == nil || p.signal(syscall.SIGTERM) != nil {
			break
		}
		<-p.done
		proofs = append(proofs, fmt.Sprintf("pid %d: %s", p.pid(), p.how()))
		r.fleet.another(ctx, p)
		pause(ctx, nil, between(random, 50*time.Millisecond, 500*time.Millisecond))
	}
	return strings.Join(proofs, ", ")
}

// await is the name's process, as soon as there is one.
func (f *fleet) await(ctx context.Context, name string) *process {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for {
		if p := f.now(name); p != nil {
			return p
		}
		if !pause(ctx, nil, 10*time.Millisecond) {
			return nil
		}
	}
}
