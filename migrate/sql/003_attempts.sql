-- oldest binary: 3
-- locks: none

-- One row per attempt that did not deliver, and per delivery when asked. It has no foreign key: the
-- history outlives a purged event, and a settle need not look up what it has just updated.
create table :"schema".outbox_attempts (
  id          bigint      generated always as identity primary key,
  event_id    bigint      not null,
  attempt     int         not null,
  lease       text        not null,
  destination text        not null,
  at          timestamptz not null default clock_timestamp(),
  outcome     text        not null,
  error_kind  text,
  error_code  int,
  error       text,
  latency     interval
);

create index outbox_attempts_event on :"schema".outbox_attempts (event_id, id);
---- down ----
drop table :"schema".outbox_attempts;
