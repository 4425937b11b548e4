package storm

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxctl/outboxctl/outbox/outboxtest"
)

// The users of the run's database. Each may do what migrate grants gives its kind, and logs in with a canary.
const (
	superuser      = "postgres"
	dispatcherRole = "storm_dispatcher"
	producerRole   = "storm_producer"
	operatorRole   = "storm_operator"
	crowdRole      = "storm_crowd" // has no password, and does nothing but be there
)

func password(role string) string { return "CANARY-password-of-" + role }

// rolesSQL runs after migrate grants.
const rolesSQL = `
create role storm_dispatcher login password 'CANARY-password-of-storm_dispatcher' in role outbox_dispatcher;
create role storm_producer   login password 'CANARY-password-of-storm_producer'   in role outbox_producer;
create role storm_operator   login password 'CANARY-password-of-storm_operator'   in role outbox_operator, outbox_reader;
create role storm_crowd      login;
grant select on outbox to storm_producer; -- to hash what PostgreSQL has made of a payload
`

// logSQL makes the table of transitions. Its rows are written by the statement that makes the change, in its transaction.
const logSQL = `
create schema storm;
grant usage on schema storm to storm_producer;
create table storm.aggregates (id int primary key, changes bigint not null default 0);
grant select, update on storm.aggregates to storm_producer;
create type storm.state as (
  destination text, status text, attempts int, lease text, lease_until timestamptz, available_at timestamptz,
  next_attempt_at timestamptz, finished_at timestamptz, error_kind text, error_code int, receipt text);
create table storm.log (
  n      bigint      generated always as identity primary key,
  at     timestamptz not null default clock_timestamp(),
  xid    bigint      not null default pg_current_xact_id()::text::bigint,
  app    text        not null default current_setting('application_name'),
  pid    int         not null default pg_backend_pid(),
  id     bigint      not null,
  before storm.state,
  after  storm.state);
create function storm.note() returns trigger language plpgsql security definer set search_path = pg_catalog, pg_temp as $body$
begin
  if tg_op = 'INSERT' then
    insert into storm.log (id, after)
    select a.id, (a.destination, a.status, a.attempts, a.lease, a.lease_until, a.available_at, a.next_attempt_at, a.finished_at, a.error_kind, a.error_code, a.receipt)::storm.state
      from fresh a order by a.id;
  elsif tg_op = 'DELETE' then
    insert into storm.log (id, before)
    select b.id, (b.destination, b.status, b.attempts, b.lease, b.lease_until, b.available_at, b.next_attempt_at, b.finished_at, b.error_kind, b.error_code, b.receipt)::storm.state
      from stale b order by b.id;
  else
    insert into storm.log (id, before, after)
    select a.id, (b.destination, b.status, b.attempts, b.lease, b.lease_until, b.available_at, b.next_attempt_at, b.finished_at, b.error_kind, b.error_code, b.receipt)::storm.state,
                 (a.destination, a.status, a.attempts, a.lease, a.lease_until, a.available_at, a.next_attempt_at, a.finished_at, a.error_kind, a.error_code, a.receipt)::storm.state
      from stale b join fresh a using (id) order by a.id;
  end if;
  return null;
end
$body$;
create trigger storm_insert after insert on outbox referencing new table as fresh for each statement execute function storm.note();
create trigger storm_update after update on outbox referencing old table as stale new table as fresh for each statement execute function storm.note();
create trigger storm_delete after delete on outbox referencing old table as stale for each statement execute function storm.note();
`

const aggregatesSQL = `
insert into storm.aggregates (id)
select generate_series(1, $1::int)`

// startDatabase starts a PostgreSQL as one would run it, but for its connections, which are few enough to run out of.
func (r *run) startDatabase(ctx context.Context) error {
	var err error
	r.cluster, err = outboxtest.Start(outboxtest.Options{
		Fsync:    true,
		Password: password(superuser),
		Access:   []string{"host all storm_crowd 127.0.0.1/32 trust", "host all all 127.0.0.1/32 scram-sha-256"},
		Settings: []string{"max_connections = 150", "superuser_reserved_connections = 10", "max_wal_size = '2GB'"},
	})
	if err != nil {
		return err
	}
	u, err := url.Parse(r.cluster.URL("postgres"))
	if err != nil {
		return err
	}
	r.server = u.Host
	config, err := pgxpool.ParseConfig(r.url(superuser, r.server, "storm"))
	if err != nil {
		return err
	}
	config.MaxConns = 12
	if r.admin, err = pgxpool.NewWithConfig(ctx, config); err != nil {
		return err
	}
	env := append(os.Environ(), "DATABASE_URL="+r.url(superuser, r.server, "migrate"))
	for _, args := range [][]string{{"migrate", "--with", "routes,hold"}, {"migrate", "grants"}} {
		cmd := exec.CommandContext(ctx, r.plan.Binary, args...)
		cmd.Env = env
		out, err := cmd.Output()
		if err != nil {
			return fmt.Errorf("outboxctl %s: %w", args[0], err)
		}
		if args[1] == "grants" {
			if err := r.script(ctx, string(out)); err != nil {
				return fmt.Errorf("grants: %w", err)
			}
		}
	}
	if err := r.script(ctx, rolesSQL+logSQL); err != nil {
		return err
	}
	_, err = r.admin.Exec(ctx, aggregatesSQL, aggregates)
	return err
}

// script runs statements that have no parameters.
func (r *run) script(ctx context.Context, sql string) error {
	c, err := r.admin.Acquire(ctx)
	if err != nil {
		return err
	}
	defer c.Release()
	return c.Conn().PgConn().Exec(ctx, sql).Close()
}

// url is a role's way to the database by an address: the server's own or a wire's.
func (r *run) url(role, addr, app string) string {
	u := url.URL{Scheme: "postgres", User: url.UserPassword(role, password(role)), Host: addr, Path: "/postgres",
		RawQuery: "sslmode=disable&application_name=" + app}
	return u.String()
}

// connect opens a session of the run's own, past all wires, as soon as there is a server.
func (r *run) connect(ctx context.Context) (*pgx.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		conn, err := pgx.Connect(ctx, r.url(superuser, r.server, "storm"))
		if err == nil || !pause(ctx, nil, 100*time.Millisecond) {
			return conn, err
		}
	}
}
