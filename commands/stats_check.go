package commands

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/outboxctl/outboxctl/outbox"
)

// state is what a monitoring plugin says, and exits with.
type state int

const (
	stateOK state = iota
	stateWarning
	stateCritical
	stateUnknown
)

func (s state) String() string { return [...]string{"OK", "WARNING", "CRITICAL", "UNKNOWN"}[s] }

// warnAt is the share of a limit from which on there is a warning. Counts have none.
const warnAt = 0.8

// enoughAttempts is what a destination must have had to be judged on its own: two of three are no
// outage.
const enoughAttempts = 20

// checkOptions are the limits of stats --check.
type checkOptions struct {
	on         bool
	lag        limitValue
	errorRate  limitValue
	noDelivery limitValue
	dead       limitValue
	stuck      limitValue
	slotLag    limitValue
}

func (o *checkOptions) flags(fs *pflag.FlagSet) {
	*o = checkOptions{
		lag:        limitValue{kind: limitDuration, limit: (5 * time.Minute).Seconds()},
		errorRate:  limitValue{kind: limitPercent, limit: 0.05},
		noDelivery: limitValue{kind: limitDuration, limit: (10 * time.Minute).Seconds()},
		dead:       limitValue{kind: limitCount, limit: math.Inf(1)},
		stuck:      limitValue{kind: limitCount, limit: math.Inf(1)},
		slotLag:    limitValue{kind: limitSize, limit: 1 << 30},
	}
	fs.BoolVar(&o.on, "check", false, "judge, in one line for cron and Nagios, and exit with 0, 1, 2 or 3")
	fs.Var(&o.lag, "max-lag", "with --check: critical beyond this lag")
	fs.Var(&o.errorRate, "max-error-rate", "with --check: critical beyond this share of attempts that fail, of all or of one destination")
	fs.Var(&o.noDelivery, "no-delivery", "with --check: critical when events wait and nothing was delivered for so long")
	fs.Var(&o.dead, "max-dead", "with --check: critical beyond this number of failed events and dead letters")
	fs.Var(&o.stuck, "max-stuck", "with --check: critical beyond this number of lapsed leases")
	fs.Var(&o.slotLag, "max-slot-lag", "with --check: critical when a logical replication slot keeps more of PostgreSQL's log, or has lost it")
}

// The kinds of limits.
const (
	limitDuration = "duration"
	limitPercent  = "percent"
	limitCount    = "count"
	limitSize     = "size"
)

// limitValue is a flag's limit: a duration, a share, a count or a size, or off.
type limitValue struct {
	kind  string
	limit float64 // in seconds, 0..1, events or bytes; infinite = off
}

func (v *limitValue) Type() string { return v.kind }
func (v *limitValue) off() bool    { return math.IsInf(v.limit, 1) }

func (v *limitValue) String() string {
	switch {
	case v.kind == "": // pflag asks an empty one for its default
		return ""
	case v.off():
		return "off"
	case v.kind == limitDuration:
		return printDuration(time.Duration(v.limit * float64(time.Second)))
	case v.kind == limitPercent:
		return strconv.FormatFloat(100*v.limit, 'f', -1, 64) + "%"
	case v.kind == limitSize:
		return printSize(int(v.limit))
	}
	return strconv.FormatFloat(v.limit, 'f', -1, 64)
}

func (v *limitValue) Set(s string) error {
	if s == "off" {
		v.limit = math.Inf(1)
		return nil
	}
	switch v.kind {
	case limitDuration:
		d, err := parseDuration(s)
		if err != nil {
			return err
		}
		v.limit = d.Seconds()
	case limitPercent:
		n, err := strconv.ParseFloat(strings.TrimSpace(strings.TrimSuffix(s, "%")), 64)
		if err != nil || !strings.HasSuffix(s, "%") || !(n >= 0 && n <= 100) {
			return fmt.Errorf("%q is not a share such as 5%% or 0.5%%, nor off", s)
		}
		v.limit = n / 100
	case limitSize:
		n, err := parseSize(s)
		if err != nil {
			return fmt.Errorf("%w, nor off", err)
		}
		v.limit = float64(n)
	default:
		n, err := strconv.ParseUint(s, 10, 53)
		if err != nil {
			return fmt.Errorf("%q is not a count such as 0 or 100, nor off", s)
		}
		v.limit = float64(n)
	}
	return nil
}

// warning is where a warning begins.
func (v *limitValue) warning() float64 {
	switch v.kind {
	case limitCount:
		return v.limit
	case limitSize:
		return math.Floor(v.limit * warnAt)
	}
	return v.limit * warnAt
}

func (v *limitValue) judge(value float64) state {
	switch {
	case value > v.limit:
		return stateCritical
	case value > v.warning():
		return stateWarning
	}
	return stateOK
}

// checked is one thing that was looked at.
type checked struct {
	name  string
	limit *limitValue
	value float64
	state state
	text  string // what to say when it is not OK
}

// check judges st.
func (o *checkOptions) check(st *outbox.Stats) []checked {
	return []checked{o.checkLag(st), o.checkErrors(st), o.checkDelivery(st), o.checkDead(st), o.checkStuck(st), o.checkSlots(st)}
}

func newChecked(name string, limit *limitValue, value float64, format string, args ...any) checked {
	c := checked{name: name, limit: limit, value: value, state: limit.judge(value), text: fmt.Sprintf(format, args...)}
	switch c.state {
	case stateCritical:
		c.text += ", more than " + limit.String()
	case stateWarning:
		c.text += ", near " + limit.String()
	}
	return c
}

func (o *checkOptions) checkLag(st *outbox.Stats) checked {
	return newChecked("lag", &o.lag, st.Lag.Seconds(), "lag %s", age(st.Lag))
}

// checkErrors judges all attempts, and those of each destination that has had some: a dead one among
// many good ones would not show.
func (o *checkOptions) checkErrors(st *outbox.Stats) checked {
	window := printDuration(st.Window)
	worst := newChecked("errors", &o.errorRate, st.ErrorShare(), "%s of %s in %s failed", percent(st.ErrorShare()), counted(st.Attempts, "attempt"), window)
	for _, d := range st.Destinations {
		load := d.Judged()
		if share := load.ErrorShare(); load.Attempts >= enoughAttempts && o.errorRate.judge(share) > worst.state {
			worst = newChecked("errors", &o.errorRate, share, "%s of %s to %s in %s failed (%s)",
				percent(share), counted(load.Attempts, "attempt"), cell(destinationName(d.Name)), window, cell(worstAnswer(load.Answers)))
		}
	}
	return worst
}

// checkDelivery takes the time since the last delivery, and not more than events have waited.
func (o *checkOptions) checkDelivery(st *outbox.Stats) checked {
	since := st.LastDelivered
	if since < 0 {
		since = st.Lag
	}
	silent := min(since, st.Lag)
	return newChecked("no_delivery", &o.noDelivery, silent.Seconds(), "nothing delivered for %s while events wait", age(silent))
}

func (o *checkOptions) checkDead(st *outbox.Stats) checked {
	failed, dead := st.Status[outbox.Failed], st.Status[outbox.DeadLetter]
	return newChecked("dead", &o.dead, float64(failed+dead), "%s failed and %s", thousands(failed), counted(dead, "dead letter"))
}

func (o *checkOptions) checkStuck(st *outbox.Stats) checked {
	return newChecked("stuck", &o.stuck, float64(st.Lapsed), "%s", counted(st.Lapsed, "lapsed lease"))
}

// checkSlots judges the slot that keeps most, and beside it any whose log is lost, or about to be.
func (o *checkOptions) checkSlots(st *outbox.Stats) checked {
	worst := newChecked("slot_lag", &o.slotLag, 0, "no slot keeps the log")
	for _, s := range st.Database.Slots {
		c := newChecked("slot_lag", &o.slotLag, float64(max(s.Lag, 0)), "slot %s", slotWords(s))
		switch {
		case o.slotLag.off():
		case s.Lost():
			c.state = stateCritical
		case s.WALStatus == "unreserved" && c.state == stateOK:
			c.state, c.text = stateWarning, c.text+": the next checkpoint may take it"
		}
		if c.state > worst.state || c.state == worst.state && c.value > worst.value {
			worst = c
		}
	}
	return worst
}

// run judges once. Whatever goes wrong ends as UNKNOWN, see [app.exitCode].
func (o *checkOptions) run(ctx context.Context, a *app, store *outbox.Store, look outbox.Look) error {
	st, err := store.Stats(ctx, look)
	if err != nil {
		return err
	}
	all, worst := o.check(st), stateOK
	for _, c := range all {
		worst = max(worst, c.state)
	}
	if err := a.printChecked(st, all, worst); err != nil {
		return err
	}
	_ = store.Mark(ctx, "check", float64(worst)) // doctor asks for it; the judgement stands without
	if worst != stateOK {
		return quietly(int(worst))
	}
	return nil
}

func (a *app) printChecked(st *outbox.Stats, all []checked, worst state) error {
	summary := checkSummary(st, all, worst)
	if a.global.output == "json" {
		return a.printJSON(newCheckDocument(all, worst, summary))
	}
	_, err := fmt.Fprintf(a.Out, "OUTBOX %s - %s | %s\n", worst, summary, perfdata(st, all))
	return err
}

// checkSummary says what is wrong, the worst first, or how it is going; and which events wait for a dispatcher, wrong or
// not: one that cron starts comes later.
func checkSummary(st *outbox.Stats, all []checked, worst state) string {
	var words []string
	if worst == stateOK {
		words = append(words, fmt.Sprintf("lag %s, %s open, %s delivered/min over 5m, %s of %s in %s failed", age(st.Lag), counted(st.Open(), "event"),
			rate(st.Delivered["5m"]), percent(st.ErrorShare()), counted(st.Attempts, "attempt"), printDuration(st.Window)))
	}
	for _, s := range []state{stateCritical, stateWarning} {
		for _, c := range all {
			if c.state == s {
				words = append(words, c.text)
			}
		}
	}
	switch unserved := st.Unserved(); {
	case len(unserved) > 0 && len(st.Dispatchers) == 0:
		words = append(words, "no dispatcher is alive")
	case len(unserved) > 0:
		words = append(words, "no dispatcher serves "+cell(destinationName(unserved[0].Name)))
	}
	return strings.ReplaceAll(strings.Join(words, "; "), "|", "/") // behind a bar comes perfdata
}

// perfdata is 'label'=value[unit];warn;crit;min;max, as the Monitoring Plugins' guidelines have it.
func perfdata(st *outbox.Stats, all []checked) string {
	var words []string
	for _, c := range all {
		value, limit, warning, unit := c.value, c.limit.limit, c.limit.warning(), ""
		switch c.limit.kind {
		case limitDuration:
			unit = "s"
		case limitPercent:
			value, limit, warning, unit = 100*value, 100*limit, 100*warning, "%"
		case limitSize:
			unit = "B"
		}
		bounds := ";;;0"
		if !c.limit.off() {
			bounds = fmt.Sprintf(";%s;%s;0", number(warning), number(limit))
		}
		words = append(words, c.name+"="+number(value)+unit+bounds)
	}
	words = append(words, fmt.Sprintf("open=%d;;;0", st.Open()), fmt.Sprintf("due=%d;;;0", st.Due),
		fmt.Sprintf("delivered_per_minute=%s;;;0", number(st.Delivered["5m"])), fmt.Sprintf("dispatchers=%d;;;0", len(st.Dispatchers)))
	return strings.Join(words, " ")
}

// checkDocument is outboxctl.check/v1.
type checkDocument struct {
	Schema  string            `json:"schema"`
	State   string            `json:"state"`
	Exit    int               `json:"exit"`
	Summary string            `json:"summary"`
	Checks  []checkedDocument `json:"checks"`
}

type checkedDocument struct {
	Name     string   `json:"name"`
	State    string   `json:"state"`
	Value    float64  `json:"value"`    // seconds, a share 0..1, events, or bytes
	Warning  *float64 `json:"warning"`  // null = off
	Critical *float64 `json:"critical"` // null = off
}

func newCheckDocument(all []checked, worst state, summary string) checkDocument {
	doc := checkDocument{Schema: "outboxctl.check/v1", State: strings.ToLower(worst.String()), Exit: int(worst), Summary: summary, Checks: []checkedDocument{}}
	for _, c := range all {
		d := checkedDocument{Name: c.name, State: strings.ToLower(c.state.String()), Value: round(c.value, 4)}
		if !c.limit.off() {
			d.Warning, d.Critical = new(round(c.limit.warning(), 4)), new(round(c.limit.limit, 4))
		}
		doc.Checks = append(doc.Checks, d)
	}
	return doc
}

// judging reports whether the command line is one of stats --check, also one that cannot be parsed.
func (a *app) judging() bool {
	if !slices.Contains(a.Args, "stats") {
		return false
	}
	return slices.Contains(a.Args, "--check") || slices.Contains(a.Args, "--check=true") || a.Getenv(twin("check")) == "true"
}

// unknown is the answer of stats --check when it cannot judge: monitoring reads one line of standard
// output, and the code.
func (a *app) unknown(f *failure) int {
	words := oneLine(f.Error())
	if f.hint != "" {
		words += "; " + f.hint
	}
	words = strings.ReplaceAll(words, "|", "/")
	if a.global.output == "json" {
		_ = a.printJSON(newCheckDocument(nil, stateUnknown, words))
	} else {
		fmt.Fprintf(a.Out, "OUTBOX UNKNOWN - %s\n", words)
	}
	return int(stateUnknown)
}
