package migrate

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// inSession runs f on a connection of its own which holds the schema's lock: an index is built
// outside a transaction, and a lock of a transaction would end with that. The lock belongs to the
// backend that does the work. If this process dies, nobody starts a second build beside one that
// still runs.
//
// Nobody queues behind what f waits for, so it may wait long for one thing and need not try again.
// The connection is closed afterwards, so neither lock nor settings are left behind. Behind a
// pooler, which keeps the backend, they would be: there it refuses.
func (w *work) inSession(ctx context.Context, what string, f func(*work, *pgx.Conn) error) error {
	conn, err := w.dial(ctx)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if err := refusePooler(ctx, conn, what); err != nil {
		return err
	}
	if err := setUp(ctx, conn); err != nil {
		return err
	}
	own := *w.Schema
	own.db, own.limits = conn, Limits{Lock: patience, Tries: 1}
	inner := &work{&own, w.teller}
	if err := inner.lockSession(ctx, conn); err != nil {
		return err
	}
	return f(inner, conn)
}

// refusePooler knows a pooler by its backend, which is not the one that the connection was told.
func refusePooler(ctx context.Context, conn *pgx.Conn, what string) error {
	var pid uint32
	if err := conn.QueryRow(ctx, `select pg_catalog.pg_backend_pid()`, pgx.QueryExecModeExec).Scan(&pid); err != nil {
		return err
	}
	if pid != conn.PgConn().PID() {
		return fmt.Errorf("%s: %w", what, ErrPooled)
	}
	return nil
}

const sessionSQL = `
select pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', false),
       pg_catalog.set_config('lock_timeout', $1, false),
       pg_catalog.set_config('statement_timeout', '0', false),
       pg_catalog.set_config('idle_in_transaction_session_timeout', '0', false),
       pg_catalog.set_config('default_transaction_isolation', 'read committed', false),
       pg_catalog.set_config('default_transaction_read_only', 'off', false)`

// orphanSQL lets a build end soon after its client died, where the server can see that.
const orphanSQL = `
select pg_catalog.set_config(name, '2s', false)
  from pg_catalog.pg_settings
 where name = 'client_connection_check_interval'`

func setUp(ctx context.Context, conn *pgx.Conn) error {
	if _, err := conn.Exec(ctx, sessionSQL, milliseconds(patience)); err != nil {
		return err
	}
	_, _ = conn.Exec(ctx, orphanSQL) // else it ends when it is done
	return nil
}

// lockSession takes the schema's lock for the session, which its end gives back.
func (w *work) lockSession(ctx context.Context, conn *pgx.Conn) error {
	w.told = nil
	for start := time.Now(); ; {
		var locked bool
		err := conn.QueryRow(ctx, `select pg_catalog.pg_try_advisory_lock($1)`, lockKey(w.name)).Scan(&locked)
		if err != nil || locked {
			return err
		}
		if err := w.queue(ctx, start); err != nil {
			return err
		}
	}
}

// holderSQL finds who holds the lock of a key, which pg_locks shows in two halves.
const holderSQL = `
select l.pid, coalesce(a.application_name, '')
  from pg_locks l
  left join pg_stat_activity a on a.pid = l.pid
 where l.locktype = 'advisory'
   and l.database = (select oid from pg_database where datname = current_database())
   and l.classid::bigint << 32 | l.objid::bigint = $1
   and l.objsubid = 1
   and l.granted`

// queue waits a little for another migration of the schema, and says so after a while.
func (w *work) queue(ctx context.Context, start time.Time) error {
	waited := time.Since(start)
	if waited > glance {
		if err := w.waits("migrate", w.holders(ctx)); err != nil {
			return err
		}
	}
	if waited > patience {
		return w.busy(fmt.Errorf("another migration has been running for %s", patience))
	}
	return sleep(ctx, jitter(pause))
}

// holders returns who holds the schema's lock, none where that cannot be seen.
func (w *work) holders(ctx context.Context) (all []Blocker) {
	_ = w.read(ctx, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, holderSQL, lockKey(w.name))
		if err != nil {
			return err
		}
		all, err = pgx.CollectRows(rows, pgx.RowToStructByPos[Blocker])
		return err
	})
	return all
}

// busy says that others' locks did not go away, and whose.
func (w *work) busy(err error) error {
	if len(w.told) == 0 {
		return fmt.Errorf("%w: %w", ErrBusy, err)
	}
	return fmt.Errorf("%w: %w; in the way: %s", ErrBusy, err, sentence(w.told))
}
