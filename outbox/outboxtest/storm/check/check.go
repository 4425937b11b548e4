// Package check judges the history of a storm: whether what was promised was kept. It knows no database, no clock
// and no chance: the same history has the same report.
//
// It believes what receivers, producers, operators' tools and the table's trigger have seen, and nothing that a dispatcher
// says of itself. Where a history leaves room for doubt, as whether a transaction was visible when another
// one looked, it judges in favour of the program: what it reports did happen.
package check

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/outboxctl/outboxctl/outbox/outboxtest/storm/history"
)

// invariant is one promise and how it is judged.
type invariant struct {
	name    string
	promise string // with its number in docs/guarantees.md
	judge   func(*story, *verdict)
	must    func(*story) bool // this run has to exercise it; nil = every run has
}

// invariants in the order of the report.
var invariants = []invariant{
	{name: "no loss", judge: judgeLoss,
		promise: "G1: a committed event is delivered to a receiver that took it, or ends where a person sees it"},
	{name: "no phantom", judge: judgePhantoms,
		promise: "G2: nothing is sent of a transaction that rolled back, nor before its commit"},
	{name: "nothing early", judge: judgeEarly,
		promise: "G3: nothing is claimed or sent before available_at and next_attempt_at"},
	{name: "duplicates explained", judge: judgeDuplicates,
		promise: "G4, G5: what was taken comes again only through a fault, and never more than that had in hand"},
	{name: "order", judge: judgeOrder, must: ordered,
		promise: "G6: in an ordered destination one event of an aggregate at a time, in order of sequence"},
	{name: "fence", judge: judgeFence,
		promise: "G7: who has lost a lease changes nothing, and a delivered row names the request of its last attempt"},
	{name: "final", judge: judgeFinal,
		promise: "G8: what has ended stays as it is, unless an operator's command changes it"},
	{name: "lease", judge: judgeLeases,
		promise: "G7: no live lease is taken over, none is longer than configured, and nothing is sent without one"},
	{name: "attempts", judge: judgeAttempts,
		promise: "G9: each request has a claim that counted it, each counted claim a request or what kept it; what was given back was not sent"},
	{name: "max attempts", judge: judgeMaxAttempts,
		promise: "G1: no event is tried beyond its attempts or given up before they are spent"},
	{name: "backoff", judge: judgeBackoff, must: failing,
		promise: "G3: a retry waits as long as backoff, jitter and Retry-After say"},
	{name: "limits", judge: judgeLimits,
		promise: "G5: parallel, batch_size, tenants' limits and rates hold in each process"},
	{name: "answers", judge: judgeAnswers,
		promise: "G12: the row says what the receiver answered, and ends or waits as that answer asks"},
	{name: "bytes", judge: judgeBytes,
		promise: "G4, G13: every attempt has the producer's payload, the same body and a valid signature"},
	{name: "operators", judge: judgeOperators, must: operated,
		promise: "G17, G18: a command changes what it selects, says how much, and leaves a record of each event"},
	{name: "pauses", judge: judgePauses, must: paused,
		promise: "G19: of a destination that is paused nothing is claimed, from a poll interval after the command on"},
	{name: "recovery", judge: judgeRecovery,
		promise: "G10: everything ends within lease + poll + 2 s of its due time or of the last fault's end"},
	{name: "stops keep results", judge: judgeStops, must: stopped,
		promise: "G11: a dispatcher that was told to stop leaves no event leased"},
	{name: "flat", judge: judgeFlatness, must: long,
		promise: "G12: memory, files and goroutines do not grow with time"},
	{name: "sessions", judge: judgeSessions,
		promise: "G12: no session is idle in a transaction for more than 200 ms"},
	{name: "secrets", judge: judgeSecrets,
		promise: "G14: no secret, connection string or payload is in a log, an error or a process list"},
}

// maxViolations bounds how many of an invariant's violations are told one by one.
const maxViolations = 20

// verdict gathers what an invariant has judged.
type verdict struct {
	judged, total int
	violations    []string
}

func (v *verdict) saw(n int) { v.judged += n }

// wrong notes a violation.
func (v *verdict) wrong(format string, args ...any) {
	v.total++
	if len(v.violations) < maxViolations {
		v.violations = append(v.violations, fmt.Sprintf(format, args...))
	}
}

// Result is what was found about one promise.
type Result struct {
	Name       string
	Promise    string
	Judged     int      // observations
	Violations []string // the first of them
	Total      int      // violations
}

// Report is the judgement of a run.
type Report struct {
	Seed    uint64
	Control bool
	Lasted  time.Duration
	Results []Result
	Void    []string // why the run proves nothing; empty = it does

	Events     int // committed
	Rows       int // of which each is one delivery of one event
	Requests   int
	Duplicates map[string]int // requests of what was taken already, by what explains them
	Worst      int            // duplicates through one end or stop of a process, at one destination
	Faults     []Faults
	Recovery   time.Duration // the 99th percentile from heal, or from being due, to the end
}

// Faults counts those of a kind.
type Faults struct {
	Kind           string
	Happened, Seen int // Seen have a proof
}

// OK reports whether the run proves that every promise was kept.
func (r *Report) OK() bool {
	return len(r.Void) == 0 && !slices.ContainsFunc(r.Results, func(res Result) bool { return res.Total > 0 })
}

// Run judges a history. It does not change it.
func Run(h *history.History) Report {
	s := newStory(h)
	r := Report{
		Seed: h.Setup.Seed, Control: h.Setup.Control, Lasted: h.Ended.Sub(h.Began), Requests: len(h.Requests),
		Rows: len(s.lives), Void: voids(h), Faults: countFaults(h), Duplicates: map[string]int{},
	}
	for i := range h.Writes {
		if s.committed(&h.Writes[i]) {
			r.Events++
		}
	}
	for _, inv := range invariants {
		var v verdict
		inv.judge(s, &v)
		r.Results = append(r.Results, Result{inv.name, inv.promise, v.judged, v.violations, v.total})
		if v.judged == 0 && (inv.must == nil || inv.must(s)) {
			r.Void = append(r.Void, fmt.Sprintf("nothing was judged of %q", inv.name))
		}
	}
	r.Void = append(r.Void, s.void...)
	r.Duplicates, r.Worst, r.Recovery = s.duplicates, s.worst, s.recovery
	return r
}

// voids says what keeps a run from proving anything, whatever happened in it.
func voids(h *history.History) (why []string) {
	if h.Healed.IsZero() {
		why = append(why, "the run never healed: some fault did not end")
	}
	for _, f := range countFaults(h) {
		if f.Seen < f.Happened {
			why = append(why, fmt.Sprintf("%d of %d faults of kind %s have no proof", f.Happened-f.Seen, f.Happened, f.Kind))
		}
	}
	if h.Setup.Control && len(h.Faults) > 0 {
		why = append(why, "a control run has faults")
	}
	return why
}

func countFaults(h *history.History) (all []Faults) {
	at := map[string]int{}
	for _, f := range h.Faults {
		i, known := at[f.Kind]
		if !known {
			i = len(all)
			at[f.Kind] = i
			all = append(all, Faults{Kind: f.Kind})
		}
		all[i].Happened++
		if f.Proof != "" {
			all[i].Seen++
		}
	}
	slices.SortFunc(all, func(a, b Faults) int { return strings.Compare(a.Kind, b.Kind) })
	return all
}
