-- keeps updated_at right for tables that others write to; a row trigger, which every claim pays for
-- locks: outbox (share row exclusive)

-- Our own statements set the column, and then the trigger has nothing to do.
create or replace function :"schema".outbox_updated_at() returns trigger
language plpgsql
set search_path = pg_catalog, pg_temp
as $body$
begin
  new.updated_at = clock_timestamp();
  return new;
end
$body$;

drop trigger if exists outbox_updated_at on :"schema".outbox;
create trigger outbox_updated_at before update on :"schema".outbox
  for each row when (new.updated_at = old.updated_at) execute function :"schema".outbox_updated_at();
---- down ----
drop trigger if exists outbox_updated_at on :"schema".outbox;
drop function if exists :"schema".outbox_updated_at();
