-- oldest binary: 7
-- locks: none

-- Small samples of the outbox's health, for trends that the rollup cannot tell.
create table :"schema".outbox_samples (
  at    timestamptz      not null default now(),
  name  text             not null,
  value double precision not null
);

create index outbox_samples_name on :"schema".outbox_samples (name, at);
---- down ----
drop table :"schema".outbox_samples;
