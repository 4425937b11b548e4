package outbox

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"
)

// Listener hears which destinations have news, so that their loops need not wait for the next poll.
// What it misses costs time and never an event: polling goes on beside it.
type Listener struct {
	Connect func(context.Context) (*pgx.Conn, error) // a session of its own, past any pooler
	Channel string                                   // see [Store.Channel]

	// News is told a destination that has news, and with all that any may have some: the connection is
	// new, and what came before it was not heard. It must not block.
	News func(destination string, all bool)

	Trouble   func(error) // the connection failed; once per outage
	Recovered func()      // it is there again
}

// The rhythm of a listener: a connection over which nothing came for quiet is asked, and has as long
// again to answer. So one that is half open is noticed within ten seconds.
const (
	quiet          = 5 * time.Second
	firstReconnect = 100 * time.Millisecond
	lastReconnect  = 2 * time.Second
)

// Listen listens until ctx is done, and connects anew whenever the connection is lost.
func (l *Listener) Listen(ctx context.Context) {
	pause, told := firstReconnect, false
	for ctx.Err() == nil {
		heard, err := l.hear(ctx, told)
		if ctx.Err() != nil {
			return
		}
		if heard {
			pause, told = firstReconnect, false
		}
		if !told {
			l.Trouble(err)
			told = true
		}
		if wait(ctx, jittered(pause, 0.2, rand.Float64())) != nil {
			return
		}
		pause = min(2*pause, lastReconnect)
	}
}

// hear listens on one connection until that fails; heard says that it was there at all.
func (l *Listener) hear(ctx context.Context, again bool) (heard bool, err error) {
	conn, err := l.Connect(ctx)
	if err != nil {
		return false, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if _, err := conn.Exec(ctx, "listen "+l.Channel); err != nil { // hex digits
		return false, fmt.Errorf("listen: %w", err)
	}
	if again {
		l.Recovered()
	}
	l.News("", true)
	for {
		if err := l.next(ctx, conn); err != nil {
			return true, err
		}
	}
}

// next waits for a notification, or makes sure that one could come.
func (l *Listener) next(ctx context.Context, conn *pgx.Conn) error {
	waiting, cancel := context.WithTimeout(ctx, quiet)
	defer cancel()
	n, err := conn.WaitForNotification(waiting)
	switch {
	case err == nil:
		l.News(n.Payload, false)
		return nil
	case ctx.Err() != nil || !errors.Is(err, context.DeadlineExceeded):
		return err
	}
	asking, cancel := context.WithTimeout(ctx, quiet)
	defer cancel()
	return conn.Ping(asking)
}

// channelOf derives the name of the channel on which a schema's news are told, as the trigger of
// migrate --with notify does: 64 bits of a hash of purpose and name.
func channelOf(schema string) string {
	sum := sha256.Sum256([]byte("outboxctl wake " + schema))
	return "outboxctl_" + hex.EncodeToString(sum[:8])
}

// Channel is where notifications come whose payload is the destination that has news.
func (s *Store) Channel() string { return channelOf(s.name) }
