-- oldest binary: 6
-- locks: none

-- What all dispatchers of a destination share: its ordering, the breaker as last seen, its pause.
create table :"schema".outbox_destinations (
  destination  text        not null primary key,
  ordering     text        not null default 'none',
  breaker      text        not null default 'closed'
    constraint outbox_destinations_breaker check (breaker in ('closed', 'open', 'half_open')),
  breaker_at   timestamptz,
  paused_until timestamptz,                               -- infinity = until resumed
  pause_reason text,
  paused_by    text,
  updated_at   timestamptz not null default now()
);
---- down ----
drop table :"schema".outbox_destinations;
