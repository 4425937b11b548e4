package check

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// Write prints the report for people: what the run was, the promises with what was seen of them, and then, if
// anything is wrong, what.
func (r *Report) Write(w io.Writer) error {
	var b strings.Builder
	r.head(&b)
	r.faults(&b)
	r.promises(&b)
	r.wrongs(&b)
	b.WriteString(r.Verdict() + "\n")
	_, err := io.WriteString(w, b.String())
	return err
}

// String is the report as Write prints it.
func (r *Report) String() string {
	var b strings.Builder
	_ = r.Write(&b) // a builder takes everything
	return b.String()
}

// Verdict is the report in one line.
func (r *Report) Verdict() string {
	broken, total, idle := 0, 0, 0
	for _, res := range r.Results {
		if total += res.Total; res.Total > 0 {
			broken++
		}
		if res.Judged == 0 {
			idle++
		}
	}
	switch {
	case total > 0:
		return fmt.Sprintf("BROKEN: %d of %d promises, %d violations", broken, len(r.Results), total)
	case len(r.Void) > 0:
		return "VOID: the run proves nothing"
	case idle > 0:
		return fmt.Sprintf("OK: %d promises kept, %d not put to the test", len(r.Results)-idle, idle)
	}
	return fmt.Sprintf("OK: %d promises kept", len(r.Results))
}

func (r *Report) head(b *strings.Builder) {
	kind := "storm"
	if r.Control {
		kind = "control run"
	}
	t := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "%s\tseed %d, %s\n", kind, r.Seed, r.Lasted.Round(time.Second))
	fmt.Fprintf(t, "events\t%d committed, %d rows\n", r.Events, r.Rows)
	fmt.Fprintf(t, "requests\t%d\n", r.Requests)
	fmt.Fprintf(t, "duplicates\t%s\n", r.duplicates())
	fmt.Fprintf(t, "recovery\t%s (99th percentile, from heal or due)\n", r.Recovery.Round(time.Millisecond))
	t.Flush()
	b.WriteString("\n")
}

func (r *Report) duplicates() string {
	n := 0
	var parts []string
	for _, why := range slices.Sorted(maps.Keys(r.Duplicates)) {
		n += r.Duplicates[why]
		parts = append(parts, fmt.Sprintf("%s %d", why, r.Duplicates[why]))
	}
	if n == 0 {
		return "none"
	}
	text := fmt.Sprintf("%d: %s", n, strings.Join(parts, ", "))
	if r.Worst > 0 {
		text += fmt.Sprintf("; at most %d by one end of a process", r.Worst)
	}
	return text
}

func (r *Report) faults(b *strings.Builder) {
	if len(r.Faults) == 0 {
		return
	}
	t := tabwriter.NewWriter(b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(t, "happened\tproven\t  fault\n")
	for _, f := range r.Faults {
		fmt.Fprintf(t, "%d\t%d\t  %s\n", f.Happened, f.Seen, f.Kind)
	}
	t.Flush()
	b.WriteString("\n")
}

func (r *Report) promises(b *strings.Builder) {
	width := 0
	for _, res := range r.Results {
		width = max(width, len(res.Name))
	}
	fmt.Fprintf(b, "%10s  %6s  %-*s  %s\n", "judged", "broken", width, "invariant", "promise")
	for _, res := range r.Results {
		wrong := "-"
		if res.Total > 0 {
			wrong = fmt.Sprint(res.Total)
		}
		fmt.Fprintf(b, "%10d  %6s  %-*s  %s\n", res.Judged, wrong, width, res.Name, res.Promise)
	}
	b.WriteString("\n")
}

func (r *Report) wrongs(b *strings.Builder) {
	for _, res := range r.Results {
		if res.Total == 0 {
			continue
		}
		fmt.Fprintf(b, "%s\n", res.Name)
		for _, text := range res.Violations {
			fmt.Fprintf(b, "  %s\n", text)
		}
		if more := res.Total - len(res.Violations); more > 0 {
			fmt.Fprintf(b, "  and %d more\n", more)
		}
		b.WriteString("\n")
	}
	for _, why := range r.Void {
		fmt.Fprintf(b, "void: %s\n", why)
	}
}
