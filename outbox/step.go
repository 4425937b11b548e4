package outbox

import (
	"cmp"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"golang.org/x/time/rate"
)

// Step does a piece of an operator's work, about limit events, in a short transaction of its own,
// and returns how many it has looked at; none means that nothing is left. A step that failed has
// changed nothing, or has kept in the database how far it came: it may be repeated.
type Step func(ctx context.Context, limit int) (n int, err error)

// Pace bounds how fast [Drain] goes. Parts that are zero bound nothing.
type Pace struct {
	Batch int           // events in a step; 0 = 1,000
	Rate  float64       // events per second
	Pause time.Duration // between steps
	Share float64       // of the time that steps may take, 0 to 1: who works beside them has the rest

	// Ready waits until the next step may begin; nil does not.
	Ready func(ctx context.Context) error
}

const (
	defaultBatch = 1000
	maxTries     = 8 // of one step, over about ten seconds
)

// Drain repeats a step until nothing is left, and tells seen, which may be nil, after each. It ends
// between two steps with the cause of ctx when that is done. A step that met a deadlock, a lock or a
// lost connection is tried again; one that ran out of time, with half as many events.
func Drain(ctx context.Context, step Step, pace Pace, seen func(n int)) error {
	batch := pace.Batch
	if batch <= 0 {
		batch = defaultBatch
	}
	bucket := rate.NewLimiter(rate.Inf, 0)
	if pace.Rate > 0 {
		batch = min(batch, max(int(pace.Rate), 1))
		bucket = rate.NewLimiter(rate.Limit(pace.Rate), batch)
	}
	for {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		if pace.Ready != nil {
			if err := pace.Ready(ctx); err != nil {
				return cmp.Or(context.Cause(ctx), err)
			}
		}
		began := time.Now()
		n, err := patiently(ctx, step, &batch)
		if n == 0 || err != nil {
			return err
		}
		if seen != nil {
			seen(n)
		}
		if err := rest(ctx, bucket, min(n, batch), pace.Pause+pace.leave(time.Since(began))); err != nil {
			return context.Cause(ctx)
		}
	}
}

// leave is the rest after a step that took a time. It is longer where steps are slow, because others
// are busy.
func (p Pace) leave(took time.Duration) time.Duration {
	if p.Share <= 0 {
		return 0
	}
	return time.Duration(float64(took) * (1/p.Share - 1))
}

// firstIdle is the wait after a step that found nothing; it doubles up to the idle one.
const firstIdle = 10 * time.Millisecond

// Follow repeats a step until ctx is done: at once while there is work, and else after a wait that
// grows up to idle, give or take a tenth, or when woken. What goes wrong it tells trouble, and goes on.
func Follow(ctx context.Context, step Step, batch int, idle time.Duration, woken <-chan struct{}, trouble func(error)) {
	pause := firstIdle
	for ctx.Err() == nil {
		n, err := step(context.WithoutCancel(ctx), batch)
		if err != nil {
			trouble(err)
		}
		if n > 0 {
			pause = firstIdle
			continue
		}
		select {
		case <-ctx.Done():
		case <-woken:
			pause = firstIdle
		case <-time.After(jittered(pause, 0.1, rand.Float64())):
			pause = min(2*pause, idle)
		}
	}
}

// patiently makes a step, again and again where that can help. The step itself is not cut off: it is
// short, and what it has begun is better whole.
func patiently(ctx context.Context, step Step, batch *int) (n int, err error) {
	for try := range maxTries {
		if n, err = step(context.WithoutCancel(ctx), *batch); err == nil || !passing(err) {
			return n, err
		}
		if timedOut(err) {
			*batch = max(*batch/2, 1)
		}
		if wait(ctx, min(100*time.Millisecond<<try, 2*time.Second)) != nil {
			return 0, context.Cause(ctx)
		}
	}
	return n, err
}

// rest waits until the next step may begin.
func rest(ctx context.Context, bucket *rate.Limiter, n int, pause time.Duration) error {
	if bucket.Limit() != rate.Inf {
		if err := bucket.WaitN(ctx, n); err != nil {
			return err
		}
	}
	return wait(ctx, pause)
}

// wait returns early, with an error, when ctx is done.
func wait(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

// PostgreSQL's codes for what the same statement may not meet a moment later.
const (
	queryCanceled    = "57014"
	deadlockDetected = "40P01"
	serialization    = "40001"
)

// passing reports whether err may be gone at the next try: somebody else's lock, a connection.
func passing(err error) bool {
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		switch pg.Code {
		case queryCanceled, deadlockDetected, serialization, lockNotAvailable:
			return true
		}
		return strings.HasPrefix(pg.Code, "08") || strings.HasPrefix(pg.Code, "57P")
	}
	_, isNet := errors.AsType[net.Error](err)
	return isNet || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || pgconn.SafeToRetry(err)
}

func timedOut(err error) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return ok && pg.Code == queryCanceled
}
