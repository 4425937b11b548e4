package storm

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/outboxctl/outboxctl/outbox/outboxtest/storm/crash"
)

// The points that a dispatcher comes by in any storm, and those of an operator's command.
var (
	dispatcherPoints = []string{
		"claim-under-way", "after-claim", "before-request", "after-request", "after-2xx", "before-settle", "settle-under-way",
		"after-settle", "heartbeat", "route-before-commit", "route-after-commit", atStop,
	}
	operatorPoints = []string{"operation-begun", "step-before-commit", "step-after-commit", "before-operation-end"}
)

// atStop is a point that a dispatcher comes by when it is told to stop.
const atStop = "at-stop"

func crashFaults() []fault {
	var all []fault
	for _, point := range dispatcherPoints {
		all = append(all, fault{kind: "crash:" + point, weight: 1, targets: (*run).names, strike: crashAt(point)})
	}
	return all
}

// arms is a crash point that a process is to die at, as it comes by it the nth time.
type arms struct {
	point string
	nth   int
	file  string // where the point says that it was there
}

var proofs atomic.Int64 // makes their names differ

func (r *run) arms(point string, nth int, name string) *arms {
	return &arms{point, nth, filepath.Join(r.dir, fmt.Sprintf("%s-%d.proof", name, proofs.Add(1)))}
}

// proof says that a process that has ended did so at its point; "" when it did not.
func (a *arms) proof(p *process) string {
	deaths, err := crash.Deaths(a.file)
	if err != nil || len(deaths) == 0 || p.how() != "signal killed" {
		return ""
	}
	d := deaths[len(deaths)-1]
	return fmt.Sprintf("pid %d: %s, at point %s (passed %d times) at %s", d.Pid, p.how(), d.Point, a.nth, d.At.Format("15:04:05.000"))
}

// crashAt stops a dispatcher and has its next life end at a point. One that does not come by so often is ended, and
// the next one tried, for which the first time is enough.
func crashAt(point string) strike {
	return func(ctx context.Context, r *run, target string, random *rand.Rand) string {
		n := nth(point, random)
		for range 8 {
			p := r.fleet.await(ctx, target)
			if p == nil {
				return ""
			}
			a := r.arms(point, n, target)
			r.fleet.arm(target, a)
			p.signal(syscall.SIGTERM)
			<-p.done
			next := r.fleet.another(ctx, p)
			if next == nil {
				return ""
			}
			if point == atStop {
				r.fleet.awaitWorking(ctx, target)
				r.awaitWorker(ctx, target, next.began) // its loops, which alone come by
				next.signal(syscall.SIGTERM)
			}
			wait(next.done, 15*time.Second)
			next.signal(syscall.SIGKILL)
			<-next.done
			r.fleet.another(ctx, next)
			if proof := a.proof(next); proof != "" {
				return proof
			}
			n = 1
		}
		return ""
	}
}

const workerSQL = `
select exists (
  select
    from outbox_workers
   where name = $1
     and started_at > $2)`

// awaitWorker returns soon after a dispatcher has said in the table that it lives, or does not.
func (r *run) awaitWorker(ctx context.Context, name string, since time.Time) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for there := false; !there && pause(ctx, nil, 50*time.Millisecond); {
		_ = r.admin.QueryRow(ctx, workerSQL, name, since.Add(-time.Millisecond)).Scan(&there) // PostgreSQL may be away
	}
	pause(ctx, nil, time.Second)
}

// nth draws how often a point is passed before it is deadly: few come by often.
func nth(point string, random *rand.Rand) int {
	switch point {
	case atStop, "heartbeat":
		return 1
	case "route-before-commit", "route-after-commit":
		return 1 + random.IntN(2)
	}
	return 1 + random.IntN(30)
}

// awaitWorking returns when the name's process has come as far as the database, or does not soon.
func (f *fleet) awaitWorking(ctx context.Context, name string) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for !f.working(name) && pause(ctx, nil, 20*time.Millisecond) {
	}
}
