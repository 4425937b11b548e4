package crash_test

import (
	"testing"
	"time"

	"github.com/outboxctl/outboxctl/outbox/outboxtest/storm"
	"github.com/outboxctl/outboxctl/outbox/outboxtest/storm/check"
)

// TestCrashPointsInAStorm has three dispatchers die at a point again and again, at passes that a seed chooses, while
// forty producers write; the checker judges what was seen. It takes half a minute for each point.
func TestCrashPointsInAStorm(t *testing.T) {
	if !long {
		return
	}
	file, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	points := []string{"claim-under-way", "after-claim", "before-request", "after-request", "after-2xx", "before-settle", "settle-under-way", "after-settle",
		"route-before-commit", "route-after-commit"}
	for i, point := range points {
		t.Run(point, func(t *testing.T) { // one at a time: each keeps the machine busy
			h, err := storm.Run(t.Context(), storm.Plan{
				Seed: uint64(i + 1), Binary: file, Armed: file, Dir: t.TempDir(), Duration: 8 * time.Second, Rate: 80,
				Faults: []string{"crash:" + point}, Every: time.Second, Quiet: true,
			})
			if err != nil {
				t.Fatal(err)
			}
			r := check.Run(h)
			if len(h.Faults) == 0 {
				t.Error("nobody has died")
			}
			for _, f := range h.Faults {
				if f.Proof == "" {
					t.Errorf("%s of %s has no proof", f.Kind, f.Target)
				}
			}
			for _, result := range r.Results {
				if result.Total > 0 && !timed[result.Name] {
					t.Errorf("%d times not %s: %s", result.Total, result.Name, result.Violations[0])
				}
			}
			t.Logf("%d deaths, %d events, %d requests, duplicates %v; %s", len(h.Faults), r.Events, r.Requests, r.Duplicates, r.Verdict())
		})
	}
}

// timed are invariants that a machine with too much to do breaks without anybody's fault; storms of their own judge
// them.
var timed = map[string]bool{"sessions": true, "recovery": true}
