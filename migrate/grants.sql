-- What each role may do in the outbox's schema, as "outboxctl migrate grants" prints it. It may be run
-- again after every migration: it takes back what it gave and gives what is needed now, in one
-- statement. The roles cannot log in; let a user be one of them with "grant ROLE to USER".
do $block$
begin
perform pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);

if not exists (select from pg_roles where rolname = :'producer') then
  create role :"producer" nologin;
end if;
if not exists (select from pg_roles where rolname = :'dispatcher') then
  create role :"dispatcher" nologin;
end if;
if not exists (select from pg_roles where rolname = :'operator') then
  create role :"operator" nologin;
end if;
if not exists (select from pg_roles where rolname = :'reader') then
  create role :"reader" nologin;
end if;
if not exists (select from pg_roles where rolname = :'cdc') then
  create role :"cdc" nologin;
end if;

revoke all on table :tables from :"producer", :"dispatcher", :"operator", :"reader", :"cdc";
revoke all on function :functions from :"producer", :"dispatcher", :"operator", :"reader", :"cdc";
grant usage on schema :"schema" to :"producer", :"dispatcher", :"operator", :"reader", :"cdc";

-- A producer writes pending events and sees no more of any event than its key, to know a repeat.
grant insert (tenant_id, aggregate_type, aggregate_id, event_type, schema_version, idempotency_key, destination,
              headers, payload, payload_bytes, status, available_at),
      select (id, idempotency_key, destination)
   on :"schema".outbox to :"producer";
grant execute on function :"schema".outbox_emit to :"producer";

-- A dispatcher reads events, gives them their destinations and changes their state: not what they
-- say. It removes none. It adds copies for other destinations, and one that is needed again starts anew.
grant select,
      insert (source_id, tenant_id, aggregate_type, aggregate_id, event_type, schema_version, idempotency_key, destination,
              headers, payload, payload_bytes, available_at, created_at, origin),
      update (destination, status, attempts, available_at, next_attempt_at, lease, lease_until, last_attempt_at, finished_at, updated_at,
              receipt, error, error_kind, error_code, origin)
   on :"schema".outbox to :"dispatcher";
grant select, insert on :"schema".outbox_attempts to :"dispatcher";
grant select, insert, update (n, latency, age) on :"schema".outbox_rollup to :"dispatcher";
grant select, insert, update (seen_at), delete on :"schema".outbox_workers to :"dispatcher";
grant select, insert on :"schema".outbox_samples to :"dispatcher"; -- stats leave a mark for doctor
grant select, insert (destination, ordering, breaker, breaker_at, paused_until, pause_reason, paused_by, updated_at),
      update (ordering, breaker, breaker_at, paused_until, pause_reason, paused_by, updated_at)
   on :"schema".outbox_destinations to :"dispatcher";
grant select on :"schema".outbox_tenant_pauses to :"dispatcher";
grant select, insert (destination, events, last_event), update (events, last_event, last_at) on :"schema".outbox_late to :"dispatcher";
grant select on :"schema".outbox_migrations to :"dispatcher";

-- An operator reads everything, sends events again, edits, discards and removes them with their
-- history, archives them, pauses destinations, and leaves a record of it that it cannot remove while
-- it is young.
grant select on table :tables to :"operator";
grant insert (source_id, tenant_id, aggregate_type, aggregate_id, event_type, schema_version, idempotency_key, destination,
              headers, payload, payload_bytes, status, available_at, created_at, origin),
      update (idempotency_key, destination, headers, payload, payload_bytes, status, attempts, available_at, next_attempt_at, lease, lease_until,
              finished_at, updated_at, receipt, error, error_kind, error_code, origin),
      delete
   on :"schema".outbox to :"operator";
grant delete on :"schema".outbox_attempts, :"schema".outbox_rollup, :"schema".outbox_samples to :"operator";
grant insert on :"schema".outbox_samples to :"operator"; -- stats leave a mark for doctor
grant insert, update (headers, payload, payload_bytes) on :"schema".outbox_archive to :"operator";
grant execute on function :"schema".outbox_archive_prepare, :"schema".outbox_archive_drop, :"schema".outbox_forget to :"operator";
grant insert on :"schema".outbox_audit to :"operator";
grant insert, update (planned, done, skipped, cursor, heartbeat_at, ended_at, error) on :"schema".outbox_operations to :"operator";
grant insert, update (paused_until, pause_reason, paused_by, updated_at) on :"schema".outbox_destinations to :"operator";
grant insert, update (paused_until, reason, paused_by, paused_at), delete on :"schema".outbox_tenant_pauses to :"operator";

-- A reader sees how the outbox is doing, not what events say: neither payloads nor headers.
grant select (id, source_id, tenant_id, aggregate_type, aggregate_id, event_type, schema_version, idempotency_key, destination,
              status, attempts, available_at, next_attempt_at, lease, lease_until, last_attempt_at, finished_at, created_at,
              updated_at, receipt, error, error_kind, error_code, origin)
   on :"schema".outbox to :"reader";
grant select (id, source_id, tenant_id, aggregate_type, aggregate_id, event_type, schema_version, idempotency_key, destination,
              status, attempts, available_at, next_attempt_at, last_attempt_at, finished_at, created_at, updated_at, receipt, error,
              error_kind, error_code, origin, archived_at)
   on :"schema".outbox_archive to :"reader";
grant select on :"schema".outbox_attempts, :"schema".outbox_rollup, :"schema".outbox_workers, :"schema".outbox_destinations,
                :"schema".outbox_samples, :"schema".outbox_operations, :"schema".outbox_audit, :"schema".outbox_tenant_pauses,
                :"schema".outbox_late, :"schema".outbox_migrations
   to :"reader";

-- What follows the write-ahead log learns where there is news. A member of the role does not inherit the
-- right to replicate: let the role itself log in, or give the right to the user.
grant select (id, destination) on :"schema".outbox to :"cdc";
grant select on :"schema".outbox_migrations to :"cdc";
if not (select rolreplication from pg_roles where rolname = :'cdc') then
  begin
    alter role :"cdc" replication;
  exception when insufficient_privilege then
    raise notice 'a superuser has yet to run: alter role % replication', quote_ident(:'cdc');
  end;
end if;
end
$block$;
