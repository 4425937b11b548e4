-- oldest binary: 9
-- locks: none

-- A producer's one call, inside the transaction of its business change. A key that is there already,
-- under any destination, is a repeat: it changes nothing and returns the id of the row that has it.
create function :"schema".outbox_emit(
  aggregate_type  text,
  aggregate_id    text,
  event_type      text,
  payload         jsonb,
  idempotency_key uuid        default null,               -- null = a random one
  tenant_id       text        default '',
  headers         jsonb       default '{}',
  available_at    timestamptz default null,               -- null = now
  schema_version  int         default 1,
  destination     text        default ''
) returns bigint
language plpgsql
set search_path = pg_catalog, pg_temp
as $body$
#variable_conflict use_column
declare
  key uuid := coalesce(outbox_emit.idempotency_key, gen_random_uuid());
  row_id bigint;
begin
  loop
    if outbox_emit.idempotency_key is not null then
      select o.id into row_id
        from :"schema".outbox o
       where o.idempotency_key = key
       order by o.id
       limit 1;
      if found then
        return row_id;
      end if;
    end if;

    -- A concurrent emit of the same key makes this one wait and then insert nothing: look again.
    insert into :"schema".outbox (aggregate_type, aggregate_id, event_type, payload, idempotency_key,
                tenant_id, headers, available_at, schema_version, destination)
    values (outbox_emit.aggregate_type, outbox_emit.aggregate_id, outbox_emit.event_type, outbox_emit.payload, key,
            coalesce(outbox_emit.tenant_id, ''), coalesce(outbox_emit.headers, '{}'), coalesce(outbox_emit.available_at, now()),
            coalesce(outbox_emit.schema_version, 1), coalesce(outbox_emit.destination, ''))
    on conflict (idempotency_key, destination) do nothing
    returning id into row_id;
    if found then
      return row_id;
    end if;
  end loop;
end
$body$;
---- down ----
drop function :"schema".outbox_emit;
