-- oldest binary: 10
-- locks: none

-- Where the events of an aggregate are sent in order: how many were seen only after a later one of
-- theirs had been sent, because their transaction committed late, and which was the last.
create table :"schema".outbox_late (
  destination text        not null primary key,
  events      bigint      not null,
  last_event  bigint      not null,                       -- outbox.id
  last_at     timestamptz not null default clock_timestamp()
);
---- down ----
drop table :"schema".outbox_late;
