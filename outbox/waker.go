package outbox

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// Listener hears over LISTEN which destinations have news, so that their loops need not wait for the
// next poll.
type Listener struct {
	Ear
	Connect func(context.Context) (*pgx.Conn, error) // a session of its own, past any pooler
	Channel string                                   // see [Store.Channel]
}

// quiet is the rhythm of a listener: a connection over which nothing came for so long is asked, and
// has as long again to answer. So one that is half open is noticed within ten seconds.
const quiet = 5 * time.Second

// Listen listens until ctx is done, and connects anew whenever the connection is lost.
func (l *Listener) Listen(ctx context.Context) { l.Keep(ctx, l.hear) }

// hear listens on one connection until that fails.
func (l *Listener) hear(ctx context.Context, begun func()) error {
	conn, err := l.Connect(ctx)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if _, err := conn.Exec(ctx, "listen "+l.Channel); err != nil { // hex digits
		return fmt.Errorf("listen: %w", err)
	}
	begun()
	for {
		if err := l.next(ctx, conn); err != nil {
			return err
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
