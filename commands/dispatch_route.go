package commands

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxctl/outboxctl/migrate"
	"github.com/outboxctl/outboxctl/outbox"
)

const (
	routeBatch   = 1000                   // events looked at in one transaction
	routeBusy    = 100 * time.Millisecond // with --once: between looks at another process's router
	routesOption = "routes"
)

// hasRoutes reports whether the file says what events go where.
func (r *dispatchRun) hasRoutes() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.file != nil && len(r.file.routes) > 0
}

// routeList are the routes as the core wants them.
func (f *configFile) routeList() (all outbox.Routes) {
	for _, route := range f.routes {
		all = append(all, route.route)
	}
	return all
}

// route gives events their destinations for as long as the run takes new work. Any number of
// processes do; one of them at a time gets a turn.
func (r *dispatchRun) route(ctx context.Context, db *pgxpool.Pool, f *fleet) {
	if r.hasRoutes() {
		r.checkIndex(ctx, db)
	}
	told := ""
	step := r.routeStep(db, f)
	outbox.Follow(ctx, func(ctx context.Context, limit int) (int, error) {
		n, err := step(ctx, limit)
		if errors.Is(err, outbox.ErrBusy) { // another process routes
			return 0, nil
		}
		if err == nil {
			told = ""
		}
		return n, err
	}, routeBatch, time.Duration(r.o.pollInterval), f.wake.of(""), func(err error) {
		if why := oneLine(explainPostgres(err).Error()); why != told {
			told = why
			r.log.Error("events are not routed, trying again", "error", why)
		}
	})
}

// routeStep is a step of the router by the routes of now. After they have changed, what no route
// wanted before is looked at again.
func (r *dispatchRun) routeStep(db *pgxpool.Pool, f *fleet) outbox.Step {
	router := outbox.NewStore(db, r.global.schema).Router(nil)
	router.Routed = f.wake.some
	var file *configFile
	review := false
	return func(ctx context.Context, limit int) (n int, err error) {
		r.mu.Lock()
		now := r.file
		r.mu.Unlock()
		if now != file {
			file, review = now, true
			router.Routes = file.routeList()
		}
		if len(router.Routes) == 0 {
			return 0, nil
		}
		if review {
			if n, err = router.Review(ctx, limit); n > 0 || err != nil {
				return n, err
			}
			review = false
		}
		return router.Step(ctx, limit)
	}
}

// routeAll routes until nothing waits for it, also while another process's router is at work.
func (r *dispatchRun) routeAll(ctx context.Context, db *pgxpool.Pool, f *fleet) error {
	r.checkIndex(ctx, db)
	step := r.routeStep(db, f)
	for {
		err := outbox.Drain(ctx, step, outbox.Pace{Batch: routeBatch}, nil)
		if !errors.Is(err, outbox.ErrBusy) {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(routeBusy):
		}
	}
}

// checkIndex warns of what makes routing slow. It looks once.
func (r *dispatchRun) checkIndex(ctx context.Context, db *pgxpool.Pool) {
	if options, err := migrate.New(db, r.global.schema).Present(ctx); err == nil && !slices.Contains(options, routesOption) {
		r.log.Warn("a large backlog is routed slowly without its index: outboxctl migrate --with routes")
	}
}
