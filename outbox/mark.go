package outbox

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

var markLimits = limits{statement: time.Second, lock: 100 * time.Millisecond, idle: dispatchIdle}

// mayMarkSQL asks before it writes: a refusal would be an error in the server's log, every minute.
const (
	mayMarkSQL = `
select not pg_is_in_recovery()
       and has_table_privilege(@table, 'insert')
       and not exists (select from {schema}.outbox_samples -- outbox_samples_name
                        where name = @name
                          and at > now() - interval '1 hour')`

	markSQL = `
insert into {schema}.outbox_samples (name, value)
values (@name, @value)`
)

// Mark leaves a sample that says that somebody watches, at most one an hour. A role that may only read
// leaves none, and neither does anybody on a standby; that is no error.
func (s *Store) Mark(ctx context.Context, name string, value float64) error {
	args := pgx.NamedArgs{"table": s.schema + ".outbox_samples", "name": name, "value": value}
	var may bool
	err := s.look(ctx, "mark", func(tx pgx.Tx) error {
		return tx.QueryRow(ctx, s.sql(mayMarkSQL), args).Scan(&may)
	})
	if err != nil || !may {
		return err
	}
	err = s.inTx(ctx, markLimits, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, s.sql(markSQL), args)
		return err
	})
	if err != nil {
		return fmt.Errorf("mark: %w", err)
	}
	return nil
}
