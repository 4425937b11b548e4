-- oldest binary: 4
-- locks: none

-- What was settled, per minute: rates, error shares and attempts until success need no scan of the
-- outbox. The column worker, a slot, keeps dispatchers off each other's rows.
create table :"schema".outbox_rollup (
  minute      timestamptz not null,
  worker      smallint    not null,
  destination text        not null,
  event_type  text        not null,
  outcome     text        not null,
  error_kind  text        not null default '',
  error_code  int         not null default 0,
  attempt     smallint    not null,
  n           bigint      not null,
  latency     interval    not null,                       -- sum over n
  age         interval    not null,                       -- sum over n, since created_at
  shadow      boolean     not null default false,         -- copies that shadow routes made
  primary key (minute, worker, destination, event_type, outcome, error_kind, error_code, attempt, shadow)
);
---- down ----
drop table :"schema".outbox_rollup;
