package migrate

import "errors"

var (
	// ErrMissing says that the schema, or the outbox in it, is not there.
	ErrMissing = errors.New("the outbox's schema is missing")
	// ErrOlder says that the schema lacks migrations which this binary needs.
	ErrOlder = errors.New("the outbox's schema is older than this binary")
	// ErrNewer says that the schema has migrations which this binary cannot run beside.
	ErrNewer = errors.New("the outbox's schema is newer than this binary")
	// ErrName says that a schema's name is one that PostgreSQL cannot have.
	ErrName = errors.New("not a schema name")
	// ErrRole says that a role's name is one that PostgreSQL cannot have.
	ErrRole = errors.New("not a role name")
	// ErrOption says that there is no part of that name to add to the schema.
	ErrOption = errors.New("not an option of the schema")
	// ErrPooled says that something needs a session of its own, which a pooler does not give.
	ErrPooled = errors.New("a pooler is in between, and a session is needed")
	// ErrData says that a way down would destroy rows, and nobody said that it may.
	ErrData = errors.New("there is data to lose")
	// ErrBusy says that another migration held its lock, or someone the tables', for too long.
	ErrBusy = errors.New("the outbox's schema is busy")
)
