package wal

import (
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outboxctl/outboxctl/outbox"
)

// Answers of PostgreSQL to who wants to replicate.
const (
	insufficientPrivilege = "42501"
	tooManyConnections    = "53300"
	limitExceeded         = "53400" // of slots
	invalidState          = "55000"
)

// refused turns an answer that does not change by itself into an [outbox.Refusal].
func refused(err error) error {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	if !ok {
		return err
	}
	switch pg.Code {
	case insufficientPrivilege:
		return &outbox.Refusal{Why: fmt.Sprintf("the role may not replicate: alter role %s replication (PostgreSQL: %s)", roleOf(err), pg.Message)}
	case tooManyConnections:
		return &outbox.Refusal{Why: "no connection is left for it: raise max_wal_senders or max_connections (PostgreSQL: " + pg.Message + ")"}
	case limitExceeded:
		return &outbox.Refusal{Why: "no replication slot is left: raise max_replication_slots, or drop one that nobody uses (PostgreSQL: " + pg.Message + ")"}
	case invalidState:
		return &outbox.Refusal{Why: "PostgreSQL: " + pg.Message}
	}
	return err
}

// roleOf is the role that was refused, as far as it is known.
func roleOf(err error) string {
	if connect, ok := errors.AsType[*pgconn.ConnectError](err); ok && connect.Config != nil {
		return connect.Config.User
	}
	return "…"
}
