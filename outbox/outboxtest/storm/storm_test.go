package storm_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/outboxctl/outboxctl/outbox/outboxtest/storm"
	"github.com/outboxctl/outboxctl/outbox/outboxtest/storm/check"
)

// long reports whether the tests run in their long form.
var long = os.Getenv("OUTBOXCTL_TEST_LONG") != ""

// TestMain gives the binaries a folder.
func TestMain(m *testing.M) {
	var err error
	if folder, err = os.MkdirTemp("", "outboxctl-storm-test-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	os.RemoveAll(folder)
	os.Exit(code)
}

var folder string // set by TestMain

// binaries builds outboxctl, and once more with crash points.
var binaries = sync.OnceValues(func() (programs, error) {
	p := programs{filepath.Join(folder, "outboxctl"), filepath.Join(folder, "outboxctl-armed")}
	return p, storm.Build(context.Background(), p.plain, p.armed)
})

type programs struct{ plain, armed string }

// smoke is a short storm of one family of faults.
type smoke struct {
	name   string
	faults []string
	every  time.Duration
}

var smokes = []smoke{
	{"calm", []string{}, time.Second},
	{"processes", []string{"kill", "term", "stop"}, time.Second},
	{"crashes", []string{"crash:*"}, 1500 * time.Millisecond},
	{"database", []string{"postgres", "frozen", "terminate", "lock", "snapshot", "connections"}, time.Second},
	{"wires", []string{"wire:*"}, 700 * time.Millisecond},
	{"receivers", []string{"receiver:*"}, 400 * time.Millisecond},
}

// TestSmokeStorms runs a storm for each family of faults and one without any, and has each judged. Two at once are what
// a small machine can bear: promises about time break under more.
func TestSmokeStorms(t *testing.T) {
	t.Parallel()
	lasts := 20 * time.Second
	if long {
		lasts = 2 * time.Minute
	}
	slots := make(chan struct{}, 2)
	for i, tt := range smokes {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			slots <- struct{}{}
			defer func() { <-slots }()
			tt.run(t, uint64(1+i), lasts)
		})
	}
}

func (s smoke) run(t *testing.T, seed uint64, lasts time.Duration) {
	programs, err := binaries()
	if err != nil {
		t.Fatal(err)
	}
	h, err := storm.Run(t.Context(), storm.Plan{
		Seed: seed, Binary: programs.plain, Armed: programs.armed, Dir: t.TempDir(), Duration: lasts, Rate: 60, Faults: s.faults, Every: s.every,
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(s.faults) > 0 && len(h.Faults) == 0 {
		t.Error("no fault has happened")
	}
	if report := check.Run(h); !report.OK() {
		t.Errorf("seed %d:\n%s", seed, &report)
	}
}
