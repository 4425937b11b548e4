package commands

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/outboxctl/outboxctl/outbox"
)

const keyFunctionWords = `-- outbox_backfill_key computes the idempotency key that outboxctl backfill gives to a row's event: the
-- version 5 UUID of the source, the type, the version and the row's key. A producer that uses it
-- writes events that a backfill knows by their key:
--
--   insert into outbox (aggregate_type, aggregate_id, event_type, payload, idempotency_key)
--   values ('order', '42', 'order.created', '{"order_id": 42}',
--           outbox_backfill_key('public.orders', 'order.created', 1, '42'));
--
-- Of a key of several columns the text of each is given, in the key's order. A time is written as
-- in UTC: to_char(at at time zone 'UTC', 'YYYY-MM-DD HH24:MI:SS.US') || '+00', without zeros at the
-- end of the fraction.
`

func newBackfillKeyFunction(a *app) *cobra.Command {
	var pgcrypto string
	cmd := &cobra.Command{
		Use:   "key-function",
		Short: "print the SQL function that computes a row's idempotency key",
		Long: `Print SQL that creates outbox_backfill_key in the outbox's schema, for producers whose events
a backfill is to know by their key. It needs no extension and takes some 50 µs; with the
schema of pgcrypto given it uses that, and takes 4. No database is needed for this.
` + exitCodes,
		Example: `  outboxctl backfill key-function | psql "$DATABASE_URL"
  outboxctl backfill key-function --pgcrypto public | psql "$DATABASE_URL"`,
		Args: noArgs,
		RunE: func(*cobra.Command, []string) error {
			_, err := fmt.Fprint(a.Out, keyFunctionWords+outbox.KeyFunction(a.global.schema, pgcrypto))
			return err
		},
	}
	cmd.Flags().StringVar(&pgcrypto, "pgcrypto", "", "`schema` of the extension pgcrypto, as its raw name")
	typed(cmd.Flags(), "pgcrypto")
	return cmd
}
