package outbox

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/jackc/pgx/v5"
)

// Forever is how long a pause lasts that a person has to end.
const Forever = time.Duration(math.MaxInt64)

// Pause keeps the events of a destination, or of one tenant there, from being claimed. They stay as
// they are, due or not.
type Pause struct {
	Destination string        // "" = the default one
	Tenant      string        // "" = all of the destination
	For         time.Duration // from now on; [Forever] = until it is resumed
	Reason      string
	By          string // who said so
}

// Paused is a pause in force.
type Paused struct {
	Pause
	Until time.Time // zero = until it is resumed
}

// The pauses of destinations stand in outbox_destinations, those of tenants in a table of their own.
// One that is over by its time is left there: who looks compares the time.
const (
	pauseSQL = `
insert into {schema}.outbox_destinations as d (destination, paused_until, pause_reason, paused_by, updated_at)
values (@destination, coalesce(now() + @for::bigint * interval '1 microsecond', 'infinity'), @reason,
        @by::text || ' (database role ' || session_user || ')', now())
    on conflict (destination) do update
   set paused_until = excluded.paused_until, pause_reason = excluded.pause_reason, paused_by = excluded.paused_by,
       updated_at = excluded.updated_at`

	pauseTenantSQL = `
insert into {schema}.outbox_tenant_pauses as t (destination, tenant_id, paused_until, reason, paused_by, paused_at)
values (@destination, @tenant, coalesce(now() + @for::bigint * interval '1 microsecond', 'infinity'), @reason,
        @by::text || ' (database role ' || session_user || ')', now())
    on conflict (destination, tenant_id) do update
   set paused_until = excluded.paused_until, reason = excluded.reason, paused_by = excluded.paused_by,
       paused_at = excluded.paused_at`

	resumeDestinationSQL = `
update {schema}.outbox_destinations
   set paused_until = null, pause_reason = null, paused_by = null, updated_at = now()
 where destination = @destination
   and paused_until > now()`

	resumeTenantSQL = `
delete from {schema}.outbox_tenant_pauses
 where destination = @destination
   and tenant_id = @tenant
   and paused_until > now()`
)

// Pause begins a pause, or changes the one that is in force. It is noted as done in the operation.
func (r *Run) Pause(ctx context.Context, p Pause) error {
	sql := pauseSQL
	if p.Tenant != "" {
		sql = pauseTenantSQL
	}
	_, err := r.step(ctx, func(tx pgx.Tx, progress *Progress) (int, error) {
		_, err := tx.Exec(ctx, r.store.sql(sql), pgx.NamedArgs{
			"destination": p.Destination, "tenant": p.Tenant, "for": pauseMicros(p.For), "reason": p.Reason, "by": p.By,
		})
		progress.Done = 1
		return 1, err
	})
	if err != nil {
		return fmt.Errorf("pause: %w", err)
	}
	return nil
}

// pauseMicros is how long a pause lasts, null for ever.
func pauseMicros(d time.Duration) *int64 {
	if d == Forever {
		return nil
	}
	n := d.Microseconds()
	return &n
}

// Resume ends a pause and reports whether there was one. It touches no event.
func (r *Run) Resume(ctx context.Context, destination, tenant string) (was bool, err error) {
	sql := resumeDestinationSQL
	if tenant != "" {
		sql = resumeTenantSQL
	}
	_, err = r.step(ctx, func(tx pgx.Tx, progress *Progress) (int, error) {
		tag, err := tx.Exec(ctx, r.store.sql(sql), pgx.NamedArgs{"destination": destination, "tenant": tenant})
		progress.Done = tag.RowsAffected()
		was = progress.Done > 0
		return int(progress.Done), err
	})
	if err != nil {
		return false, fmt.Errorf("resume: %w", err)
	}
	return was, nil
}

// pausesSQL gives how long is left: PostgreSQL before 17 cannot subtract from infinity.
const pausesSQL = `
select p.destination, p.tenant_id, nullif(p.paused_until, 'infinity'),
       case when p.paused_until < 'infinity'
            then (extract(epoch from least(p.paused_until, now() + interval '100 years') - now()) * 1000000)::bigint end,
       p.reason, p.paused_by
  from (select destination, '' as tenant_id, paused_until, coalesce(pause_reason, '') as reason, coalesce(paused_by, '') as paused_by
          from {schema}.outbox_destinations
         union all
        select destination, tenant_id, paused_until, reason, paused_by
          from {schema}.outbox_tenant_pauses) p
 where p.paused_until > now()
   and (@destination::text is null or p.destination = @destination)
 order by 1, 2`

// Pauses lists what is paused now, a destination before its tenants.
func (s *Store) Pauses(ctx context.Context) ([]Paused, error) { return s.pauses(ctx, nil) }

// pauses lists those of one destination, or all.
func (s *Store) pauses(ctx context.Context, destination *string) (list []Paused, err error) {
	err = s.inTx(ctx, statsLimits, func(tx pgx.Tx) error {
		list, err = s.pausesIn(ctx, tx, destination)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("pauses: %w", err)
	}
	return list, nil
}

func (s *Store) pausesIn(ctx context.Context, tx pgx.Tx, destination *string) ([]Paused, error) {
	rows, err := tx.Query(ctx, s.sql(pausesSQL), pgx.NamedArgs{"destination": destination})
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, scanPaused)
}

func scanPaused(row pgx.CollectableRow) (p Paused, err error) {
	var until *time.Time
	var micros *int64
	err = row.Scan(&p.Destination, &p.Tenant, &until, &micros, &p.Reason, &p.By)
	p.For = Forever
	if until != nil && micros != nil {
		p.Until, p.For = until.UTC(), time.Duration(*micros)*time.Microsecond
	}
	return p, err
}

const knownSQL = `
select destination
  from (select destination from {schema}.outbox_destinations
         union
        select unnest(destinations) from {schema}.outbox_workers
         union
        select '') d
 order by 1`

const servedSQL = `
select exists (
         select from {schema}.outbox_workers
          where seen_at > now() - @dead_after::bigint * interval '1 microsecond'
            and @destination = any (destinations))`

// openAtSQL is asked of a destination that has never been served.
const openAtSQL = `
select exists (
         select from {schema}.outbox -- outbox_due
          where destination = @destination
            and finished_at is null)`

// Known lists the destinations that have been heard of: served by a dispatcher, or paused. With
// them it reports whether name is one, or has open events at least, and whether a dispatcher alive
// serves it.
func (s *Store) Known(ctx context.Context, name string) (all []string, known, served bool, err error) {
	err = s.inTx(ctx, statsLimits, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, s.sql(knownSQL))
		if err != nil {
			return err
		}
		if all, err = pgx.CollectRows(rows, pgx.RowTo[string]); err != nil {
			return err
		}
		args := pgx.NamedArgs{"destination": name, "dead_after": DeadAfter.Microseconds()}
		if err := tx.QueryRow(ctx, s.sql(servedSQL), args).Scan(&served); err != nil {
			return err
		}
		return tx.QueryRow(ctx, s.sql(openAtSQL), args).Scan(&known)
	})
	if err != nil {
		return nil, false, false, fmt.Errorf("known destinations: %w", err)
	}
	for _, other := range all {
		known = known || other == name
	}
	return all, known, served, nil
}
