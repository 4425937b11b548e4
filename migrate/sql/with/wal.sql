-- publishes which destinations have news, for dispatch --wake wal, which needs wal_level logical
-- locks: outbox (share update exclusive)

-- Inserts alone, and no payload where PostgreSQL 15 or later can leave it out. The name is derived as in
-- Go, see outbox/wal/stream.go.
do $body$
declare
  name text := 'outboxctl_' || left(encode(sha256(convert_to('outboxctl wal ' || :'schema', 'UTF8')), 'hex'), 16);
begin
  if exists (select from pg_publication where pubname = name) then
    execute format('drop publication %I', name);
  end if;
  execute format('create publication %I for table %I.outbox %s with (publish = %L)', name, :'schema',
    case when current_setting('server_version_num')::int >= 150000 then '(id, destination)' end, 'insert');
end
$body$;
---- down ----
do $body$
declare
  name text := 'outboxctl_' || left(encode(sha256(convert_to('outboxctl wal ' || :'schema', 'UTF8')), 'hex'), 16);
begin
  if exists (select from pg_publication where pubname = name) then
    execute format('drop publication %I', name);
  end if;
end
$body$;
