package outboxtest

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

const ageSQL = `
update public.outbox
   set available_at    = available_at    - $2::interval,
       next_attempt_at = next_attempt_at - $2::interval,
       lease_until     = lease_until     - $2::interval,
       last_attempt_at = last_attempt_at - $2::interval,
       finished_at     = finished_at     - $2::interval,
       created_at      = created_at      - $2::interval,
       updated_at      = updated_at      - $2::interval
 where id = $1`

// Age makes an event of a database of [DB] older: it moves all of its times into the past, so that
// a test need not wait for a retry, a lease or a retention to be over.
func Age(t testing.TB, db *pgxpool.Pool, id int64, d time.Duration) {
	t.Helper()
	tag, err := db.Exec(context.Background(), ageSQL, id, d)
	if err != nil {
		t.Fatalf("outboxtest: age event %d: %v", id, err)
	}
	if tag.RowsAffected() != 1 {
		t.Fatalf("outboxtest: age event %d: there is none", id)
	}
}
