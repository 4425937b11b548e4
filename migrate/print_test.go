package migrate_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/outboxctl/outboxctl/migrate"
	"github.com/outboxctl/outboxctl/outbox/outboxtest"
)

func TestPrintBringsEveryVersionUpToDate(t *testing.T) {
	t.Parallel()
	// Each way to run a script: in one transaction, and with a transaction per statement.
	ways := map[string]func(script string) []string{
		"whole":        func(script string) []string { return []string{script} },
		"by statement": statements,
	}
	for name, split := range ways {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conn := connect(t, outboxtest.Empty(t))
			for i, schema := range names {
				upTo(t, migrate.New(conn, schema), i%migrate.Latest)
				script, err := migrate.Print(schema)
				if err != nil {
					t.Fatal(err)
				}
				for range 2 { // the second time changes nothing
					for _, part := range split(script) {
						exec(t, conn, part)
					}
				}
				verified(t, conn, schema)
			}
		})
	}
}

func statements(script string) []string {
	parts := strings.Split(script, "\ndo ")
	for i := range parts[1:] {
		parts[i+1] = "do " + parts[i+1]
	}
	return parts
}

func TestPrintRefusesImpossibleNames(t *testing.T) {
	t.Parallel()
	if _, err := migrate.Print(""); !errors.Is(err, migrate.ErrName) {
		t.Errorf("Print() = %v, want ErrName", err)
	}
}

// upTo applies the first migrations.
func upTo(t *testing.T, s *migrate.Schema, version int) {
	t.Helper()
	if version == 0 {
		return
	}
	for m, err := range s.Up(context.Background()) {
		if err != nil {
			t.Fatal(err)
		}
		if m.Version == version {
			return
		}
	}
}

func verified(t *testing.T, conn *pgx.Conn, schema string) {
	t.Helper()
	differences, err := migrate.New(conn, schema).Verify(context.Background())
	if err != nil || len(differences) > 0 {
		t.Errorf("Verify() of %q = %v, %v", schema, differences, err)
	}
}

// The script makes options as With does, also where they are.
func TestPrintMakesOptions(t *testing.T) {
	t.Parallel()
	conn := connect(t, outboxtest.Empty(t))
	for _, schema := range names[:2] {
		script, err := migrate.Print(schema, "notify", "routes", "updated-at-trigger")
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			exec(t, conn, script)
		}
		verified(t, conn, schema)
		got, err := migrate.New(conn, schema).Present(context.Background())
		if err != nil || len(got) != 3 {
			t.Errorf("Present() = %v, %v", got, err)
		}
	}
}
