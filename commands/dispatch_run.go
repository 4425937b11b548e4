package commands

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxctl/outboxctl/outbox"
)

// dispatchRun is one run of dispatch: the database, the sink, the loop and its words.
type dispatchRun struct {
	*app
	o      *dispatchOptions
	target outbox.Sink
	log    *slog.Logger
	bar    *progress

	systemd *supervisor
}

var errMaxDuration = errors.New("--max-duration is over")

func (r *dispatchRun) start(ctx context.Context) error {
	r.bar = r.newProgress(r.o.once && !r.o.dryRun)
	r.log = r.logger(r.bar)
	r.systemd = supervised()
	r.warn()
	db, err := r.openPatiently(ctx)
	if err != nil && ctx.Err() != nil {
		return nil // stopped before anything was claimed: nothing is left undone
	}
	if err != nil {
		return err
	}
	defer db.Close()
	if r.o.dryRun {
		return r.dryRun(ctx, db)
	}
	if r.o.maxDuration > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, time.Duration(r.o.maxDuration), errMaxDuration)
		defer cancel()
	}
	return r.deliver(ctx, db)
}

// name is the destination as it may be shown: without password and query.
func (r *dispatchRun) name() string {
	if s, ok := r.target.(fmt.Stringer); ok {
		return s.String()
	}
	return r.o.to
}

// warn prints what the sink has to say about its settings.
func (r *dispatchRun) warn() {
	if s, ok := r.target.(interface{ Warnings() []string }); ok {
		for _, line := range s.Warnings() {
			r.log.Warn(line)
		}
	}
}

// openPatiently opens the database. A run that is to go on for ever waits for one that is away, and
// says what is in the way when that changes; --once says so and ends.
func (r *dispatchRun) openPatiently(ctx context.Context) (*pgxpool.Pool, error) {
	const first, longest = 200 * time.Millisecond, 3 * time.Second
	need, told := writes, ""
	if r.o.dryRun {
		need = reads
	}
	for wait := first; ; wait = min(2*wait, longest) {
		db, err := r.open(ctx, need)
		if err == nil || r.o.once || r.o.dryRun || !unreachable(err) {
			if err == nil && told != "" {
				r.log.Info("PostgreSQL is back")
			}
			return db, err
		}
		if why := oneLine(explainPostgres(err).Error()); why != told {
			r.log.Error("waiting for PostgreSQL", "error", why)
			told = why
			r.systemd.waiting("waiting for PostgreSQL")
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(wait):
		}
	}
}

// deliver runs the loop, with a heartbeat beside it, and sums up.
func (r *dispatchRun) deliver(ctx context.Context, db *pgxpool.Pool) error {
	var beside sync.WaitGroup
	defer beside.Wait()
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	beside.Go(func() { r.heart(db).Live(life) })
	beside.Go(func() { r.rereadSecrets(life) })
	beside.Go(func() { r.systemd.watch(life, ctx) })

	d := r.o.dispatcher(r.o.queue(db, r.app), r.target)
	d.Observer = r.systemd.observe(outbox.Observer{Settled: r.settled, Trouble: r.trouble, Recovered: r.recovered})
	r.log.Info("dispatching", "to", r.name(), "worker", r.worker(), "batch_size", d.BatchSize, "parallel", d.Parallel)
	r.bar.begin("delivering", "events", r.steps(ctx, db))
	summary, err := d.Run(ctx, r.kill)
	r.bar.end()
	r.sumUp(summary)
	return r.verdict(ctx, db, summary, err)
}

func (r *dispatchRun) heart(db *pgxpool.Pool) *outbox.Worker {
	host, _ := os.Hostname()
	return outbox.NewStore(db, r.global.schema).Worker(outbox.Worker{
		Name: r.worker(), Host: host, PID: os.Getpid(), Version: r.version(),
		Destinations: []string{""}, Parallel: r.o.parallel, BatchSize: r.o.batchSize,
	})
}

// rereadSecrets reads the secret file again at every SIGHUP. One that cannot be used keeps the old
// secrets.
func (r *dispatchRun) rereadSecrets(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.hangup:
			r.systemd.reloading(r.reread)
		}
	}
}

func (r *dispatchRun) reread() {
	if r.o.secretFile == "" {
		r.log.Info("nothing to read again: there is no --secret-file")
		return
	}
	n, err := r.reload()
	if err != nil {
		r.log.Error("secrets not read again, the old ones stay", "error", err.Error())
		return
	}
	r.log.Info("secrets read again", "active", n)
	r.warn()
}

// reload returns how many secrets sign from now on.
func (r *dispatchRun) reload() (int, error) {
	s, ok := r.target.(interface{ SetSecrets([]string) error })
	if !ok {
		return 0, errors.New("the destination takes no secrets")
	}
	secrets, err := readSecrets(r.o.secretFile)
	if err != nil {
		return 0, err
	}
	return len(secrets), s.SetSecrets(secrets)
}

// settled logs one attempt: never a payload, and of the destination's words only what the sink
// made of them.
func (r *dispatchRun) settled(report outbox.Report) {
	ev, out := report.Event, report.Outcome
	r.bar.add(report)
	level, words := describe(report)
	if !r.log.Enabled(context.Background(), level) {
		return
	}
	attempt := ev.Attempts
	if out.Refund { // it was none
		attempt--
	}
	attrs := []slog.Attr{
		slog.Int64("event", ev.ID),
		slog.String("key", ev.Key.String()),
		slog.String("type", ev.Type),
		slog.String("destination", destinationName(ev.Destination)),
		slog.Int("attempt", attempt),
	}
	if out.Latency > 0 {
		attrs = append(attrs, slog.Duration("latency", out.Latency.Round(10*time.Microsecond)))
	}
	if out.ErrorCode != 0 {
		attrs = append(attrs, slog.Int("code", out.ErrorCode))
	}
	if out.ErrorKind != "" {
		attrs = append(attrs, slog.String("error_kind", out.ErrorKind), slog.String("error", out.Error))
	}
	if out.Status == outbox.Pending && !out.Refund && !report.Lost {
		attrs = append(attrs, slog.Duration("retry_in", out.Delay.Round(time.Millisecond)))
	}
	r.log.LogAttrs(context.Background(), level, words, attrs...)
}

// describe chooses the level and the word for what became of an attempt.
func describe(report outbox.Report) (slog.Level, string) {
	switch out := report.Outcome; {
	case report.Lost:
		return slog.LevelWarn, "lease lost, outcome dropped"
	case out.Status == outbox.Delivered:
		return slog.LevelInfo, "delivered"
	case out.Status == outbox.Failed:
		return slog.LevelError, "failed, attempts are spent"
	case out.Status == outbox.DeadLetter:
		return slog.LevelError, "dead letter"
	case out.Refund:
		return slog.LevelDebug, "given back"
	}
	return slog.LevelWarn, "retry"
}

// destinationName is how people see a destination; the table has ” for the default one.
func destinationName(destination string) string {
	if destination == "" {
		return "default"
	}
	return destination
}

func (r *dispatchRun) trouble(err error) {
	words := "PostgreSQL does not answer, trying again"
	if pg, answered := errors.AsType[*pgconn.PgError](err); answered && pg.SeverityUnlocalized != "FATAL" {
		words = "PostgreSQL refuses, trying again"
	}
	r.log.Error(words, "error", oneLine(explainPostgres(err).Error()))
}

func (r *dispatchRun) recovered() { r.log.Info("PostgreSQL answers again") }

// sumUp is the last word of a run.
func (r *dispatchRun) sumUp(s outbox.Summary) {
	r.log.Info("done",
		"delivered", s.Delivered, "retried", s.Retried, "failed", s.Failed, "dead", s.Dead,
		"released", s.Released, "lost", s.Lost,
		"events_per_second", int(s.Rate()), "took", s.Took.Round(time.Millisecond),
		"p50", s.Latency.Quantile(0.5).Round(10*time.Microsecond), "p99", s.Latency.Quantile(0.99).Round(10*time.Microsecond))
}

// verdict is the exit of a run that came to its end.
func (r *dispatchRun) verdict(ctx context.Context, db *pgxpool.Pool, s outbox.Summary, err error) error {
	switch {
	case r.kill.Err() != nil:
		return context.Cause(r.kill)
	case err != nil:
		return err
	case errors.Is(context.Cause(ctx), errNoReader):
		return errNoReader
	case s.Failed+s.Dead > 0 && r.o.once:
		return quietly(exitAttention)
	case r.cutShort(ctx, s) && r.due(context.WithoutCancel(ctx), db, 1) > 0:
		r.log.Warn("work is left: stopped by --max-duration or --max-events")
		return quietly(exitAttention)
	}
	return nil
}

// cutShort reports whether the run ended by a limit rather than for want of work.
func (r *dispatchRun) cutShort(ctx context.Context, s outbox.Summary) bool {
	return errors.Is(context.Cause(ctx), errMaxDuration) || r.o.maxEvents > 0 && s.Sent >= r.o.maxEvents
}

// steps is the number of events a bar would begin with; nobody counts them when there is none.
func (r *dispatchRun) steps(ctx context.Context, db *pgxpool.Pool) int64 {
	if !r.bar.shown() {
		return -1
	}
	return r.due(ctx, db, maxCounted)
}

// maxCounted is enough to tell a backlog's size.
const maxCounted = 1_000_000

// due counts the events that could be sent now, up to limit. A run goes on without the number.
func (r *dispatchRun) due(ctx context.Context, db *pgxpool.Pool, limit int) int64 {
	counts, err := outbox.NewStore(db, r.global.schema).Due(ctx, "", r.o.only, limit)
	if err != nil {
		return -1
	}
	var n int64
	for _, c := range counts {
		n += c.N
	}
	return n
}

// dryRun shows what a run would send now.
func (r *dispatchRun) dryRun(ctx context.Context, db *pgxpool.Pool) error {
	counts, err := outbox.NewStore(db, r.global.schema).Due(ctx, "", r.o.only, maxCounted)
	if err != nil {
		return err
	}
	if r.global.output == "json" {
		return r.printJSON(newDryRunDocument(counts))
	}
	var total int64
	var rows [][]string
	for _, c := range counts {
		total += c.N
		rows = append(rows, []string{c.Type, thousands(c.N), age(c.Oldest)})
	}
	fmt.Fprintf(r.Out, "dry run: %s would go to %s now\n", counted(total, "event"), r.name())
	if total == 0 {
		return nil
	}
	fmt.Fprintln(r.Out)
	return r.printTable([]string{"EVENT TYPE", "DUE", "SINCE"}, rows, 1, 2)
}

// dryRunDocument is outboxctl.dispatch/v1.
type dryRunDocument struct {
	Schema     string            `json:"schema"`
	DryRun     bool              `json:"dry_run"`
	Matched    int64             `json:"matched"`
	EventTypes []dueTypeDocument `json:"event_types"`
}

type dueTypeDocument struct {
	EventType  string  `json:"event_type"`
	Due        int64   `json:"due"`
	DueSeconds float64 `json:"due_seconds"`
}

func newDryRunDocument(counts []outbox.DueCount) dryRunDocument {
	doc := dryRunDocument{Schema: "outboxctl.dispatch/v1", DryRun: true, EventTypes: []dueTypeDocument{}}
	for _, c := range counts {
		doc.Matched += c.N
		doc.EventTypes = append(doc.EventTypes, dueTypeDocument{c.Type, c.N, round(c.Oldest.Seconds(), 3)})
	}
	return doc
}
