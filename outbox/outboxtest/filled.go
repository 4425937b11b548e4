package outboxtest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Filled returns a database like that of [DB] that the statements of script have filled. It is made
// once per server and script, for loads that take their time, and stays: who changes its rows
// changes them for all. [FilledCopy] is for those.
func Filled(t testing.TB, script string) *pgxpool.Pool {
	t.Helper()
	s := shared(t)
	name, err := s.filled(script)
	if err != nil {
		t.Fatalf("outboxtest: filled database: %v", err)
	}
	return open(t, withDatabase(s.url, name))
}

// FilledCopy returns a copy of the database of [Filled] that is this test's alone and dropped when it
// ends. While one is made, nobody can be connected to the original.
func FilledCopy(t testing.TB, script string) *pgxpool.Pool {
	t.Helper()
	s := shared(t)
	name, err := s.filled(script)
	if err != nil {
		t.Fatalf("outboxtest: filled database: %v", err)
	}
	return open(t, s.create(t, name))
}

// fillTime is what a load may take.
const fillTime = 15 * time.Minute

// filled makes the database unless it is there, and returns its name. It gets the name when it is
// finished.
func (s *server) filled(script string) (name string, err error) {
	template, err := s.template()
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256([]byte(template + script))
	name = "outboxtest_filled_" + hex.EncodeToString(sum[:8])
	return name, s.sessionFor(fillTime, func(ctx context.Context, conn *pgx.Conn) error {
		// The lock ends with the session.
		if _, err := conn.Exec(ctx, `select pg_advisory_lock(hashtext($1))`, name); err != nil {
			return err
		}
		var finished bool
		err := conn.QueryRow(ctx, `select exists (select from pg_database where datname = $1)`, name).Scan(&finished)
		if err != nil || finished {
			return err
		}
		draft := name + "_draft"
		for _, sql := range []string{"drop database if exists " + draft + " with (force)", "create database " + draft + " template " + template} {
			if _, err := conn.Exec(ctx, sql); err != nil {
				return err
			}
		}
		if err := fill(ctx, withDatabase(s.url, draft), script); err != nil {
			return err
		}
		_, err = conn.Exec(ctx, fmt.Sprintf("alter database %s rename to %s", draft, name))
		return err
	})
}

// fill runs the script's statements, and leaves the tables as autovacuum would in time.
func fill(ctx context.Context, url, script string) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	if _, err := conn.Exec(ctx, script); err != nil {
		return err
	}
	_, err = conn.Exec(ctx, "vacuum (analyze)")
	return err
}
