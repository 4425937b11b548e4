package history_test

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/outboxctl/outboxctl/outbox/outboxtest/storm/history"
)

func TestLoadReadsWhatSaveWrote(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 3, 1, 12, 0, 0, 123456000, time.UTC)
	want := &history.History{
		Setup:       history.Setup{Seed: 1<<63 + 1, Destinations: []history.Destination{{Name: "crm", Jitter: 0.2}}},
		Writes:      []history.Write{{Key: "k", ID: 1<<53 + 1, Due: at, Fate: history.Committed}},
		Transitions: []history.Transition{{N: 1, At: at, New: &history.State{Status: "pending", Next: &at}}},
		Healed:      at,
	}
	path := filepath.Join(t.TempDir(), "history.json.gz")
	if err := want.Save(path); err != nil {
		t.Fatal(err)
	}
	got, err := history.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("Load() differs from what was saved (-want +got):\n%s", diff)
	}
}
