-- oldest binary: 8
-- locks: none

-- The audit of operators' commands. A running purge's row with a fresh heartbeat keeps a second one out.
create table :"schema".outbox_operations (
  id           bigint      generated always as identity primary key,
  who          text        not null default '',
  host         text        not null default '',
  pid          int         not null default 0,
  command      text        not null,
  name         text        not null default '',           -- of a run that is resumed by it
  filter       jsonb       not null default '{}',
  reason       text        not null default '',
  planned      bigint,                                    -- null = not counted
  done         bigint      not null default 0,
  skipped      jsonb       not null default '{}',         -- {reason: n}
  cursor       jsonb,                                     -- where to resume
  started_at   timestamptz not null default now(),
  heartbeat_at timestamptz not null default now(),
  ended_at     timestamptz,                               -- null = running, or died
  error        text
);
---- down ----
drop table :"schema".outbox_operations;
