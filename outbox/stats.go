package outbox

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

var statsLimits = limits{statement: 10 * time.Second, lock: time.Second, reads: true}

// Look says what [Store.Stats] is to look at.
type Look struct {
	Window time.Duration // of attempts and answers; > 0
	Top    int           // names of each kind at most, those with the most open events first; ≥ 1
}

// Stats is the outbox at one moment, by the database's clock.
type Stats struct {
	Depth                       // of all events; shadow copies count under their destination alone
	Estimated     bool          // the delivered are an estimate from the table's size
	OpenEstimated bool          // the open ones are, too: there are more than half a million
	Lag           time.Duration // age of the oldest event that is past its available_at and not finished
	Unrouted      int64         // looked at by a router and matched by nothing
	EventTypes    Ranking
	Tenants       Ranking
	Destinations  []DestinationStats // those with open events, a known state or attempts in Window; at most Top
	Unlisted      int                // further destinations
	Dispatchers   []DispatcherStats  // alive

	Delivered     map[string]float64 // per minute over "1m", "5m", "15m"
	Created       map[string]float64 // events per minute, likewise
	LastDelivered time.Duration      // since the minute of the last delivery; < 0 = none within a day
	Buried        map[Status]int64   // failed and dead_letter, in the last hour
	Window        time.Duration
	Tally               // of the attempts made in Window
	Tries         Tries // of these
	Database      DatabaseStats

	shadows          Depth   // of all shadow copies
	shadowsDelivered float64 // of them, per minute over "5m"
}

func share(part, whole int64) float64 {
	if whole == 0 {
		return 0
	}
	return float64(part) / float64(whole)
}

// Stats looks at open events through the partial indexes and takes rates from the rollup; of the
// finished rows it counts at most a hundred thousand. It changes nothing.
func (s *Store) Stats(ctx context.Context, look Look) (*Stats, error) {
	st := &Stats{Window: look.Window}
	err := s.look(ctx, "stats", func(tx pgx.Tx) error {
		for _, part := range []func(context.Context, pgx.Tx, Look, *Stats) error{
			s.depthStats, s.lagStats, s.rateStats, s.createdStats, s.lastStats, s.buriedStats,
			s.dispatcherStats, s.sharedStats, s.attemptStats, s.databaseStats, s.slotStats,
		} {
			if err := part(ctx, tx, look, st); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	st.finish(look.Top)
	return st, nil
}

// byIndexSQL keeps the planner from reading the table from its start, in the hope of the rows that
// are wanted: the newest are at its end. byPageSQL does so for what reads many rows, which it reads in
// the order that they are stored in. Neither takes others' cores for it.
const (
	byIndexSQL = `
select pg_catalog.set_config('enable_seqscan', 'off', true),
       pg_catalog.set_config('enable_indexscan', 'on', true),
       pg_catalog.set_config('max_parallel_workers_per_gather', '0', true)`

	byPageSQL = `
select pg_catalog.set_config('enable_seqscan', 'off', true),
       pg_catalog.set_config('enable_indexscan', 'off', true),
       pg_catalog.set_config('max_parallel_workers_per_gather', '0', true)`
)

const lagSQL = `
select coalesce(extract(epoch from now() - (
         select min(available_at)
           from {schema}.outbox -- outbox_lag
          where finished_at is null
            and available_at <= now()
            and origin not like 'shadow%')), 0)::float8`

func (s *Store) lagStats(ctx context.Context, tx pgx.Tx, _ Look, st *Stats) error {
	var lag float64
	err := tx.QueryRow(ctx, s.sql(lagSQL)).Scan(&lag)
	st.Lag = seconds(lag)
	return err
}

// seconds is a duration of PostgreSQL's, which has no days or months then.
func seconds(n float64) time.Duration { return time.Duration(n * float64(time.Second)) }
