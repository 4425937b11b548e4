package outbox_test

import (
	"testing"

	"github.com/outboxctl/outboxctl/outbox"
	"github.com/outboxctl/outboxctl/outbox/outboxtest"
)

func TestSettleCopiesWhatDiesToTheDeadLetterDestination(t *testing.T) {
	t.Parallel()
	db := outboxtest.DB(t)
	q := newQueue(db, func(o *outbox.QueueOptions) { o.DeadLetter = "graveyard" })
	exec(t, db, `insert into outbox (tenant_id, aggregate_type, aggregate_id, event_type, schema_version, headers, payload, payload_bytes, source_id)
		select 'acme', 'order', i::text, 'order.created', 2, '{"traceparent": "t"}', case when i <> 4 then '{"n": 1.10}'::jsonb end,
		       case when i = 4 then '\x00ff'::bytea end, case when i = 3 then 77 end
		  from generate_series(1, 4) i`)
	events := claim(t, q, 4)
	exchange(t, q, []outbox.Outcome{
		outcome(events[0], outbox.Delivered), outcome(events[1], outbox.Failed),
		outcome(events[2], outbox.DeadLetter), outcome(events[3], outbox.DeadLetter),
	}, 0)
	const copies = `
		select string_agg(format('%s of %s: %s %s %s %s', c.aggregate_id, c.source_id, c.status, c.attempts, c.origin,
		                         (o.idempotency_key, o.headers, o.tenant_id, o.schema_version, o.created_at, o.payload, o.payload_bytes) is not distinct from
		                         (c.idempotency_key, c.headers, c.tenant_id, c.schema_version, c.created_at, c.payload, c.payload_bytes)), '; ' order by c.id)
		  from outbox c join outbox o using (idempotency_key)
		 where c.destination = 'graveyard' and o.destination = ''`
	want := "2 of 2: pending 0 dead_letter: t; 3 of 77: pending 0 dead_letter: t; 4 of 4: pending 0 dead_letter: t"
	if got := query[string](t, db, copies); got != want {
		t.Errorf("copies = %s\nwant %s", got, want)
	}

	// An event that dies again starts its copy anew, unless a worker has that.
	exec(t, db, `update outbox set status = 'delivered', finished_at = now(), attempts = 3 where destination = 'graveyard' and aggregate_id = '2'`)
	exec(t, db, `update outbox set status = 'in_progress', lease = 'other/1', lease_until = now() + interval '1 min', attempts = 1 where destination = 'graveyard' and aggregate_id = '3'`)
	exec(t, db, `update outbox set status = 'in_progress', lease = 'other/2', lease_until = now() - interval '1 min', attempts = 1 where destination = 'graveyard' and aggregate_id = '4'`)
	exec(t, db, `update outbox set status = 'pending', finished_at = null, next_attempt_at = null where destination = '' and aggregate_id in ('2', '3', '4')`)
	exchange(t, q, outcomes(claim(t, q, 3), outbox.Failed), 0)
	want = "2 of 2: pending 0 dead_letter: t; 3 of 77: in_progress 1 dead_letter: t; 4 of 4: pending 0 dead_letter: t"
	if got := query[string](t, db, copies); got != want {
		t.Errorf("copies of what died twice = %s\nwant %s", got, want)
	}
}
