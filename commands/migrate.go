package commands

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/outboxctl/outboxctl/migrate"
)

const migrateExitCodes = `
Exit codes: 0 up to date; 1 runtime error, or others' locks did not go away; 2 usage
error; 4 PostgreSQL cannot be reached or refuses us; 5 the schema is newer than this
binary; 130, 143 stopped by a signal, between two migrations.`

func newMigrate(a *app) *cobra.Command {
	var o upOptions
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
		RunE: func(cmd *cobra.Command, _ []string) error { return a.migrateUp(cmd.Context(), o) },
	}
	o.flags(cmd.Flags())
	cmd.AddCommand(newMigrateUp(a), newMigrateDown(a), newMigrateStatus(a), newMigrateVerify(a),
		newMigratePlan(a), newMigratePrint(a), newMigrateGrants(a))
	return cmd
}

func newMigrateUp(a *app) *cobra.Command {
	var o upOptions
	cmd := &cobra.Command{
		Use:   "up",
		Short: "apply the migrations that are missing",
		Long: `Apply the migrations that are missing, each in a transaction of its own, and restore
indexes of the outbox that somebody dropped or that are invalid, without making
anybody wait. Nothing is left half done when it is stopped: run it again. A schema
that a newer outboxctl has migrated is left alone.

Producers and dispatchers go on. Where a migration needs a lock that others hold, they
may queue behind it; so it gives up after --lock-timeout, lets them pass, comes again,
--lock-tries times in all, and says who holds the lock. See migrate plan.

Options are parts that cost something and that not everybody needs:
` + optionsHelp() + `
They stay until --without takes them away.
` + migrateExitCodes,
		Example: `  outboxctl migrate up
  outboxctl migrate up --with notify
  outboxctl migrate up -o json`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.migrateUp(cmd.Context(), o) },
	}
	o.flags(cmd.Flags())
	return cmd
}

// lockOptions are the flags of what may have to wait for others' locks.
type lockOptions struct {
	timeout durationValue
	tries   int
}

func (o *lockOptions) flags(fs *pflag.FlagSet) {
	usual := migrate.Defaults()
	o.timeout = durationValue(usual.Lock)
	fs.Var(&o.timeout, "lock-timeout", "of one try to get a lock that others hold, 2s at most")
	fs.IntVar(&o.tries, "lock-tries", usual.Tries, "`number` of tries of one migration")
}

func (o *lockOptions) limits() (migrate.Limits, error) {
	l := migrate.Limits{Lock: time.Duration(o.timeout), Tries: o.tries}
	switch {
	case l.Lock < time.Millisecond || l.Lock > migrate.MaxLock:
		return l, usage(fmt.Errorf("--lock-timeout must be 1ms to %s: producers queue behind whoever waits for a lock", migrate.MaxLock), "")
	case l.Tries < 1:
		return l, usage(errors.New("--lock-tries must be 1 or more"), "")
	}
	return l, nil
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
	var with []string
	cmd := &cobra.Command{
		Use:   "print",
		Short: "print the migrations as a SQL script",
		Long: `Print all migrations as one SQL script, for who may not run outboxctl on the database
or wants to read first. It needs no database. The script records what it applies as
migrate up does, applies only what is missing, and may run with or without a
transaction around it. The output is SQL whatever --output says.

Exit codes: 0 done; 2 usage error.`,
		Example: `  outboxctl migrate print --schema billing | psql -v ON_ERROR_STOP=1 "$DATABASE_URL"`,
		Args:    noArgs,
		RunE:    func(*cobra.Command, []string) error { return a.migratePrint(with) },
	}
	withFlag(cmd.Flags(), &with)
	return cmd
}

// migrateUp says each step on stderr when it is done, and where that led on stdout.
func (a *app) migrateUp(ctx context.Context, o upOptions) error {
	limits, err := o.limits()
	if err != nil {
		return err
	}
	return a.withSchema(ctx, func(s *migrate.Schema) error {
		s.Limit(limits)
		restored, did := []string{}, "nothing to do"
		for n, err := range o.all(ctx, s) {
			if err != nil {
				return upFailure(err)
			}
			a.sayNews(n)
			switch n.What {
			case migrate.Applied, migrate.Added, migrate.Removed:
				did = "up to date"
			case migrate.Restored:
				did = "up to date"
				restored = append(restored, n.Name)
			}
		}
		return a.printSchema(ctx, s, did, restored)
	})
}

// sayNews says on stderr what happens.
func (a *app) sayNews(n migrate.News) {
	switch n.What {
	case migrate.Restored:
		fmt.Fprintf(a.Err, "restored index %s\n", n.Name)
	case migrate.Added, migrate.Removed:
		fmt.Fprintf(a.Err, "%s option %s\n", n.What, n.Name)
	case migrate.Waiting:
		names := make([]string, len(n.Blockers))
		for i, b := range n.Blockers {
			names[i] = b.String()
		}
		fmt.Fprintf(a.Err, "%s waits for %s\n", n.Name, strings.Join(names, ", "))
	default:
		fmt.Fprintf(a.Err, "%s %d %s\n", n.What, n.Version, n.Name)
	}
}

// printSchema says where a migration led.
func (a *app) printSchema(ctx context.Context, s *migrate.Schema, did string, restored []string) error {
	st, err := s.Status(ctx)
	if err != nil {
		return err
	}
	if a.global.output == "json" {
		doc := migrateDocument(st)
		doc.Restored = restored
		return a.printJSON(doc)
	}
	_, err = fmt.Fprintf(a.Out, "schema %s is at version %d: %s\n", a.global.schema, st.Current, did)
	return err
}

// upFailure adds hints: for the table that someone made before us, and for the way past a pooler.
func upFailure(err error) error {
	const duplicateTable = "42P07"
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok && pg.Code == duplicateTable {
		return &failure{exitError, err, "the schema holds a table of that name that is not outboxctl's: choose another with --schema"}
	}
	if errors.Is(err, migrate.ErrOption) {
		return usage(err, "there are: "+strings.Join(optionNames(), ", "))
	}
	if errors.Is(err, migrate.ErrPooled) {
		return usage(fmt.Errorf("%w: give the server's own address with --direct-database-url", err), "")
	}
	return err
}

func (a *app) migrateStatus(ctx context.Context) error {
	return a.withSchema(ctx, func(s *migrate.Schema) error {
		st, err := s.Status(ctx)
		if err != nil {
			return err
		}
		options, err := s.Present(ctx)
		if err != nil && st.Current == st.Latest {
			return err
		}
		if a.global.output == "json" {
			doc := migrateDocument(st)
			doc.Options = options
			return a.printJSON(doc)
		}
		var rows [][]string
		for _, step := range st.Migrations {
			at := "not applied"
			if !step.AppliedAt.IsZero() {
				at = step.AppliedAt.Local().Format(time.DateTime)
			}
			rows = append(rows, []string{strconv.Itoa(step.Version), step.Name, at})
		}
		for _, name := range options {
			rows = append(rows, []string{"", "with " + name, "yes"})
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

func (a *app) migratePrint(with []string) error {
	script, err := migrate.Print(a.global.schema, with...)
	if err != nil {
		return schemaFailure(upFailure(err))
	}
	_, err = io.WriteString(a.Out, script)
	return err
}

// withSchema runs f on the schema that the flags name, there or not.
func (a *app) withSchema(ctx context.Context, f func(*migrate.Schema) error) error {
	db, err := a.connectDirectly(ctx, reads)
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
	Options     []string         `json:"options,omitzero"`     // that are there, of status alone
	Restored    []string         `json:"restored,omitzero"`    // indexes, of up alone
	Plan        []plannedJSON    `json:"plan,omitzero"`        // of plan alone
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
