package commands

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/outboxctl/outboxctl/outbox"
)

// breakdown is a table that a person, a program and a spreadsheet can have.
type breakdown struct {
	by      string
	columns []column
	rows    [][]any // string, int, int64, float64 (a share), time.Duration or time.Time
	of      int     // rows that there are
}

// column has a name in documents and one above a table.
type column struct{ key, head string }

// bys are what --by takes, in the order of its help.
var bys = []string{"event-type", "destination", "tenant", "error", "attempt", "hour"}

// showBy prints one breakdown.
func (o *statsOptions) showBy(ctx context.Context, a *app, store *outbox.Store) error {
	look := o.look(a)
	b, err := newBreakdown(ctx, store, o.by, look)
	if err != nil {
		return err
	}
	switch a.global.output {
	case "json":
		return a.printJSON(b.document(look))
	case "csv":
		return a.printCSV(b.records())
	}
	return b.print(a, look)
}

func newBreakdown(ctx context.Context, store *outbox.Store, by string, look outbox.Look) (breakdown, error) {
	switch by {
	case "error":
		return byError(ctx, store, look)
	case "attempt":
		return byAttempts(ctx, store, look)
	case "hour":
		return byHour(ctx, store, look)
	}
	st, err := store.Stats(ctx, look)
	if err != nil {
		return breakdown{}, err
	}
	switch by {
	case "destination":
		return byDestination(st), nil
	case "tenant":
		return byName("tenant", "tenant", st.Tenants, st), nil
	}
	return byName("event-type", "event_type", st.EventTypes, st), nil
}

// depthColumns are those of what has open events.
var depthColumns = []column{{"open", "OPEN"}, {"due", "DUE"}, {"oldest_due_seconds", "OLDEST"}, {"retrying", "RETRYING"}, {"future", "LATER"},
	{"in_progress", "IN PROGRESS"}, {"lapsed_leases", "LAPSED"}, {"failed", "FAILED"}, {"dead_letter", "DEAD LETTER"}, {"discarded", "DISCARDED"}}

func depthCells(d outbox.Depth) []any {
	return []any{d.Open(), d.Due, d.OldestDue, d.Retrying, d.Future,
		d.Status[outbox.InProgress], d.Lapsed, d.Status[outbox.Failed], d.Status[outbox.DeadLetter], d.Status[outbox.Discarded]}
}

func byName(by, key string, r outbox.Ranking, st *outbox.Stats) breakdown {
	b := breakdown{by: by, columns: append([]column{{key, strings.ToUpper(strings.ReplaceAll(key, "_", " "))}}, depthColumns...), of: r.Of}
	if !st.Estimated {
		b.columns = append(b.columns, column{"delivered", "DELIVERED"})
	}
	for _, d := range r.Top {
		row := append([]any{d.Name}, depthCells(d)...)
		if !st.Estimated {
			row = append(row, d.Status[outbox.Delivered])
		}
		b.rows = append(b.rows, row)
	}
	return b
}

func byDestination(st *outbox.Stats) breakdown {
	b := breakdown{by: "destination", columns: append([]column{{"destination", "DESTINATION"}}, depthColumns...), of: len(st.Destinations) + st.Unlisted}
	b.columns = append(b.columns, column{"attempts", "ATTEMPTS"}, column{"error_share", "ERRORS"}, column{"latency_seconds", "LATENCY"},
		column{"error", "MOST FREQUENT ERROR"}, column{"state", "STATE"})
	for _, d := range st.Destinations {
		row := append([]any{destinationName(d.Name)}, depthCells(d.Depth)...)
		b.rows = append(b.rows, append(row, d.Attempts, d.ErrorShare(), d.Latency(), worstAnswer(d.Answers), stateWords(&d)))
	}
	return b
}

func byError(ctx context.Context, store *outbox.Store, look outbox.Look) (breakdown, error) {
	b := breakdown{by: "error", columns: []column{{"destination", "DESTINATION"}, {"error_kind", "ERROR"}, {"code", "CODE"},
		{"attempts", "ATTEMPTS"}, {"share", "SHARE"}, {"last_seconds", "LAST"}}}
	failures, err := store.StatsByError(ctx, look)
	for _, e := range failures {
		b.rows = append(b.rows, []any{destinationName(e.Destination), e.Kind, e.Code, e.N, e.Share, e.Last})
	}
	b.of = len(b.rows)
	return b, err
}

func byAttempts(ctx context.Context, store *outbox.Store, look outbox.Look) (breakdown, error) {
	b := breakdown{by: "attempt", columns: []column{{"attempt", "ATTEMPT"}, {"open", "OPEN"}, {"delivered", "DELIVERED"},
		{"retried", "RETRIED"}, {"ended", "ENDED"}}}
	buckets, err := store.StatsByAttempt(ctx, look)
	for _, n := range buckets {
		b.rows = append(b.rows, []any{n.Attempt, n.Open, n.Delivered, n.Retried, n.Ended})
	}
	b.of = len(b.rows)
	return b, err
}

func byHour(ctx context.Context, store *outbox.Store, look outbox.Look) (breakdown, error) {
	b := breakdown{by: "hour", columns: []column{{"hour", "HOUR (UTC)"}, {"delivered", "DELIVERED"}, {"retried", "RETRIED"}, {"failed", "FAILED"},
		{"dead_letter", "DEAD LETTER"}, {"error_share", "ERRORS"}, {"latency_seconds", "LATENCY"}, {"age_seconds", "AGE"}}}
	hours, err := store.StatsByHour(ctx, look)
	for _, h := range hours {
		failed := h.Retried + h.Failed + h.DeadLetters
		b.rows = append(b.rows, []any{h.Hour, h.Delivered, h.Retried, h.Failed, h.DeadLetters,
			float64(failed) / float64(max(failed+h.Delivered, 1)), h.Latency, h.Age})
	}
	b.of = len(b.rows)
	return b, err
}

// print is for eyes: empty cells for what is nothing.
func (b breakdown) print(a *app, look outbox.Look) error {
	if len(b.rows) == 0 {
		_, err := fmt.Fprintf(a.Out, "nothing in the last %s\n", printDuration(look.Window))
		return err
	}
	var head []string
	var right []int
	for i, c := range b.columns {
		head = append(head, c.head)
		switch b.rows[0][i].(type) {
		case string, time.Time:
		default:
			right = append(right, i)
		}
	}
	var rows [][]string
	for _, row := range b.rows {
		var cells []string
		for i, v := range row {
			cells = append(cells, tableCell(b.columns[i].key, v))
		}
		rows = append(rows, cells)
	}
	if err := a.printTable(head, rows, right...); err != nil {
		return err
	}
	return a.printMore(len(rows), b.of)
}

func tableCell(key string, v any) string {
	switch v := v.(type) {
	case string:
		return cmp.Or(short(v), "-")
	case int:
		if key == "attempt" {
			return strconv.Itoa(v) + strings.Repeat("+", v/20)
		}
		return countOrDash(int64(v), false)
	case int64:
		return countOrDash(v, false)
	case float64:
		return percent(v)
	case time.Time:
		return v.Format("2006-01-02 15:04")
	case time.Duration:
		if key == "latency_seconds" && v > 0 {
			return latencyWords(v)
		}
		return ageOrDash(v)
	}
	return fmt.Sprint(v)
}

// breakdownDocument is outboxctl.stats_by/v1.
type breakdownDocument struct {
	Schema        string           `json:"schema"`
	By            string           `json:"by"`
	WindowSeconds float64          `json:"window_seconds"`
	Rows          []map[string]any `json:"rows"`
	Total         int              `json:"total"` // rows that there are
}

func (b breakdown) document(look outbox.Look) breakdownDocument {
	doc := breakdownDocument{Schema: "outboxctl.stats_by/v1", By: b.by, WindowSeconds: look.Window.Seconds(), Rows: []map[string]any{}, Total: b.of}
	for _, row := range b.rows {
		object := map[string]any{}
		for i, v := range row {
			object[b.columns[i].key] = plain(v)
		}
		doc.Rows = append(doc.Rows, object)
	}
	return doc
}

// plain is a value as programs take it.
func plain(v any) any {
	switch v := v.(type) {
	case float64:
		return round(v, 4)
	case time.Duration:
		return round(v.Seconds(), 3)
	case time.Time:
		return instant(v)
	}
	return v
}

func (b breakdown) records() (head []string, rows [][]string) {
	for _, c := range b.columns {
		head = append(head, c.key)
	}
	for _, row := range b.rows {
		var cells []string
		for _, v := range row {
			cells = append(cells, fmt.Sprint(plain(v)))
		}
		rows = append(rows, cells)
	}
	return head, rows
}
