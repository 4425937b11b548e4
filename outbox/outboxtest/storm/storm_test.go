package storm_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/outboxctl/outboxctl/outbox/outboxtest/edit"
	"github.com/outboxctl/outboxctl/outbox/outboxtest/storm"
	"github.com/outboxctl/outboxctl/outbox/outboxtest/storm/check"
	"github.com/outboxctl/outboxctl/outbox/outboxtest/storm/crash"
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
	if err := edit.Build(context.Background(), p.plain); err != nil {
		return p, err
	}
	return p, crash.Build(context.Background(), p.armed)
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

// TestSmokeStorms runs a storm for each family of faults and one without any, and has each judged. The short form has
// other tests beside it, whose load breaks promises about time: it runs the one without faults alone, where requests
// may take as long as they like.
func TestSmokeStorms(t *testing.T) {
	t.Parallel()
	lasts, some := 5*time.Second, smokes[:1]
	if long {
		lasts, some = 2*time.Minute, smokes
	}
	slots := make(chan struct{}, 1)
	for i, tt := range some {
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
