package commands

import (
	"context"
	"os"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxctl/outboxctl/outbox"
)

// besideEvery is the time between looks at who else is at work: of two that are in each other's way
// both say so, whoever began first.
const besideEvery = 10 * time.Second

// lookBeside warns of what this run is not alone with, for as long as it takes new work. What keeps
// it from looking it leaves to those who deliver.
func (r *dispatchRun) lookBeside(ctx context.Context, db *pgxpool.Pool) {
	store := outbox.NewStore(db, r.global.schema)
	r.checkNamed(ctx, store)
	for rival := ""; ; {
		rival = r.checkRivals(ctx, store, rival)
		if r.o.once {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(besideEvery):
		}
	}
}

// checkNamed warns a run that serves nothing but events without a destination of those that have one.
func (r *dispatchRun) checkNamed(ctx context.Context, store *outbox.Store) {
	if r.hasRoutes() || len(r.served) != 1 || r.served[0].name != "" {
		return
	}
	if name, _ := store.Named(ctx); name != "" {
		r.log.Warn("open events of destinations with names stay as they are: serve them with dispatch --config, or move them with replay --move-to default",
			"first", name)
	}
}

// checkRivals warns when another dispatcher wants the same events: one routes those without a
// destination, one delivers them as they are. It returns who, for the next look to be silent about.
func (r *dispatchRun) checkRivals(ctx context.Context, store *outbox.Store, told string) string {
	alive, err := store.Dispatchers(ctx)
	if err != nil {
		return told
	}
	routes := r.hasRoutes()
	i := slices.IndexFunc(alive, func(d outbox.DispatcherStats) bool {
		return slices.Contains(d.Destinations, "") == routes && !r.isThis(d)
	})
	if i < 0 {
		return ""
	}
	rival := alive[i]
	switch {
	case told != "":
	case routes:
		r.log.Warn("another dispatcher takes events before they are routed: it serves those without a destination",
			"worker", rival.Name, "host", rival.Host)
	default:
		r.log.Warn("another dispatcher routes the events that this one serves: run one or the other",
			"worker", rival.Name, "host", rival.Host)
	}
	return rival.Name
}

func (r *dispatchRun) isThis(d outbox.DispatcherStats) bool {
	return d.Name == r.worker() && d.Host == hostName() && d.PID == os.Getpid()
}
