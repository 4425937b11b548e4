package outbox

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// Checkup is what the doctor looks at besides [Stats].
type Checkup struct {
	Triggers      []Trigger     // of the table, but for those that belong to constraints
	AutovacuumOff string        // "server" or "table"; "" = on
	Fillfactor    int           // of the table; 100 when it is not set
	Newest        int           // events that FutureEvents and payloads are counted among: the newest
	FutureEvents  int           // created more than a minute from now
	Payloads      int           // whose size is known; 0 = this role may not see payloads
	MeanPayload   int64         // bytes as stored
	MaxPayload    int64         // likewise
	OldestDone    time.Duration // since the oldest finished event ended; 0 = there is none
	LastPurge     time.Duration // since the last run; < 0 = none
	Marks         map[string]time.Duration
	SlotKeep      int64 // bytes of the log that a slot may keep; < 0 = all
	Doubtful      int64 // attempts of the last day after which nobody knows whether the event arrived
}

// Trigger is one on the table.
type Trigger struct {
	Name     string
	Function string
	Notifies bool // its function calls NOTIFY
	EachRow  bool
}

const (
	tableSQL = `
select coalesce((select option_value::int from pg_options_to_table(c.reloptions) where option_name = 'fillfactor'), 100),
       case when not current_setting('autovacuum')::bool or not current_setting('track_counts')::bool then 'server'
            when (select not option_value::bool from pg_options_to_table(c.reloptions) where option_name = 'autovacuum_enabled') then 'table'
            else '' end
  from pg_class c
 where c.oid = $1::text::regclass`

	triggerSQL = `
select t.tgname::text, p.proname::text, p.prosrc ~* '\mpg_notify\M|\mnotify\M', (t.tgtype & 1) <> 0
  from pg_trigger t
  join pg_proc p on p.oid = t.tgfoid
 where t.tgrelid = $1::text::regclass
   and not t.tgisinternal
   and t.tgenabled <> 'D'
 order by 1`

	newestSQL = `
select count(*), count(*) filter (where created_at > now() + interval '1 minute')
  from (select created_at
          from {schema}.outbox -- outbox_pkey
         order by id desc
         limit 1000) n`

	mayReadSQL = `select has_column_privilege($1, 'payload', 'select') and has_column_privilege($1, 'payload_bytes', 'select')`

	sizesSQL = `
select count(*), coalesce(avg(size), 0)::bigint, coalesce(max(size), 0)::bigint
  from (select coalesce(pg_column_size(payload), pg_column_size(payload_bytes)) as size
          from {schema}.outbox -- outbox_pkey
         order by id desc
         limit 1000) n`

	habitsSQL = `
select coalesce((select extract(epoch from now() - finished_at)
                   from {schema}.outbox -- outbox_done
                  where finished_at is not null
                  order by finished_at, id
                  limit 1), 0)::float8,
       coalesce((select extract(epoch from now() - max(started_at))
                   from {schema}.outbox_operations
                  where command like 'purge%'), -1)::float8,
       coalesce((select sum(n)
                   from {schema}.outbox_rollup -- outbox_rollup_pkey
                  where minute > now() - interval '1 day'
                    and error_kind in ('timeout', 'eof', 'reset', 'protocol', 'crashed', 'shutdown')), 0)::bigint`

	slotKeepSQL = `select pg_size_bytes(setting || unit) from pg_settings where name = 'max_slot_wal_keep_size'`

	marksSQL = `
select name, extract(epoch from now() - max(at))::float8
  from {schema}.outbox_samples -- outbox_samples_name
 where name in ('check', 'prometheus')
 group by name`
)

// Examine gathers what the doctor judges, by index and from the catalog.
func (s *Store) Examine(ctx context.Context) (*Checkup, error) {
	c := &Checkup{Marks: map[string]time.Duration{}}
	err := s.look(ctx, "doctor", func(tx pgx.Tx) error {
		for _, part := range []func(context.Context, pgx.Tx, *Checkup) error{s.examineTable, s.examineNewest, s.examineHabits} {
			if err := part(ctx, tx, c); err != nil {
				return err
			}
		}
		return nil
	})
	return c, err
}

func (s *Store) examineTable(ctx context.Context, tx pgx.Tx, c *Checkup) error {
	table := s.schema + ".outbox"
	if err := tx.QueryRow(ctx, tableSQL, table).Scan(&c.Fillfactor, &c.AutovacuumOff); err != nil {
		return fmt.Errorf("table: %w", err)
	}
	rows, err := tx.Query(ctx, triggerSQL, table)
	if err != nil {
		return err
	}
	c.Triggers, err = pgx.CollectRows(rows, pgx.RowToStructByPos[Trigger])
	return err
}

func (s *Store) examineNewest(ctx context.Context, tx pgx.Tx, c *Checkup) error {
	if err := tx.QueryRow(ctx, s.sql(newestSQL)).Scan(&c.Newest, &c.FutureEvents); err != nil {
		return err
	}
	var may bool
	if err := tx.QueryRow(ctx, mayReadSQL, s.schema+".outbox").Scan(&may); err != nil || !may {
		return err
	}
	return tx.QueryRow(ctx, s.sql(sizesSQL)).Scan(&c.Payloads, &c.MeanPayload, &c.MaxPayload)
}

func (s *Store) examineHabits(ctx context.Context, tx pgx.Tx, c *Checkup) error {
	var done, purged float64
	if err := tx.QueryRow(ctx, s.sql(habitsSQL)).Scan(&done, &purged, &c.Doubtful); err != nil {
		return err
	}
	c.OldestDone, c.LastPurge = seconds(done), seconds(purged)
	if err := tx.QueryRow(ctx, slotKeepSQL).Scan(&c.SlotKeep); err != nil {
		return err
	}
	rows, err := tx.Query(ctx, s.sql(marksSQL))
	if err != nil {
		return err
	}
	var name string
	var since float64
	_, err = pgx.ForEachRow(rows, []any{&name, &since}, func() error {
		c.Marks[name] = seconds(since)
		return nil
	})
	return err
}
