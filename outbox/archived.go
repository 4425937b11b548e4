package outbox

import (
	"context"
	"errors"
	"strings"

	"github.com/jackc/pgx/v5"
)

// ErrArchived means that an event has ended and was moved to outbox_archive, where it stays as it is.
var ErrArchived = errors.New("it is archived")

// An event is looked for in the archive after the outbox: it goes there in one transaction and does
// not come back, so that it is seen in one of the two.
const (
	archivedByIDSQL = `
select {columns}, o.archived_at
  from {schema}.outbox_archive o -- outbox_archive_pkey
 where o.id = $1`

	archivedByKeySQL = `
select {columns}, o.archived_at
  from {schema}.outbox_archive o -- outbox_archive_key
 where o.idempotency_key = $1
 order by o.id`
)

// archivedRows reads events of the archive, which has no leases.
func (s *Store) archivedRows(ctx context.Context, tx pgx.Tx, sql string, of any) ([]Row, error) {
	columns := strings.NewReplacer("coalesce(o.lease, '')", "''", "o.lease_until", "null::timestamptz").Replace(rowColumns)
	rows, err := tx.Query(ctx, s.sql(strings.ReplaceAll(sql, "{columns}", columns)), of)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (r Row, err error) {
		err = row.Scan(append(r.targets(), perhaps{&r.ArchivedAt})...)
		r.CreatedAt, r.AvailableAt = r.CreatedAt.UTC(), r.AvailableAt.UTC()
		return r, err
	})
}

// home is the table that has the event.
func (r *Row) home() string {
	if r.ArchivedAt != nil {
		return ".outbox_archive"
	}
	return ".outbox"
}
