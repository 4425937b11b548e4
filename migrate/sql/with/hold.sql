-- finds what holds an aggregate up, for dispatch --on-dead hold
-- locks: outbox (share update exclusive)
-- concurrently
create index outbox_held on :"schema".outbox (destination, tenant_id, aggregate_type, aggregate_id, coalesce(source_id, id)) where finished_at is not null and error_kind is not null and error_kind <> 'discarded';
---- down ----
drop index if exists :"schema".outbox_held;
