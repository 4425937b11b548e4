package outbox

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"
)

// Ear is who hears of news over a session: what [Listener] and wal.Follower have in common. What it
// misses costs time and never an event: polling goes on beside it.
type Ear struct {
	// News is told a destination that has news, and with all that any may have some: the session is
	// new, and what came before it was not heard. It must not block.
	News func(destination string, all bool)

	Trouble   func(error) // nothing is heard; once per outage, and for each [Refusal]
	Recovered func()      // it is again
}

// Refusal is what keeps news from being heard until somebody changes that: what is missing, and how
// to get it.
type Refusal struct{ Why string }

// Error is one line.
func (r *Refusal) Error() string { return r.Why }

// The pauses between sessions, 100ms, 200ms, 400ms … 2s: after one that was lost, and longer after a
// refusal, which lasts until somebody changes something.
const (
	firstReconnect = 100 * time.Millisecond
	lastReconnect  = 2 * time.Second
	lastRefusal    = 30 * time.Second
)

// lost is what was told of an outage that is no refusal.
const lost = "lost"

// Keep holds one session after the other until ctx is done. A session calls begun once it hears, and
// returns when it does no more.
func (e *Ear) Keep(ctx context.Context, session func(ctx context.Context, begun func()) error) {
	pause, told := firstReconnect, ""
	begun := func() {
		if told != "" {
			e.Recovered()
		}
		pause, told = firstReconnect, ""
		e.News("", true)
	}
	for {
		err := session(ctx, begun)
		if ctx.Err() != nil {
			return
		}
		why, longest := lost, lastReconnect
		if refusal, ok := errors.AsType[*Refusal](err); ok {
			why, longest = refusal.Why, lastRefusal
		}
		if why != told {
			e.Trouble(err)
			told = why
		}
		if wait(ctx, jittered(min(pause, longest), 0.2, rand.Float64())) != nil {
			return
		}
		pause = min(2*pause, longest)
	}
}
