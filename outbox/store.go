package outbox

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Store is the outbox in one schema of one database. It is safe for concurrent use.
type Store struct {
	db     *pgxpool.Pool
	name   string // of the schema, raw
	schema string // the same, quoted
}

// NewStore returns the store in the schema of that raw name. It does not connect.
func NewStore(db *pgxpool.Pool, schema string) *Store {
	return &Store{db: db, name: schema, schema: pgx.Identifier{schema}.Sanitize()}
}

// The statements name their tables as {schema}.outbox; sql puts the one sanitised identifier in. It
// comes last, when a text is whole: a schema may have a name that looks like a mark in one.
func (s *Store) sql(text string) string {
	return strings.ReplaceAll(text, "{schema}", s.schema)
}

// beginSQL and localSQL open every transaction, readSQL one that a standby may run. READ COMMITTED,
// because skip locked under a stricter level still raises serialization failures; a search path that
// no producer can write to, so that nobody's function or table is taken for PostgreSQL's or ours;
// timeouts of our own and the forms of values that pgx reads as text, as it does through a pooler,
// whatever the role's are; and no compiling of plans, which takes a second for what then runs for
// milliseconds.
const (
	beginSQL = `begin isolation level read committed read write`
	readSQL  = `begin isolation level read committed read only`
	localSQL = `
select pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true),
       pg_catalog.set_config('statement_timeout', $1, true),
       pg_catalog.set_config('lock_timeout', $2, true),
       pg_catalog.set_config('jit', 'off', true),
       pg_catalog.set_config('intervalstyle', 'postgres', true),
       pg_catalog.set_config('bytea_output', 'hex', true),
       pg_catalog.set_config('idle_in_transaction_session_timeout', $3, true)`
	commitSQL = `commit`
)

// limits are the timeouts of one transaction.
type limits struct {
	statement time.Duration
	lock      time.Duration
	idle      time.Duration // between two statements; 0 = the usual minute
	reads     bool          // and does nothing else
}

// dispatchIdle is how long a dispatcher's transaction may stand still. It holds locks that others of its kind take
// turns at: of one that is suspended in the middle PostgreSQL ends the session, long before a lease lapses.
const dispatchIdle = 5 * time.Second

func (l limits) args() []any {
	var all []any
	for _, d := range []time.Duration{l.statement, l.lock, cmp.Or(l.idle, time.Minute)} {
		all = append(all, fmt.Sprintf("%dms", d.Milliseconds()))
	}
	return all
}

// inTx runs f in a transaction with the project's settings and commits it.
func (s *Store) inTx(ctx context.Context, l limits, f func(tx pgx.Tx) error) error {
	begin := beginSQL
	if l.reads {
		begin = readSQL
	}
	return pgx.BeginTxFunc(ctx, s.db, pgx.TxOptions{BeginQuery: begin}, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, localSQL, l.args()...); err != nil {
			return err
		}
		return f(tx)
	})
}
