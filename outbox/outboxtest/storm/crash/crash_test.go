package crash_test

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/outboxctl/outboxctl/outbox/outboxtest/edit"
	"github.com/outboxctl/outboxctl/outbox/outboxtest/storm/crash"
)

// long reports whether the tests run in their long form: every point at more of its passes.
var long = os.Getenv("OUTBOXCTL_TEST_LONG") != ""

// buildDir holds the one binary with all points. Set by TestMain, before any test.
var buildDir string

// binary builds it once per run.
var binary = sync.OnceValues(func() (string, error) {
	file := filepath.Join(buildDir, "outboxctl")
	return file, crash.Build(context.Background(), file)
})

// TestMain lets more runs go at once than there are processors: what they do most is wait for leases.
func TestMain(m *testing.M) {
	flag.Parse()
	flag.Set("test.parallel", "8")
	dir, err := os.MkdirTemp("", "outboxctl-crash-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	buildDir = dir
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

func TestPointsFitTheSources(t *testing.T) {
	t.Parallel()
	if err := edit.Check(crash.Edits()...); err != nil {
		t.Error(err)
	}
	names := slices.Sorted(slices.Values(crash.Points()))
	if got := slices.Compact(slices.Clone(names)); len(got) != len(names) || len(names) < 16 {
		t.Errorf("the points are %v, want 16 at least and each once", names)
	}
}

// TestCrashPoints kills outboxctl at each of its points, once it comes by for the first time or a later one, and
// has a healthy process go on: on the table, on the wire and on record all is as if nothing had been, but for
// repeats of what was in hand.
func TestCrashPoints(t *testing.T) {
	t.Parallel()
	file, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	tried := map[string]bool{}
	for _, c := range slices.Concat(dispatches(), routings(), operations(), migrations()) {
		tried[c.point] = true
		t.Run(c.String(), func(t *testing.T) {
			t.Parallel()
			c.play(t, &stage{binary: file, proof: filepath.Join(t.TempDir(), "proof"), crashed: c})
		})
	}
	for _, point := range crash.Points() {
		if !tried[point] {
			t.Errorf("nobody dies at %s", point)
		}
	}
}

// crashed is one run: who dies where.
type crashed struct {
	what  string
	point string
	nth   int
	play  func(t *testing.T, s *stage)
}

func (c crashed) String() string { return fmt.Sprintf("%s/%s/%d", c.what, c.point, c.nth) }

// times are the passes at which to die: those of the short form, and with long the others.
func times(short []int, others ...int) []int {
	if long {
		return append(slices.Clone(short), others...)
	}
	return short
}
