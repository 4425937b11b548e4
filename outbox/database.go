package outbox

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// DatabaseStats is what the outbox costs the database, and what in the database slows it down.
type DatabaseStats struct {
	TableBytes     int64 // of outbox, with large payloads
	IndexBytes     int64
	Rows           int64         // as the statistics have them
	DeadRows       int64         // which vacuum has yet to remove
	Vacuumed       time.Duration // since the last vacuum; < 0 = never
	InvalidIndexes []string      // serve no query and cost every write
	Snapshot       *Snapshot     // the oldest; nil = none
	Slots          []Slot        // those that have lost or keep the most of the log first
}

// DeadShare is the share of dead rows, 0..1.
func (d DatabaseStats) DeadShare() float64 { return share(d.DeadRows, d.DeadRows+d.Rows) }

// Snapshot is what keeps vacuum from removing rows that are dead for everybody else.
type Snapshot struct {
	Holder       string        // session, prepared transaction or replication slot
	Name         string        // the session's application, or the transaction's or slot's name; "" = hidden from us
	PID          int           // of a session; 0 = none
	State        string        // of a session
	Age          time.Duration // since its transaction began; < 0 = hidden from us, or not known
	Transactions int64         // that began since
}

const databaseSQL = `
select pg_table_size(c.oid), pg_indexes_size(c.oid), coalesce(t.n_live_tup, 0), coalesce(t.n_dead_tup, 0),
       case when greatest(t.last_vacuum, t.last_autovacuum) is null then -1
            else greatest(extract(epoch from now() - greatest(t.last_vacuum, t.last_autovacuum)), 0) end::float8,
       array(select i.relname::text
               from pg_index x
               join pg_class i on i.oid = x.indexrelid
              where x.indrelid = c.oid
                and not (x.indisvalid and x.indisready)
              order by 1)
  from pg_class c
  left join pg_stat_user_tables t on t.relid = c.oid
 where c.oid = $1::text::regclass`

// snapshotSQL is about this database and what holds all of them back. A session's xmin is there for
// everybody to see, its transaction's age and application are not.
const snapshotSQL = `
select holder, name, pid, state, case when since is null then interval '-1 second' else greatest(now() - since, interval '0') end, transactions
  from (select 'session' as holder, coalesce(nullif(application_name, ''), backend_type, '') as name, pid, coalesce(state, '') as state,
               xact_start as since, age(backend_xmin)::bigint as transactions
          from pg_stat_activity
         where backend_xmin is not null
           and pid <> pg_backend_pid()
           and (datname = current_database() or datname is null)
           and backend_type is distinct from 'autovacuum worker'
        union all
        select 'prepared transaction', gid, 0, '', prepared, age(transaction)::bigint
          from pg_prepared_xacts
         where database = current_database()
        union all
        select 'replication slot', slot_name::text, 0, case when active then 'active' else 'inactive' end, null,
               greatest(age(xmin), age(catalog_xmin))::bigint
          from pg_replication_slots
         where xmin is not null) s
 order by transactions desc, since
 limit 1`

func (s *Store) databaseStats(ctx context.Context, tx pgx.Tx, _ Look, st *Stats) error {
	d := &st.Database
	var vacuumed float64
	err := tx.QueryRow(ctx, databaseSQL, s.schema+".outbox").
		Scan(&d.TableBytes, &d.IndexBytes, &d.Rows, &d.DeadRows, &vacuumed, &d.InvalidIndexes)
	if err != nil {
		return err
	}
	d.Vacuumed = seconds(vacuumed)
	rows, err := tx.Query(ctx, snapshotSQL)
	if err != nil {
		return err
	}
	oldest, err := pgx.CollectRows(rows, pgx.RowToAddrOfStructByPos[Snapshot])
	if len(oldest) > 0 {
		d.Snapshot = oldest[0]
	}
	return err
}
