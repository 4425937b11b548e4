package commands

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/outboxctl/outboxctl/outbox"
)

// printStats shows what an operator asks first, first.
func (a *app) printStats(st *outbox.Stats) error {
	a.printAttention(st)
	a.printHealth(st)
	for _, section := range []func(*outbox.Stats) error{
		a.printDestinations, a.printPausedTenants, a.printEventTypes, a.printTenants, a.printAnswers, a.printDispatchers,
	} {
		if err := section(st); err != nil {
			return err
		}
	}
	return nil
}

// line prints one fact with its label.
func (a *app) line(label, format string, args ...any) {
	fmt.Fprintf(a.Out, "%-11s %s\n", label, fmt.Sprintf(format, args...))
}

// printAttention says first what somebody should see to.
func (a *app) printAttention(st *outbox.Stats) {
	for _, d := range st.Unserved() {
		why := "no dispatcher alive serves it"
		if len(st.Dispatchers) == 0 {
			why = "no dispatcher is alive"
		}
		a.alarm("nobody is looking: %s of destination %q due, the oldest for %s, and %s",
			counted(d.Due, "event"), cell(destinationName(d.Name)), age(d.OldestDue), why)
	}
	for _, slot := range st.Database.Slots {
		if slot.Lost() {
			a.alarm("slot %s; drop it, make it anew, and fill the gap from the table", slotWords(slot))
		}
	}
	if d := st.Database; len(d.InvalidIndexes) > 0 {
		a.alarm("invalid indexes: %s; restore them with: outboxctl migrate%s", strings.Join(d.InvalidIndexes, ", "), a.schemaFlag())
	}
}

// alarm is red where there are colours.
func (a *app) alarm(format string, args ...any) {
	const red, plain = "\x1b[1;31m", "\x1b[0m"
	text := fmt.Sprintf("%-11s ", "ATTENTION") + fmt.Sprintf(format, args...)
	if terminal(a.Out) && a.colored() || a.global.color == "always" {
		text = red + text + plain
	}
	fmt.Fprintln(a.Out, text)
}

func (a *app) printHealth(st *outbox.Stats) {
	var counts []string
	for _, status := range outbox.Statuses() {
		counts = append(counts, about(st.Status[status], estimated(st, status))+" "+string(status))
	}
	a.line("events", "%s", strings.Join(counts, " · "))
	a.line("lag", "%s", lagWords(st))
	a.line("due", "%s", dueWords(st))
	a.line("delivered", "%s", rateWords(st.Delivered))
	a.line("created", "%s%s", rateWords(st.Created), drainWords(st))
	a.line("errors", "%s", errorWords(st))
	if words := successWords(st.Tries.Delivered); words != "" {
		a.line("success", "%s", words)
	}
	if failed, dead := st.Buried[outbox.Failed], st.Buried[outbox.DeadLetter]; failed+dead > 0 {
		a.line("dead", "%s failed and %s in the last hour; why: outboxctl stats errors", thousands(failed), counted(dead, "dead letter"))
	}
	if words := leaseWords(st); words != "" {
		a.line("leases", "%s", words)
	}
	if st.Unrouted > 0 {
		a.line("unrouted", "%s that no route matches", counted(st.Unrouted, "event"))
	}
	a.line("database", "%s", databaseWords(st.Database))
	if slots := st.Database.Slots; len(slots) > 0 {
		a.line("slots", "%s", slotsWords(slots))
	}
}

// estimated reports whether the number of events of a status is one.
func estimated(st *outbox.Stats, status outbox.Status) bool {
	if status.Final() {
		return status == outbox.Delivered && st.Estimated
	}
	return st.OpenEstimated
}

// about marks what is estimated.
func about(n int64, estimated bool) string {
	if estimated {
		return "~" + thousands(n)
	}
	return thousands(n)
}

func lagWords(st *outbox.Stats) string {
	if st.Lag == 0 {
		return "none: nothing is waiting"
	}
	return age(st.Lag) + " (the oldest event that should be delivered and is not)"
}

// dueWords tells "nothing is due" from "somebody should deliver it".
func dueWords(st *outbox.Stats) string {
	words := []string{"nothing"}
	if st.Due > 0 {
		words[0] = fmt.Sprintf("%s, the oldest for %s", about(st.Due, st.OpenEstimated), age(st.OldestDue))
	}
	if st.Retrying > 0 {
		words = append(words, about(st.Retrying, st.OpenEstimated)+" wait for a retry")
	}
	if st.Future > 0 {
		words = append(words, about(st.Future, st.OpenEstimated)+" are for later")
	}
	if st.NextDue > 0 {
		words = append(words, "the next in "+age(st.NextDue))
	}
	return strings.Join(words, " · ")
}

func rateWords(rates map[string]float64) string {
	return fmt.Sprintf("%s/min over 1m · %s over 5m · %s over 15m", rate(rates["1m"]), rate(rates["5m"]), rate(rates["15m"]))
}

// drainWords says where the backlog is going, if there is one to speak of.
func drainWords(st *outbox.Stats) string {
	switch d := st.Drain(); {
	case d < 0 && st.OldestDue > time.Minute && st.Delivered["5m"] > 0:
		return " · the backlog is growing"
	case d > time.Minute:
		return " · the backlog is gone in about " + age(d)
	}
	return ""
}

func errorWords(st *outbox.Stats) string {
	if st.Attempts == 0 {
		return "no attempts in the last " + printDuration(st.Window)
	}
	return fmt.Sprintf("%s of %s in the last %s", percent(st.ErrorShare()), counted(st.Attempts, "attempt"), printDuration(st.Window))
}

// successWords says how many attempts it took, "" when nothing was delivered.
func successWords(delivered map[int]int64) string {
	var all, later int64
	most := 0
	for attempt, n := range delivered {
		all += n
		if attempt > 2 {
			later += n
		}
		most = max(most, attempt)
	}
	if all == 0 {
		return ""
	}
	of := func(n int64) string { return percent(float64(n) / float64(all)) }
	words := of(delivered[1]) + " at the first attempt"
	if most > 1 {
		words += " · " + of(delivered[2]) + " at the second"
	}
	if most > 2 {
		words += fmt.Sprintf(" · %s later, at the %s at most", of(later), ordinal(most))
	}
	return words
}

// ordinal is for attempts from the third on, which are counted up to 20.
func ordinal(n int) string {
	switch {
	case n >= 20:
		return "20th or more"
	case n == 3:
		return "3rd"
	}
	return fmt.Sprintf("%dth", n)
}

func leaseWords(st *outbox.Stats) string {
	var words []string
	if held := st.Status[outbox.InProgress] - st.Lapsed; held > 0 {
		words = append(words, fmt.Sprintf("%s held, the oldest for %s", about(held, st.OpenEstimated), age(st.OldestInProgress)))
	}
	if st.Lapsed > 0 {
		words = append(words, fmt.Sprintf("%s lapsed, the first %s ago: their worker died or lost its connection; they are due again",
			about(st.Lapsed, st.OpenEstimated), age(st.OldestLapsed)))
	}
	return strings.Join(words, " · ")
}

func databaseWords(d outbox.DatabaseStats) string {
	words := fmt.Sprintf("table %s, indexes %s", bytesWords(d.TableBytes), bytesWords(d.IndexBytes))
	if d.DeadRows > 0 {
		words += fmt.Sprintf(" · %s dead rows", percent(d.DeadShare()))
	}
	if h := d.Snapshot; h != nil && (h.Age < 0 || h.Age >= time.Minute) {
		words += " · oldest snapshot: " + snapshotWords(h)
	}
	return words
}

// slotsWords names the slots that keep most.
func slotsWords(slots []outbox.Slot) string {
	const most = 3
	var words []string
	for _, slot := range slots[:min(most, len(slots))] {
		words = append(words, slotWords(slot))
	}
	if more := len(slots) - most; more > 0 {
		words = append(words, fmt.Sprintf("%d more keep less", more))
	}
	return strings.Join(words, " · ")
}

// slotWords says what is kept for a slot.
func slotWords(s outbox.Slot) string {
	switch {
	case s.Lost():
		return short(s.Name) + " has lost its log: who reads it has missed something"
	case s.Lag < 0:
		return short(s.Name) + " is being made"
	case !s.Active:
		return fmt.Sprintf("%s keeps %s of the log, %s, and nobody reads it", short(s.Name), bytesWords(s.Lag), s.WALStatus)
	}
	return fmt.Sprintf("%s keeps %s of the log, %s", short(s.Name), bytesWords(s.Lag), s.WALStatus)
}

// snapshotWords says who holds a snapshot.
func snapshotWords(h *outbox.Snapshot) string {
	who := cell(cmp.Or(h.Name, "its name is hidden"))
	if h.PID != 0 {
		who = fmt.Sprintf("pid %d, %s", h.PID, who)
	}
	if h.State != "" {
		who += ", " + h.State
	}
	if h.Age < 0 {
		return fmt.Sprintf("%s of %s ago (%s)", h.Holder, counted(h.Transactions, "transaction"), who)
	}
	return fmt.Sprintf("%s of %s (%s)", h.Holder, age(h.Age), who)
}

// bytesWords prints a size for eyes.
func bytesWords(n int64) string {
	const unit = 1024
	switch v := float64(n); {
	case n >= unit*unit*unit:
		return fmt.Sprintf("%.1f GiB", v/unit/unit/unit)
	case n >= unit*unit:
		return fmt.Sprintf("%.0f MiB", v/unit/unit)
	case n >= unit:
		return fmt.Sprintf("%.0f KiB", v/unit)
	}
	return fmt.Sprintf("%d B", n)
}

func (a *app) printDestinations(st *outbox.Stats) error {
	if len(st.Destinations) == 0 {
		return nil
	}
	var rows [][]string
	for _, d := range st.Destinations {
		rows = append(rows, destinationRow(st, &d))
	}
	fmt.Fprintln(a.Out)
	if err := a.printTable(destinationHead, rows, 1, 2, 3, 4, 5, 6, 7); err != nil {
		return err
	}
	return a.printMore(len(rows), len(rows)+st.Unlisted)
}

var destinationHead = []string{"DESTINATION", "OPEN", "DUE", "OLDEST", "RETRYING", "PER MIN", "ERRORS", "LATENCY", "MOST FREQUENT ERROR", "STATE"}

func destinationRow(st *outbox.Stats, d *outbox.DestinationStats) []string {
	share, latency := "-", "-"
	if d.Attempts > 0 {
		share, latency = percent(d.ErrorShare()), latencyWords(d.Latency())
	}
	return []string{
		short(destinationName(d.Name)), countOrDash(d.Open(), false), countOrDash(d.Due, false), ageOrDash(d.OldestDue), countOrDash(d.Retrying, false),
		rate(float64(d.Attempts-d.Errors) / st.Window.Minutes()), share, latency, worstAnswer(d.Answers), stateWords(d),
	}
}

// printPausedTenants says nothing where none is.
func (a *app) printPausedTenants(st *outbox.Stats) error {
	var rows [][]string
	for _, d := range st.Destinations {
		for _, p := range d.Tenants {
			until := "it is resumed"
			if !p.Until.IsZero() {
				until = instant(p.Until)
			}
			rows = append(rows, []string{short(p.Tenant), short(destinationName(d.Name)), until, short(cmp.Or(p.Reason, "-")), short(cmp.Or(p.By, "-"))})
		}
	}
	if len(rows) == 0 {
		return nil
	}
	const most = 10
	fmt.Fprintln(a.Out)
	if err := a.printTable([]string{"PAUSED TENANT", "DESTINATION", "UNTIL", "REASON", "BY"}, rows[:min(most, len(rows))]); err != nil {
		return err
	}
	if more := len(rows) - most; more > 0 {
		fmt.Fprintf(a.Out, "… and %d more: -o json\n", more)
	}
	return nil
}

// worstAnswer is the most frequent error.
func worstAnswer(answers []outbox.AnswerStats) string {
	i := slices.IndexFunc(answers, func(an outbox.AnswerStats) bool { return an.Kind != "" })
	if i < 0 {
		return "-"
	}
	return answerName(answers[i])
}

func answerName(an outbox.AnswerStats) string {
	if an.Code != 0 {
		return fmt.Sprintf("%s %d", cmp.Or(an.Kind, "delivered"), an.Code)
	}
	return cmp.Or(an.Kind, "delivered")
}

// stateWords says what holds a destination up.
func stateWords(d *outbox.DestinationStats) string {
	var words []string
	if d.Paused && d.PausedUntil != nil {
		words = append(words, "paused until "+instant(*d.PausedUntil))
	} else if d.Paused {
		words = append(words, "paused")
	}
	if d.Paused && d.Reason != "" {
		words[0] += " (" + short(d.Reason) + ")"
	}
	if n := int64(len(d.Tenants)); n > 0 {
		words = append(words, counted(n, "tenant")+" paused")
	}
	if d.Breaker != "closed" {
		words = append(words, "breaker "+strings.ReplaceAll(d.Breaker, "_", " "))
	}
	if d.Ordering != "none" {
		words = append(words, "ordered")
	}
	if d.Late > 0 {
		words = append(words, thousands(d.Late)+" late")
	}
	if !d.Served && d.Open() > 0 {
		words = append(words, "no dispatcher")
	}
	return cmp.Or(strings.Join(words, ", "), "-")
}

// short is a name that leaves room for the rest of its line.
func short(name string) string {
	const most = 40
	if letters := []rune(cell(name)); len(letters) > most {
		return string(letters[:most-1]) + "…"
	}
	return cell(name)
}

// latencyWords is a time in milliseconds, or less than one where receivers are that near.
func latencyWords(d time.Duration) string {
	if d < time.Millisecond {
		return d.Round(10 * time.Microsecond).String()
	}
	return d.Round(time.Millisecond).String()
}

func ageOrDash(d time.Duration) string {
	if d <= 0 {
		return "-"
	}
	return age(d)
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

// printMore says that a list goes on.
func (a *app) printMore(shown, of int) error {
	if shown >= of {
		return nil
	}
	_, err := fmt.Fprintf(a.Out, "… and %s more: --top %d\n", thousands(int64(of-shown)), of)
	return err
}

func (a *app) printEventTypes(st *outbox.Stats) error {
	return a.printRanking("EVENT TYPE", st.EventTypes, st)
}

// printTenants says nothing where nobody has tenants.
func (a *app) printTenants(st *outbox.Stats) error {
	if st.Tenants.Of < 2 {
		return nil
	}
	return a.printRanking("TENANT", st.Tenants, st)
}

func (a *app) printRanking(name string, r outbox.Ranking, st *outbox.Stats) error {
	if len(r.Top) == 0 {
		return nil
	}
	head := []string{name, "DUE", "OLDEST"}
	for _, status := range outbox.Statuses() {
		head = append(head, strings.ToUpper(strings.ReplaceAll(string(status), "_", " ")))
	}
	var rows [][]string
	for _, d := range r.Top {
		row := []string{cmp.Or(short(d.Name), "-"), countOrDash(d.Due, false), ageOrDash(d.OldestDue)}
		for _, status := range outbox.Statuses() {
			row = append(row, countOrDash(d.Status[status], status == outbox.Delivered && st.Estimated))
		}
		rows = append(rows, row)
	}
	fmt.Fprintln(a.Out)
	if err := a.printTable(head, rows, 1, 2, 3, 4, 5, 6, 7, 8); err != nil {
		return err
	}
	return a.printMore(len(rows), r.Of)
}

// printAnswers lists the most frequent ones; --by error has them all.
func (a *app) printAnswers(st *outbox.Stats) error {
	if len(st.Answers) == 0 {
		return nil
	}
	const most = 8
	var rows [][]string
	for _, an := range st.Answers[:min(most, len(st.Answers))] {
		code := "-"
		if an.Code != 0 {
			code = fmt.Sprint(an.Code)
		}
		rows = append(rows, []string{short(cmp.Or(an.Kind, "delivered")), code, thousands(an.N), percent(float64(an.N) / float64(st.Attempts))})
	}
	fmt.Fprintln(a.Out)
	if err := a.printTable([]string{"ANSWER", "CODE", "ATTEMPTS", "SHARE"}, rows, 1, 2, 3); err != nil {
		return err
	}
	if more := len(st.Answers) - len(rows); more > 0 {
		fmt.Fprintf(a.Out, "… and %d more: --by error\n", more)
	}
	return nil
}

func (a *app) printDispatchers(st *outbox.Stats) error {
	if len(st.Dispatchers) == 0 {
		return nil
	}
	const most = 10
	var rows [][]string
	for _, d := range st.Dispatchers[:min(most, len(st.Dispatchers))] {
		names := destinationNames(d.Destinations)
		slices.Sort(names)
		rows = append(rows, []string{short(d.Name), short(strings.Join(names, ", ")), fmt.Sprint(d.Parallel), fmt.Sprint(d.BatchSize),
			short(d.Version), age(d.Up), age(d.Seen) + " ago"})
	}
	fmt.Fprintln(a.Out)
	if err := a.printTable([]string{"DISPATCHER", "DESTINATIONS", "PARALLEL", "BATCH", "VERSION", "UP", "SEEN"}, rows, 2, 3); err != nil {
		return err
	}
	if more := len(st.Dispatchers) - len(rows); more > 0 {
		fmt.Fprintf(a.Out, "… and %d more: -o json\n", more)
	}
	return nil
}
