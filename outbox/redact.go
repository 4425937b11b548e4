package outbox

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// Redact says which finished events lose what of their payloads. Open events keep theirs: it is what
// will be sent.
type Redact struct {
	Filter Filter // no statuses = all that are final
	Rules  Redaction
}

// SkipUnchanged is why redaction leaves an event as it is: its payload has nothing that is to be hidden.
const SkipUnchanged = "unchanged"

// Redact returns the steps that put null in the place of what the rules name, in the outbox and in
// the archive; a payload of bytes becomes empty. Id, key, times and state stay, and the header redacted
// says when it was and what the SHA-256 of the payload before was, as outbox_audit does. Events that
// bear this mark are not matched again.
func (s *Store) Redact(run *Run, what Redact) Step {
	if len(what.Filter.Statuses) == 0 {
		what.Filter.Statuses = []Status{Delivered, Failed, DeadLetter, Discarded}
	}
	source, listed := what.Filter.source()
	if !listed {
		source = fromDone // whole: an event that has failed without a kind of error may hold a secret, too
	}
	archived := `outbox_archive_pkey
	 where o.finished_at is not null`
	if listed {
		archived = fromList
	}
	parts := []redaction{
		{s, run, what, "outbox", s.redactSQL(what.Filter, "outbox", source, "(o.finished_at, o.id) > (@at, @id)", "o.finished_at, o.id"), !listed},
		{s, run, what, "archive", s.redactSQL(what.Filter, "outbox_archive", archived, "o.id > @id", "o.id"), !listed},
	}
	return func(ctx context.Context, limit int) (int, error) {
		return run.step(ctx, func(tx pgx.Tx, p *Progress) (n int, err error) {
			var c purgeCursor
			if err := p.at(&c); err != nil {
				return 0, err
			}
			for c.Part < len(parts) {
				if n, err = parts[c.Part].step(ctx, tx, p, &c, limit); err != nil {
					return 0, fmt.Errorf("redact: %w", err)
				}
				if n > 0 {
					break
				}
				c = purgeCursor{Part: c.Part + 1, Purged: c.Purged}
			}
			return n, p.move(c)
		})
	}
}

// redaction is that of one table.
type redaction struct {
	store   *Store
	run     *Run
	what    Redact
	name    string
	sql     map[string]string
	byIndex bool
}

// The look finds the next events in the order of an index, wanted or not, and how large they are as
// they are stored. What is wanted is read under its lock, so many at once as fit into memory, and written
// by id and time: the time finds the partition in the archive.
const (
	lookSQL = `
select o.id, o.finished_at, coalesce(true/*filter*/, false) and not o.headers ? 'redacted',
       coalesce(pg_column_size(o.payload), pg_column_size(o.payload_bytes))
  from {schema}./*table*/ o -- /*source*/
   and /*after*/
 order by /*order*/
 limit @limit`

	readPayloadsSQL = `
select o.id, o.finished_at, coalesce(o.payload::text, ''), o.payload is null, o.payload is null and o.payload_bytes = ''
  from unnest(@ids::bigint[], @times::timestamptz[]) v(id, at)
  join {schema}./*table*/ o on o.id = v.id and o.finished_at = v.at
 where not o.headers ? 'redacted'/*filter*/
 order by o.id`

	blankSQL = `
with v as (
	select *
	  from unnest(@ids::bigint[], @times::timestamptz[], @payloads::text[]) v(id, at, payload)),
touched as materialized (
	select o.id, o.finished_at, o.status, o.attempts, o.destination,
	       sha256(coalesce(o.payload_bytes, convert_to(o.payload::text, 'UTF8'))) as payload_hash
	  from v
	  join {schema}./*table*/ o on o.id = v.id and o.finished_at = v.at),
changed as (
	update {schema}./*table*/ o
	   set payload = case when o.payload is not null then v.payload::jsonb end,
	       payload_bytes = case when o.payload_bytes is not null then ''::bytea end,
	       headers = case when jsonb_typeof(o.headers) = 'object' then o.headers else '{}' end || jsonb_build_object('redacted',
	         to_char(now() at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"') || ' sha256:' || encode(t.payload_hash, 'hex'))
	  from v
	  join touched t on t.id = v.id and t.finished_at = v.at
	 where o.id = v.id
	   and o.finished_at = v.at
	returning 1),
noted as (` + auditSQL + `)
select count(*) from changed`

	// redactBytes bounds the payloads in memory, as they are stored: compressed, so it may be ten times that.
	redactBytes = 4 << 20
)

func (s *Store) redactSQL(f Filter, table, source, after, order string) map[string]string {
	words := strings.NewReplacer("/*table*/", table, "/*source*/", source, "/*after*/", after, "/*order*/", order)
	all := map[string]string{}
	for name, text := range map[string]string{"look": lookSQL, "read": readPayloadsSQL, "blank": blankSQL} {
		all[name] = s.sql(f.narrow(words.Replace(text)))
	}
	return all
}

func (r redaction) step(ctx context.Context, tx pgx.Tx, p *Progress, c *purgeCursor, limit int) (int, error) {
	if r.byIndex {
		if _, err := tx.Exec(ctx, byIndexSQL); err != nil {
			return 0, err
		}
	}
	seen, wanted, err := r.look(ctx, tx, c, limit)
	if err != nil || len(wanted.ids) == 0 {
		return min(seen, 1), err
	}
	blanked, got, err := r.read(ctx, tx, wanted)
	if err != nil {
		return 0, err
	}
	p.skip(SkipLocked, int64(len(wanted.ids)-got))
	p.skip(SkipUnchanged, int64(got-len(blanked.ids)))
	n := int64(len(blanked.ids))
	if !r.run.Rehearsal() && n > 0 {
		err := tx.QueryRow(ctx, r.sql["blank"], pgx.NamedArgs{
			"ids": blanked.ids, "times": blanked.times, "payloads": blanked.payloads, "operation": r.run.ID, "action": "redact",
		}).Scan(&n)
		if err != nil {
			return 0, err
		}
	}
	p.Done += n
	c.count(r.name, n)
	return len(wanted.ids), nil
}

// payloads are those of some events.
type payloads struct {
	ids      []int64
	times    []time.Time
	payloads []string
}

// look moves the cursor behind what it has looked at.
func (r redaction) look(ctx context.Context, tx pgx.Tx, c *purgeCursor, limit int) (seen int, wanted payloads, err error) {
	rows, err := tx.Query(ctx, r.sql["look"], r.what.Filter.args(pgx.NamedArgs{"at": c.At, "id": c.ID, "limit": limit}))
	if err != nil {
		return 0, wanted, err
	}
	defer rows.Close()
	var bytes int64
	for bytes < redactBytes && rows.Next() {
		var want bool
		var size int64
		if err := rows.Scan(&c.ID, &c.At, &want, &size); err != nil {
			return 0, wanted, err
		}
		seen++
		if want {
			wanted.ids, wanted.times = append(wanted.ids, c.ID), append(wanted.times, c.At)
			bytes += size
		}
	}
	rows.Close()
	c.At = c.At.UTC()
	return seen, wanted, rows.Err()
}

// read returns the new payloads of those events that are free and have something to hide, and how many
// are free.
func (r redaction) read(ctx context.Context, tx pgx.Tx, wanted payloads) (blanked payloads, got int, err error) {
	sql := r.sql["read"]
	if !r.run.Rehearsal() {
		sql += "\n   for update of o skip locked"
	}
	rows, err := tx.Query(ctx, sql, r.what.Filter.args(pgx.NamedArgs{"ids": wanted.ids, "times": wanted.times}))
	if err != nil {
		return blanked, 0, err
	}
	var id int64
	var at time.Time
	var before []byte
	var binary, empty bool
	_, err = pgx.ForEachRow(rows, []any{&id, &at, &before, &binary, &empty}, func() error {
		got++
		after := []byte("null") // of bytes it is not used
		if !binary {
			if after, err = r.what.Rules.Blank(before); err != nil {
				return fmt.Errorf("event %d: %w", id, err)
			}
		}
		if empty || !binary && bytes.Equal(before, after) {
			return nil
		}
		blanked.ids, blanked.times = append(blanked.ids, id), append(blanked.times, at)
		blanked.payloads = append(blanked.payloads, string(after))
		return nil
	})
	return blanked, got, err
}
