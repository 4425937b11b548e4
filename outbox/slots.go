package outbox

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// Slot is a logical replication slot of the outbox's database. PostgreSQL keeps its log for it, until
// the disk is full or max_slot_wal_keep_size is reached.
type Slot struct {
	Name      string
	Temporary bool   // it ends with its session, as those of dispatch --wake wal do
	Active    bool   // somebody reads it
	WALStatus string // reserved, extended, unreserved, lost, as PostgreSQL has it; "" = it is being made
	Lag       int64  // bytes of the log that are kept for it; < 0 = none, or none any more
}

// Lost reports whether what its reader has yet to read is gone from the log.
func (s Slot) Lost() bool { return s.WALStatus == "lost" }

// slotsSQL lists those that keep the most first. Everybody may see slots.
const slotsSQL = `
select slot_name::text, temporary, active, coalesce(wal_status, ''),
       case when restart_lsn is null or wal_status = 'lost' then -1
            else greatest(pg_wal_lsn_diff(case when pg_is_in_recovery() then pg_last_wal_replay_lsn()
                                               else pg_current_wal_lsn() end, restart_lsn), 0) end::bigint as lag
  from pg_replication_slots
 where database = current_database()
 order by wal_status is not distinct from 'lost' desc, lag desc, slot_name`

func (s *Store) slotStats(ctx context.Context, tx pgx.Tx, _ Look, st *Stats) error {
	rows, err := tx.Query(ctx, slotsSQL)
	if err != nil {
		return err
	}
	st.Database.Slots, err = pgx.CollectRows(rows, pgx.RowToStructByPos[Slot])
	return err
}
