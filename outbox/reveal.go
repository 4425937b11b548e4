package outbox

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
)

// revealSQL notes who looks in the statement that reads what is there.
const revealSQL = `
with touched as (
	select id, status, attempts, destination, null::bytea as payload_hash, headers, payload, payload_bytes
	  from {schema}{home} -- outbox_pkey, outbox_archive_pkey
	 where id = @id),
noted as (` + auditSQL + `)
select headers::text, payload_bytes is not null, coalesce(payload_bytes, convert_to(payload::text, 'UTF8'))
  from touched`

// Reveal returns what an event says, in the outbox or in the archive, once it is noted that it was
// looked at. The error is [ErrNotFound] when the event is gone.
func (r *Run) Reveal(ctx context.Context, id int64) (c Content, err error) {
	c.Readable = true
	_, err = r.step(ctx, func(tx pgx.Tx, p *Progress) (int, error) {
		p.Done = 1
		for _, home := range []string{".outbox", ".outbox_archive"} {
			sql := r.store.sql(strings.ReplaceAll(revealSQL, "{home}", home))
			err := tx.QueryRow(ctx, sql, pgx.NamedArgs{"id": id, "operation": r.ID, "action": "reveal"}).Scan(c.targets()...)
			if !errors.Is(err, pgx.ErrNoRows) {
				return 1, err
			}
		}
		return 0, ErrNotFound
	})
	if err != nil {
		return Content{}, fmt.Errorf("reveal event %d: %w", id, err)
	}
	return c, nil
}
