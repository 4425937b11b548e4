package outbox

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
)

// DestinationStats is one destination.
type DestinationStats struct {
	Depth       // Name "" = the default one
	Ordering    string
	Late        int64 // ever: events that were seen after a later one of their aggregate had been sent
	Breaker     string
	Paused      bool
	PausedUntil *time.Time // nil = until somebody resumes it
	Reason      string
	Tenants     []Paused // that are paused there, by name
	Served      bool     // by a dispatcher that is alive
	Tally                // of the attempts made in Stats.Window

	judged Load
}

// Load is what a destination has to do and has done.
type Load struct {
	Depth
	Tally
}

// Judged is the load without the copies that shadow routes made, which no alarm is about.
func (d *DestinationStats) Judged() *Load { return &d.judged }

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

const dispatcherSQL = `
select name, host, pid, version, destinations, parallel, batch_size, now() - started_at, greatest(now() - seen_at, interval '0')
  from {schema}.outbox_workers
 where seen_at > now() - @dead_after::bigint * interval '1 microsecond'
 order by name, started_at`

// Dispatchers lists those that are alive.
func (s *Store) Dispatchers(ctx context.Context) ([]DispatcherStats, error) {
	var st Stats
	err := s.inTx(ctx, statsLimits, func(tx pgx.Tx) error { return s.dispatcherStats(ctx, tx, Look{}, &st) })
	if err != nil {
		return nil, fmt.Errorf("dispatchers: %w", err)
	}
	return st.Dispatchers, nil
}

func (s *Store) dispatcherStats(ctx context.Context, tx pgx.Tx, _ Look, st *Stats) error {
	rows, err := tx.Query(ctx, s.sql(dispatcherSQL), pgx.NamedArgs{"dead_after": DeadAfter.Microseconds()})
	if err != nil {
		return err
	}
	st.Dispatchers, err = pgx.CollectRows(rows, pgx.RowToStructByPos[DispatcherStats])
	return err
}

const servesSQL = `
select exists (select
                 from {schema}.outbox_workers
                where seen_at > now() - @dead_after::bigint * interval '1 microsecond'
                  and @destination = any (destinations))`

// Serves reports whether a dispatcher that is alive delivers to the destination.
func (s *Store) Serves(ctx context.Context, destination string) (served bool, err error) {
	err = s.inTx(ctx, statsLimits, func(tx pgx.Tx) error {
		return tx.QueryRow(ctx, s.sql(servesSQL), pgx.NamedArgs{"destination": destination, "dead_after": DeadAfter.Microseconds()}).Scan(&served)
	})
	if err != nil {
		return false, fmt.Errorf("who serves %q: %w", destination, err)
	}
	return served, nil
}

// namedSQL finds the first destination by name, without a look at any other row.
const namedSQL = `
select coalesce((
	select destination
	  from {schema}.outbox -- outbox_due
	 where destination > ''
	   and finished_at is null
	 order by destination
	 limit 1), '')`

// Named returns a destination with a name that has open events, "" if there is none.
func (s *Store) Named(ctx context.Context) (name string, err error) {
	err = s.inTx(ctx, statsLimits, func(tx pgx.Tx) error { return tx.QueryRow(ctx, s.sql(namedSQL)).Scan(&name) })
	if err != nil {
		return "", fmt.Errorf("destinations with open events: %w", err)
	}
	return name, nil
}

const sharedSQL = `
select d.destination, d.ordering, coalesce(l.events, 0), d.breaker,
       coalesce(d.paused_until > now(), false), nullif(d.paused_until, 'infinity'), coalesce(d.pause_reason, '')
  from {schema}.outbox_destinations d
  left join {schema}.outbox_late l on l.destination = d.destination`

// sharedStats adds what the dispatchers of a destination share, and whether it has one.
func (s *Store) sharedStats(ctx context.Context, tx pgx.Tx, _ Look, st *Stats) error {
	rows, err := tx.Query(ctx, s.sql(sharedSQL))
	if err != nil {
		return err
	}
	var shared DestinationStats
	_, err = pgx.ForEachRow(rows, []any{&shared.Name, &shared.Ordering, &shared.Late, &shared.Breaker, &shared.Paused, &shared.PausedUntil, &shared.Reason}, func() error {
		d := st.destination(shared.Name)
		d.Ordering, d.Late, d.Breaker = shared.Ordering, shared.Late, shared.Breaker
		d.Paused, d.PausedUntil, d.Reason = shared.Paused, shared.PausedUntil, shared.Reason
		return nil
	})
	if err != nil {
		return err
	}
	pauses, err := s.pausesIn(ctx, tx, nil)
	for _, p := range pauses {
		if p.Tenant != "" {
			d := st.destination(p.Destination)
			d.Tenants = append(d.Tenants, p)
		}
	}
	return err
}

// destination returns the one of that name, which is added if need be. The pointer is good until the
// next call.
func (st *Stats) destination(name string) *DestinationStats {
	i := slices.IndexFunc(st.Destinations, func(d DestinationStats) bool { return d.Name == name })
	if i < 0 {
		i = len(st.Destinations)
		st.Destinations = append(st.Destinations, DestinationStats{Depth: Depth{Name: name, Status: map[Status]int64{}}})
	}
	d := &st.Destinations[i]
	d.Ordering, d.Breaker = cmp.Or(d.Ordering, "none"), cmp.Or(d.Breaker, "closed")
	return d
}

// finish puts together what the parts have found out.
func (st *Stats) finish(top int) {
	served := map[string]bool{}
	for _, d := range st.Dispatchers {
		for _, name := range d.Destinations {
			served[name] = true
		}
	}
	for i := range st.Destinations {
		d := st.destination(st.Destinations[i].Name)
		d.Served = served[d.Name]
	}
	slices.SortStableFunc(st.Destinations, func(a, b DestinationStats) int {
		return cmp.Or(cmp.Compare(b.Open(), a.Open()), cmp.Compare(b.Attempts, a.Attempts), cmp.Compare(a.Name, b.Name))
	})
	st.Unlisted = max(len(st.Destinations)-top, 0)
	st.Destinations = st.Destinations[:len(st.Destinations)-st.Unlisted]
}

// Patience is how long events may be due with nobody to deliver them before that is worth a word:
// cron comes once a minute.
const Patience = 2 * time.Minute

// Unserved are the destinations with events that have been due for longer than [Patience] and that no
// dispatcher alive delivers to, nor has anybody paused them. Shadow copies are left out.
func (st *Stats) Unserved() (all []DestinationStats) {
	for _, d := range st.Destinations {
		if d.Depth = d.judged.Depth; !d.Served && !d.Paused && d.OldestDue > Patience {
			all = append(all, d)
		}
	}
	return all
}
