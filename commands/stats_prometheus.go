package commands

import (
	"bufio"
	"fmt"
	"strconv"
	"strings"

	"github.com/outboxctl/outboxctl/outbox"
)

// inMetrics is how many event types, destinations or answers become series of their own; the rest is
// "other". Tenants and aggregates, of which there may be any number, never do.
const inMetrics = 50

// metric is one with all its series.
type metric struct {
	name, help string
	series     []series
}

type series struct {
	labels []string // name, value, name, value …
	value  float64
}

// metrics turns stats into what monitoring stores: gauges alone, since a look has no history.
func metrics(st *outbox.Stats) []metric {
	one := func(name, help string, value float64) metric {
		return metric{name, help, []series{{value: value}}}
	}
	all := []metric{
		{"outbox_events", "Events by status; those delivered are estimated when they are many.", byStatus(st.Status, outbox.Statuses()...)},
		one("outbox_lag_seconds", "Age of the oldest event that should be delivered and is not.", st.Lag.Seconds()),
		one("outbox_due_events", "Events that are due and in nobody's hands.", float64(st.Due)),
		one("outbox_retrying_events", "Events that wait for their next attempt.", float64(st.Retrying)),
		one("outbox_future_events", "Events whose time has not come.", float64(st.Future)),
		one("outbox_oldest_due_seconds", "For how long the oldest due event has been due.", st.OldestDue.Seconds()),
		one("outbox_oldest_in_progress_seconds", "For how long the oldest claim has been held.", st.OldestInProgress.Seconds()),
		one("outbox_lapsed_leases", "Events whose worker did not come back in time.", float64(st.Lapsed)),
		one("outbox_unrouted_events", "Events that no route matches.", float64(st.Unrouted)),
		{"outbox_delivered_per_minute", "Deliveries per minute over a window.", byWindow(st.Delivered)},
		{"outbox_created_per_minute", "Events created per minute over a window.", byWindow(st.Created)},
		{"outbox_buried_last_hour", "Events that ended failed or as dead letters in the last hour.", byStatus(st.Buried, outbox.Failed, outbox.DeadLetter)},
		one("outbox_window_seconds", "The window of attempts and answers.", st.Window.Seconds()),
		one("outbox_window_attempts", "Attempts made in the window.", float64(st.Attempts)),
		one("outbox_window_errors", "Attempts in the window that did not deliver.", float64(st.Errors)),
		{"outbox_window_answers", "Attempts in the window by what came back; no kind means delivered.", byAnswer(st)},
		one("outbox_dispatchers", "Dispatchers that are alive.", float64(len(st.Dispatchers))),
		one("outbox_unserved_destinations", "Destinations with events due for minutes and no dispatcher.", float64(len(st.Unserved()))),
		one("outbox_table_bytes", "Size of the table.", float64(st.Database.TableBytes)),
		one("outbox_index_bytes", "Size of its indexes.", float64(st.Database.IndexBytes)),
		one("outbox_dead_rows", "Rows that vacuum has yet to remove.", float64(st.Database.DeadRows)),
		one("outbox_invalid_indexes", "Indexes that serve no query.", float64(len(st.Database.InvalidIndexes))),
		{"outbox_slot_lag_bytes", "Log that is kept for a logical replication slot; for all temporary ones, the most.", bySlot(st.Database.Slots)},
		one("outbox_lost_slots", "Logical replication slots that have lost their log.", float64(lostSlots(st.Database.Slots))),
	}
	if st.LastDelivered >= 0 {
		all = append(all, one("outbox_last_delivered_seconds", "Since the minute of the last delivery, if there was one within a day.", st.LastDelivered.Seconds()))
	}
	if h := st.Database.Snapshot; h == nil || h.Age >= 0 {
		age := 0.0
		if h != nil {
			age = h.Age.Seconds()
		}
		all = append(all, one("outbox_oldest_snapshot_seconds", "Age of the oldest snapshot, which holds vacuum back.", age))
	}
	return append(append(all, typeMetrics(st)...), destinationMetrics(st)...)
}

func byStatus(counts map[outbox.Status]int64, order ...outbox.Status) (all []series) {
	for _, status := range order {
		all = append(all, series{[]string{"status", string(status)}, float64(counts[status])})
	}
	return all
}

func byWindow(rates map[string]float64) (all []series) {
	for _, window := range []string{"1m", "5m", "15m"} {
		all = append(all, series{[]string{"window", window}, rates[window]})
	}
	return all
}

func byAnswer(st *outbox.Stats) (all []series) {
	rest := st.Attempts
	for _, an := range st.Answers[:min(inMetrics, len(st.Answers))] {
		all = append(all, series{[]string{"kind", an.Kind, "code", strconv.Itoa(an.Code)}, float64(an.N)})
		rest -= an.N
	}
	if len(st.Answers) > inMetrics {
		all = append(all, series{[]string{"kind", "other", "code", "0"}, float64(rest)})
	}
	return all
}

// bySlot has one series for all temporary slots, whose names are never the same.
func bySlot(slots []outbox.Slot) (all []series) {
	temporary := int64(-1)
	for _, s := range slots {
		if s.Temporary {
			temporary = max(temporary, s.Lag)
		} else if s.Lag >= 0 && len(all) < inMetrics {
			all = append(all, series{[]string{"slot", s.Name}, float64(s.Lag)})
		}
	}
	if temporary >= 0 {
		all = append(all, series{[]string{"slot", "temporary"}, float64(temporary)})
	}
	return all
}

func lostSlots(slots []outbox.Slot) (n int) {
	for _, s := range slots {
		if s.Lost() {
			n++
		}
	}
	return n
}

func typeMetrics(st *outbox.Stats) []metric {
	open := metric{"outbox_event_type_open_events", "Events that are not finished, by type.", nil}
	due := metric{"outbox_event_type_due_events", "Events that are due and in nobody's hands, by type.", nil}
	restOpen, restDue := st.Open(), st.Due
	for _, d := range st.EventTypes.Top {
		open.add(float64(d.Open()), "event_type", d.Name)
		due.add(float64(d.Due), "event_type", d.Name)
		restOpen, restDue = restOpen-d.Open(), restDue-d.Due
	}
	if st.EventTypes.Of > len(st.EventTypes.Top) {
		open.add(float64(restOpen), "event_type", "other")
		due.add(float64(restDue), "event_type", "other")
	}
	return []metric{open, due}
}

func destinationMetrics(st *outbox.Stats) []metric {
	const (
		open = iota
		due
		oldest
		attempts
		errors
		paused
		tenants
		breaker
		served
	)
	all := []metric{
		{"outbox_destination_open_events", "Events that are not finished, by destination.", nil},
		{"outbox_destination_due_events", "Events that are due and in nobody's hands, by destination.", nil},
		{"outbox_destination_oldest_due_seconds", "For how long the oldest due event has been due, by destination.", nil},
		{"outbox_destination_window_attempts", "Attempts made in the window, by destination.", nil},
		{"outbox_destination_window_errors", "Attempts in the window that did not deliver, by destination.", nil},
		{"outbox_destination_paused", "1 where somebody has paused a destination.", nil},
		{"outbox_destination_paused_tenants", "Tenants that somebody has paused there.", nil},
		{"outbox_destination_breaker_open", "1 where the breaker is open or half open.", nil},
		{"outbox_destination_served", "1 where a dispatcher is alive.", nil},
	}
	rest := []int64{open: st.Open(), due: st.Due, oldest: 0, attempts: st.Attempts, errors: st.Errors}
	for _, d := range st.Destinations {
		label := []string{"destination", destinationName(d.Name)}
		counts := []int64{open: d.Open(), due: d.Due, oldest: 0, attempts: d.Attempts, errors: d.Errors}
		load := d.Judged()
		judged := []int64{open: load.Open(), due: load.Due, oldest: 0, attempts: load.Attempts, errors: load.Errors}
		for i, n := range counts {
			rest[i] -= judged[i]
			if i != oldest {
				all[i].add(float64(n), label...)
			}
		}
		all[oldest].add(d.OldestDue.Seconds(), label...)
		all[paused].add(oneIf(d.Paused), label...)
		all[tenants].add(float64(len(d.Tenants)), label...)
		all[breaker].add(oneIf(d.Breaker != "closed"), label...)
		all[served].add(oneIf(d.Served), label...)
	}
	if st.Unlisted > 0 {
		for _, i := range []int{open, due, attempts, errors} {
			all[i].add(float64(rest[i]), "destination", "other")
		}
	}
	return all
}

func (m *metric) add(value float64, labels ...string) {
	m.series = append(m.series, series{labels, value})
}

func oneIf(is bool) float64 {
	if is {
		return 1
	}
	return 0
}

// printPrometheus writes the text format of Prometheus, for the node exporter's textfile collector:
// without timestamps, which it refuses.
func (a *app) printPrometheus(all []metric) error {
	w := bufio.NewWriter(a.Out)
	for _, m := range all {
		if len(m.series) == 0 {
			continue
		}
		fmt.Fprintf(w, "# HELP %s %s\n# TYPE %s gauge\n", m.name, m.help, m.name)
		for _, s := range m.series {
			fmt.Fprintf(w, "%s%s %s\n", m.name, labelText(s.labels), number(s.value))
		}
	}
	return w.Flush()
}

// labelText is {name="value",…}, or nothing. Names in the database may be any text that is UTF-8.
func labelText(labels []string) string {
	if len(labels) == 0 {
		return ""
	}
	var pairs []string
	for i := 0; i < len(labels); i += 2 {
		value := strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`).Replace(labels[i+1])
		pairs = append(pairs, labels[i]+`="`+value+`"`)
	}
	return "{" + strings.Join(pairs, ",") + "}"
}

func number(v float64) string { return strconv.FormatFloat(round(v, 4), 'f', -1, 64) }

// printMetricsCSV writes the same for spreadsheets.
func (a *app) printMetricsCSV(all []metric) error {
	var rows [][]string
	for _, m := range all {
		for _, s := range m.series {
			rows = append(rows, []string{m.name, strings.Trim(labelText(s.labels), "{}"), number(s.value)})
		}
	}
	return a.printCSV([]string{"metric", "labels", "value"}, rows)
}
