package mutant_test

import (
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
