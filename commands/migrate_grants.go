package commands

import (
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/outboxctl/outboxctl/migrate"
)

func newMigrateGrants(a *app) *cobra.Command {
	var prefix string
	cmd := &cobra.Command{
		Use:   "grants",
		Short: "print SQL for roles that may do no more than their work",
		Long: `Print SQL that creates five roles and grants each what its work needs, column by column.
It needs no database; run it with psql after every migration, as the owner of the
tables who may create roles. The roles cannot log in: grant them to the users of your
services. With --prefix outbox_ they are

  outbox_producer    inserts pending events, also by outbox_emit; reads nothing but ids
                     and keys
  outbox_dispatcher  dispatch: reads events and changes their state, not their content;
                     writes attempts, rates and heartbeats
  outbox_reader      stats, migrate status, verify and plan: reads everything but
                     payloads and headers
  outbox_operator    reads everything; replays, edits, discards and removes events,
                     pauses destinations; its record of operations it cannot remove
  outbox_cdc         follows the write-ahead log; to replicate is not inherited, so let
                     this role itself log in

The owner of the tables alone migrates. The output is SQL whatever --output says.

Exit codes: 0 done; 2 usage error.`,
		Example: `  outboxctl migrate grants | psql -v ON_ERROR_STOP=1 "$DATABASE_URL"
  outboxctl migrate grants --schema billing --prefix billing_outbox_ > grants.sql`,
		Args: noArgs,
		RunE: func(*cobra.Command, []string) error { return a.migrateGrants(prefix) },
	}
	cmd.Flags().StringVar(&prefix, "prefix", "outbox_", "`text` that the roles' names begin with")
	return cmd
}

func (a *app) migrateGrants(prefix string) error {
	script, err := migrate.Grants(a.global.schema, prefix)
	if errors.Is(err, migrate.ErrRole) {
		return usage(fmt.Errorf("--prefix: %w", err), "a role's name has 1 to 63 bytes")
	}
	if err != nil {
		return schemaFailure(err)
	}
	_, err = io.WriteString(a.Out, script)
	return err
}
