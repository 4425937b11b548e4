package outbox_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/outboxctl/outboxctl/outbox"
)

// TestLoopTurnsWhileItGoesOnAndOnlyThen is what a watchdog relies on: a loop that is idle, without its
// source, or whose deliveries are slow goes on; one whose source or sink never answers does not.
func TestLoopTurnsWhileItGoesOnAndOnlyThen(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	deaf := func(context.Context, outbox.Event) error {
		<-release
		return nil
	}
	for _, tt := range []struct {
		name   string
		events int
		sink   func(context.Context, outbox.Event) error
		change func(*table, *outbox.Dispatcher)
		stops  time.Duration // when turns end for good; 0 = they do not
	}{
		{"idle", 0, nil, func(_ *table, d *outbox.Dispatcher) { d.PollInterval = time.Hour }, 0},
		{"busy", 2000, took(100 * time.Millisecond), nil, 0},
		{"the source is away", 10, nil, func(rows *table, _ *outbox.Dispatcher) {
			rows.fault = func(int) fault { return away }
		}, 0},
		{"all deliveries hang until their timeout", 50, hang, func(_ *table, d *outbox.Dispatcher) {
			d.RequestTimeout, d.Lease = time.Minute, 2*time.Minute
		}, 0},
		{"the source hangs", 10, nil, func(rows *table, _ *outbox.Dispatcher) { rows.roundTrip = time.Hour }, time.Millisecond},
		{"the sink never returns", 50, deaf, nil, 8 * time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				release = make(chan struct{})
				rows := newTable(tt.events)
				d := newLoop(rows, newGauge(tt.sink))
				if tt.change != nil {
					tt.change(rows, d)
				}
				var mu sync.Mutex
				began := time.Now()
				turns := []time.Time{began}
				d.Observer.Turned = func() {
					mu.Lock()
					defer mu.Unlock()
					turns = append(turns, time.Now())
				}
				time.AfterFunc(5*time.Minute, func() {
					mu.Lock()
					defer mu.Unlock()
					defer close(release)
					if turned := turns[len(turns)-1].Sub(began); tt.stops > 0 && turned > tt.stops {
						t.Errorf("turns after %s, want none after %s", turned, tt.stops)
					}
					if longest := longestPause(append(turns, time.Now())); tt.stops == 0 && longest > 1100*time.Millisecond {
						t.Errorf("%s between two turns, want a second at most", longest)
					}
				})
				kill, cancel := context.WithTimeout(t.Context(), 6*time.Minute)
				defer cancel()
				stop, cancel := context.WithTimeout(t.Context(), 5*time.Minute+time.Second)
				defer cancel()
				d.Run(stop, kill)
				time.Sleep(time.Hour) // so that an exchange that hangs has its end
			})
		})
	}
}

func longestPause(times []time.Time) (longest time.Duration) {
	for i := 1; i < len(times); i++ {
		longest = max(longest, times[i].Sub(times[i-1]))
	}
	return longest
}
