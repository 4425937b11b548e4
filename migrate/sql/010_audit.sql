-- oldest binary: 9
-- locks: none

-- What an operator's command did to which event, and what the event was before. It outlives the
-- event's purge as the history of attempts does.
create table :"schema".outbox_audit (
  id           bigint      generated always as identity primary key,
  operation    bigint      not null,                      -- outbox_operations.id
  event_id     bigint      not null,
  at           timestamptz not null default clock_timestamp(),
  action       text        not null,                      -- replay, discard, edit, reveal, redact, move
  status       text        not null,                      -- before
  attempts     int         not null,                      -- before
  destination  text        not null,                      -- before
  payload_hash bytea                                      -- SHA-256 of the payload before; null = it stayed as it was
);

create index outbox_audit_event on :"schema".outbox_audit (event_id, id);
---- down ----
drop table :"schema".outbox_audit;
