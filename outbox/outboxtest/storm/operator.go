package storm

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/outboxctl/outboxctl/outbox/outboxtest/storm/history"
)

// operators are people at work, who run the real commands.
type operators struct {
	run    *run
	random *rand.Rand
	safe   bool // their commands do not die on the way
}

// duty is something that an operator does now and then.
type duty struct {
	weight int
	storm  bool // not in a control run, where nothing may come twice
	do     func(*operators, context.Context)
}

func duties() []duty {
	return []duty{
		{weight: 6, storm: true, do: (*operators).replay},
		{weight: 1, storm: true, do: (*operators).replayDelivered},
		{weight: 2, storm: true, do: (*operators).discard},
		{weight: 2, storm: true, do: (*operators).edit},
		{weight: 3, do: (*operators).archive},
		{weight: 3, do: (*operators).purge},
		{weight: 2, do: (*operators).pause},
		{weight: 2, do: (*operators).rotate},
		{weight: 2, do: (*operators).stats},
		{weight: 1, do: (*operators).migrate},
	}
}

// operate has two operators at work until ctx ends. The function that it returns waits for them.
func (r *run) operate(ctx context.Context) (await func()) {
	var wg sync.WaitGroup
	if r.plan.Quiet {
		return wg.Wait
	}
	for i := range 2 {
		o := &operators{run: r, random: rand.New(rand.NewPCG(r.plan.Seed, hash("operator")+uint64(i)))}
		wg.Go(func() { o.work(ctx) })
	}
	return wg.Wait
}

func (o *operators) work(ctx context.Context) {
	all := slices.DeleteFunc(duties(), func(d duty) bool { return d.storm && o.run.book.h.Setup.Control })
	sum := 0
	for _, d := range all {
		sum += d.weight
	}
	for pause(ctx, nil, between(o.random, time.Second, 4*time.Second)) {
		roll := o.random.IntN(sum)
		for _, d := range all {
			if roll -= d.weight; roll < 0 {
				d.do(o, ctx)
				break
			}
		}
	}
}

func (o *operators) destination() string {
	all := o.run.book.h.Setup.Destinations
	return all[o.random.IntN(len(all))].Name
}

func (o *operators) replay(ctx context.Context) {
	o.command(ctx, operatorRole, "replay", "--status", "failed,dead_letter", "--destination", o.destination(), "--reason", "it was the weather", "--yes")
}

// replayDelivered sends an aggregate's events again, which receivers have taken.
func (o *operators) replayDelivered(ctx context.Context) {
	n := 1 + o.random.IntN(aggregates)
	kind := "order"
	if n%3 == 0 {
		kind = "user"
	}
	o.command(ctx, operatorRole, "replay", "--status", "delivered", "--include-delivered", "--aggregate", kind+":"+strconv.Itoa(n),
		"--reason", "they have lost it", "--yes")
}

// release sends again, in their order, what others of its aggregate wait for.
func (o *operators) release(ctx context.Context) {
	o.command(ctx, operatorRole, "replay", "--status", "failed,dead_letter", "--destination", held, "--reason", "they are well again", "--yes")
}

func (o *operators) discard(ctx context.Context) {
	o.command(ctx, operatorRole, "events", "discard", "--status", "dead_letter", "--destination", o.destination(), "--reason", "not needed", "--yes")
}

const deadSQL = `
select id
  from outbox
 where status in ('dead_letter', 'failed')
 order by id desc
 limit 1`

// edit changes the payload of an event that cannot be delivered.
func (o *operators) edit(ctx context.Context) {
	var id int64
	if o.run.admin.QueryRow(ctx, deadSQL).Scan(&id) != nil {
		return // there is none
	}
	o.command(ctx, operatorRole, "events", "edit", strconv.FormatInt(id, 10), "--set", "/mended=true", "--reason", "mended", "--yes")
}

func (o *operators) archive(ctx context.Context) {
	o.command(ctx, operatorRole, "purge", "--older-than", "20s", "--archive", "--max-duration", "20s", "--yes")
}

// purge leaves plain and audit alone: of a copy that is gone nobody could say whose it was.
func (o *operators) purge(ctx context.Context) {
	dest := []string{"orders", "partner", "limited"}[o.random.IntN(3)]
	o.command(ctx, operatorRole, "purge", "--older-than", "10s", "--destination", dest, "--max-duration", "20s", "--yes")
}

func (o *operators) pause(ctx context.Context) {
	dest := o.destination()
	o.command(ctx, operatorRole, "dispatch", "pause", dest, "--for", "3s", "--reason", "they asked for it")
	pause(ctx, nil, between(o.random, time.Second, 3*time.Second))
	o.command(context.WithoutCancel(ctx), operatorRole, "dispatch", "resume", dest, "--reason", "they are back")
}

// rotate replaces a destination's secret in three steps, as the documentation says: both, then the new one alone.
func (o *operators) rotate(ctx context.Context) {
	dest := o.destination()
	v := o.run.vault
	if err := v.renew(dest, len(v.known(dest))+1); err != nil {
		o.run.fail(err)
		return
	}
	o.run.fleet.reload(ctx)
	pause(ctx, nil, between(o.random, 500*time.Millisecond, 3*time.Second))
	if err := v.retire(dest); err != nil {
		o.run.fail(err)
		return
	}
	o.run.fleet.reload(ctx)
}

func (o *operators) stats(ctx context.Context) { o.command(ctx, operatorRole, "stats") }

func (o *operators) migrate(ctx context.Context) { o.command(ctx, superuser, "migrate") }

// How many commands of a hundred die on the way, and how many of those that do not are armed.
const (
	killed   = 8
	crashing = 15
)

// command runs one to its end, or to its death.
func (o *operators) command(ctx context.Context, role string, args ...string) {
	r := o.run
	name := fmt.Sprintf("op%d", r.commands.Add(1))
	file := filepath.Join(r.dir, name+".json")
	out, err := os.Create(file)
	if err != nil {
		r.fail(err)
		return
	}
	defer os.Remove(file)
	defer out.Close()
	args = append(args, "-o", "json")
	env := []string{"DATABASE_URL=" + r.url(role, r.server, name)}
	dies := o.random.IntN(100) < killed && !o.safe && r.plan.wants("kill")
	after := between(o.random, 10*time.Millisecond, 300*time.Millisecond)
	var a *arms
	if n := o.random.IntN(100); n < crashing && !dies && !o.safe && r.plan.wants("crash:operator") {
		a = r.arms(operatorPoints[o.random.IntN(len(operatorPoints))], 1, name)
	}
	p, err := r.launch(name, "operator", a, env, out, args...)
	if err != nil {
		r.fail(err)
		return
	}
	began := time.Now()
	if dies {
		wait(p.done, after)
		p.signal(syscall.SIGKILL)
	}
	select {
	case <-p.done:
	case <-time.After(time.Minute): // PostgreSQL has stood still under it, or it is wrong
		p.signal(syscall.SIGKILL)
		<-p.done
	}
	if dies && p.how() == "signal killed" {
		r.book.fault(history.Fault{Kind: "kill", Target: name, Began: began, End: p.end, Proof: fmt.Sprintf("pid %d: %s", p.pid(), p.how())})
	}
	if a != nil { // it need not have come by
		if proof := a.proof(p); proof != "" {
			r.book.fault(history.Fault{Kind: "crash:" + a.point, Target: name, Began: began, End: p.end, Proof: proof})
		}
	}
	done := history.Command{Name: name, Args: args, Began: p.began, End: p.end, Exit: p.cmd.ProcessState.ExitCode()}
	done.Document, _ = os.ReadFile(file)
	words, _ := os.ReadFile(r.logFile(name))
	done.Words = string(words)
	add(&r.book, &r.book.h.Commands, done)
}
