package commands

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxctl/outboxctl/migrate"
	"github.com/outboxctl/outboxctl/outbox"
	"github.com/outboxctl/outboxctl/outbox/wal"
)

// notifyOption is the part of the schema that tells who listens.
const notifyOption = "notify"

// wakes leads news to the loops that wait for them, and what has no destination to the router.
type wakes struct {
	mu       sync.Mutex
	channels map[string]chan struct{} // by destination
}

// of is where a destination's loop waits; "" is the router's, or the loop's of the only destination.
func (w *wakes) of(destination string) chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.channels == nil {
		w.channels = map[string]chan struct{}{}
	}
	if w.channels[destination] == nil {
		w.channels[destination] = make(chan struct{}, 1)
	}
	return w.channels[destination]
}

// some wakes those who wait for these destinations.
func (w *wakes) some(destinations []string) {
	for _, name := range destinations {
		offer(w.of(name))
	}
}

// all wakes everybody.
func (w *wakes) all() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.channels {
		offer(c)
	}
}

// news wakes the loop of a destination, or everybody.
func (w *wakes) news(destination string, all bool) {
	if all {
		w.all()
		return
	}
	w.some([]string{destination})
}

// listen hears on a session of its own where there are news. Polling goes on beside it.
func (r *dispatchRun) listen(ctx context.Context, db *pgxpool.Pool, f *fleet) {
	if options, err := migrate.New(db, r.global.schema).Present(ctx); err == nil && !slices.Contains(options, notifyOption) {
		r.log.Warn("nobody tells of news until there is a trigger for it, polling goes on: outboxctl migrate --with notify")
	}
	l := outbox.Listener{
		Ear:     r.ear(f),
		Connect: r.session,
		Channel: outbox.NewStore(db, r.global.schema).Channel(),
	}
	l.Listen(ctx)
}

// follow hears from the log of the database where there are news. Polling goes on beside it.
func (r *dispatchRun) follow(ctx context.Context, f *fleet) {
	l := wal.Follower{
		Ear:     r.ear(f),
		Connect: r.replication,
		Schema:  r.global.schema,
	}
	l.Follow(ctx)
}

// ear tells the loops of news, and people of what keeps them from coming.
func (r *dispatchRun) ear(f *fleet) outbox.Ear {
	return outbox.Ear{News: f.wake.news, Trouble: r.deaf, Recovered: r.hearing}
}

// deaf is told once of an outage.
func (r *dispatchRun) deaf(err error) {
	if refusal, ok := errors.AsType[*outbox.Refusal](err); ok {
		r.log.Warn("news cannot be heard, polling goes on", "error", oneLine(refusal.Error()))
		return
	}
	r.log.Warn("news are not heard, polling goes on", "error", oneLine(explainPostgres(err).Error()))
}

func (r *dispatchRun) hearing() { r.log.Info("news are heard again") }

// errPooler is of a session behind a pooler: what is said to it is heard by somebody else.
var errPooler = &outbox.Refusal{Why: "a pooler is in between, and to listen takes a session: give the server's own address with --direct-database-url"}

// session connects past a pooler, and refuses one.
func (r *dispatchRun) session(ctx context.Context) (*pgx.Conn, error) {
	conn, err := r.connectAlone(ctx, nil)
	if err != nil {
		return nil, err
	}
	var backend uint32
	err = conn.QueryRow(ctx, "select pg_catalog.pg_backend_pid()", pgx.QueryExecModeExec).Scan(&backend)
	if err == nil && backend != conn.PgConn().PID() {
		err = errPooler
	}
	if err != nil {
		_ = conn.Close(context.WithoutCancel(ctx))
		return nil, err
	}
	return conn, nil
}

// replication connects past a pooler, as who reads the log does.
func (r *dispatchRun) replication(ctx context.Context) (*pgconn.PgConn, error) {
	conn, err := r.connectAlone(ctx, map[string]string{"replication": "database"})
	if err != nil {
		return nil, err
	}
	return conn.PgConn(), nil
}

// connectAlone makes a session that nobody else uses, with parameters beside those of the URL.
func (r *dispatchRun) connectAlone(ctx context.Context, parameters map[string]string) (*pgx.Conn, error) {
	d := r.global.database
	if r.global.direct.text != "" {
		d = r.global.direct
	}
	config, err := r.poolConfig(d, writes)
	if err != nil {
		return nil, err
	}
	maps.Copy(config.ConnConfig.RuntimeParams, parameters)
	ctx, cancel := context.WithTimeout(ctx, 2*connectTimeout)
	defer cancel()
	return r.try(ctx, config, d)
}
