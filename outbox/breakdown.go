package outbox

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// HourStats is what was settled within one hour.
type HourStats struct {
	Hour        time.Time // its beginning, UTC
	Delivered   int64
	Retried     int64 // attempts that will be made again
	Failed      int64
	DeadLetters int64
	Latency     time.Duration // mean of all attempts
	Age         time.Duration // mean of the delivered, since they were created
}

const hourSQL = `
select date_trunc('hour', minute, 'UTC') as hour,
       coalesce(sum(n) filter (where outcome = 'delivered'), 0)::bigint,
       coalesce(sum(n) filter (where outcome = 'pending'), 0)::bigint,
       coalesce(sum(n) filter (where outcome = 'failed'), 0)::bigint,
       coalesce(sum(n) filter (where outcome = 'dead_letter'), 0)::bigint,
       (extract(epoch from sum(latency)) / sum(n))::float8,
       coalesce(extract(epoch from sum(age) filter (where outcome = 'delivered')) / sum(n) filter (where outcome = 'delivered'), 0)::float8
  from {schema}.outbox_rollup -- outbox_rollup_pkey
 where minute > now() - @window::bigint * interval '1 microsecond'
   and error_kind <> 'shutdown'
   and not shadow
 group by hour
having sum(n) > 0
 order by hour desc
 limit @top`

// StatsByHour returns what was settled in the window, hour by hour, the newest first.
func (s *Store) StatsByHour(ctx context.Context, look Look) (hours []HourStats, err error) {
	err = s.look(ctx, "stats by hour", func(tx pgx.Tx) error {
		hours, err = gather(ctx, tx, s.sql(hourSQL), look.args(), func(row pgx.CollectableRow) (h HourStats, err error) {
			var latency, age float64
			err = row.Scan(&h.Hour, &h.Delivered, &h.Retried, &h.Failed, &h.DeadLetters, &latency, &age)
			h.Hour, h.Latency, h.Age = h.Hour.UTC(), seconds(latency), seconds(age)
			return h, err
		})
		return err
	})
	return hours, err
}

// ErrorStats counts a destination's attempts that failed in one way.
type ErrorStats struct {
	Destination string
	AnswerStats
	Share float64       // of the destination's attempts, 0..1
	Last  time.Duration // since the minute of the last one
}

const errorSQL = `
select destination, error_kind, error_code, n, n / attempts, greatest(now() - last, interval '0')
  from (select destination, error_kind, error_code, sum(n)::bigint as n, max(minute) as last,
               (sum(sum(n)) over (partition by destination))::float8 as attempts
          from {schema}.outbox_rollup -- outbox_rollup_pkey
         where minute > now() - @window::bigint * interval '1 microsecond'
           and error_kind <> 'shutdown'
         group by destination, error_kind, error_code) e
 where error_kind <> ''
 order by n desc, destination, error_kind, error_code
 limit @top`

// StatsByError returns how attempts failed in the window, the most frequent first.
func (s *Store) StatsByError(ctx context.Context, look Look) (failures []ErrorStats, err error) {
	err = s.look(ctx, "stats by error", func(tx pgx.Tx) error {
		failures, err = gather(ctx, tx, s.sql(errorSQL), look.args(), func(row pgx.CollectableRow) (e ErrorStats, err error) {
			err = row.Scan(&e.Destination, &e.Kind, &e.Code, &e.N, &e.Share, &e.Last)
			return e, err
		})
		return err
	})
	return failures, err
}

// AttemptStats is about events and attempts by number, which stands for itself up to 20, for 20 and
// more there.
type AttemptStats struct {
	Attempt   int   // 0 = none yet
	Open      int64 // events that have been attempted so often
	Delivered int64 // in the window, by this attempt
	Retried   int64 // will be made again
	Ended     int64 // ended their event otherwise
}

// openAttemptsSQL counts no more events than stats count one by one.
const (
	openAttemptsSQL = `
select least(attempts, 20), count(*)
  from (select attempts
          from {schema}.outbox -- outbox_lag
         where finished_at is null
           and origin not like 'shadow%'
         limit @open) o
 group by 1`

	triesSQL = `
select attempt, outcome, sum(n)::bigint
  from {schema}.outbox_rollup -- outbox_rollup_pkey
 where minute > now() - @window::bigint * interval '1 microsecond'
   and error_kind <> 'shutdown'
   and not shadow
 group by attempt, outcome`
)

// StatsByAttempt returns a bucket for each number of attempts that there is, in order.
func (s *Store) StatsByAttempt(ctx context.Context, look Look) (buckets []AttemptStats, err error) {
	const most = 20
	all := make([]AttemptStats, most+1)
	err = s.look(ctx, "stats by attempt", func(tx pgx.Tx) error {
		var attempt int
		var outcome Status
		var n int64
		rows, err := tx.Query(ctx, s.sql(openAttemptsSQL), pgx.NamedArgs{"open": exactOpen})
		if err != nil {
			return err
		}
		if _, err := pgx.ForEachRow(rows, []any{&attempt, &n}, func() error { all[attempt].Open = n; return nil }); err != nil {
			return err
		}
		if rows, err = tx.Query(ctx, s.sql(triesSQL), look.args()); err != nil {
			return err
		}
		_, err = pgx.ForEachRow(rows, []any{&attempt, &outcome, &n}, func() error {
			all[min(max(attempt, 0), most)].add(outcome, n)
			return nil
		})
		return err
	})
	for attempt, b := range all {
		if b.Attempt = attempt; b != (AttemptStats{Attempt: attempt}) {
			buckets = append(buckets, b)
		}
	}
	return buckets, err
}

func (b *AttemptStats) add(outcome Status, n int64) {
	switch outcome {
	case Delivered:
		b.Delivered += n
	case Pending:
		b.Retried += n
	default:
		b.Ended += n
	}
}

func (l Look) args() pgx.NamedArgs {
	return pgx.NamedArgs{"window": l.Window.Microseconds(), "top": l.Top}
}

// look runs what only looks, by index.
func (s *Store) look(ctx context.Context, what string, f func(tx pgx.Tx) error) error {
	err := s.inTx(ctx, statsLimits, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, byIndexSQL); err != nil {
			return err
		}
		return f(tx)
	})
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

func gather[T any](ctx context.Context, tx pgx.Tx, sql string, args pgx.NamedArgs, scan pgx.RowToFunc[T]) ([]T, error) {
	rows, err := tx.Query(ctx, sql, args)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, scan)
}
