package main_test

import (
	"slices"
	"testing"

	demo "github.com/outboxctl/outboxctl/cmd/demo"
)

func TestProofFailsWhenAPromiseIsBroken(t *testing.T) {
	t.Parallel()
	committed := []int64{1, 2, 3}
	type taken = map[int64]int
	all := taken{1: 1, 2: 1, 3: 1}
	tests := []struct {
		name       string
		taken      taken
		refused    int64
		duplicates int
		forged     int
		copies     taken
		want       []bool // arrived, no ghost, retried, once, copied, signed
	}{
		{"all well", taken{1: 1, 2: 1}, 3, 1, 0, all, []bool{true, true, true, true, true, true}},
		{"an order lost", taken{1: 1}, 3, 1, 0, all, []bool{false, true, true, true, true, true}},
		{"a rolled-back order arrived", taken{1: 1, 2: 1, 4: 1}, 3, 1, 0, all, []bool{true, false, true, true, true, true}},
		{"a rolled-back order refused", taken{1: 1, 2: 1, 3: 1}, 4, 1, 0, all, []bool{true, false, true, true, true, true}},
		{"an order taken twice", taken{1: 1, 2: 2}, 3, 1, 0, all, []bool{true, true, true, false, true, true}},
		{"the kill without effect", taken{1: 1, 2: 1}, 3, 0, 0, all, []bool{true, true, true, false, true, true}},
		{"a bad signature", taken{1: 1, 2: 1}, 3, 1, 1, all, []bool{true, true, true, true, true, false}},
		{"a copy lost", taken{1: 1, 2: 1}, 3, 1, 0, taken{1: 1, 2: 1}, []bool{true, true, true, true, false, true}},
		{"a copy taken twice", taken{1: 1, 2: 1}, 3, 1, 0, taken{1: 1, 2: 2, 3: 1}, []bool{true, true, true, true, false, true}},
		{"a copy of a rolled-back order", taken{1: 1, 2: 1}, 3, 1, 0, taken{1: 1, 2: 1, 3: 1, 4: 1}, []bool{true, true, true, true, false, true}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got := demo.Claims(4, committed, tt.taken, tt.refused, tt.duplicates, tt.forged, tt.copies)
			if !slices.Equal(got, tt.want) {
				t.Errorf("Claims() = %v, want %v", got, tt.want)
			}
		})
	}
}

func TestDigestShowsOneLineOfEachKind(t *testing.T) {
	t.Parallel()
	got := demo.DigestLog([]string{
		"17:59:46.338 INF dispatching to=http://127.0.0.1/ parallel=10",
		"\x1b[2m17:59:46.394\x1b[0m \x1b[92mINF\x1b[0m delivered \x1b[2mevent=\x1b[0m2",
		"17:59:46.394 INF delivered event=3",
		`17:59:46.394 ERR dead letter event=4 error="answered 422"`,
		`17:59:46.394 ERR dead letter event=5 error="answered 422"`,
		"17:59:46.394 INF PostgreSQL answers again",
		"17:59:46.394 INF delivered event=6",
		"outboxctl: out of memory",
	})
	want := []string{
		"17:59:46.338 INF dispatching to=http://127.0.0.1/ parallel=10",
		"\x1b[2m17:59:46.394\x1b[0m \x1b[92mINF\x1b[0m delivered \x1b[2mevent=\x1b[0m2",
		`17:59:46.394 ERR dead letter event=4 error="answered 422"`,
		"17:59:46.394 INF PostgreSQL answers again",
		"outboxctl: out of memory",
		"… and more lines like these: 2 delivered, 1 dead letter",
	}
	if !slices.Equal(got, want) {
		t.Errorf("shown = %q, want %q", got, want)
	}
}
