package wal

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/outboxctl/outboxctl/outbox"
)

// The rhythm of a session. Every few seconds it confirms what it has seen and asks for an answer: the
// server may then forget its log up to there, and a session that is half open is noticed. A server
// that hears nothing ends the session, also that of a process that is suspended, and the slot with it;
// its patience is longer than ours, or a busy one would not answer in time.
const (
	confirmEvery = 3 * time.Second
	silence      = 10 * time.Second
	beginning    = 10 * time.Second // for what is asked before the slot is made
	making       = 30 * time.Second // for the slot, which waits for transactions that write
	patienceSQL  = `set wal_sender_timeout = '15s'`
	outputPlugin = "pgoutput"
	maxTold      = 1000 // destinations in a transaction; beyond, all have news
)

// stream is one session. What it holds does not grow with what is written.
type stream struct {
	conn   *pgconn.PgConn
	schema string
	news   func(destination string, all bool)

	seen    pglogrepl.LSN // up to where everything was read
	heardAt time.Time     // when anything came last

	columns map[uint32]int  // where the outbox has its destination, by relation
	told    map[string]bool // destinations of the transaction that comes
	toldAll bool
}

// Publication is the name of the publication for the outbox of a schema, as migrate --with wal makes
// it: 64 bits of a hash of purpose and name.
func Publication(schema string) string {
	sum := sha256.Sum256([]byte("outboxctl wal " + schema))
	return "outboxctl_" + hex.EncodeToString(sum[:8])
}

// open makes a slot that ends with the session, and begins to stream from now.
func (s *stream) open(ctx context.Context) error {
	if err := s.check(ctx); err != nil {
		return err
	}
	slot := Publication(s.schema) + "_" + hex.EncodeToString(random(4))
	if err := s.make(ctx, slot); err != nil {
		return err
	}
	starting, cancel := context.WithTimeout(ctx, beginning)
	defer cancel()
	err := pglogrepl.StartReplication(starting, s.conn, slot, s.seen, pglogrepl.StartReplicationOptions{
		Mode:       pglogrepl.LogicalReplication,
		PluginArgs: []string{"proto_version '1'", "publication_names '" + Publication(s.schema) + "'"},
	})
	if err != nil {
		return fmt.Errorf("start replication: %w", err)
	}
	s.heardAt = time.Now()
	return nil
}

// checkSQL asks for what pgoutput would miss only once there is something to send. The name is made
// of hex digits.
const checkSQL = `
select pg_catalog.current_setting('wal_level'),
       exists (select from pg_catalog.pg_publication_tables t
                 join pg_catalog.pg_publication p using (pubname)
                where t.pubname = '%s'
                  and t.tablename = 'outbox'
                  and p.pubinsert)`

func (s *stream) check(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, beginning)
	defer cancel()
	if _, err := s.conn.Exec(ctx, patienceSQL).ReadAll(); err != nil {
		return err
	}
	results, err := s.conn.Exec(ctx, fmt.Sprintf(checkSQL, Publication(s.schema))).ReadAll()
	if err != nil {
		return err
	}
	level, published := string(results[0].Rows[0][0]), string(results[0].Rows[0][1]) == "t"
	switch {
	case level != "logical":
		return &outbox.Refusal{Why: fmt.Sprintf("wal_level is %s: alter system set wal_level = logical, and restart PostgreSQL", level)}
	case !published:
		return &outbox.Refusal{Why: "there is no publication of the outbox: outboxctl migrate --with wal"}
	}
	return nil
}

// make makes the slot. It waits for the transactions that have written and not ended, and keeps the
// log meanwhile, so there is an end to that.
func (s *stream) make(ctx context.Context, slot string) error {
	waiting, cancel := context.WithTimeout(ctx, making)
	defer cancel()
	made, err := pglogrepl.CreateReplicationSlot(waiting, s.conn, slot, outputPlugin,
		pglogrepl.CreateReplicationSlotOptions{Temporary: true, SnapshotAction: "NOEXPORT_SNAPSHOT"})
	if err != nil && waiting.Err() != nil && ctx.Err() == nil {
		return &outbox.Refusal{Why: fmt.Sprintf("a slot cannot be made while an old transaction that has written is open (waited %s)", making)}
	}
	if err != nil {
		return fmt.Errorf("make a slot: %w", err)
	}
	s.seen, err = pglogrepl.ParseLSN(made.ConsistentPoint)
	return err
}

func random(n int) []byte {
	b := make([]byte, n)
	rand.Read(b) // never fails
	return b
}

var errSilent = fmt.Errorf("the server has said nothing for %s", silence)

// follow reads until the session fails.
func (s *stream) follow(ctx context.Context) error {
	for {
		if err := s.read(ctx); err != nil {
			return err
		}
		if time.Since(s.heardAt) > silence {
			return errSilent
		}
		if err := s.confirm(ctx, true); err != nil {
			return err
		}
	}
}

// read reads until it is time to confirm.
func (s *stream) read(ctx context.Context) error {
	round, cancel := context.WithTimeout(ctx, confirmEvery)
	defer cancel()
	for {
		msg, err := s.conn.ReceiveMessage(round)
		switch {
		case err != nil && ctx.Err() == nil && errors.Is(round.Err(), context.DeadlineExceeded) && !s.conn.IsClosed():
			return nil
		case err != nil:
			return err
		}
		s.heardAt = time.Now()
		if err := s.take(ctx, msg); err != nil {
			return err
		}
	}
}

func (s *stream) take(ctx context.Context, msg pgproto3.BackendMessage) error {
	switch msg := msg.(type) {
	case *pgproto3.ErrorResponse:
		return pgconn.ErrorResponseToPgError(msg)
	case *pgproto3.CopyDone, *pgproto3.CommandComplete:
		return errors.New("the server ended the stream")
	case *pgproto3.CopyData:
		return s.takeData(ctx, msg.Data)
	}
	return nil
}

func (s *stream) takeData(ctx context.Context, data []byte) error {
	if len(data) == 0 {
		return errMalformed
	}
	switch data[0] {
	case pglogrepl.PrimaryKeepaliveMessageByteID:
		alive, err := pglogrepl.ParsePrimaryKeepaliveMessage(data[1:])
		if err != nil {
			return err
		}
		s.seen = max(s.seen, alive.ServerWALEnd)
		if alive.ReplyRequested { // a server that stops waits for it
			return s.confirm(ctx, false)
		}
	case pglogrepl.XLogDataByteID:
		change, err := pglogrepl.ParseXLogData(data[1:])
		if err != nil {
			return err
		}
		s.seen = max(s.seen, change.WALStart)
		return s.decode(change.WALData)
	}
	return nil
}

// confirm lets the server forget what was read. That a transaction may be half told does not matter:
// a new session tells that all have news.
func (s *stream) confirm(ctx context.Context, ask bool) error {
	return pglogrepl.SendStandbyStatusUpdate(ctx, s.conn, pglogrepl.StandbyStatusUpdate{
		WALWritePosition: s.seen, ReplyRequested: ask,
	})
}
