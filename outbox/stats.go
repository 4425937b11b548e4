package outbox

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
)

// exactUpTo is how many finished rows are counted one by one; beyond it their number is estimated.
const exactUpTo = 100_000

var statsLimits = limits{statement: 5 * time.Second, lock: time.Second, reads: true}

// Stats is the outbox at one moment, by the database's clock.
type Stats struct {
	Status       map[Status]int64 // every status, also those without events
	Estimated    bool             // the delivered are an estimate from the table's size
	Lag          time.Duration    // age of the oldest event that is past its available_at and not finished
	LapsedLeases int64            // due again, not claimed yet
	EventTypes   []EventTypeStats // in order of their names
	Destinations []DestinationStats
	Dispatchers  []DispatcherStats // alive
	Rates        map[string]float64
	Attempts     int64         // made in Window
	Errors       int64         // of these, not delivered
	Answers      []AnswerStats // of these, the most frequent first
	Window       time.Duration // of Attempts, Errors and Answers
}

// ErrorShare is the share of attempts in the window that did not deliver, 0..1.
func (s *Stats) ErrorShare() float64 {
	if s.Attempts == 0 {
		return 0
	}
	return float64(s.Errors) / float64(s.Attempts)
}

// EventTypeStats counts one type's events. Delivered ones are left out where Stats.Estimated.
type EventTypeStats struct {
	Type   string
	Status map[Status]int64
}

// DestinationStats is one destination with open events or a known state.
type DestinationStats struct {
	Name        string // "" = the default one
	Ordering    string
	Breaker     string
	PausedUntil *time.Time
	Reason      string
	Open        int64 // events not finished
}

// DispatcherStats is a dispatcher that was seen within [DeadAfter].
type DispatcherStats struct {
	Name         string
	Host         string
	PID          int
	Version      string
	Destinations []string
	Parallel     int
	BatchSize    int
	Up           time.Duration
	Seen         time.Duration // since its last heartbeat
}

// AnswerStats counts attempts by what came back.
type AnswerStats struct {
	Kind string // error_kind; "" = delivered
	Code int    // 0 = none
	N    int64
}

// Stats looks at open events through the partial indexes and takes rates from the rollup; of the
// finished rows it counts at most a hundred thousand. It changes nothing.
func (s *Store) Stats(ctx context.Context, window time.Duration) (*Stats, error) {
	st := &Stats{Status: map[Status]int64{}, Rates: map[string]float64{}, Window: window}
	for _, status := range Statuses() {
		st.Status[status] = 0
	}
	err := s.inTx(ctx, statsLimits, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, byIndexSQL); err != nil {
			return err
		}
		types := map[string]*EventTypeStats{}
		for _, part := range []func(context.Context, pgx.Tx, map[string]*EventTypeStats, *Stats) error{
			s.openStats, s.finishedStats, s.lagStats, s.rateStats, s.answerStats, s.destinationStats, s.dispatcherStats,
		} {
			if err := part(ctx, tx, types, st); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("stats: %w", err)
	}
	return st, nil
}

// byIndexSQL keeps the planner from reading the table from its start, in the hope of the rows that
// are wanted: the newest are at its end.
const byIndexSQL = `select pg_catalog.set_config('enable_seqscan', 'off', true)`

// openSQL reads every open row once.
const openSQL = `
select event_type, status, count(*), count(*) filter (where lease_until < now())
  from {schema}.outbox -- outbox_due
 where finished_at is null
 group by event_type, status
 order by event_type`

func (s *Store) openStats(ctx context.Context, tx pgx.Tx, types map[string]*EventTypeStats, st *Stats) error {
	rows, err := tx.Query(ctx, s.sql(openSQL))
	if err != nil {
		return err
	}
	var eventType string
	var status Status
	var n, lapsed int64
	_, err = pgx.ForEachRow(rows, []any{&eventType, &status, &n, &lapsed}, func() error {
		st.add(types, eventType, status, n)
		st.LapsedLeases += lapsed
		return nil
	})
	return err
}

func (st *Stats) add(types map[string]*EventTypeStats, eventType string, status Status, n int64) {
	st.Status[status] += n
	t, ok := types[eventType]
	if !ok {
		t = &EventTypeStats{Type: eventType, Status: map[Status]int64{}}
		types[eventType] = t
	}
	t.Status[status] += n
}

// sizeSQL estimates the table's rows as the planner does: its size now, with as many rows per page
// as the last analysis found.
const (
	sizeSQL = `
select case when c.reltuples < 0 or c.relpages = 0 then -1
            else c.reltuples / c.relpages * (pg_relation_size(c.oid) / current_setting('block_size')::int) end::bigint
  from pg_class c
 where c.oid = $1::text::regclass`

	finishedSQL = `
select event_type, status, count(*)
  from (select event_type, status
          from {schema}.outbox -- outbox_done
         where finished_at is not null
         limit $1) f
 group by event_type, status`

	graveyardSQL = `
select event_type, status, count(*)
  from (select event_type, status
          from {schema}.outbox -- outbox_graveyard
         where finished_at is not null
           and error_kind is not null
         limit $1) f
 group by event_type, status`

	// A share of the table's pages, in percent: the oldest or newest hundred thousand would not be
	// like the rest.
	sampleSQL = `
select event_type, status, count(*)
  from {schema}.outbox tablesample system ($1)
 where finished_at is not null
   and error_kind is not null
 group by event_type, status`
)

// finishedStats counts the finished rows if they are few. If not, it counts those that did not
// arrive, whose index is small, and leaves the rest of the table's estimated rows to delivered.
func (s *Store) finishedStats(ctx context.Context, tx pgx.Tx, types map[string]*EventTypeStats, st *Stats) error {
	var size int64
	if err := tx.QueryRow(ctx, sizeSQL, s.schema+".outbox").Scan(&size); err != nil {
		return err
	}
	finished := size - st.Status[Pending] - st.Status[InProgress]
	if finished <= exactUpTo {
		n, err := s.countFinished(ctx, tx, types, st, finishedSQL, exactUpTo+1, 1)
		if err != nil || n <= exactUpTo {
			return err
		}
		st.forgetFinished(types)
		finished = n // or more
	}
	st.Estimated = true
	buried, err := s.countFinished(ctx, tx, types, st, graveyardSQL, exactUpTo+1, 1)
	if err == nil && buried > exactUpTo && size > buried {
		st.forgetFinished(types)
		buried, err = s.countFinished(ctx, tx, types, st, sampleSQL, 100*exactUpTo/float64(size), float64(size)/exactUpTo)
	}
	st.Status[Delivered] = max(finished-buried, 0)
	return err
}

// countFinished adds up rows, each for as many as it stands for.
func (s *Store) countFinished(ctx context.Context, tx pgx.Tx, types map[string]*EventTypeStats, st *Stats, sql string, arg any, each float64) (total int64, err error) {
	rows, err := tx.Query(ctx, s.sql(sql), arg)
	if err != nil {
		return 0, err
	}
	var eventType string
	var status Status
	var n int64
	_, err = pgx.ForEachRow(rows, []any{&eventType, &status, &n}, func() error {
		n = int64(float64(n) * each)
		st.add(types, eventType, status, n)
		total += n
		return nil
	})
	return total, err
}

// forgetFinished undoes a count that turned out to be too large to be finished.
func (st *Stats) forgetFinished(types map[string]*EventTypeStats) {
	for _, status := range Statuses() {
		if status.Final() {
			st.Status[status] = 0
			for _, t := range types {
				delete(t.Status, status)
			}
		}
	}
}

const lagSQL = `
select coalesce(extract(epoch from now() - (
         select min(available_at)
           from {schema}.outbox -- outbox_lag
          where finished_at is null
            and available_at <= now())), 0)::float8`

func (s *Store) lagStats(ctx context.Context, tx pgx.Tx, types map[string]*EventTypeStats, st *Stats) error {
	for _, name := range slices.Sorted(maps.Keys(types)) {
		st.EventTypes = append(st.EventTypes, *types[name])
	}
	var seconds float64
	err := tx.QueryRow(ctx, s.sql(lagSQL)).Scan(&seconds)
	st.Lag = time.Duration(seconds * float64(time.Second))
	return err
}

// rateSQL weighs the oldest minute of a window with the part of it that is inside.
const rateSQL = `
select w.name,
       coalesce(sum(r.n * least(1, extract(epoch from r.minute + interval '1 minute' - (now() - w.span)) / 60)), 0)::float8
         / (extract(epoch from w.span) / 60)::float8
  from (values ('1m', interval '1 minute'), ('5m', interval '5 minutes'), ('15m', interval '15 minutes')) w(name, span)
  left join {schema}.outbox_rollup r -- outbox_rollup_pkey
    on r.minute > now() - w.span - interval '1 minute'
   and r.outcome = 'delivered'
 group by w.name, w.span`

func (s *Store) rateStats(ctx context.Context, tx pgx.Tx, _ map[string]*EventTypeStats, st *Stats) error {
	rows, err := tx.Query(ctx, s.sql(rateSQL))
	if err != nil {
		return err
	}
	var name string
	var rate float64
	_, err = pgx.ForEachRow(rows, []any{&name, &rate}, func() error {
		st.Rates[name] = rate
		return nil
	})
	return err
}

// answerSQL leaves out deliveries that a shutdown cut off: they say nothing about the destination.
const answerSQL = `
select error_kind, error_code, sum(n)::bigint
  from {schema}.outbox_rollup -- outbox_rollup_pkey
 where minute > now() - @window::bigint * interval '1 microsecond'
   and error_kind <> 'shutdown'
 group by error_kind, error_code
 order by 3 desc, 1, 2`

func (s *Store) answerStats(ctx context.Context, tx pgx.Tx, _ map[string]*EventTypeStats, st *Stats) error {
	rows, err := tx.Query(ctx, s.sql(answerSQL), pgx.NamedArgs{"window": st.Window.Microseconds()})
	if err != nil {
		return err
	}
	st.Answers, err = pgx.CollectRows(rows, pgx.RowToStructByPos[AnswerStats])
	for _, a := range st.Answers {
		st.Attempts += a.N
		if a.Kind != "" {
			st.Errors += a.N
		}
	}
	return err
}

const destinationSQL = `
with open as (
	select destination, count(*) as n
	  from {schema}.outbox -- outbox_due
	 where finished_at is null
	 group by destination)
select coalesce(open.destination, d.destination) as name, coalesce(d.ordering, 'none'), coalesce(d.breaker, 'closed'),
       nullif(d.paused_until, 'infinity'), coalesce(d.pause_reason, ''), coalesce(open.n, 0)
  from open
  full join {schema}.outbox_destinations d on d.destination = open.destination
 order by name`

func (s *Store) destinationStats(ctx context.Context, tx pgx.Tx, _ map[string]*EventTypeStats, st *Stats) error {
	rows, err := tx.Query(ctx, s.sql(destinationSQL))
	if err != nil {
		return err
	}
	st.Destinations, err = pgx.CollectRows(rows, pgx.RowToStructByPos[DestinationStats])
	return err
}

const dispatcherSQL = `
select name, host, pid, version, destinations, parallel, batch_size, now() - started_at, now() - seen_at
  from {schema}.outbox_workers
 where seen_at > now() - @dead_after::bigint * interval '1 microsecond'
 order by name, started_at`

func (s *Store) dispatcherStats(ctx context.Context, tx pgx.Tx, _ map[string]*EventTypeStats, st *Stats) error {
	rows, err := tx.Query(ctx, s.sql(dispatcherSQL), pgx.NamedArgs{"dead_after": DeadAfter.Microseconds()})
	if err != nil {
		return err
	}
	st.Dispatchers, err = pgx.CollectRows(rows, pgx.RowToStructByPos[DispatcherStats])
	return err
}

// DueCount counts due events of one type.
type DueCount struct {
	Type   string
	N      int64
	Oldest time.Duration // how long the oldest has been due
}

// dueSQL counts no more than @limit rows: a backlog is told, not measured.
const dueSQL = `
select event_type, count(*), max(now() - due)
  from (select o.event_type, coalesce(o.next_attempt_at, o.available_at) as due
          from {schema}.outbox o -- outbox_due
         where o.destination = @destination
           and o.finished_at is null
           and coalesce(o.next_attempt_at, o.available_at) <= now()
           and (o.lease_until is null or o.lease_until < now())/*types*//*tenants*/
         limit @limit) d
 group by event_type
 order by event_type`

// Due counts what a claim could take now from a destination, by event type, up to limit events.
func (s *Store) Due(ctx context.Context, destination string, only Selection, limit int) (counts []DueCount, err error) {
	err = s.inTx(ctx, statsLimits, func(tx pgx.Tx) error {
		args := only.args()
		args["destination"], args["limit"] = destination, limit
		rows, err := tx.Query(ctx, s.sql(only.narrow(dueSQL)), args)
		if err != nil {
			return err
		}
		counts, err = pgx.CollectRows(rows, pgx.RowToStructByPos[DueCount])
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("due: %w", err)
	}
	return counts, nil
}
