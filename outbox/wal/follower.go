// Package wal hears of news in PostgreSQL's log. A temporary logical slot on a publication of inserts
// says which destinations have some, at no cost to producers. The rows stay the only truth: what a
// follower misses costs time and never an event, and so it keeps no position.
package wal

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// Follower hears which destinations have news, as outbox.Listener does.
type Follower struct {
	// Connect makes a session of its own with replication=database, past any pooler.
	Connect func(context.Context) (*pgconn.PgConn, error)
	Schema  string // of the outbox

	// News is told a destination that has news, and with all that any may have some: the session is
	// new, and what came before it was not heard. It must not block.
	News func(destination string, all bool)

	Trouble   func(error) // nothing is heard; once per outage, and for each [Refusal]
	Recovered func()      // it is again
}

// The pauses between sessions: after one that was lost, and longer after a refusal, which lasts until
// somebody changes something.
const (
	firstReconnect = 100 * time.Millisecond
	lastReconnect  = 2 * time.Second
	lastRefusal    = 30 * time.Second
)

// lost is what was told of an outage that is no refusal.
const lost = "lost"

// Follow follows the log until ctx is done, and begins a new session whenever one ends.
func (f *Follower) Follow(ctx context.Context) {
	pause, told := firstReconnect, ""
	for ctx.Err() == nil {
		heard, err := f.hear(ctx, told != "")
		if ctx.Err() != nil {
			return
		}
		if heard {
			pause, told = firstReconnect, ""
		}
		why, longest := lost, lastReconnect
		if refusal, ok := errors.AsType[*Refusal](err); ok {
			why, longest = refusal.Error(), lastRefusal
		}
		if why != told {
			f.Trouble(err)
			told = why
		}
		if wait(ctx, jittered(min(pause, longest))) != nil {
			return
		}
		pause = min(2*pause, longest)
	}
}

// hear follows in one session until that fails; heard says that it was there at all.
func (f *Follower) hear(ctx context.Context, again bool) (heard bool, err error) {
	conn, err := f.Connect(ctx)
	if err != nil {
		return false, refused(err)
	}
	defer hangUp(ctx, conn)
	s := &stream{conn: conn, schema: f.Schema, news: f.News, columns: map[uint32]int{}, told: map[string]bool{}}
	if err := s.open(ctx); err != nil {
		return false, refused(err)
	}
	if again {
		f.Recovered()
	}
	f.News("", true)
	return true, refused(s.follow(ctx))
}

// hangUp ends the session, and the slot with it.
func hangUp(ctx context.Context, conn *pgconn.PgConn) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_ = conn.Close(ctx)
}

func wait(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

// jittered is d give or take a fifth.
func jittered(d time.Duration) time.Duration {
	return time.Duration(float64(d) * (0.8 + 0.4*rand.Float64()))
}
