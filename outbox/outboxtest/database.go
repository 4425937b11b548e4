package outboxtest

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxctl/outboxctl/migrate"
)

// DB returns a fresh database with the outbox in schema public. It is dropped when the test ends.
func DB(t testing.TB) *pgxpool.Pool {
	t.Helper()
	return open(t, URL(t))
}

// open returns a pool that is closed when the test ends.
func open(t testing.TB, url string) *pgxpool.Pool {
	t.Helper()
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		t.Fatalf("outboxtest: no database: %v", err)
	}
	cfg.MaxConns = 10
	db, err := pgxpool.NewWithConfig(context.Background(), cfg)
	if err != nil {
		t.Fatalf("outboxtest: no database: %v", err)
	}
	t.Cleanup(db.Close)
	return db
}

// URL returns the URL of a fresh database like that of [DB].
func URL(t testing.TB) string {
	t.Helper()
	s := shared(t)
	template, err := s.template()
	if err != nil {
		t.Fatalf("outboxtest: no database: migrated template: %v", err)
	}
	return s.create(t, template)
}

// Empty returns the URL of a fresh database with nothing in it. It is dropped when the test ends.
func Empty(t testing.TB) string {
	t.Helper()
	return shared(t).create(t, "template0") // nobody can be connected to it, which would forbid copies
}

// server is where the databases of this process's tests are.
type server struct {
	url      string // of a database to connect to for creating others
	template func() (string, error)
}

// theServer is started by the first test that asks. Nothing closes it: its watchdog does.
var theServer = sync.OnceValues(func() (*server, error) {
	base := os.Getenv("OUTBOXCTL_TEST_DATABASE_URL")
	if base == "" {
		c, err := Start(Options{})
		if err != nil {
			return nil, err
		}
		base = c.URL("postgres")
	}
	s := &server{url: base}
	s.template = sync.OnceValues(s.makeTemplate)
	return s, nil
})

func shared(t testing.TB) *server {
	t.Helper()
	s, err := theServer()
	if err != nil {
		t.Fatalf("outboxtest: no database: %v", err)
	}
	return s
}

// create makes a database as a copy of another, and drops it when the test ends.
func (s *server) create(t testing.TB, template string) string {
	t.Helper()
	name := "outboxtest_" + strings.ToLower(rand.Text()[:16])
	if err := s.exec("create database " + name + " template " + template); err != nil {
		t.Fatalf("outboxtest: no database: %v", err)
	}
	t.Cleanup(func() {
		if err := s.exec("drop database if exists " + name + " with (force)"); err != nil {
			t.Errorf("outboxtest: %v", err)
		}
	})
	return withDatabase(s.url, name)
}

// makeTemplate migrates a database once for all processes on the server. Its name says what is in
// it, and nobody may connect to it, which marks it as finished.
func (s *server) makeTemplate() (string, error) {
	script, err := migrate.Print("public")
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256([]byte(script))
	name := "outboxtest_template_" + hex.EncodeToString(sum[:8])
	return name, s.session(func(ctx context.Context, conn *pgx.Conn) error {
		// The lock ends with the session.
		if _, err := conn.Exec(ctx, `select pg_advisory_lock(hashtext($1))`, name); err != nil {
			return err
		}
		var finished bool
		err := conn.QueryRow(ctx,
			`select exists (select from pg_database where datname = $1 and not datallowconn)`, name).Scan(&finished)
		if err != nil || finished {
			return err
		}
		if _, err := conn.Exec(ctx, "drop database if exists "+name+" with (force)"); err != nil {
			return err
		}
		if _, err := conn.Exec(ctx, "create database "+name+" template template0"); err != nil {
			return err
		}
		if err := up(ctx, withDatabase(s.url, name)); err != nil {
			return err
		}
		_, err = conn.Exec(ctx, "alter database "+name+" allow_connections false")
		return err
	})
}

func up(ctx context.Context, url string) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	for _, err := range migrate.New(conn, "public").Up(ctx) {
		if err != nil {
			return err
		}
	}
	return nil
}

// exec runs a statement that no transaction may be around.
func (s *server) exec(sql string) error {
	return s.session(func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, sql)
		return err
	})
}

func (s *server) session(f func(context.Context, *pgx.Conn) error) error {
	return s.sessionFor(time.Minute, f)
}

func (s *server) sessionFor(limit time.Duration, f func(context.Context, *pgx.Conn) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	conn, err := pgx.Connect(ctx, s.url)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	return f(ctx, conn)
}

// withDatabase returns the connection string, URL or key=value, with another database in it.
func withDatabase(base, name string) string {
	u, err := url.Parse(base)
	if err != nil || u.Scheme == "" {
		return fmt.Sprintf("%s dbname=%s", base, name) // the last one counts
	}
	u.Path = "/" + name
	return u.String()
}
