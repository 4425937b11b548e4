package mutant_test

import (
	"errors"
	"os"
	"testing"

	"github.com/outboxctl/outboxctl/outbox/outboxtest/edit"
	"github.com/outboxctl/outboxctl/outbox/outboxtest/mutant"
)

// TestMutantsFitTheSources fails when the code has moved away from under a mutant.
func TestMutantsFitTheSources(t *testing.T) {
	t.Parallel()
	all := mutant.All()
	names := map[string]bool{}
	for _, m := range all {
		names[m.Name] = true
		if err := edit.Check(m.Edits()...); err != nil {
			t.Error(err)
		}
	}
	if len(names) != len(all) || len(all) < 16 {
		t.Errorf("%d mutants with %d names, want 16 at least and each once", len(all), len(names))
	}
}

// TestMutantsCompile builds each, which takes minutes.
func TestMutantsCompile(t *testing.T) {
	t.Parallel()
	if os.Getenv("OUTBOXCTL_TEST_LONG") == "" {
		return
	}
	for _, m := range mutant.All() {
		if err := edit.Build(t.Context(), os.DevNull, m.Edits()...); err != nil {
			t.Error(err)
		}
	}
}

// TestFastMutantsAreFound has tests of ours meet mistakes that they have to find. That they find none in the
// program as it is, their own runs show.
func TestFastMutantsAreFound(t *testing.T) {
	t.Parallel()
	fast := mutant.Fast()
	if len(fast) != 5 {
		t.Fatalf("%d mutants are fast, want 5", len(fast))
	}
	for _, m := range fast {
		t.Run(m.Name, func(t *testing.T) {
			t.Parallel()
			found, err := m.HuntQuickly(t.Context())
			switch {
			case err != nil:
				t.Error(err)
			case found.By == "":
				t.Errorf("it survives: %s", m.Breaks)
			default:
				t.Logf("found by %s in %.1f s: %s", found.By, found.Took.Seconds(), found.How)
			}
		})
	}
}

// TestHuntMissesTestsThatAreGone: one of two that are named has another name by now, and the tests within the
// other do not stand for it.
func TestHuntMissesTestsThatAreGone(t *testing.T) {
	t.Parallel()
	const within = "=== RUN   TestOld\n=== RUN   TestOld/one\n=== RUN   TestOld/two\n"
	for _, tt := range []struct {
		name, out string
		end       error
	}{
		{"all pass", within + "--- PASS: TestOld (0.01s)\n    --- PASS: TestOld/one (0.00s)\nPASS\n", nil},
		{"the other fails", within + "--- FAIL: TestOld (0.01s)\n    --- FAIL: TestOld/one (0.00s)\nFAIL\n", errors.New("exit status 1")},
		{"none is left", "testing: warning: no tests to run\nPASS\n", nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if found, err := mutant.Judge([]string{"TestNew", "TestOld"}, tt.out, tt.end); !errors.Is(err, mutant.ErrUnfit) || found.By != "" {
				t.Errorf("Judge() = %+v, %v, want %v", found, err, mutant.ErrUnfit)
			}
		})
	}
}

// TestOnlyFailedTestsFindMutants: a run that ends badly for another reason has found nothing.
func TestOnlyFailedTestsFindMutants(t *testing.T) {
	t.Parallel()
	const run = "=== RUN   TestIt\n"
	failed := errors.New("exit status 1")
	for _, tt := range []struct {
		name, out string
		end       error
		want      mutant.Found
		unfit     bool
	}{
		{"passes", run + "--- PASS: TestIt (0.01s)\nPASS\n", nil, mutant.Found{}, false},
		{"fails", run + "    it_test.go:7: got 1\n--- FAIL: TestIt (0.01s)\nFAIL\n", failed, mutant.Found{By: "TestIt", How: "got 1"}, false},
		{"panics", run + "--- FAIL: TestIt (0.01s)\npanic: no room [recovered]\n", failed, mutant.Found{By: "TestIt", How: "panic: no room [recovered]"}, false},
		{"panics elsewhere", run + "panic: no room\n\ngoroutine 7 [running]:\n", failed, mutant.Found{By: "the tests' end", How: "panic: no room"}, false},
		{"races", run + "==================\nWARNING: DATA RACE\nRead at 0x1\n--- PASS: TestIt (0.01s)\nPASS\n", failed,
			mutant.Found{By: "the tests' end", How: "WARNING: DATA RACE"}, false},
		{"times out", run + "panic: test timed out after 4m0s\n\trunning tests:\n\t\tTestIt (4m0s)\n", failed, mutant.Found{}, true},
		{"is killed", run, errors.New("signal: killed"), mutant.Found{}, true},
		{"leaks after the tests", run + "--- PASS: TestIt (0.01s)\nPASS\ngoleak: Errors on successful test run\n", failed, mutant.Found{}, true},
		{"panics before the tests", "panic: no folder\n", failed, mutant.Found{}, true},
		{"has no PostgreSQL", run + "    it_test.go:7: outboxtest: no database: connection refused\n--- FAIL: TestIt (0.01s)\nFAIL\n", failed, mutant.Found{}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			found, err := mutant.Judge([]string{"TestIt"}, tt.out, tt.end)
			if found != tt.want || errors.Is(err, mutant.ErrUnfit) != tt.unfit {
				t.Errorf("Judge() = %+v, %v, want %+v, unfit %v", found, err, tt.want, tt.unfit)
			}
		})
	}
}
