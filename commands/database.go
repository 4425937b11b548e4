package commands

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
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
	config, err := pgxpool.ParseConfig(a.global.databaseURL)
	if err != nil {
		return nil, usage(fmt.Errorf("%s: %s", a.global.databaseFrom, parseTrouble(err)),
			"want postgres://user:password@host:5432/database or libpq's key=value form")
	}
	a.warnPassword()
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

// parseTrouble says what is wrong with a database URL without repeating any of it.
func parseTrouble(err error) string {
	text := err.Error()
	for _, word := range []string{"invalid port", "sslmode", "sslcert", "service", "passfile", "host", "escape"} {
		if strings.Contains(text, word) {
			return "not a valid database URL (" + word + ")"
		}
	}
	return "not a valid database URL"
}

// warnPassword tells who types a password into a command line that others can read it there.
func (a *app) warnPassword() {
	if a.global.databaseFrom != "--database-url" {
		return
	}
	u, err := url.Parse(a.global.databaseURL)
	if err != nil {
		return
	}
	if _, set := u.User.Password(); set || u.Query().Has("password") {
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
	if strings.HasPrefix(c.Host, "/") {
		return fmt.Sprintf("PostgreSQL at %s, database %q,", c.Host, c.Database)
	}
	return fmt.Sprintf("PostgreSQL at %s, database %q,", net.JoinHostPort(c.Host, fmt.Sprint(c.Port)), c.Database)
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
