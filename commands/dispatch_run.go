package commands

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxctl/outboxctl/outbox"
	"github.com/outboxctl/outboxctl/outbox/sink"
)

// dispatchRun is one run of dispatch: the database, the destinations, their loops and words.
type dispatchRun struct {
	*app
	o      *dispatchOptions
	stdout io.Writer
	served []*served
	log    *slog.Logger
	bar    *progress

	systemd *supervisor
	mu      sync.Mutex       // of what the loops tell
	away    map[*served]bool // whose loops wait for PostgreSQL
}

// served is a destination and what sends to it.
type served struct {
	*destination
	target outbox.Sink
}

var errMaxDuration = errors.New("--max-duration is over")

// serve opens a destination's sink.
func (r *dispatchRun) serve(d *destination) (*served, error) {
	o := d.sinkOptions(r.version())
	o.Stdout = r.stdout
	target, err := sink.Open(d.url, o)
	switch {
	case err != nil && d.key == "":
		return nil, usage(fmt.Errorf("--to: %s", flagWords.Replace(err.Error())), "")
	case err != nil:
		return nil, usage(fmt.Errorf("%s: %s: %w", r.global.config, d.key, err), "")
	}
	return &served{d, target}, nil
}

func (s *served) close() {
	if c, ok := s.target.(io.Closer); ok {
		_ = c.Close() // nothing was left to be written
	}
}

func (r *dispatchRun) start(ctx context.Context) error {
	r.bar = r.newProgress(r.o.once && !r.o.dryRun)
	r.log = r.logger(r.bar)
	r.systemd = supervised()
	r.away = map[*served]bool{}
	r.loops = len(r.served)
	for _, s := range r.served {
		r.warn(s)
	}
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

// to is where a destination's events go as it may be shown: without password and query.
func (s *served) to() string {
	if shown, ok := s.target.(fmt.Stringer); ok {
		return shown.String()
	}
	return s.url
}

// logOf is the log of what concerns one destination, which needs no name if it is the only one.
func (r *dispatchRun) logOf(s *served) *slog.Logger {
	if s.key == "" {
		return r.log
	}
	return r.log.With("destination", s.shown())
}

// warn prints what a sink has to say about its settings.
func (r *dispatchRun) warn(s *served) {
	if w, ok := s.target.(interface{ Warnings() []string }); ok {
		for _, line := range w.Warnings() {
			r.logOf(s).Warn(line)
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

// deliver runs the loops, with a heartbeat beside them, and sums up.
func (r *dispatchRun) deliver(ctx context.Context, db *pgxpool.Pool) error {
	var beside sync.WaitGroup
	defer beside.Wait()
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	fleet := newFleet(ctx, r, db)
	if r.o.once && r.hasRoutes() {
		if err := r.routeAll(ctx, db, fleet); err != nil && ctx.Err() == nil {
			return err
		}
	}
	r.bar.begin("delivering", "events", r.steps(ctx, db))
	fleet.begin(r.served)
	switch r.o.wake {
	case wakeListen:
		beside.Go(func() { r.listen(ctx, db, fleet) })
	case wakeWAL:
		beside.Go(func() { r.follow(ctx, fleet) })
	}
	if !r.o.once && r.file != nil {
		beside.Go(func() { r.route(ctx, db, fleet) })
	}
	beside.Go(func() { r.lookBeside(ctx, db) })
	beside.Go(func() { fleet.live(life) })
	beside.Go(func() { r.reload(life, fleet) })
	beside.Go(func() { r.systemd.watch(life, ctx) })

	fleet.wait()
	if targets := fleet.gotCopies(); r.o.once && ctx.Err() == nil && len(targets) > 0 {
		fleet.begin(targets)
		fleet.wait()
	}
	r.bar.end()
	return r.verdict(ctx, db, fleet)
}

// heart is this process as others see it.
func (r *dispatchRun) heart(db *pgxpool.Pool, all []*served) *outbox.Worker {
	w := outbox.Worker{Name: r.worker(), Host: hostName(), PID: os.Getpid(), Version: r.version()}
	for _, s := range all {
		w.Destinations = append(w.Destinations, s.name)
		w.Parallel += s.parallel
		w.BatchSize += s.batchSize
	}
	return outbox.NewStore(db, r.global.schema).Worker(w)
}

// observer passes on what a loop tells, one word at a time.
func (r *dispatchRun) observer(s *served) outbox.Observer {
	one := func(f func()) {
		r.mu.Lock()
		defer r.mu.Unlock()
		f()
	}
	return outbox.Observer{
		Settled:   func(report outbox.Report) { one(func() { r.settled(report) }) },
		Trouble:   func(err error) { one(func() { r.trouble(s, err) }) },
		Recovered: func() { one(func() { r.recovered(s) }) },
	}
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
	if ev.Late && !out.Refund {
		attrs = append(attrs, slog.String("aggregate", ev.AggregateType+":"+ev.AggregateID),
			slog.String("late", "a later event of its aggregate had been sent when this one was committed"))
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
	case out.Status == outbox.Delivered && report.Event.Late:
		return slog.LevelWarn, "delivered late"
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

// trouble is told once of a PostgreSQL that is away, however many loops miss it, and of each refusal.
func (r *dispatchRun) trouble(s *served, err error) {
	pg, answered := errors.AsType[*pgconn.PgError](err)
	if answered && pg.SeverityUnlocalized != "FATAL" {
		r.logOf(s).Error("PostgreSQL refuses, trying again", "error", oneLine(explainPostgres(err).Error()))
		return
	}
	if len(r.away) == 0 {
		r.log.Error("PostgreSQL does not answer, trying again", "error", oneLine(explainPostgres(err).Error()))
	}
	r.away[s] = true
}

func (r *dispatchRun) recovered(s *served) {
	refused := !r.away[s]
	delete(r.away, s)
	if refused || len(r.away) == 0 {
		r.log.Info("PostgreSQL answers again")
	}
}

// sumUp is the last word of a loop.
func (r *dispatchRun) sumUp(served *served, s outbox.Summary) {
	r.logOf(served).Info("done",
		"delivered", s.Delivered, "retried", s.Retried, "failed", s.Failed, "dead", s.Dead,
		"released", s.Released, "lost", s.Lost,
		"events_per_second", int(s.Rate()), "took", s.Took.Round(time.Millisecond),
		"p50", s.Latency.Quantile(0.5).Round(10*time.Microsecond), "p99", s.Latency.Quantile(0.99).Round(10*time.Microsecond))
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

// due counts the events that could be sent now, up to limit for each destination. A run goes on
// without the number.
func (r *dispatchRun) due(ctx context.Context, db *pgxpool.Pool, limit int) (n int64) {
	all, err := r.allDue(ctx, db, limit)
	if err != nil {
		return -1
	}
	for _, c := range all {
		n += c.N
	}
	return n
}

// dueAt is what is due at a destination, of one type.
type dueAt struct {
	outbox.DueCount
	at *served
}

func (r *dispatchRun) allDue(ctx context.Context, db *pgxpool.Pool, limit int) (all []dueAt, err error) {
	for _, s := range r.served {
		counts, err := outbox.NewStore(db, r.global.schema).Due(ctx, s.name, r.o.only, limit)
		if err != nil {
			return nil, err
		}
		for _, c := range counts {
			all = append(all, dueAt{c, s})
		}
	}
	return all, nil
}

// dryRun shows what a run would send now.
func (r *dispatchRun) dryRun(ctx context.Context, db *pgxpool.Pool) error {
	all, err := r.allDue(ctx, db, maxCounted)
	if err != nil {
		return err
	}
	if r.global.output == "json" {
		return r.printJSON(newDryRunDocument(all))
	}
	var total int64
	var rows [][]string
	head, right := []string{"EVENT TYPE", "DUE", "SINCE"}, []int{1, 2}
	several := len(r.served) > 1
	for _, c := range all {
		total += c.N
		row := []string{cell(c.Type), thousands(c.N), age(c.Oldest)}
		if several {
			row = append([]string{c.at.shown()}, row...)
		}
		rows = append(rows, row)
	}
	where := counted(int64(len(r.served)), "destination")
	if several {
		head, right = append([]string{"DESTINATION"}, head...), []int{2, 3}
	} else {
		where = r.served[0].to()
	}
	fmt.Fprintf(r.Out, "dry run: %s would go to %s now\n", counted(total, "event"), where)
	if total == 0 {
		return nil
	}
	fmt.Fprintln(r.Out)
	return r.printTable(head, rows, right...)
}

// dryRunDocument is outboxctl.dispatch/v1.
type dryRunDocument struct {
	Schema     string            `json:"schema"`
	DryRun     bool              `json:"dry_run"`
	Matched    int64             `json:"matched"`
	EventTypes []dueTypeDocument `json:"event_types"`
}

type dueTypeDocument struct {
	Destination string  `json:"destination"`
	EventType   string  `json:"event_type"`
	Due         int64   `json:"due"`
	DueSeconds  float64 `json:"due_seconds"`
}

func newDryRunDocument(counts []dueAt) dryRunDocument {
	doc := dryRunDocument{Schema: "outboxctl.dispatch/v1", DryRun: true, EventTypes: []dueTypeDocument{}}
	for _, c := range counts {
		doc.Matched += c.N
		doc.EventTypes = append(doc.EventTypes, dueTypeDocument{c.at.shown(), c.Type, c.N, round(c.Oldest.Seconds(), 3)})
	}
	return doc
}
