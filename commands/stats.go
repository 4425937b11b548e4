package commands

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/outboxctl/outboxctl/outbox"
)

// statsOptions are the flags of stats.
type statsOptions struct {
	since durationValue
}

func newStats(a *app) *cobra.Command {
	var o statsOptions
	cmd := &cobra.Command{
		Use:   "stats",
		Short: "show how the outbox is doing",
		Long: `Show how many events there are by status and type, how old the oldest undelivered one
is (the lag), what was delivered per minute, what destinations answered, and which
dispatchers are alive. It changes nothing and is cheap enough for every second: it
reads open events by index and takes rates from what dispatchers have summed up. More
than 100,000 finished events are estimated, marked with ~.
` + exitCodes,
		Example: `  outboxctl stats
  outboxctl stats --since 1h
  outboxctl stats -o json | jq .lag_seconds`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context(), a) },
	}
	o.flags(cmd.Flags())
	return cmd
}

func (o *statsOptions) flags(fs *pflag.FlagSet) {
	o.since = durationValue(15 * time.Minute)
	fs.Var(&o.since, "since", "window for answers and the error share")
}

func (o *statsOptions) run(ctx context.Context, a *app) error {
	if o.since <= 0 {
		return usage(fmt.Errorf("--since must be longer than 0"), "")
	}
	db, err := a.open(ctx, reads)
	if err != nil {
		return err
	}
	defer db.Close()
	st, err := outbox.NewStore(db, a.global.schema).Stats(ctx, time.Duration(o.since))
	if err != nil {
		return err
	}
	if a.global.output == "json" {
		return a.printJSON(newStatsDocument(st))
	}
	return a.printStats(st)
}

// statsDocument is outboxctl.stats/v1. Its keys are an interface: they stay.
type statsDocument struct {
	Schema             string                  `json:"schema"`
	Status             map[outbox.Status]int64 `json:"status"`
	Estimated          bool                    `json:"estimated"`
	LagSeconds         float64                 `json:"lag_seconds"`
	LapsedLeases       int64                   `json:"lapsed_leases"`
	Unrouted           int64                   `json:"unrouted"`
	DeliveredPerMinute map[string]float64      `json:"delivered_per_minute"`
	WindowSeconds      float64                 `json:"window_seconds"`
	ErrorShare         float64                 `json:"error_share"`
	Answers            []answerDocument        `json:"answers"`
	EventTypes         []eventTypeDocument     `json:"event_types"`
	Dispatchers        []dispatcherDocument    `json:"dispatchers"`
	Destinations       []destinationDocument   `json:"destinations"`
}

type answerDocument struct {
	ErrorKind string `json:"error_kind"`
	Code      int    `json:"code"`
	Attempts  int64  `json:"attempts"`
}

type eventTypeDocument struct {
	EventType string                  `json:"event_type"`
	Status    map[outbox.Status]int64 `json:"status"`
}

type dispatcherDocument struct {
	Name         string   `json:"name"`
	Host         string   `json:"host"`
	PID          int      `json:"pid"`
	Version      string   `json:"version"`
	Destinations []string `json:"destinations"`
	Parallel     int      `json:"parallel"`
	BatchSize    int      `json:"batch_size"`
	UpSeconds    float64  `json:"up_seconds"`
	SeenSeconds  float64  `json:"seen_seconds"`
}

type destinationDocument struct {
	Name        string     `json:"name"`
	Ordering    string     `json:"ordering"`
	Breaker     string     `json:"breaker"`
	PausedUntil *time.Time `json:"paused_until"`
	Reason      string     `json:"reason"`
	Open        int64      `json:"open"`
}

func newStatsDocument(st *outbox.Stats) statsDocument {
	doc := statsDocument{
		Schema: "outboxctl.stats/v1", Status: st.Status, Estimated: st.Estimated,
		LagSeconds: round(st.Lag.Seconds(), 3), LapsedLeases: st.LapsedLeases,
		DeliveredPerMinute: map[string]float64{}, WindowSeconds: st.Window.Seconds(),
		ErrorShare: round(st.ErrorShare(), 4),
		Answers:    []answerDocument{}, EventTypes: []eventTypeDocument{},
		Dispatchers: []dispatcherDocument{}, Destinations: []destinationDocument{},
	}
	for name, rate := range st.Rates {
		doc.DeliveredPerMinute[name] = round(rate, 1)
	}
	for _, an := range st.Answers {
		doc.Answers = append(doc.Answers, answerDocument{an.Kind, an.Code, an.N})
	}
	for _, t := range st.EventTypes {
		doc.EventTypes = append(doc.EventTypes, eventTypeDocument{t.Type, t.Status})
	}
	for _, d := range st.Dispatchers {
		doc.Dispatchers = append(doc.Dispatchers, dispatcherDocument{
			Name: d.Name, Host: d.Host, PID: d.PID, Version: d.Version, Destinations: destinationNames(d.Destinations),
			Parallel: d.Parallel, BatchSize: d.BatchSize,
			UpSeconds: round(d.Up.Seconds(), 1), SeenSeconds: round(d.Seen.Seconds(), 1),
		})
	}
	for _, d := range st.Destinations {
		doc.Destinations = append(doc.Destinations, destinationDocument{
			destinationName(d.Name), d.Ordering, d.Breaker, d.PausedUntil, d.Reason, d.Open,
		})
	}
	return doc
}

func destinationNames(names []string) []string {
	shown := make([]string, len(names))
	for i, name := range names {
		shown[i] = destinationName(name)
	}
	return shown
}

func round(v float64, digits int) float64 {
	scale := math.Pow10(digits)
	return math.Round(v*scale) / scale
}

// printStats shows what an operator asks first, first.
func (a *app) printStats(st *outbox.Stats) error {
	a.printHealth(st)
	sections := []func(*outbox.Stats) error{a.printEventTypes, a.printAnswers, a.printDispatchers}
	for _, section := range sections {
		if err := section(st); err != nil {
			return err
		}
	}
	return nil
}

func (a *app) printHealth(st *outbox.Stats) {
	var counts []string
	for _, status := range outbox.Statuses() {
		count := thousands(st.Status[status])
		if status == outbox.Delivered && st.Estimated {
			count = "~" + count
		}
		counts = append(counts, count+" "+string(status))
	}
	fmt.Fprintf(a.Out, "events      %s\n", strings.Join(counts, " · "))
	fmt.Fprintf(a.Out, "lag         %s\n", lagWords(st))
	fmt.Fprintf(a.Out, "delivered   %s/min over 1m · %s over 5m · %s over 15m\n",
		rate(st.Rates["1m"]), rate(st.Rates["5m"]), rate(st.Rates["15m"]))
	fmt.Fprintf(a.Out, "errors      %s\n", errorWords(st))
	if st.LapsedLeases > 0 {
		fmt.Fprintf(a.Out, "leases      %s lapsed: their worker died or lost its connection; they are due again\n", thousands(st.LapsedLeases))
	}
	if open := st.Status[outbox.Pending] + st.Status[outbox.InProgress]; len(st.Dispatchers) == 0 && open > 0 {
		fmt.Fprintf(a.Out, "attention   nobody delivers: %s open events and no dispatcher alive\n", thousands(open))
		return
	}
	for _, d := range unserved(st) {
		fmt.Fprintf(a.Out, "attention   nobody serves destination %q: %s open events\n", destinationName(d.Name), thousands(d.Open))
	}
}

// unserved are the destinations with open events that no live dispatcher delivers to.
func unserved(st *outbox.Stats) []outbox.DestinationStats {
	served := map[string]bool{}
	for _, d := range st.Dispatchers {
		for _, name := range d.Destinations {
			served[name] = true
		}
	}
	return slices.DeleteFunc(slices.Clone(st.Destinations), func(d outbox.DestinationStats) bool {
		return d.Open == 0 || served[d.Name]
	})
}

func lagWords(st *outbox.Stats) string {
	if st.Lag == 0 {
		return "none: nothing is waiting"
	}
	return age(st.Lag) + " (the oldest event that should be delivered and is not)"
}

func errorWords(st *outbox.Stats) string {
	if st.Attempts == 0 {
		return "no attempts in the last " + printDuration(st.Window)
	}
	return fmt.Sprintf("%.1f %% of %s attempts in the last %s", 100*st.ErrorShare(), thousands(st.Attempts), printDuration(st.Window))
}

func rate(r float64) string {
	if r > 0 && r < 10 {
		return fmt.Sprintf("%.1f", r)
	}
	return thousands(int64(math.Round(r)))
}

func (a *app) printEventTypes(st *outbox.Stats) error {
	if len(st.EventTypes) == 0 {
		return nil
	}
	head := []string{"EVENT TYPE"}
	for _, status := range outbox.Statuses() {
		head = append(head, strings.ToUpper(strings.ReplaceAll(string(status), "_", " ")))
	}
	var rows [][]string
	for _, t := range st.EventTypes {
		row := []string{t.Type}
		for _, status := range outbox.Statuses() {
			row = append(row, countOrDash(t.Status[status], status == outbox.Delivered && st.Estimated))
		}
		rows = append(rows, row)
	}
	fmt.Fprintln(a.Out)
	return a.printTable(head, rows, 1, 2, 3, 4, 5, 6)
}

// countOrDash keeps a table of mostly zeros readable; a number that is not known is a question mark.
func countOrDash(n int64, unknown bool) string {
	switch {
	case unknown:
		return "?"
	case n == 0:
		return "-"
	}
	return thousands(n)
}

func (a *app) printAnswers(st *outbox.Stats) error {
	if len(st.Answers) == 0 {
		return nil
	}
	var rows [][]string
	for _, an := range st.Answers {
		code := "-"
		if an.Code != 0 {
			code = fmt.Sprint(an.Code)
		}
		rows = append(rows, []string{cmp.Or(an.Kind, "delivered"), code, thousands(an.N),
			fmt.Sprintf("%.1f %%", 100*float64(an.N)/float64(st.Attempts))})
	}
	fmt.Fprintln(a.Out)
	return a.printTable([]string{"ANSWER", "CODE", "ATTEMPTS", "SHARE"}, rows, 1, 2, 3)
}

func (a *app) printDispatchers(st *outbox.Stats) error {
	if len(st.Dispatchers) == 0 {
		return nil
	}
	var rows [][]string
	for _, d := range st.Dispatchers {
		names := destinationNames(d.Destinations)
		slices.Sort(names)
		rows = append(rows, []string{d.Name, strings.Join(names, ", "), fmt.Sprint(d.Parallel), fmt.Sprint(d.BatchSize),
			d.Version, age(d.Up), age(d.Seen) + " ago"})
	}
	fmt.Fprintln(a.Out)
	return a.printTable([]string{"DISPATCHER", "DESTINATIONS", "PARALLEL", "BATCH", "VERSION", "UP", "SEEN"}, rows, 2, 3)
}
