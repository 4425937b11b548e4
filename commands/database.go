package commands

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxctl/outboxctl/migrate"
)

const (
	connectTimeout = 5 * time.Second
	maxConnections = 4 // one exchange at a time and a heartbeat; the rest is room for statistics
)

// open connects to PostgreSQL and checks that the outbox is there and is one that this binary
// can work with.
func (a *app) open(ctx context.Context) (*pgxpool.Pool, error) {
	db, err := a.connect(ctx)
	if err != nil {
		return nil, err
	}
	if _, err := migrate.New(db, a.global.schema).Check(ctx); err != nil {
		db.Close()
		return nil, err
	}
	return db, nil
}

// connect connects to PostgreSQL, whatever its schema.
func (a *app) connect(ctx context.Context) (*pgxpool.Pool, error) {
	config, err := a.poolConfig()
	if err != nil {
		return nil, err
	}
	if err := fitPooler(ctx, config); err != nil {
		return nil, err
	}
	return pgxpool.NewWithConfig(ctx, config)
}

// poolConfig reads the database URL. What pgx says about one it cannot read may hold a password,
// so the words are ours.
func (a *app) poolConfig() (*pgxpool.Config, error) {
	a.warnPassword()
	config, err := pgxpool.ParseConfig(a.global.databaseURL)
	if err != nil {
		return nil, usage(fmt.Errorf("%s: %s", a.global.databaseFrom, parseTrouble(err)),
			"want postgres://user:password@host:5432/database or libpq's key=value form")
	}
	if !strings.Contains(a.global.databaseURL, "pool_max_conns") {
		config.MaxConns = maxConnections
	}
	if config.ConnConfig.ConnectTimeout == 0 {
		config.ConnConfig.ConnectTimeout = connectTimeout
	}
	if config.ConnConfig.RuntimeParams["application_name"] == "" {
		config.ConnConfig.RuntimeParams["application_name"] = "outboxctl"
	}
	return config, nil
}

// parseTroubles are what pgx says about a connection string, and what we do.
var parseTroubles = []struct{ theirs, ours string }{
	{"invalid port", "the port is not a number"},
	{"port numbers", "there must be one port for all hosts, or one for each"},
	{"connect_timeout", "connect_timeout is not a number of seconds"},
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
func (a *app) warnPassword() {
	text := a.global.databaseURL
	if a.global.databaseFrom != "--database-url" {
		return
	}
	_, afterScheme, _ := strings.Cut(text, "://")
	user, _, isUser := strings.Cut(afterScheme, "@")
	if strings.Contains(text, "password") || isUser && strings.Contains(user, ":") {
		fmt.Fprintln(a.Err, "outboxctl: warning: a password in --database-url is visible in the process list; use DATABASE_URL or ~/.pgpass")
	}
}

// fitPooler tries the connection and looks whether a pooler sits in between: then the backend's
// process id is not the one that the connection was told, and prepared statements, which belong to
// a backend, are left alone.
func fitPooler(ctx context.Context, config *pgxpool.Config) error {
	conn, err := pgx.ConnectConfig(ctx, config.ConnConfig)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	var pid uint32
	if err := conn.QueryRow(ctx, "select pg_catalog.pg_backend_pid()", pgx.QueryExecModeExec).Scan(&pid); err != nil {
		return err
	}
	if pid != conn.PgConn().PID() {
		config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
	}
	return nil
}

// unreachable reports whether err means that PostgreSQL cannot be reached or refuses us, as
// opposed to a statement that went wrong.
func unreachable(err error) bool {
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		switch {
		case strings.HasPrefix(pg.Code, "08"), strings.HasPrefix(pg.Code, "28"), strings.HasPrefix(pg.Code, "57P"):
			return true
		case pg.Code == "3D000", pg.Code == "53300", pg.Code == "25006", pg.Code == "42501":
			return true
		}
	}
	if _, ok := errors.AsType[*pgconn.ConnectError](err); ok {
		return true
	}
	_, isNet := errors.AsType[net.Error](err)
	return isNet || pgconn.SafeToRetry(err)
}

// explainPostgres puts an error of PostgreSQL or of the way to it into one line without secrets.
// The server's DETAIL, which can hold a row's values, is left out.
func explainPostgres(err error) error {
	pg, isServer := errors.AsType[*pgconn.PgError](err)
	connect, isConnect := errors.AsType[*pgconn.ConnectError](err)
	switch {
	case isConnect && isServer:
		return fmt.Errorf("%s refuses: %s", address(connect.Config), pg.Message)
	case isConnect:
		return fmt.Errorf("%s cannot be reached: %s", address(connect.Config), rootCause(err))
	default:
		return err
	}
}

// address names a server and database as a person would.
func address(c *pgconn.Config) string {
	host := c.Host
	if !strings.HasPrefix(host, "/") { // a socket's folder
		host = net.JoinHostPort(host, fmt.Sprint(c.Port))
	}
	if c.Database == "" {
		return "PostgreSQL at " + host
	}
	return fmt.Sprintf("PostgreSQL at %s, database %q,", host, c.Database)
}

// rootCause is the innermost error's text: the chain around it repeats the address.
func rootCause(err error) string {
	for {
		switch e := err.(type) {
		case interface{ Unwrap() error }:
			if e.Unwrap() == nil {
				return err.Error()
			}
			err = e.Unwrap()
		case interface{ Unwrap() []error }:
			if len(e.Unwrap()) == 0 {
				return err.Error()
			}
			err = e.Unwrap()[0]
		default:
			return err.Error()
		}
	}
}
