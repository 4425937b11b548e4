package main

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/outboxctl/outboxctl/outbox/outboxtest/storm/history"
)

// report gathers what the rounds have shown.
type report struct {
	options *options
	rounds  []verdict
}

// verdict is one round's.
type verdict struct {
	name, file string
	control    bool
	took       time.Duration
	events     int
	requests   int
	repeats    int
	faults     map[string]tally
}

// tally counts one kind of fault.
type tally struct{ proved, void int }

func newReport(o *options) *report { return &report{options: o} }

func (r *report) add(name, file string, h *history.History) {
	v := verdict{name: name, file: file, control: h.Setup.Control, took: h.Ended.Sub(h.Began), events: len(h.Writes), requests: len(h.Requests), faults: map[string]tally{}}
	taken := map[string]int{}
	for _, q := range h.Requests {
		if q.Accepted {
			taken[q.Dest+q.Key]++
		}
	}
	for _, n := range taken {
		v.repeats += n - 1
	}
	for _, f := range h.Faults {
		t := v.faults[f.Kind]
		if f.Proof == "" {
			t.void++
		} else {
			t.proved++
		}
		v.faults[f.Kind] = t
	}
	r.rounds = append(r.rounds, v)
}

func (r *report) failed() bool {
	return slices.ContainsFunc(r.rounds, func(v verdict) bool {
		for _, t := range v.faults {
			if t.void > 0 {
				return true
			}
		}
		return false
	})
}

func (r *report) print(w io.Writer) {
	all := map[string]tally{}
	fmt.Fprintf(w, "%-14s %8s %8s %9s %8s %8s\n", "run", "took", "events", "requests", "repeats", "faults")
	for _, v := range r.rounds {
		n := 0
		for kind, t := range v.faults {
			all[kind] = tally{all[kind].proved + t.proved, all[kind].void + t.void}
			n += t.proved
		}
		fmt.Fprintf(w, "%-14s %8s %8d %9d %8d %8d\n", v.name, v.took.Round(time.Second), v.events, v.requests, v.repeats, n)
	}
	fmt.Fprintln(w)
	for _, kind := range slices.SortedFunc(maps.Keys(all), cmp.Compare) {
		fmt.Fprintf(w, "%-22s %6d proved %6d without proof\n", kind, all[kind].proved, all[kind].void)
	}
}
