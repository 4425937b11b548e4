package commands

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/outboxctl/outboxctl/migrate"
	"github.com/outboxctl/outboxctl/outbox"
)

// What the doctor takes for healthy.
const (
	healthyLag      = 5 * time.Minute
	healthyErrors   = 0.05
	healthyDead     = 0.2 // of rows, when there are many
	heapOfDead      = 10_000
	healthySnapshot = 10 * time.Minute
	manySince       = 100_000 // transactions since a snapshot whose age is hidden
	healthyRows     = 30 * 24 * time.Hour
	watchedWithin   = 25 * time.Hour
	healthyMean     = 20 << 10
	healthyMax      = 1 << 20
	healthySlot     = 1 << 30
)

const doctorExitCodes = `
Exit codes: 0 nothing to warn of; 1 runtime error; 2 usage error; 3 there are
warnings; 4 PostgreSQL cannot be reached or refuses us; 5 the schema is missing, older
or newer than this binary.`

func newStatsDoctor(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "doctor",
		Short: "go through the checklist of an outbox in good health",
		Long: `Go through the checklist: the schema and its indexes, dispatchers, lag and errors,
events that wait for a person, monitoring, purging, payloads, what keeps vacuum from its
work and PostgreSQL from recycling its log, triggers, clocks. Each line says OK or WARN,
and a warning says which command mends it. ASK is what no database knows: ask
yourselves. It changes nothing.

It needs the role of a reader or an operator.
` + doctorExitCodes,
		Example: `  outboxctl stats doctor
  outboxctl stats doctor -o json | jq '.checks[] | select(.state == "warn")'`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.doctor(cmd.Context()) },
	}
}

// advice is one line of the checklist.
type advice struct {
	Check    string   `json:"check"`
	State    string   `json:"state"` // ok, warn or ask
	Text     string   `json:"text"`
	Commands []string `json:"commands"` // what mends it
}

func fine(check, format string, args ...any) advice {
	return advice{check, "ok", fmt.Sprintf(format, args...), []string{}}
}

func warn(check, text string, commands ...string) advice {
	return advice{check, "warn", text, append([]string{}, commands...)}
}

// patient is all that is known.
type patient struct {
	*app
	st          *outbox.Stats
	checkup     *outbox.Checkup
	differences []migrate.Difference
}

func (a *app) doctor(ctx context.Context) error {
	db, err := a.open(ctx, reads)
	if err != nil {
		return err
	}
	defer db.Close()
	store := outbox.NewStore(db, a.global.schema)
	p := patient{app: a}
	if p.st, err = store.Stats(ctx, outbox.Look{Window: 15 * time.Minute, Top: inList}); err != nil {
		return statsFailure(err)
	}
	if p.checkup, err = store.Examine(ctx); err != nil {
		return statsFailure(err)
	}
	if p.differences, err = migrate.New(db, a.global.schema).Verify(ctx); err != nil {
		return err
	}
	return a.printDoctor(p.checklist())
}

// checklist judges in the order in which an operator would look.
func (p patient) checklist() []advice {
	return []advice{
		p.schema(), p.indexes(), p.dispatchers(), p.versions(), p.lag(), p.errors(), p.graveyard(), p.leases(),
		p.monitoring(), p.retention(), p.payloads(), p.vacuum(), p.deadRows(), p.snapshot(), p.slots(), p.triggers(), p.clocks(), p.duplicates(),
		{"transactions", "ask", "is each event written in the transaction of its change, and nothing sent before the commit?", []string{}},
		{"receivers", "ask", "does each receiver know a key again, and book an event once?", []string{}},
		{"load", "ask", "has the whole been tried at the rate of your busiest minute, with a receiver that is down?", []string{}},
	}
}

func (p patient) schema() advice {
	var others []migrate.Difference
	for _, d := range p.differences {
		if !strings.Contains(d.Have, "INVALID") { // told with the indexes
			others = append(others, d)
		}
	}
	if len(others) == 0 {
		return fine("schema", "as the migrations make it, at version %d", migrate.Latest)
	}
	text := fmt.Sprintf("%s from what the migrations make, such as: %s", counted(int64(len(others)), "difference"), cell(oneLine(others[0].String())))
	return warn("schema", text, "outboxctl migrate verify"+p.schemaFlag())
}

func (p patient) indexes() advice {
	if bad := p.st.Database.InvalidIndexes; len(bad) > 0 {
		return warn("indexes", "invalid, which costs every write and serves no query: "+cell(strings.Join(bad, ", ")), "outboxctl migrate"+p.schemaFlag())
	}
	return fine("indexes", "all valid, %s", bytesWords(p.st.Database.IndexBytes))
}

func (p patient) dispatchers() advice {
	if unserved := p.st.Unserved(); len(unserved) > 0 {
		var names []string
		for _, d := range unserved {
			names = append(names, fmt.Sprintf("%s (%s due, the oldest for %s)", destinationName(d.Name), thousands(d.Due), age(d.OldestDue)))
		}
		return warn("dispatchers", "nobody is looking at "+some(names), "outboxctl dispatch --to URL"+p.schemaFlag(), "systemctl status outboxctl-dispatch")
	}
	if len(p.st.Dispatchers) == 0 {
		return fine("dispatchers", "none is alive, and nothing has been due for long")
	}
	return fine("dispatchers", "%d alive", len(p.st.Dispatchers))
}

func (p patient) versions() advice {
	versions := map[string]int{}
	for _, d := range p.st.Dispatchers {
		versions[d.Version]++
	}
	names := slices.Sorted(maps.Keys(versions))
	switch len(names) {
	case 0:
		return fine("versions", "this is %s", p.version())
	case 1:
		return fine("versions", "all dispatchers are %s", cell(names[0]))
	}
	var words []string
	for _, name := range names {
		words = append(words, fmt.Sprintf("%d × %s", versions[name], cell(name)))
	}
	return warn("versions", "dispatchers differ: "+strings.Join(words, ", "), "systemctl restart outboxctl-dispatch")
}

func (p patient) lag() advice {
	if p.st.Lag > healthyLag {
		return warn("lag", fmt.Sprintf("%s, more than %s", age(p.st.Lag), printDuration(healthyLag)), "outboxctl stats --by destination"+p.schemaFlag())
	}
	return fine("lag", "%s", age(p.st.Lag))
}

func (p patient) errors() advice {
	if p.st.ErrorShare() > healthyErrors {
		return warn("errors", errorWords(p.st)+" failed", "outboxctl stats errors --since 15m"+p.schemaFlag())
	}
	return fine("errors", "%s", errorWords(p.st))
}

func (p patient) graveyard() advice {
	failed, dead := p.st.Status[outbox.Failed], p.st.Status[outbox.DeadLetter]
	if failed+dead == 0 {
		return fine("graveyard", "empty")
	}
	return warn("graveyard", fmt.Sprintf("%s failed and %s wait for a person", thousands(failed), counted(dead, "dead letter")),
		"outboxctl stats errors"+p.schemaFlag(), "outboxctl replay --status failed --dry-run"+p.schemaFlag())
}

func (p patient) leases() advice {
	if p.st.Lapsed > 0 && p.st.OldestLapsed > time.Minute {
		return warn("leases", fmt.Sprintf("%s, the first %s ago, and nobody has taken them over", counted(p.st.Lapsed, "lapsed lease"), age(p.st.OldestLapsed)),
			"outboxctl stats --by destination"+p.schemaFlag())
	}
	return fine("leases", "none has lapsed for long")
}

func (p patient) monitoring() advice {
	for _, name := range []string{"check", "prometheus"} {
		if since, ok := p.checkup.Marks[name]; ok && since < watchedWithin {
			return fine("monitoring", "%s ran within the last day", map[string]string{"check": "stats --check", "prometheus": "stats -o prometheus"}[name])
		}
	}
	return warn("monitoring", "neither stats --check nor stats -o prometheus has left its mark for a day (a role that may only read leaves none)",
		"outboxctl stats --check"+p.schemaFlag(), "outboxctl stats -o prometheus --output-file /var/lib/node_exporter/outbox.prom"+p.schemaFlag())
}

func (p patient) retention() advice {
	c, purged := p.checkup, "purge has never run"
	if c.LastPurge >= 0 {
		purged = "purge ran " + age(c.LastPurge) + " ago"
	}
	if c.OldestDone > healthyRows {
		return warn("retention", fmt.Sprintf("the oldest finished event ended %s ago, and %s", age(c.OldestDone), purged), "outboxctl purge --older-than 30d --dry-run"+p.schemaFlag())
	}
	if c.OldestDone == 0 {
		return fine("retention", "no finished events; %s", purged)
	}
	return fine("retention", "the oldest finished event ended %s ago; %s", age(c.OldestDone), purged)
}

func (p patient) payloads() advice {
	c := p.checkup
	switch {
	case c.Payloads == 0 && c.Newest == 0:
		return fine("payloads", "there are none")
	case c.Payloads == 0:
		rows := max(p.st.Database.Rows, 1)
		return fine("payloads", "this role may not see them; a row takes %s with everything", bytesWords(p.st.Database.TableBytes/rows))
	case c.MeanPayload > healthyMean || c.MaxPayload > healthyMax:
		return warn("payloads", fmt.Sprintf("%s on average, %s at most in the newest %s: send links instead of documents",
			bytesWords(c.MeanPayload), bytesWords(c.MaxPayload), thousands(int64(c.Payloads))), "outboxctl dispatch --max-payload 1MiB …")
	}
	return fine("payloads", "%s on average, %s at most in the newest %s", bytesWords(c.MeanPayload), bytesWords(c.MaxPayload), thousands(int64(c.Payloads)))
}

// table is the outbox for psql.
func (p patient) table() string { return pgx.Identifier{p.global.schema, "outbox"}.Sanitize() }

func psql(sql string) string {
	return `psql "$DATABASE_URL" -c '` + strings.ReplaceAll(sql, "'", `'\''`) + `'`
}

func (p patient) vacuum() advice {
	switch c := p.checkup; {
	case c.AutovacuumOff == "server":
		return warn("autovacuum", "off for the whole server: dead rows pile up", psql("alter system set autovacuum = on"), psql("select pg_reload_conf()"))
	case c.AutovacuumOff == "table":
		return warn("autovacuum", "off for the table: dead rows pile up", psql("alter table "+p.table()+" reset (autovacuum_enabled)"))
	case c.Fillfactor > 60:
		return warn("autovacuum", fmt.Sprintf("the table's fillfactor is %d: claims have no room beside their rows and write every index", c.Fillfactor),
			psql("alter table "+p.table()+" set (fillfactor = 45)"))
	}
	if d := p.st.Database; d.Vacuumed >= 0 {
		return fine("autovacuum", "on, the last vacuum was %s ago", age(d.Vacuumed))
	}
	return fine("autovacuum", "on, there has been no need of it yet")
}

func (p patient) deadRows() advice {
	d := p.st.Database
	if d.DeadRows > heapOfDead && d.DeadShare() > healthyDead {
		return warn("dead rows", fmt.Sprintf("%s, %s", thousands(d.DeadRows), percent(d.DeadShare())), psql("vacuum "+p.table()))
	}
	return fine("dead rows", "%s", percent(d.DeadShare()))
}

func (p patient) snapshot() advice {
	h := p.st.Database.Snapshot
	if h == nil || h.Age >= 0 && h.Age <= healthySnapshot || h.Age < 0 && h.Transactions <= manySince {
		return fine("snapshots", "none is old")
	}
	mend := map[string]string{
		"session":              fmt.Sprintf("select pg_terminate_backend(%d)", h.PID),
		"prepared transaction": "rollback prepared '" + strings.ReplaceAll(cell(h.Name), "'", "''") + "'",
		"replication slot":     "select pg_drop_replication_slot('" + strings.ReplaceAll(cell(h.Name), "'", "''") + "')",
	}[h.Holder]
	return warn("snapshots", "vacuum is held back by a "+snapshotWords(h), psql(mend))
}

// slots judges what keeps the log: without a bound, a reader that is away fills the disk.
func (p patient) slots() advice {
	slots := p.st.Database.Slots
	var commands []string
	for _, s := range slots {
		if s.Lost() {
			commands = append(commands, psql("select pg_drop_replication_slot('"+strings.ReplaceAll(cell(s.Name), "'", "''")+"')"))
		}
	}
	bound := psql("alter system set max_slot_wal_keep_size = '10GB'")
	switch {
	case len(commands) > 0:
		return warn("slots", slotsWords(slots), commands...)
	case len(slots) == 0:
		return fine("slots", "none keeps the log")
	case slots[0].Lag > healthySlot:
		return warn("slots", slotsWords(slots), psql("select * from pg_replication_slots"))
	case p.checkup.SlotKeep < 0:
		return warn("slots", "nothing bounds how much of the log a slot keeps: one that nobody reads fills the disk", bound, psql("select pg_reload_conf()"))
	}
	return fine("slots", "%s; none may keep more than %s", slotsWords(slots), bytesWords(p.checkup.SlotKeep))
}

func (p patient) triggers() advice {
	ours := []string{"outbox_notify", "outbox_updated_at"} // of migrate --with
	var foreign, words, commands []string
	for _, t := range p.checkup.Triggers {
		if slices.Contains(ours, t.Name) {
			continue
		}
		what := "once a statement"
		if t.EachRow {
			what = "for each row"
		}
		if t.Notifies {
			what += ", with NOTIFY, for which all commits take turns"
		}
		foreign = append(foreign, t.Name)
		words = append(words, fmt.Sprintf("%s calls %s %s", cell(t.Name), cell(t.Function), what))
		commands = append(commands, psql("drop trigger "+pgx.Identifier{t.Name}.Sanitize()+" on "+p.table()))
	}
	switch {
	case len(foreign) > 0:
		return warn("triggers", strings.Join(words, "; ")+": every claim and producer pays for it", commands...)
	case len(p.checkup.Triggers) > 0:
		return fine("triggers", "only what migrate --with made")
	}
	return fine("triggers", "none")
}

func (p patient) clocks() advice {
	if n := p.checkup.FutureEvents; n > 0 {
		return warn("clocks", fmt.Sprintf("%d of the newest %s were created in the future: producers set created_at by clocks that are ahead, or a server's went back",
			n, counted(int64(p.checkup.Newest), "event")), psql("select max(created_at), now() from "+p.table()))
	}
	return fine("clocks", "no event was created in the future")
}

// duplicates says what is honest: that an event may have arrived twice, not that it did.
func (p patient) duplicates() advice {
	if n := p.checkup.Doubtful; n > 0 {
		return advice{"duplicates", "ask", fmt.Sprintf("%s of the last day ended without an answer and may have arrived all the same: are receivers ready for repeats?",
			counted(n, "attempt")), []string{"outboxctl stats --by error --since 1d" + p.schemaFlag()}}
	}
	return fine("duplicates", "every attempt of the last day had an answer")
}

// doctorDocument is outboxctl.doctor/v1.
type doctorDocument struct {
	Schema   string   `json:"schema"`
	Warnings int      `json:"warnings"`
	Checks   []advice `json:"checks"`
}

func (a *app) printDoctor(list []advice) error {
	doc := doctorDocument{Schema: "outboxctl.doctor/v1", Checks: list}
	for _, c := range list {
		if c.State == "warn" {
			doc.Warnings++
		}
	}
	if err := a.printAdvice(doc); err != nil {
		return err
	}
	if doc.Warnings > 0 {
		return quietly(exitAttention)
	}
	return nil
}

func (a *app) printAdvice(doc doctorDocument) error {
	if a.global.output == "json" {
		return a.printJSON(doc)
	}
	for _, c := range doc.Checks {
		if _, err := fmt.Fprintf(a.Out, "%-5s %-13s %s\n", strings.ToUpper(c.State), c.Check, c.Text); err != nil {
			return err
		}
		for _, command := range c.Commands {
			fmt.Fprintf(a.Out, "%-5s %-13s   %s\n", "", "", command)
		}
	}
	words := "nothing to warn of"
	if doc.Warnings > 0 {
		words = counted(int64(doc.Warnings), "warning")
	}
	_, err := fmt.Fprintf(a.Out, "\n%s\n", words)
	return err
}
