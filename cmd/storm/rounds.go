package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/outboxctl/outboxctl/outbox/outboxtest/storm"
	"github.com/outboxctl/outboxctl/outbox/outboxtest/storm/history"
)

// round is one run of several.
type round struct {
	name string
	plan storm.Plan
}

// An hour is four storms, each followed by control runs, of which the last is long enough to see what grows: in a storm
// no process lives so long.
const (
	longStorms   = 4
	longDuration = 10 * time.Minute
	controls     = 5 // after each storm
	controlled   = 20 * time.Second
	lasting      = 150 * time.Second
)

// rounds are the runs of a command line, each with a seed of its own.
func (o *options) rounds() []round {
	plan := storm.Plan{Seed: o.seed, Duration: o.duration, Rate: o.rate, Faults: o.kinds(), Every: o.every, Quiet: o.quiet}
	if !o.long {
		return []round{{"storm", plan}}
	}
	var all []round
	for i := range longStorms {
		one := plan
		one.Seed, one.Duration = o.seed+uint64(100*i), longDuration
		all = append(all, round{fmt.Sprintf("storm-%d", i+1), one})
		for j := range controls {
			calm := plan
			calm.Seed, calm.Duration, calm.Faults = one.Seed+uint64(j+1), controlled, []string{}
			if j == controls-1 {
				calm.Duration = lasting
			}
			all = append(all, round{fmt.Sprintf("control-%d-%d", i+1, j+1), calm})
		}
	}
	return all
}

// storm runs all rounds and judges each.
func (o *options) storm(ctx context.Context) error {
	dir, forget, err := o.folder()
	if err != nil {
		return err
	}
	if o.binary == "" {
		if o.binary, o.armed, err = build(ctx, dir); err != nil {
			return errors.Join(err, forget())
		}
	}
	report := &report{}
	err = o.playAll(ctx, dir, o.rounds(), report)
	if err == nil && report.failed() {
		err = errUnproved
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "storm: histories and logs are in", dir)
		return err
	}
	return forget()
}

// playAll runs rounds until one cannot be run to its end, and prints the report of those that could.
func (o *options) playAll(ctx context.Context, dir string, rounds []round, report *report) (err error) {
	for _, one := range rounds {
		if err = o.play(ctx, dir, one, report); err != nil {
			break
		}
	}
	if len(report.rounds) > 0 {
		err = errors.Join(report.write(os.Stdout), err)
	}
	return err
}

// play runs one round, keeps its history and judges it.
func (o *options) play(ctx context.Context, dir string, one round, report *report) error {
	plan := one.plan
	plan.Binary, plan.Armed, plan.Dir = o.binary, o.armed, filepath.Join(dir, one.name)
	if err := os.MkdirAll(plan.Dir, 0o755); err != nil {
		return err
	}
	p := newProgress(os.Stderr, one.name, plan.Duration)
	plan.Progress = p.show
	h, err := storm.Run(ctx, plan)
	p.end()
	if h == nil {
		return fmt.Errorf("%w: see %s", err, plan.Dir)
	}
	file := filepath.Join(plan.Dir, "history.gz")
	if saveErr := h.Save(file); saveErr != nil {
		return saveErr
	}
	if err != nil {
		return fmt.Errorf("%w: see %s", err, plan.Dir)
	}
	r := report.add(one.name, h)
	if o.long {
		fmt.Fprintf(os.Stderr, "%s: %s\n", one.name, r.Verdict())
	}
	return nil
}

// folder is where everything goes, and what is done with it when all is well.
func (o *options) folder() (dir string, forget func() error, err error) {
	if o.dir != "" {
		return o.dir, func() error { return nil }, os.MkdirAll(o.dir, 0o755)
	}
	dir, err = os.MkdirTemp("", "outboxctl-storm-")
	return dir, func() error { return os.RemoveAll(dir) }, err
}

// build makes outboxctl from this source, and once more with crash points.
func build(ctx context.Context, dir string) (binary, armed string, err error) {
	binary, armed = filepath.Join(dir, "outboxctl"), filepath.Join(dir, "outboxctl-armed")
	return binary, armed, storm.Build(ctx, binary, armed)
}

// checkFiles judges histories that were kept.
func checkFiles(files []string) error {
	if len(files) == 0 {
		return errors.New("check needs the file of a history")
	}
	report := &report{}
	for _, file := range files {
		h, err := history.Load(file)
		if err != nil {
			return err
		}
		report.add(filepath.Base(filepath.Dir(file)), h)
	}
	if err := report.write(os.Stdout); err != nil {
		return err
	}
	if report.failed() {
		return errUnproved
	}
	return nil
}
