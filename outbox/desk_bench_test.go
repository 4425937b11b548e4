package outbox_test

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxctl/outboxctl/outbox/outboxtest"
)

// desk returns the outbox that the operators' commands are measured on, filled once for all
// benchmarks: they share it and change nothing in it. Who does takes outboxtest.FilledCopy(b, deskSQL).
//
//	ids 1 … 2,000,000      delivered, over the last 40 days, of 12 types, 200 tenants, 4 destinations
//	100,000 from there     open: due, waiting for a retry, in the future, leased, lapsed
//	20,000 from there      failed and dead letters, with three attempts each and many texts of errors
//	1,000 from there       discarded
//
// Its keys are 00000000-0000-4000-8000- and the id in hex; the rollup covers a day.
func desk(b *testing.B) *pgxpool.Pool {
	b.Helper()
	return outboxtest.Filled(b, deskSQL)
}

// deskSQL builds the indexes of the 2 million after them.
const deskSQL = `
set synchronous_commit = off;
set maintenance_work_mem = '256MB';
alter table outbox set (autovacuum_enabled = off);
drop index outbox_key, outbox_done;

create function desk_event(i bigint, out tenant_id text, out aggregate_type text, out aggregate_id text, out event_type text,
                           out idempotency_key uuid, out destination text, out payload jsonb) language sql immutable as
$$ select 'tenant-' || lpad((i / 5 % 200)::text, 3, '0'), (array['order','invoice','user'])[1 + i % 3], (i / 7)::text,
          (array['order','invoice','user'])[1 + i % 3] || '.' || (array['created','paid','changed','closed'])[1 + i / 3 % 4],
          ('00000000-0000-4000-8000-' || lpad(to_hex(i), 12, '0'))::uuid,
          (array['','crm','mail','search'])[1 + i / 12 % 4],
          jsonb_build_object('order_id', i, 'customer_id', i / 7, 'amount_cents', i * 37 % 100000, 'currency', 'EUR', 'note', md5(i::text)) $$;

insert into outbox (id, tenant_id, aggregate_type, aggregate_id, event_type, idempotency_key, destination, payload,
                    status, attempts, available_at, created_at, last_attempt_at, finished_at, updated_at, receipt)
select i, e.*, 'delivered', 1 + (i % 50 = 0)::int, at, at, at, at, at, '200'
  from (select i, now() - interval '40 days' * ((2000001 - i) / 2000000.0) as at from generate_series(1, 2000000) i) g,
       lateral desk_event(i) e;

create unique index outbox_key on outbox (idempotency_key, destination);
create index outbox_done on outbox (finished_at, id) where finished_at is not null;

insert into outbox (id, tenant_id, aggregate_type, aggregate_id, event_type, idempotency_key, destination, payload,
                    status, attempts, available_at, next_attempt_at, created_at, last_attempt_at, lease, lease_until, error, error_kind, error_code)
select i, e.*,
       case when k < 5 then 'in_progress' else 'pending' end,
       case when k < 30 then 1 + i % 9 else 0 end,
       case when k >= 90 then now() + interval '1 hour' * ((i % 100) + 1) else now() - interval '1 second' * (i % 600) end,
       case when k between 5 and 29 then now() + interval '1 second' * (1 + i % 300) end,
       now() - interval '1 second' * (i % 600),
       case when k < 30 then now() - interval '1 second' * (i % 60) end,
       case when k < 5 then 'worker-1/0123456789abcdef' end,
       case when k < 4 then now() + interval '1 day' when k = 4 then now() - interval '5 minutes' end,
       case when k between 5 and 29 then 'answered 503 Service Unavailable' end,
       case when k between 5 and 29 then 'http' end,
       case when k between 5 and 29 then 503 end
  from (select i, i % 100 as k from generate_series(2000001, 2100000) i) g,
       lateral desk_event(i) e;

insert into outbox (id, tenant_id, aggregate_type, aggregate_id, event_type, idempotency_key, destination, payload,
                    status, attempts, available_at, created_at, last_attempt_at, finished_at, updated_at, error, error_kind, error_code)
select i, e.*, case when i % 4 = 0 then 'dead_letter' else 'failed' end, case when i % 4 = 0 then 1 else 10 end, at, at, at, at, at,
       case i % 4 when 0 then 'answered 422 Unprocessable Entity'
                  when 1 then 'answered 500 Internal Server Error'
                  when 2 then 'dial tcp 10.0.0.' || i % 250 || ':' || 30000 + i % 5000 || ': connection refused'
                  else 'no answer for order ' || i || ' (request ' || md5(i::text) || ')' end,
       case i % 4 when 0 then 'http' when 1 then 'http' when 2 then 'refused' else 'timeout' end,
       case i % 4 when 0 then 422 when 1 then 500 end
  from (select i, now() - interval '2 days' * ((2120001 - i) / 20000.0) as at from generate_series(2100001, 2120000) i) g,
       lateral desk_event(i) e;

insert into outbox (id, tenant_id, aggregate_type, aggregate_id, event_type, idempotency_key, destination, payload,
                    status, available_at, created_at, finished_at, error, error_kind)
select i, e.*, 'discarded', now(), now(), now(), 'sent by hand', 'discarded'
  from generate_series(2120001, 2121000) i, lateral desk_event(i) e;

select setval(pg_get_serial_sequence('outbox', 'id'), 2121000);

insert into outbox_attempts (event_id, attempt, lease, destination, at, outcome, error_kind, error_code, error, latency)
select o.id, a, 'worker-1/0123456789abcdef', o.destination, o.finished_at - interval '1 minute' * (3 - a), case when a < 3 then 'pending' else o.status end,
       o.error_kind, o.error_code, o.error, interval '20 ms'
  from outbox o, generate_series(1, 3) a
 where o.id between 2100001 and 2120000;

insert into outbox_rollup (minute, worker, destination, event_type, outcome, error_kind, error_code, attempt, n, latency, age)
select m, w, d, t || '.' || v, o, k, c, a, n, n * interval '20 ms', n * interval '300 ms'
  from generate_series(date_trunc('minute', now()) - interval '1 day', now(), '1 minute') m,
       generate_series(1, 2) w,
       unnest(array['','crm','mail','search']) d, unnest(array['order','invoice','user']) t, unnest(array['created','paid']) v,
       (values ('delivered', '', 200, 1, 40), ('delivered', '', 200, 2, 2), ('pending', 'http', 503, 1, 2), ('failed', 'timeout', 0, 10, 1)) x(o, k, c, a, n);

insert into outbox_destinations (destination, ordering) values ('crm', 'aggregate');
insert into outbox_workers (worker, name, host, pid, version, destinations, parallel, batch_size, started_at, seen_at)
values ('worker-1/1', 'worker-1', 'host-1', 1, '1.0.0', '{"",crm,mail,search}', 10, 100, now() - interval '3 days', now() + interval '1 day');
alter table outbox reset (autovacuum_enabled);
drop function desk_event`

// BenchmarkStats is the whole picture, against the count that everybody would write.
func BenchmarkStats(b *testing.B) {
	db := desk(b)
	stats(b, db) // the first one reads the disk
	var took time.Duration
	for b.Loop() {
		began := time.Now()
		stats(b, db)
		took += time.Since(began)
	}
	b.ReportMetric(float64(took.Microseconds())/1000/float64(b.N), "ms")
	b.ReportMetric(naively(b, db, `select count(*) from (select status, event_type, count(*) from outbox group by 1, 2) g`), "naive-ms")
	b.ReportMetric(0, "ns/op")
}

// naively returns the milliseconds that a query takes: the least of three runs.
func naively(b *testing.B, db *pgxpool.Pool, sql string) float64 {
	b.Helper()
	best := time.Hour
	for range 3 {
		began := time.Now()
		exec(b, db, sql)
		best = min(best, time.Since(began))
	}
	return float64(best.Microseconds()) / 1000
}
