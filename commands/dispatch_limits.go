package commands

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/pflag"

	"github.com/outboxctl/outboxctl/outbox"
	"github.com/outboxctl/outboxctl/outbox/gate"
)

// limitFlags are the settings of a destination that bound what it gets.
func (d *destination) limitFlags(fs *pflag.FlagSet) {
	d.share, d.cooldown = 0.2, durationValue(30*time.Second)
	fs.Var(&d.rate, "rate", "requests at most: 100/s, 600/m, 1000/h")
	fs.IntVar(&d.tenant, "tenant-parallel", 0, "`number` of one tenant's events claimed and not yet answered, at most")
	fs.Var(&d.tenantsBy, "tenant-rate", "requests of one tenant at most, like --rate")
	fs.Var(&d.share, "retry-share", "`share` of --parallel that retries may take while fresh events wait; one at least")
	fs.IntVar(&d.breaker, "breaker", 0, "after this `number` of failures in a row send nothing for a while")
	fs.Var(&d.cooldown, "breaker-cooldown", "how long; then one event is tried")
}

// limits are what bounds a destination beside batch_size and parallel.
func (d *destination) limits() gate.Limits {
	return gate.Limits{
		Rate: float64(d.rate),
		Tenants: gate.TenantLimits{
			TenantLimit: gate.TenantLimit{Parallel: d.tenant, Rate: float64(d.tenantsBy)},
			Overrides:   d.tenants,
		},
		RetryShare: float64(d.share),
		Parallel:   min(d.parallel, d.batchSize),
		Breaker:    gate.Breaker{Failures: d.breaker, Ratio: float64(d.ratio), Cooldown: time.Duration(d.cooldown)},
	}
}

// guard puts the limits and pauses of a destination before its loop. The board is to live as long as the
// loop; what is paused now is known before that begins.
func (r *dispatchRun) guard(ctx context.Context, db *pgxpool.Pool, s *served, d *outbox.Dispatcher) (*outbox.Board, error) {
	board := outbox.NewStore(db, r.global.schema).Board(s.name, time.Duration(r.o.pollInterval))
	board.Trouble = func(err error) {
		if !unreachable(err) { // else the loop tells
			r.logOf(s).Error("the breaker or a pause is not kept for others to see", "error", oneLine(explainPostgres(err).Error()))
		}
	}
	if err := r.firstLook(ctx, board, s); err != nil {
		return nil, err
	}
	limits := s.limits()
	d.Gate = gate.New(limits, func(c gate.Change) { r.breakerChanged(board, s, c) })
	d.Standings = board.Standings()
	d.Observer.Asked = board.Ask
	var before outbox.Standing
	d.Observer.Stands = func(now outbox.Standing) { tellStanding(r.logOf(s), before, now); before = now }
	if limits.Breaker.Failures > 0 || limits.Breaker.Ratio > 0 {
		board.Breaker(string(gate.Closed)) // a process that is gone may have left it open
	}
	return board, nil
}

// firstLook learns what is paused. As ever, --once does not wait for a PostgreSQL that goes away.
func (r *dispatchRun) firstLook(ctx context.Context, board *outbox.Board, s *served) error {
	for tries := 0; ; tries++ {
		err := board.Look(ctx)
		if err == nil && tries > 0 {
			r.mu.Lock()
			r.recovered(s)
			r.mu.Unlock()
		}
		if err == nil || r.o.once || !unreachable(err) {
			return err
		}
		if tries == 0 {
			r.mu.Lock()
			r.trouble(s, err)
			r.mu.Unlock()
		}
		select {
		case <-ctx.Done():
			return nil // the loop ends before it has begun
		case <-time.After(time.Second):
		}
	}
}

func (r *dispatchRun) breakerChanged(board *outbox.Board, s *served, c gate.Change) {
	board.Breaker(string(c.To))
	log := r.logOf(s)
	switch c.To {
	case gate.Open:
		log.Warn("breaker open, nothing is sent", "for", lasting(c.For), "error", c.Failure)
	case gate.HalfOpen:
		log.Info("breaker half open, one event is tried")
	default:
		log.Info("breaker closed, events are sent again")
	}
}

// tellStanding tells which pauses have begun or ended.
func tellStanding(log *slog.Logger, before, now outbox.Standing) {
	switch {
	case now.For > 0 && (before.For == 0 || before.Reason != now.Reason || (before.For == outbox.Forever) != (now.For == outbox.Forever)):
		log.LogAttrs(context.Background(), slog.LevelWarn, "paused", slog.String("for", lasting(now.For)), slog.String("reason", now.Reason))
	case now.For == 0 && before.For > 0:
		log.Info("resumed")
	}
	for _, tenant := range slices.Sorted(maps.Keys(now.Tenants)) {
		if _, known := before.Tenants[tenant]; !known {
			log.Warn("tenant paused", "tenant", tenant, "for", lasting(now.Tenants[tenant]))
		}
	}
	for _, tenant := range slices.Sorted(maps.Keys(before.Tenants)) {
		if _, still := now.Tenants[tenant]; !still {
			log.Info("tenant resumed", "tenant", tenant)
		}
	}
}

// lasting says how long a pause lasts.
func lasting(d time.Duration) string {
	if d == outbox.Forever {
		return "until resumed"
	}
	return printDuration(d.Round(time.Second))
}
