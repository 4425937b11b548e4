package commands

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxctl/outboxctl/outbox"
)

// verdict is the exit of a run that came to its end.
func (r *dispatchRun) verdict(ctx context.Context, db *pgxpool.Pool, f *fleet) error {
	died, err := f.sum()
	switch {
	case r.kill.Err() != nil:
		return context.Cause(r.kill)
	case err != nil:
		return err
	case errors.Is(context.Cause(ctx), errNoReader):
		return errNoReader
	case died > 0 && r.o.once:
		return quietly(exitAttention)
	}
	if why := r.leftBehind(ctx, db, f); why != "" {
		r.log.Warn("work is left: " + why)
		return quietly(exitAttention)
	}
	return nil
}

const limited = "stopped by --max-duration or --max-events"

// leftBehind says why the run ended with work that it could have done, "" if there is none. The copies
// of shadow routes are nobody's work. A run that cannot look has said so before.
func (r *dispatchRun) leftBehind(ctx context.Context, db *pgxpool.Pool, f *fleet) string {
	store := outbox.NewStore(db, r.global.schema)
	ended := errors.Is(context.Cause(ctx), errMaxDuration)
	ctx = context.WithoutCancel(ctx)
	loops := f.ended
	if len(loops) == 0 { // it ended before there were any
		for _, s := range r.served {
			loops = append(loops, &serving{served: s})
		}
	}
	for _, l := range loops {
		why := l.summary.Held
		switch {
		case why != "" && l.key != "":
			why = l.shown() + ": " + why
		case why == "" && (ended || r.o.maxEvents > 0 && l.summary.Sent >= r.o.maxEvents):
			why = limited
		}
		if why == "" {
			continue
		}
		if waits, _ := store.Waits(ctx, l.name, r.o.only); waits {
			return why
		}
	}
	if ended && r.hasRoutes() {
		if waits, _ := store.Router(nil).Waits(ctx); waits {
			return limited
		}
	}
	return ""
}
