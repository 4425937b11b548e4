-- oldest binary: 5
-- locks: none

-- The heartbeats of dispatchers: who serves which destinations, since when, as which version.
create table :"schema".outbox_workers (
  worker       text        not null primary key,          -- its name and something random
  name         text        not null default '',
  host         text        not null default '',
  pid          int         not null default 0,
  version      text        not null default '',
  slot         smallint    not null default 0,            -- of outbox_rollup
  destinations text[]      not null default '{}',
  parallel     int         not null default 0,
  batch_size   int         not null default 0,
  started_at   timestamptz not null default now(),
  seen_at      timestamptz not null default now()
);
---- down ----
drop table :"schema".outbox_workers;
