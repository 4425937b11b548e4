package outbox

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// ErrNoHold says that the index is missing by which [OnDeadHold] finds what holds an aggregate up: each
// claim would read the whole table for it.
var ErrNoHold = errors.New("the index outbox_held is missing or not finished, which on_dead hold needs")

// Declared is what a destination was before it was declared.
type Declared struct {
	Ordering Ordering
	Others   []string // the dispatchers alive that serve it
}

// Its ordering stands in outbox_destinations; a destination without a row there has none.
const (
	declaredSQL = `
select coalesce((select ordering from {schema}.outbox_destinations where destination = @destination), 'none'),
       array(select name
               from {schema}.outbox_workers
              where seen_at > now() - @dead_after::bigint * interval '1 microsecond'
                and @destination = any (destinations)
              order by name)`

	declareSQL = `
insert into {schema}.outbox_destinations as d (destination, ordering)
values (@destination, @ordering)
    on conflict (destination) do update set ordering = excluded.ordering, updated_at = clock_timestamp()`

	canHoldSQL = `
select exists (select from pg_index where indexrelid = to_regclass($1) and indisvalid)`
)

// Declare writes down how a destination's events are ordered, for those who must know it without
// being its dispatcher, and returns what was there. A dispatcher does so before its first claim. Two that
// are alive at once must agree: there is no order where one of them does not keep it.
func (s *Store) Declare(ctx context.Context, destination string, ordering Ordering, onDead OnDead) (was Declared, err error) {
	if ordering == "" {
		ordering = OrderingNone
	}
	err = s.inTx(ctx, workerLimits, func(tx pgx.Tx) error {
		args := pgx.NamedArgs{"destination": destination, "ordering": ordering, "dead_after": DeadAfter.Microseconds()}
		if ordering == OrderingAggregate && onDead == OnDeadHold {
			if err := s.canHold(ctx, tx); err != nil {
				return err
			}
		}
		if err := tx.QueryRow(ctx, s.sql(declaredSQL), args).Scan(&was.Ordering, &was.Others); err != nil {
			return err
		}
		if was.Ordering == ordering {
			return nil
		}
		_, err := tx.Exec(ctx, s.sql(declareSQL), args)
		return err
	})
	if err != nil {
		return was, fmt.Errorf("declare the ordering: %w", err)
	}
	return was, nil
}

func (s *Store) canHold(ctx context.Context, tx pgx.Tx) error {
	var can bool
	err := tx.QueryRow(ctx, canHoldSQL, s.schema+".outbox_held").Scan(&can)
	if err == nil && !can {
		err = ErrNoHold
	}
	return err
}
