package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/outboxctl/outboxctl/outbox/outboxtest/storm/check"
	"github.com/outboxctl/outboxctl/outbox/outboxtest/storm/history"
)

// report gathers what the rounds have shown.
type report struct {
	rounds []verdict
}

// verdict is one round's.
type verdict struct {
	name   string
	report check.Report
}

// add judges a round's history.
func (r *report) add(name string, h *history.History) *check.Report {
	r.rounds = append(r.rounds, verdict{name, check.Run(h)})
	return &r.rounds[len(r.rounds)-1].report
}

func (r *report) failed() bool {
	return slices.ContainsFunc(r.rounds, func(v verdict) bool { return !v.report.OK() })
}

// write prints the report of a single round as it is, and of several a line each and then their sum.
func (r *report) write(w io.Writer) error {
	if len(r.rounds) == 1 {
		return r.rounds[0].report.Write(w)
	}
	if err := r.table(w); err != nil {
		return err
	}
	all := r.sum()
	return all.Write(w)
}

func (r *report) table(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(t, "run\ttook\tevents\trequests\tfaults\tduplicates\trecovery p99\t  verdict\n")
	for _, v := range r.rounds {
		p := &v.report
		verdict, _, _ := strings.Cut(p.Verdict(), ":")
		fmt.Fprintf(t, "%s\t%s\t%d\t%d\t%d\t%d\t%s\t  %s\n", v.name, p.Lasted.Round(time.Second), p.Events, p.Requests, proven(p),
			duplicates(p), p.Recovery.Round(time.Millisecond), verdict)
	}
	fmt.Fprintln(t)
	return t.Flush()
}

func proven(p *check.Report) (n int) {
	for _, f := range p.Faults {
		n += f.Seen
	}
	return n
}

func duplicates(p *check.Report) (n int) {
	for _, of := range p.Duplicates {
		n += of
	}
	return n
}

// sum is the report of all rounds together: what was judged and found adds up, of recoveries the slowest counts.
func (r *report) sum() check.Report {
	all := check.Report{Seed: r.rounds[0].report.Seed, Duplicates: map[string]int{}}
	for _, v := range r.rounds {
		p := &v.report
		all.Lasted += p.Lasted
		all.Events += p.Events
		all.Rows += p.Rows
		all.Requests += p.Requests
		all.Worst = max(all.Worst, p.Worst)
		all.Recovery = max(all.Recovery, p.Recovery)
		for why, n := range p.Duplicates {
			all.Duplicates[why] += n
		}
		for _, why := range p.Void {
			all.Void = append(all.Void, v.name+": "+why)
		}
		sumFaults(&all, p.Faults)
		sumResults(&all, v)
	}
	return all
}

func sumFaults(all *check.Report, more []check.Faults) {
	for _, f := range more {
		i := slices.IndexFunc(all.Faults, func(of check.Faults) bool { return of.Kind == f.Kind })
		if i < 0 {
			i = len(all.Faults)
			all.Faults = append(all.Faults, check.Faults{Kind: f.Kind})
		}
		all.Faults[i].Happened += f.Happened
		all.Faults[i].Seen += f.Seen
	}
	slices.SortFunc(all.Faults, func(a, b check.Faults) int { return strings.Compare(a.Kind, b.Kind) })
}

// sumResults adds a round's; all rounds have the same invariants in the same order.
func sumResults(all *check.Report, v verdict) {
	if all.Results == nil {
		all.Results = make([]check.Result, len(v.report.Results))
	}
	for i, one := range v.report.Results {
		of := &all.Results[i]
		of.Name, of.Promise = one.Name, one.Promise
		of.Judged += one.Judged
		of.Total += one.Total
		for _, text := range one.Violations {
			of.Violations = append(of.Violations, v.name+": "+text)
		}
	}
}
