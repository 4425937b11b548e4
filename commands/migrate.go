package commands

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/spf13/cobra"

	"github.com/outboxctl/outboxctl/migrate"
)

const migrateExitCodes = `
Exit codes: 0 up to date; 1 runtime error; 2 usage error; 4 PostgreSQL cannot be
reached or refuses us; 5 the schema is newer than this binary; 130, 143 stopped by a
signal, between two migrations.`

func newMigrate(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "migrate",
		Short: "create the outbox's schema or bring it up to date",
		Long: `Create the outbox's tables, indexes and functions, or bring them up to date. Run it
before the first dispatch and with every new version of outboxctl; it may run beside
working dispatchers, several times and at several places at once.

Each migration is a transaction of its own. A schema that does not exist is created,
for which the role needs the right to create one in the database. Without a verb,
migrate is migrate up.
` + migrateExitCodes,
		Example: `  outboxctl migrate
  outboxctl migrate --schema billing
  outboxctl migrate print > outbox.sql`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.migrateUp(cmd.Context()) },
	}
	cmd.AddCommand(newMigrateUp(a), newMigrateStatus(a), newMigrateVerify(a), newMigratePrint(a))
	return cmd
}

func newMigrateUp(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "up",
		Short: "apply the migrations that are missing",
		Long: `Apply the migrations that are missing, each in a transaction of its own. Nothing is
left half done when it is stopped: run it again. A schema that a newer outboxctl has
migrated is left alone.
` + migrateExitCodes,
		Example: `  outboxctl migrate up
  outboxctl migrate up -o json`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.migrateUp(cmd.Context()) },
	}
}

func newMigrateStatus(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "show which migrations have been applied",
		Long: `Show which migrations have been applied, and when. It changes nothing, and a schema
that is missing or old is no error here: for a check, use migrate verify.

Exit codes: 0 done; 1 runtime error; 2 usage error; 4 PostgreSQL cannot be reached
or refuses us.`,
		Example: `  outboxctl migrate status
  outboxctl migrate status -o json | jq .current`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.migrateStatus(cmd.Context()) },
	}
}

func newMigrateVerify(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "verify",
		Short: "compare the schema with what the migrations make",
		Long: `Compare the tables, columns, constraints, indexes, settings and functions in the
database with what the migrations make, and list what differs: a dropped constraint,
an index that is invalid after a failed rebuild, a column added by hand. It changes
nothing and needs no more rights than to read outbox_migrations.

Exit codes: 0 as expected; 1 it differs, see the list; 2 usage error; 4 PostgreSQL
cannot be reached or refuses us; 5 not migrated, or not by this version.`,
		Example: `  outboxctl migrate verify
  outboxctl migrate verify -o json | jq '.differences[]'`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.migrateVerify(cmd.Context()) },
	}
}

func newMigratePrint(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "print",
		Short: "print the migrations as a SQL script",
		Long: `Print all migrations as one SQL script, for who may not run outboxctl on the database
or wants to read first. It needs no database. The script records what it applies as
migrate up does, applies only what is missing, and may run with or without a
transaction around it. The output is SQL whatever --output says.

Exit codes: 0 done; 2 usage error.`,
		Example: `  outboxctl migrate print --schema billing | psql -v ON_ERROR_STOP=1 "$DATABASE_URL"`,
		Args:    noArgs,
		RunE:    func(*cobra.Command, []string) error { return a.migratePrint() },
	}
}

// migrateUp says each migration on stderr when it is done, and where that led on stdout.
func (a *app) migrateUp(ctx context.Context) error {
	return a.withSchema(ctx, func(s *migrate.Schema) error {
		applied := 0
		for m, err := range s.Up(ctx) {
			if err != nil {
				return upFailure(err)
			}
			applied++
			fmt.Fprintf(a.Err, "applied %d %s\n", m.Version, m.Name)
		}
		st, err := s.Status(ctx)
		if err != nil {
			return err
		}
		if a.global.output == "json" {
			return a.printJSON(migrateDocument(st))
		}
		did := "nothing to do"
		if applied > 0 {
			did = "up to date"
		}
		_, err = fmt.Fprintf(a.Out, "schema %s is at version %d: %s\n", a.global.schema, st.Current, did)
		return err
	})
}

// upFailure adds a hint for the table that someone made before us.
func upFailure(err error) error {
	const duplicateTable = "42P07"
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok && pg.Code == duplicateTable {
		return &failure{exitError, err, "the schema holds a table of that name that is not outboxctl's: choose another with --schema"}
	}
	return err
}

func (a *app) migrateStatus(ctx context.Context) error {
	return a.withSchema(ctx, func(s *migrate.Schema) error {
		st, err := s.Status(ctx)
		if err != nil {
			return err
		}
		if a.global.output == "json" {
			return a.printJSON(migrateDocument(st))
		}
		var rows [][]string
		for _, step := range st.Migrations {
			at := "not applied"
			if !step.AppliedAt.IsZero() {
				at = step.AppliedAt.Local().Format(time.DateTime)
			}
			rows = append(rows, []string{strconv.Itoa(step.Version), step.Name, at})
		}
		return a.printTable([]string{"VERSION", "NAME", "APPLIED"}, rows, 0)
	})
}

func (a *app) migrateVerify(ctx context.Context) error {
	return a.withSchema(ctx, func(s *migrate.Schema) error {
		differences, err := s.Verify(ctx)
		if err != nil {
			return err
		}
		if err := a.printVerified(ctx, s, differences); err != nil {
			return err
		}
		if len(differences) > 0 {
			return &failure{exitError, fmt.Errorf("differences from what the migrations make: %d", len(differences)), ""}
		}
		return nil
	})
}

func (a *app) printVerified(ctx context.Context, s *migrate.Schema, differences []migrate.Difference) error {
	if a.global.output == "json" {
		st, err := s.Status(ctx)
		if err != nil {
			return err
		}
		doc := migrateDocument(st)
		doc.Differences = differencesJSON(differences)
		return a.printJSON(doc)
	}
	for _, d := range differences {
		if _, err := fmt.Fprintln(a.Out, d); err != nil {
			return err
		}
	}
	if len(differences) > 0 {
		return nil
	}
	_, err := fmt.Fprintf(a.Out, "schema %s is as the migrations make it, at version %d\n", a.global.schema, migrate.Latest)
	return err
}

func (a *app) migratePrint() error {
	script, err := migrate.Print(a.global.schema)
	if err != nil {
		return schemaFailure(err)
	}
	_, err = io.WriteString(a.Out, script)
	return err
}

// withSchema runs f on the schema that the flags name, there or not.
func (a *app) withSchema(ctx context.Context, f func(*migrate.Schema) error) error {
	db, err := a.connect(ctx)
	if err != nil {
		return err
	}
	defer db.Close()
	return schemaFailure(f(migrate.New(db, a.global.schema)))
}

// schemaFailure knows that an impossible name came from the command line or the environment.
func schemaFailure(err error) error {
	if errors.Is(err, migrate.ErrName) {
		return usage(fmt.Errorf("--schema: %w", err), "a name has 1 to 63 bytes")
	}
	return err
}

// migrateJSON is the document outboxctl.migrate/v1.
type migrateJSON struct {
	Schema      string           `json:"schema"`
	Current     int              `json:"current"`
	Latest      int              `json:"latest"`
	Migrations  []migrationJSON  `json:"migrations"`
	Differences []differenceJSON `json:"differences,omitzero"` // of verify alone
}

type migrationJSON struct {
	Version   int        `json:"version"`
	Name      string     `json:"name"`
	AppliedAt *time.Time `json:"applied_at"` // null = not applied
}

type differenceJSON struct {
	Object string `json:"object"`
	Want   string `json:"want"` // "" = it should not be there
	Have   string `json:"have"` // "" = it is not there
}

func migrateDocument(st migrate.Status) migrateJSON {
	doc := migrateJSON{Schema: "outboxctl.migrate/v1", Current: st.Current, Latest: st.Latest}
	for _, step := range st.Migrations {
		m := migrationJSON{Version: step.Version, Name: step.Name}
		if !step.AppliedAt.IsZero() {
			at := step.AppliedAt.UTC()
			m.AppliedAt = &at
		}
		doc.Migrations = append(doc.Migrations, m)
	}
	return doc
}

func differencesJSON(all []migrate.Difference) []differenceJSON {
	list := []differenceJSON{}
	for _, d := range all {
		list = append(list, differenceJSON(d))
	}
	return list
}
