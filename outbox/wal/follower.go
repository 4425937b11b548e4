// Package wal hears of news in PostgreSQL's log. A temporary logical slot on a publication of inserts
// says which destinations have some, at no cost to producers. The rows stay the only truth: what a
// follower misses costs time and never an event, and so it keeps no position.
package wal

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outboxctl/outboxctl/outbox"
)

// Follower hears which destinations have news, as [outbox.Listener] does.
type Follower struct {
	outbox.Ear

	// Connect makes a session of its own with replication=database, past any pooler.
	Connect func(context.Context) (*pgconn.PgConn, error)
	Schema  string // of the outbox
}

// Follow follows the log until ctx is done, and begins a new session whenever one ends.
func (f *Follower) Follow(ctx context.Context) { f.Keep(ctx, f.hear) }

// hear follows in one session until that fails.
func (f *Follower) hear(ctx context.Context, begun func()) error {
	conn, err := f.Connect(ctx)
	if err != nil {
		return refused(err)
	}
	defer hangUp(ctx, conn)
	s := &stream{conn: conn, schema: f.Schema, news: f.News, columns: map[uint32]int{}, told: map[string]bool{}}
	if err := s.open(ctx); err != nil {
		return refused(err)
	}
	begun()
	return refused(s.follow(ctx))
}

// hangUp ends the session, and the slot with it.
func hangUp(ctx context.Context, conn *pgconn.PgConn) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_ = conn.Close(ctx)
}
