package outbox

import (
	"context"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// Canary sends a replay's events in waves, and the next one only if the one before it arrived.
type Canary struct {
	Waves      []int         // events in each; what is left follows the last one
	MinSuccess float64       // the share of a wave that must be delivered, 0..1
	Timeout    time.Duration // for a wave's outcome, from when its last event is due
	Tell       func(Wave)    // at the begin of a wave, and at its end
}

// Wave is what became of one so far.
type Wave struct {
	N, Of     int      // this one of so many
	Events    int      // in it
	Delivered int      // of these
	Ended     int      // failed, dead letters, discarded
	Open      int      // neither
	Unserved  []string // destinations of open events for which no dispatcher is alive
	Paused    []string // destinations of open events that are paused, for some tenant at least
	Over      bool     // its outcome is known, or was waited for long enough
}

// CanaryError means that a wave did not arrive. It is an [ErrGaveUp].
type CanaryError struct {
	Wave
	MinSuccess float64
	Timeout    time.Duration
}

func (e *CanaryError) Unwrap() error { return ErrGaveUp }

func (e *CanaryError) Error() string {
	var why []string
	if e.Ended > 0 {
		why = append(why, fmt.Sprintf("%d failed", e.Ended))
	}
	if e.Open > 0 && e.Ended == 0 {
		why = append(why, fmt.Sprintf("%d without an outcome after %s", e.Open, e.Timeout))
	}
	if len(e.Unserved) > 0 {
		why = append(why, "nobody delivers to "+strings.Join(e.Unserved, ", "))
	}
	if len(e.Paused) > 0 {
		why = append(why, "paused: "+strings.Join(e.Paused, ", "))
	}
	return fmt.Sprintf("wave %d of %d: %d of %d delivered, at least %.4g %% must be: %s",
		e.N, e.Of, e.Delivered, e.Events, 100*e.MinSuccess, strings.Join(why, "; "))
}

// InWaves makes the change for run. It returns a [CanaryError] after a wave of which too little
// arrived, and leaves the rest as it is.
func (c *Change) InWaves(ctx context.Context, run *Run, canary Canary, pace Pace, seen func(n int)) error {
	for i, size := range canary.Waves {
		sent, err := c.send(ctx, run, i+1, size, pace, seen)
		if err != nil || len(sent) == 0 {
			return err
		}
		if err := c.await(ctx, run, canary, i+1, sent); err != nil {
			return err
		}
		if len(sent) < size { // there are no more
			return nil
		}
	}
	if err := c.turn(ctx, run, 0); err != nil {
		return err
	}
	return Drain(ctx, c.Step(run), pace, seen)
}

// send makes a wave and returns its events.
func (c *Change) send(ctx context.Context, run *Run, n, size int, pace Pace, seen func(n int)) ([]int64, error) {
	if err := c.turn(ctx, run, n); err != nil {
		return nil, err
	}
	c.until = run.Progress.Done + int64(size)
	defer func() { c.until = 0 }()
	if err := Drain(ctx, c.Step(run), pace, seen); err != nil {
		return nil, err
	}
	var at cursor
	err := run.Progress.at(&at)
	return at.Sent, err
}

// turn notes in the operation's row that a wave begins, or with 0 that there are no more.
func (c *Change) turn(ctx context.Context, run *Run, wave int) error {
	one := 1
	_, err := patiently(ctx, func(ctx context.Context, _ int) (int, error) {
		return run.step(ctx, func(_ pgx.Tx, p *Progress) (int, error) {
			var at cursor
			if err := p.at(&at); err != nil {
				return 0, err
			}
			at.Wave, at.Sent = wave, nil
			return 1, p.move(at)
		})
	}, &one)
	return err
}

// await waits for the outcome of a wave. Events that are tried again and again are not delivered yet.
func (c *Change) await(ctx context.Context, run *Run, canary Canary, n int, sent []int64) error {
	wave := Wave{N: n, Of: len(canary.Waves)}
	deadline := time.Now().Add(canary.Timeout)
	for pause := 100 * time.Millisecond; ; pause = min(2*pause, 2*time.Second) {
		spread, err := c.look(ctx, sent, &wave)
		if err != nil {
			return err
		}
		if pause == 100*time.Millisecond {
			deadline = deadline.Add(spread)
			canary.tell(wave)
		}
		needed := int(math.Ceil(canary.MinSuccess*float64(wave.Events) - 1e-9))
		hopeless := wave.Ended > wave.Events-needed
		if wave.Over = hopeless || wave.Open == 0 || !time.Now().Before(deadline); wave.Over {
			canary.tell(wave)
			if wave.Delivered < needed {
				return &CanaryError{wave, canary.MinSuccess, canary.Timeout}
			}
			return nil
		}
		if wait(ctx, pause) != nil {
			return context.Cause(ctx)
		}
	}
}

func (c Canary) tell(w Wave) {
	if c.Tell != nil {
		c.Tell(w)
	}
}

// waveSQL also says for how long the last open event is not due yet.
const waveSQL = `
with wave as materialized (
	select status, finished_at, destination, tenant_id, available_at
	  from {schema}.outbox -- outbox_pkey
	 where id = any (@ids::bigint[]))
select count(*),
       count(*) filter (where status = 'delivered'),
       count(*) filter (where finished_at is not null and status <> 'delivered'),
       count(*) filter (where finished_at is null),
       coalesce(extract(epoch from max(available_at) filter (where finished_at is null) - now()), 0)::float8,
       array (select distinct o.destination
                from wave o
               where o.finished_at is null
                 and not exists (select
                                   from {schema}.outbox_workers w
                                  where w.seen_at > now() - @dead_after::bigint * interval '1 microsecond'
                                    and o.destination = any (w.destinations))
               order by o.destination),
       array (select distinct o.destination
                from wave o
               where o.finished_at is null
                 and (exists (select
                                from {schema}.outbox_destinations d
                               where d.destination = o.destination
                                 and d.paused_until > now())
                   or exists (select
                                from {schema}.outbox_tenant_pauses p
                               where p.destination = o.destination
                                 and p.tenant_id = o.tenant_id
                                 and p.paused_until > now()))
               order by o.destination)
  from wave`

// look counts what became of a wave and returns how long it is until its last event is due.
func (c *Change) look(ctx context.Context, sent []int64, w *Wave) (spread time.Duration, err error) {
	one := 1
	_, err = patiently(ctx, func(ctx context.Context, _ int) (int, error) {
		var seconds float64
		err := c.store.inTx(ctx, statsLimits, func(tx pgx.Tx) error {
			return tx.QueryRow(ctx, c.store.sql(waveSQL), pgx.NamedArgs{"ids": sent, "dead_after": DeadAfter.Microseconds()}).
				Scan(&w.Events, &w.Delivered, &w.Ended, &w.Open, &seconds, &w.Unserved, &w.Paused)
		})
		spread = time.Duration(max(seconds, 0) * float64(time.Second))
		return 1, err
	}, &one)
	if err != nil {
		return 0, fmt.Errorf("wave %d: %w", w.N, err)
	}
	return spread, nil
}
