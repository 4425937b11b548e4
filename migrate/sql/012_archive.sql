-- oldest binary: 10
-- locks: none

-- Finished events that a purge has moved out of the outbox, by the month (UTC) of their end: one
-- partition each, outbox_archive_2026_01, made before its first event comes. The lease columns are
-- left out: what has ended has none.
create table :"schema".outbox_archive (
  id              bigint      not null,
  source_id       bigint,
  tenant_id       text        not null,
  aggregate_type  text        not null,
  aggregate_id    text        not null,
  event_type      text        not null,
  schema_version  int         not null,
  idempotency_key uuid        not null,
  destination     text        not null,
  headers         jsonb       not null,
  payload         jsonb,
  payload_bytes   bytea,
  status          text        not null,
  attempts        int         not null,
  available_at    timestamptz not null,
  next_attempt_at timestamptz,
  last_attempt_at timestamptz,
  finished_at     timestamptz not null,
  created_at      timestamptz not null,
  updated_at      timestamptz not null,
  receipt         text,
  error           text,
  error_kind      text,
  error_code      int,
  origin          text        not null,
  archived_at     timestamptz not null default now(),
  primary key (id, finished_at)
) partition by range (finished_at);

create index outbox_archive_key       on :"schema".outbox_archive (idempotency_key);
create index outbox_archive_aggregate on :"schema".outbox_archive (aggregate_type, aggregate_id, event_type);

-- Makes the partitions for these times where there are none, and returns how many. It is the owner's,
-- so that who archives need not own the schema. A partition is made on its own and then attached:
-- nobody who reads or fills the archive waits for that. None of the functions builds a statement from a
-- name that it did not find in the catalog or make itself.
create function :"schema".outbox_archive_prepare(times timestamptz[]) returns int
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set timezone = 'UTC'
set datestyle = 'ISO'
as $body$
declare
  archive regclass := (select t.typrelid::regclass from pg_type t where t.oid = pg_typeof(cast(null as :"schema".outbox_archive))::oid);
  home    name     := (select n.nspname from pg_class c join pg_namespace n on n.oid = c.relnamespace where c.oid = archive);
  part    text;
  start   timestamptz;
  made    int := 0;
begin
  perform pg_advisory_xact_lock(hashtextextended(home || ' outboxctl archive', 0));
  for start in select distinct date_trunc('month', t) from unnest(times) t order by 1 loop
    if not exists (
      select from pg_inherits i
        join pg_class c on c.oid = i.inhrelid
       cross join regexp_match(pg_get_expr(c.relpartbound, c.oid), '^FOR VALUES FROM \(''(.*)''\) TO \(''(.*)''\)$') m
       where i.inhparent = archive
         and m[1]::timestamptz <= start
         and m[2]::timestamptz > start)
    then
      part := 'outbox_archive_' || to_char(start, 'YYYY_MM');
      execute format('create table %I.%I (like %s including defaults including constraints including indexes)', home, part, archive);
      execute format('alter table %s attach partition %I.%I for values from (%L) to (%L)', archive, home, part, start, start + interval '1 month');
      made := made + 1;
    end if;
  end loop;
  return made;
end
$body$;

-- Drops one partition of the archive if all of it lies before a time; says whether it did.
create function :"schema".outbox_archive_drop(partition text, before timestamptz) returns boolean
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set timezone = 'UTC'
set datestyle = 'ISO'
as $body$
declare
  archive regclass := (select t.typrelid::regclass from pg_type t where t.oid = pg_typeof(cast(null as :"schema".outbox_archive))::oid);
  part    regclass;
begin
  select c.oid::regclass into part
    from pg_inherits i
    join pg_class c on c.oid = i.inhrelid
   cross join regexp_match(pg_get_expr(c.relpartbound, c.oid), '^FOR VALUES FROM \(''.*''\) TO \(''(.*)''\)$') m
   where i.inhparent = archive
     and c.relname = outbox_archive_drop.partition
     and m[1]::timestamptz <= outbox_archive_drop.before;
  if not found then
    return false;
  end if;
  execute format('drop table %s', part);
  return true;
end
$body$;

-- Removes the oldest rows of the record of operations, and no younger ones than 90 days: who changes
-- events cannot take the record of it away.
create function :"schema".outbox_forget(before timestamptz, most int, out operations bigint, out audit bigint)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $body$
begin
  if before > now() - interval '2160 hours' then
    raise exception 'the record of the last 90 days stays' using errcode = 'insufficient_privilege';
  end if;
  with old as (select a.id, a.at from :"schema".outbox_audit a order by a.id limit most),
       gone as (delete from :"schema".outbox_audit a using old where a.id = old.id and old.at < before returning 1)
  select count(*) into audit from gone;
  with old as (select o.id, o.heartbeat_at from :"schema".outbox_operations o order by o.id limit most),
       gone as (delete from :"schema".outbox_operations o using old where o.id = old.id and old.heartbeat_at < before returning 1)
  select count(*) into operations from gone;
end
$body$;

revoke all on function :"schema".outbox_archive_prepare, :"schema".outbox_archive_drop, :"schema".outbox_forget from public;
---- down ----
drop function :"schema".outbox_forget;
drop function :"schema".outbox_archive_drop;
drop function :"schema".outbox_archive_prepare;
drop table :"schema".outbox_archive;
