-- says which destinations have news, for dispatch --wake listen; producers' commits take turns for it
-- locks: outbox (share row exclusive)

-- One notification a statement and destination; PostgreSQL makes one of equal ones in a transaction.
-- What is due later is found by polling. The channel's name is derived as in Go, see outbox/waker.go.
create or replace function :"schema".outbox_notify() returns trigger
language plpgsql
set search_path = pg_catalog, pg_temp
as $body$
begin
  perform pg_notify('outboxctl_' || left(encode(sha256(convert_to('outboxctl wake ' || tg_table_schema, 'UTF8')), 'hex'), 16), n.destination)
     from (select distinct destination from news where available_at <= clock_timestamp()) n;
  return null;
end
$body$;

drop trigger if exists outbox_notify on :"schema".outbox;
create trigger outbox_notify after insert on :"schema".outbox
  referencing new table as news for each statement execute function :"schema".outbox_notify();
---- down ----
drop trigger if exists outbox_notify on :"schema".outbox;
drop function if exists :"schema".outbox_notify();
