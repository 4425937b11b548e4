package commands

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"regexp"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxctl/outboxctl/migrate"
	"github.com/outboxctl/outboxctl/outbox"
)

const (
	connectTimeout = 5 * time.Second
	maxConnections = 12
)

// connections is the size of the pool: one exchange at a time for each loop, a heartbeat; the rest is
// room for large payloads and statistics. Many loops share.
func (a *app) connections() int32 { return int32(min(max(a.loops, 1)+3, maxConnections)) }

// dsn is where a database is, and who said so.
type dsn struct {
	text string // "" = libpq's PG* variables alone
	from string // a flag or a variable, for messages
}

// access is what a command does with the database.
type access int

const (
	reads access = iota
	writes
)

// open connects to PostgreSQL and checks that the outbox is there and is one that this binary
// can work with, perhaps one that a newer binary has migrated meanwhile.
func (a *app) open(ctx context.Context, need access) (*pgxpool.Pool, error) {
	db, err := a.connect(ctx, a.global.database, need)
	if err != nil {
		return nil, err
	}
	version, err := migrate.New(db, a.global.schema).Check(ctx)
	if err != nil {
		db.Close()
		return nil, schemaFailure(err)
	}
	if version > migrate.Latest {
		a.warnOnce("the outbox's schema is at version %d, this binary is made for %d: it may go on, update it soon", version, migrate.Latest)
	}
	return db, nil
}

// openStore opens the outbox for a command. Whoever gets it calls done at the end.
func (a *app) openStore(ctx context.Context, need access) (store *outbox.Store, done func(), err error) {
	db, err := a.open(ctx, need)
	if err != nil {
		return nil, nil, err
	}
	return outbox.NewStore(db, a.global.schema), db.Close, nil
}

// openStoreNow is openStore for a command that selects by time: with the database's present time.
func (a *app) openStoreNow(ctx context.Context, need access) (store *outbox.Store, now time.Time, done func(), err error) {
	if store, done, err = a.openStore(ctx, need); err != nil {
		return nil, now, nil, err
	}
	if now, err = store.Now(ctx); err != nil {
		done()
		return nil, now, nil, err
	}
	return store, now, done, nil
}

// connectDirectly connects past a pooler, where a way past it is known, whatever the schema.
func (a *app) connectDirectly(ctx context.Context, need access) (*pgxpool.Pool, error) {
	if a.global.direct.text != "" {
		return a.connect(ctx, a.global.direct, need)
	}
	return a.connect(ctx, a.global.database, need)
}

func (a *app) connect(ctx context.Context, d dsn, need access) (*pgxpool.Pool, error) {
	config, err := a.poolConfig(d, need)
	if err != nil {
		return nil, err
	}
	if err := a.fit(ctx, config, d); err != nil {
		return nil, err
	}
	return pgxpool.NewWithConfig(ctx, config)
}

// poolConfig reads a database URL. What pgx says about one it cannot read may hold a password,
// so the words are ours.
func (a *app) poolConfig(d dsn, need access) (*pgxpool.Config, error) {
	a.warnPassword(d)
	config, err := a.parse(scheme.ReplaceAllString(d.text, "$1://"))
	if err != nil {
		return nil, usage(fmt.Errorf("%s: %s", d.from, parseTrouble(err)),
			"want postgres://user:password@host:5432/database or libpq's key=value form")
	}
	c := config.ConnConfig
	if err := a.fitParameters(c, d); err != nil {
		return nil, err
	}
	if c.ConnectTimeout == 0 {
		c.ConnectTimeout = connectTimeout
	}
	if c.ValidateConnect == nil && (need == writes || manyHosts(c)) && !anyServer(d.text) {
		c.ValidateConnect = pgconn.ValidateConnectTargetSessionAttrsPrimary
	}
	if c.ValidateConnect != nil {
		c.ValidateConnect = byCatalog(c.ValidateConnect)
	}
	config.BeforeConnect = func(_ context.Context, c *pgx.ConnConfig) error {
		c.DialFunc = dialOnce(c.DialFunc)
		return nil
	}
	return config, nil
}

// scheme is that of a database URL, with what JDBC and SQLAlchemy add to it.
var scheme = regexp.MustCompile(`^(?:jdbc:)?(postgres(?:ql)?)(?:\+\w+)?://`)

// parse is pgx's, with a size of ours for the pool and without passwords from a file that is open to
// others: libpq does not use such a file either.
func (a *app) parse(text string) (*pgxpool.Config, error) {
	config, err := pgxpool.ParseConfig(text)
	if err != nil {
		return nil, err
	}
	if file := loosePassfile(text); file != "" {
		without, err := pgxpool.ParseConfig(withParameter(text, "passfile", os.DevNull))
		if err != nil {
			return nil, err
		}
		if without.ConnConfig.Password != config.ConnConfig.Password {
			a.warnOnce("%s is not used, since others may read it: chmod 600 it", file)
		}
		config = without
	}
	given, err := pgconn.ParseConfig(text) // pgxpool forgets whether a size was given
	if err != nil {
		return nil, err
	}
	if _, sized := given.RuntimeParams["pool_max_conns"]; !sized {
		config.MaxConns = a.connections()
	}
	return config, nil
}

// manyHosts reports whether there is more than one server to choose from.
func manyHosts(c *pgx.ConnConfig) bool {
	for _, other := range c.Fallbacks {
		if other.Host != c.Host || other.Port != c.Port {
			return true
		}
	}
	return false
}

// anyServer reports whether somebody has said that any server will do, which pgx does not tell from
// nobody's having said anything.
func anyServer(text string) bool {
	return strings.Contains(text, "target_session_attrs=any") || os.Getenv("PGTARGETSESSIONATTRS") == "any"
}

// byCatalog has a check of a new connection, which calls a function by its mere name, find PostgreSQL's
// own, whatever the role's search path. No setting outlives it in a backend that a pooler lends.
func byCatalog(check pgconn.ValidateConnectFunc) pgconn.ValidateConnectFunc {
	return func(ctx context.Context, conn *pgconn.PgConn) error {
		if _, err := conn.Exec(ctx, "begin; set local search_path = pg_catalog, pg_temp").ReadAll(); err != nil {
			return err
		}
		err := check(ctx, conn)
		_, endErr := conn.Exec(ctx, "rollback").ReadAll()
		return cmp.Or(err, endErr)
	}
}

// dialOnce does not dial an address again that has just not answered: sslmode=prefer, the default,
// and allow try a server with TLS and without, which makes a difference to one that is there alone.
func dialOnce(dial pgconn.DialFunc) pgconn.DialFunc {
	failed := map[string]error{}
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		if err := failed[address]; err != nil {
			return nil, err
		}
		conn, err := dial(ctx, network, address)
		if err != nil {
			failed[address] = err
		}
		return conn, err
	}
}

// fit tries the connection and fits the config to what is there.
//
// A pooler shows itself by the backend's process id, which is not the one that the connection was
// told. Behind one, prepared statements, which belong to a backend, are left alone; without one the
// session gets the search path that transactions set, since statements are prepared outside of them.
func (a *app) fit(ctx context.Context, config *pgxpool.Config, d dsn) error {
	conn, err := a.try(ctx, config, d)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	var pid uint32
	if err := conn.QueryRow(ctx, "select pg_catalog.pg_backend_pid()", pgx.QueryExecModeExec).Scan(&pid); err != nil {
		return err
	}
	c := config.ConnConfig
	switch {
	case pid != conn.PgConn().PID(), c.DefaultQueryExecMode != pgx.QueryExecModeCacheStatement: // or somebody knows of one
		c.DefaultQueryExecMode = pgx.QueryExecModeExec
	default:
		c.RuntimeParams["search_path"] = "pg_catalog, pg_temp"
	}
	return nil
}

// try connects. Parameters that the server does not know are meant for other programs: they are
// left out.
func (a *app) try(ctx context.Context, config *pgxpool.Config, d dsn) (*pgx.Conn, error) {
	for {
		c := config.ConnConfig.Copy()
		if err := config.BeforeConnect(ctx, c); err != nil {
			return nil, err
		}
		conn, err := pgx.ConnectConfig(ctx, c)
		name := unknownParameter(err, c.RuntimeParams)
		if name == "" {
			return conn, err
		}
		a.warnOnce("%s: PostgreSQL does not know the parameter %q, it is ignored", d.from, name)
		delete(config.ConnConfig.RuntimeParams, name)
	}
}

// unknownParameter finds the parameter that the server refused because it does not know it.
func unknownParameter(err error, params map[string]string) string {
	const undefinedObject = "42704"
	pg, ok := errors.AsType[*pgconn.PgError](err)
	if !ok || pg.Code != undefinedObject {
		return ""
	}
	for name := range params {
		if strings.Contains(pg.Message, `"`+name+`"`) {
			return name
		}
	}
	return ""
}

// parseTroubles are what pgx says about a connection string, and what we do.
var parseTroubles = []struct{ theirs, ours string }{
	{"invalid port", "the port is not a number"},
	{"port numbers", "there must be one port for all hosts, or one for each"},
	{"connect_timeout", "connect_timeout is not a number of seconds"},
	{"target_session_attrs", "target_session_attrs is not one of any, read-write, read-only, primary, standby and prefer-standby"},
	{"sslmode is invalid", "sslmode is not one of disable, allow, prefer, require, verify-ca and verify-full"},
	{"configure TLS", "sslmode, sslrootcert, sslcert or sslkey cannot be used"},
	{"parse pool_", "a setting that begins with pool_ cannot be used"},
	{"read service", "there is no such service in the service file"},
	{"percent-encoded", "a special character in it is not written as %XX; % itself is %25"},
	{"unexpected", "a special character in it is not written as %XX; % itself is %25"},
	{"separator", "a setting behind the ? is not name=value; = in a value is %3D"},
	{"unterminated", "a quote in it is not closed"},
}

// parseTrouble says what is wrong with a database URL without repeating any of it.
func parseTrouble(err error) string {
	text := err.Error()
	text = text[strings.LastIndex(text, "`: ")+1:] // before that comes the URL
	for _, t := range parseTroubles {
		if strings.Contains(text, t.theirs) {
			return t.ours
		}
	}
	return "not a database URL"
}

// warnPassword tells who types a password into a command line that others can read it there. It
// looks for one even in what is no valid URL.
func (a *app) warnPassword(d dsn) {
	if !strings.HasPrefix(d.from, "--") {
		return
	}
	_, afterScheme, _ := strings.Cut(d.text, "://")
	user, _, isUser := strings.Cut(afterScheme, "@")
	if strings.Contains(d.text, "password") || isUser && strings.Contains(user, ":") {
		a.warnOnce("a password in %s is visible in the process list; use %s or ~/.pgpass", d.from, inEnvironment[d.from])
	}
}
