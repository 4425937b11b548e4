package mutant

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/outboxctl/outboxctl/outbox/outboxtest/edit"
	"github.com/outboxctl/outboxctl/outbox/outboxtest/storm"
	"github.com/outboxctl/outboxctl/outbox/outboxtest/storm/check"
)

// weather is a short storm with the faults that a mistake shows in; without any, even a calm shows it.
type weather struct {
	faults string // kinds, separated by commas
	lasts  time.Duration
}

// sighting is a weather and the invariants of which one has to be broken in it. It is not enough that any is: those about
// time, as of recovery, can break on a machine that has too much to do.
type sighting struct {
	*weather
	invariants []string
}

func (w *weather) shows(invariants ...string) *sighting { return &sighting{w, invariants} }

// The storms. Those with faults last as long as it takes for some to come and go.
var (
	calm     = &weather{"", 5 * time.Second}
	refusals = &weather{"receiver:500,receiver:503", 8 * time.Second}
	kills    = &weather{"kill", 8 * time.Second}
	sleeps   = &weather{"stop,receiver:500", 15 * time.Second}
	stops    = &weather{"term", 8 * time.Second}
)

func (w *weather) name() string {
	if w.faults == "" {
		return "a calm"
	}
	return "storm of " + w.faults
}

// meet runs the program with some edits, and returns what the checker finds.
func (w *sighting) meet(ctx context.Context, edits []edit.Edit) (found Found, err error) {
	dir, err := os.MkdirTemp("", "outboxctl-mutant-")
	if err != nil {
		return found, err
	}
	defer os.RemoveAll(dir)
	binary := filepath.Join(dir, "outboxctl")
	if err := edit.Build(ctx, binary, edits...); err != nil {
		return found, fmt.Errorf("%w: %w", ErrUnfit, err)
	}
	history, err := storm.Run(ctx, storm.Plan{
		Seed: 1, Binary: binary, Dir: dir, Duration: w.lasts, Rate: 100, Faults: w.kinds(), Every: 500 * time.Millisecond, Quiet: true,
	})
	if err != nil {
		return found, fmt.Errorf("%w: %w", ErrUnfit, err)
	}
	report := check.Run(history)
	for _, r := range report.Results {
		if r.Total > 0 && slices.Contains(w.invariants, r.Name) {
			return Found{By: "storm: " + r.Name, How: r.Violations[0]}, nil
		}
	}
	for _, r := range report.Results {
		if r.Judged == 0 && slices.Contains(w.invariants, r.Name) {
			return found, fmt.Errorf("%w: nothing was judged of %q", ErrUnfit, r.Name)
		}
	}
	return found, nil
}

func (w *weather) kinds() []string {
	if w.faults == "" {
		return []string{} // not nil, which is every kind
	}
	return strings.Split(w.faults, ",")
}
