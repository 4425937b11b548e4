-- oldest binary: 10
-- locks: none

-- The tenants of a destination that are paused there. A destination's own pause stands in
-- outbox_destinations.
create table :"schema".outbox_tenant_pauses (
  destination  text        not null,
  tenant_id    text        not null,
  paused_until timestamptz not null,                      -- infinity = until resumed
  reason       text        not null default '',
  paused_by    text        not null default '',
  paused_at    timestamptz not null default now(),
  primary key (destination, tenant_id)
);
---- down ----
drop table :"schema".outbox_tenant_pauses;
