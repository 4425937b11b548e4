package outbox_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outboxctl/outboxctl/outbox"
)

// steps returns a step that takes from left, and the limits it was given.
func steps(left int) (step outbox.Step, limits *[]int) {
	limits = new([]int)
	return func(_ context.Context, limit int) (int, error) {
		*limits = append(*limits, limit)
		n := min(limit, left)
		left -= n
		return n, nil
	}, limits
}

func TestDrainEndsWhenNothingIsLeft(t *testing.T) {
	t.Parallel()
	step, limits := steps(25)
	var seen []int
	if err := outbox.Drain(context.Background(), step, outbox.Pace{Batch: 10}, func(n int) { seen = append(seen, n) }); err != nil {
		t.Fatal(err)
	}
	if want := []int{10, 10, 5}; !slices.Equal(seen, want) {
		t.Errorf("seen %v, want %v", seen, want)
	}
	if want := []int{10, 10, 10, 10}; !slices.Equal(*limits, want) {
		t.Errorf("limits %v, want %v", *limits, want)
	}
}

func TestDrainKeepsItsRate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		step, limits := steps(500)
		begin := time.Now()
		if err := outbox.Drain(context.Background(), step, outbox.Pace{Rate: 50}, nil); err != nil {
			t.Fatal(err)
		}
		// The first second's worth goes at once.
		if took := time.Since(begin); took < 9*time.Second || took > 10*time.Second {
			t.Errorf("500 events at 50/s took %s", took)
		}
		if (*limits)[0] != 50 {
			t.Errorf("a step took %d events at once", (*limits)[0])
		}
	})
}

func TestDrainLeavesTimeToOthers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		left, begin := 10, time.Now()
		step := func(context.Context, int) (int, error) {
			time.Sleep(100 * time.Millisecond)
			left--
			return max(left, 0), nil
		}
		if err := outbox.Drain(context.Background(), step, outbox.Pace{Share: 0.25}, nil); err != nil {
			t.Fatal(err)
		}
		if took, want := time.Since(begin), time.Second+9*300*time.Millisecond; took != want {
			t.Errorf("10 steps of 100ms took %s, want %s", took, want)
		}
	})
}

// A step is never cut off; what stops is the draining, between two of them.
func TestDrainStopsBetweenSteps(t *testing.T) {
	t.Parallel()
	stop := errors.New("stopped")
	ctx, cancel := context.WithCancelCause(context.Background())
	calls := 0
	err := outbox.Drain(ctx, func(ctx context.Context, limit int) (int, error) {
		calls++
		cancel(stop)
		return limit, ctx.Err()
	}, outbox.Pace{}, nil)
	if !errors.Is(err, stop) || calls != 1 {
		t.Errorf("Drain() = %v after %d steps, want %v after 1", err, calls, stop)
	}
}

func TestDrainTriesAgainWhatMayPass(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		err    error
		limits []int
	}{
		{"deadlock", &pgconn.PgError{Code: "40P01"}, []int{100, 100, 100}},
		{"lock", &pgconn.PgError{Code: "55P03"}, []int{100, 100, 100}},
		{"terminated", &pgconn.PgError{Code: "57P01"}, []int{100, 100, 100}},
		{"out of time", &pgconn.PgError{Code: "57014"}, []int{100, 50, 50}},
		{"denied", &pgconn.PgError{Code: "42501"}, []int{100}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var limits []int
				err := outbox.Drain(context.Background(), func(_ context.Context, limit int) (int, error) {
					limits = append(limits, limit)
					if len(limits) == 1 {
						return 0, tt.err
					}
					return max(3-len(limits), 0), nil
				}, outbox.Pace{Batch: 100}, nil)
				if !slices.Equal(limits, tt.limits) {
					t.Errorf("limits %v, want %v", limits, tt.limits)
				}
				if lost := len(tt.limits) == 1; errors.Is(err, tt.err) != lost {
					t.Errorf("Drain() = %v", err)
				}
			})
		})
	}
}

func TestDrainGivesUpInTheEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		locked, calls := &pgconn.PgError{Code: "55P03"}, 0
		err := outbox.Drain(context.Background(), func(context.Context, int) (int, error) {
			calls++
			return 0, locked
		}, outbox.Pace{}, nil)
		if !errors.Is(err, locked) || calls != 8 {
			t.Errorf("Drain() = %v after %d tries", err, calls)
		}
	})
}
