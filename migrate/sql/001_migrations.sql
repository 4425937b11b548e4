-- oldest binary: 1
-- locks: none
create table :"schema".outbox_migrations (
  version    int         not null primary key,
  name       text        not null,
  applied_at timestamptz not null default now(),
  min_binary int         not null                         -- the oldest binary schema that may run beside it
);
---- down ----
drop table :"schema".outbox_migrations;
