-- lets the router find what it has not looked at, for dispatch with routes
-- locks: outbox (share update exclusive)
-- concurrently
create index outbox_unrouted on :"schema".outbox (tenant_id, id) where finished_at is null and destination = '' and next_attempt_at is null;
---- down ----
drop index if exists :"schema".outbox_unrouted;
