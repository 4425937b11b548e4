package outbox

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// The rhythm of heartbeats: a dispatcher not seen for DeadAfter is not alive.
const (
	heartbeat = 10 * time.Second
	DeadAfter = 30 * time.Second
)

// Worker is a dispatcher as others see it: a row of outbox_workers that it keeps fresh.
type Worker struct {
	Name         string // as in its leases
	Host         string
	PID          int
	Version      string
	Destinations []string // that it serves; "" is the default one
	Parallel     int
	BatchSize    int

	store *Store
	id    string // the name and a random part
}

// Worker returns w, to be kept alive by [Worker.Live].
func (s *Store) Worker(w Worker) *Worker {
	w.store, w.id = s, withToken(w.Name)
	return &w
}

// Live says again and again that the worker is alive, until ctx is done; then it takes the row
// away. While PostgreSQL is away it says nothing; that it has no heartbeat is then true.
func (w *Worker) Live(ctx context.Context) {
	tick := time.NewTicker(heartbeat)
	defer tick.Stop()
	for {
		_ = w.beat(ctx) // the next beat tries again
		select {
		case <-ctx.Done():
			w.leave(context.WithoutCancel(ctx))
			return
		case <-tick.C:
		}
	}
}

var workerLimits = limits{statement: 5 * time.Second, lock: time.Second, idle: dispatchIdle}

// beatSQL also clears away the workers that died a day ago.
const (
	beatSQL = `
insert into {schema}.outbox_workers
       (worker, name, host, pid, version, slot, destinations, parallel, batch_size, started_at, seen_at)
values (@worker, @name, @host, @pid, @version, @slot, @destinations, @parallel, @batch_size,
        clock_timestamp(), clock_timestamp())
    on conflict (worker) do update set seen_at = clock_timestamp()`

	sweepSQL = `
delete from {schema}.outbox_workers
 where seen_at < now() - interval '1 day'`

	leaveSQL = `
delete from {schema}.outbox_workers
 where worker = $1`
)

func (w *Worker) beat(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, workerLimits.statement)
	defer cancel()
	return w.store.inTx(ctx, workerLimits, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, w.store.sql(beatSQL), pgx.NamedArgs{
			"worker": w.id, "name": w.Name, "host": w.Host, "pid": w.PID, "version": w.Version, "slot": 0,
			"destinations": w.Destinations, "parallel": w.Parallel, "batch_size": w.BatchSize,
		})
		if err != nil {
			return fmt.Errorf("heartbeat: %w", err)
		}
		_, err = tx.Exec(ctx, w.store.sql(sweepSQL))
		return err
	})
}

func (w *Worker) leave(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	_ = w.store.inTx(ctx, workerLimits, func(tx pgx.Tx) error { // else it fades after DeadAfter
		_, err := tx.Exec(ctx, w.store.sql(leaveSQL), w.id)
		return err
	})
}
