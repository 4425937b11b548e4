package outbox

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
)

// Explain gathers the facts about an event: each from an index, none from more than [MaxCount] rows.
// Errors are those of [Store.Show].
func (s *Store) Explain(ctx context.Context, ref Ref) (f *Facts, err error) {
	err = s.inTx(ctx, showLimits, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, byIndexSQL); err != nil {
			return err
		}
		row, siblings, err := s.lookUpRow(ctx, tx, ref)
		if err != nil {
			return err
		}
		d := &Detail{ID: ref.ID, Row: row}
		if row != nil {
			d.ID = row.ID
		}
		if err := s.history(ctx, tx, d); err != nil {
			return err
		}
		f = &Facts{ID: d.ID, Row: row, Siblings: siblings, Notes: d.Notes}
		if n := len(d.Attempts); n > 0 {
			f.Last = &d.Attempts[n-1]
		}
		return s.facts(ctx, tx, f, true)
	})
	switch {
	case err != nil:
		return nil, fmt.Errorf("explain: %w", err)
	case f.Row == nil && f.Last == nil && len(f.Notes) == 0:
		return nil, fmt.Errorf("%s is not there: %w", ref, ErrNotFound)
	}
	return f, nil
}

// facts adds what its status makes worth knowing; whole, also of what is before it.
func (s *Store) facts(ctx context.Context, tx pgx.Tx, f *Facts, whole bool) error {
	if err := tx.QueryRow(ctx, nowSQL).Scan(&f.Now); err != nil || f.Row == nil {
		return err
	}
	f.Now = f.Now.UTC()
	parts := []func(context.Context, pgx.Tx, *Facts) error{s.surround, s.orderFacts, s.alikeFacts}
	if f.Row.Status.Final() {
		parts = []func(context.Context, pgx.Tx, *Facts) error{s.alikeFacts, s.redactedFact}
		if f.Row.ArchivedAt != nil {
			parts = parts[1:]
		}
	} else if !whole {
		parts = parts[:1]
	}
	for _, part := range parts {
		if err := part(ctx, tx, f); err != nil {
			return err
		}
	}
	return nil
}

const (
	surroundSQL = `
select coalesce(d.ordering, 'none') = 'aggregate', coalesce(d.breaker, 'closed'), d.breaker_at,
       (select count(*) from {schema}.outbox_workers where seen_at > now() - @dead_after::bigint * interval '1 microsecond'
                                                       and x.destination = any (destinations)),
       (select count(*) from {schema}.outbox_workers where seen_at > now() - @dead_after::bigint * interval '1 microsecond'),
       (select max(seen_at) from {schema}.outbox_workers where name = @holder),
       (select coalesce(sum(n), 0)::float8 / 15
          from {schema}.outbox_rollup -- outbox_rollup_pkey
         where minute > now() - interval '15 minutes'
           and destination = x.destination
           and outcome = 'delivered')
  from (select @destination::text as destination) x
  left join {schema}.outbox_destinations d on d.destination = x.destination`

	// beforeSQL counts along outbox_due, tenant by tenant, which take turns.
	beforeSQL = tenantWalkSQL + `
select count(*)
  from (select 1
          from (select tenant_id from tenant where tenant_id is not null limit 1000) t
         cross join lateral (
               select 1
                 from {schema}.outbox o
                where o.destination = @destination
                  and o.tenant_id = t.tenant_id
                  and o.finished_at is null
                  and (coalesce(o.next_attempt_at, o.available_at), o.id) < (@due::timestamptz, @id::bigint)
                limit @cap) d
         limit @cap) c`
)

// surround reads how an open event's destination stands.
func (s *Store) surround(ctx context.Context, tx pgx.Tx, f *Facts) error {
	r, p := f.Row, &f.Place
	args := pgx.NamedArgs{"destination": r.Destination, "holder": r.Worker(), "dead_after": DeadAfter.Microseconds()}
	err := tx.QueryRow(ctx, s.sql(surroundSQL), args).
		Scan(&p.Ordered, &p.Breaker, perhaps{&p.BreakerAt}, &p.Serving, &p.Dispatchers, perhaps{&p.HolderSeen}, &p.PerMinute)
	if err != nil {
		return err
	}
	pauses, err := s.pausesIn(ctx, tx, &r.Destination)
	for _, pause := range pauses {
		if pause.Tenant == "" || pause.Tenant == r.TenantID {
			p.Pauses = append(p.Pauses, pause)
		}
	}
	if err != nil || r.Leased(f.Now) || r.Due().After(f.Now) {
		return err
	}
	args["from"], args["due"], args["id"], args["cap"] = "", r.Due(), r.ID, MaxCount
	return tx.QueryRow(ctx, s.sql(beforeSQL), args).Scan(&p.Before)
}

// The events of its aggregate before it, along outbox_aggregate.
const (
	rootSQL = `
select ` + rowColumns + `
  from {schema}.outbox o
 where o.destination = @destination
   and o.tenant_id = @tenant
   and o.aggregate_type = @type
   and o.aggregate_id = @aggregate
   and o.finished_at is null
   and coalesce(o.source_id, o.id) < @place
 order by coalesce(o.source_id, o.id)
 limit 1`

	behindSQL = `
select count(*), coalesce(max(id) filter (where n = 1), 0)
  from (select o.id, row_number() over () as n
          from (select o.id
                  from {schema}.outbox o
                 where o.destination = @destination
                   and o.tenant_id = @tenant
                   and o.aggregate_type = @type
                   and o.aggregate_id = @aggregate
                   and o.finished_at is null
                   and coalesce(o.source_id, o.id) < @place
                 order by coalesce(o.source_id, o.id) desc
                 limit @cap) o) c`
)

// orderFacts finds what is in its way where its destination keeps an aggregate's order.
func (s *Store) orderFacts(ctx context.Context, tx pgx.Tx, f *Facts) error {
	r := f.Row
	if !f.Place.Ordered {
		return nil
	}
	place := r.ID
	if r.SourceID != 0 {
		place = r.SourceID
	}
	args := pgx.NamedArgs{"destination": r.Destination, "tenant": r.TenantID, "type": r.AggregateType, "aggregate": r.AggregateID,
		"place": place, "cap": MaxCount}
	roots, err := collectRows(tx.Query(ctx, s.sql(rootSQL), args))
	if err != nil || len(roots) == 0 {
		return err
	}
	if err := tx.QueryRow(ctx, s.sql(behindSQL), args).Scan(&f.Behind, &f.Prior); err != nil {
		return err
	}
	f.Root = &Facts{ID: roots[0].ID, Row: &roots[0]}
	return s.facts(ctx, tx, f.Root, false)
}

const (
	// alikeOpenSQL looks at those that wait for a retry, along outbox_due.
	alikeOpenSQL = tenantWalkSQL + `
select count(*) filter (where c.error_kind = @kind and c.error_code is not distinct from nullif(@code, 0)), count(*)
  from (select d.*
          from (select tenant_id from tenant where tenant_id is not null limit 1000) t
         cross join lateral (
               select o.error_kind, o.error_code
                 from {schema}.outbox o
                where o.destination = @destination
                  and o.tenant_id = t.tenant_id
                  and o.finished_at is null
                  and coalesce(o.next_attempt_at, o.available_at) > now()
                limit @cap) d
         limit @cap) c`

	// alikeEndedSQL looks at the newest of those that did not arrive: outbox_graveyard.
	alikeEndedSQL = `
select count(*) filter (where c.destination = @destination and c.status = @status
                          and c.error_kind = @kind and c.error_code is not distinct from nullif(@code, 0)), count(*)
  from (select destination, status, error_kind, error_code
          from {schema}.outbox
         where finished_at is not null
           and error_kind is not null
         order by finished_at desc, id desc
         limit @cap) c`
)

// alikeFacts counts the events that have the same error.
func (s *Store) alikeFacts(ctx context.Context, tx pgx.Tx, f *Facts) error {
	r := f.Row
	var sql string
	switch {
	case r.ErrorKind == "", r.Status == Delivered, r.Status == Discarded:
		return nil
	case r.Status.Final():
		sql = alikeEndedSQL
	case r.Due().After(f.Now):
		sql = alikeOpenSQL
	default:
		return nil
	}
	return tx.QueryRow(ctx, s.sql(sql), pgx.NamedArgs{
		"destination": r.Destination, "status": r.Status, "kind": r.ErrorKind, "code": r.ErrorCode, "from": "", "cap": MaxCount,
	}).Scan(&f.Alike.Same, &f.Alike.Looked)
}

const redactedSQL = `
select headers ? 'redacted'
  from {schema}{home} -- outbox_pkey, outbox_archive_pkey
 where id = $1`

// redactedFact is known to those alone who may read headers.
func (s *Store) redactedFact(ctx context.Context, tx pgx.Tx, f *Facts) error {
	var readable bool
	if err := tx.QueryRow(ctx, readableSQL, s.schema+f.Row.home()).Scan(&readable); err != nil || !readable {
		return err
	}
	return tx.QueryRow(ctx, s.sql(strings.ReplaceAll(redactedSQL, "{home}", f.Row.home())), f.ID).Scan(&f.Redacted)
}

// Discarder is the note of who gave the event up, nil where it was not a command of ours.
func (f *Facts) Discarder() *Note {
	for i := len(f.Notes) - 1; i >= 0; i-- {
		if f.Notes[i].Action == "discard" {
			return &f.Notes[i]
		}
	}
	return nil
}
