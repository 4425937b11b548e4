package outbox_test

import (
	"context"
	"testing"

	"github.com/outboxctl/outboxctl/outbox"
	"github.com/outboxctl/outboxctl/outbox/outboxtest"
)

func TestOvertakenCountsAggregatesWithLaterDeliveries(t *testing.T) {
	t.Parallel()
	db := outboxtest.DB(t)
	bury(t, db, 8) // of aggregates 1 to 8
	exec(t, db, `insert into outbox (destination, tenant_id, aggregate_type, aggregate_id, event_type, payload, status, source_id, finished_at, error_kind)
		select destination, tenant, 'order', id, 'order.paid', '{}', status, source, now() + age::interval, kind
		  from (values ('',    '',     '1', 'delivered', null, '-1 min',  null),   -- later
		               ('',    '',     '1', 'delivered', null, '-1 min',  null),   -- and again
		               ('crm', '',     '2', 'delivered', null, '-1 min',  null),   -- elsewhere
		               ('',    'acme', '3', 'delivered', null, '-1 min',  null),   -- somebody else's
		               ('',    '',     '4', 'failed',    null, '-1 min',  'http'), -- not delivered
		               ('',    '',     '5', 'delivered', -1,   '-1 min',  null),   -- a copy of an earlier one
		               ('',    '',     '6', 'delivered', null, '-2 days', null),   -- before these were created
		               ('',    '',     '9', 'delivered', null, '-1 min',  null)    -- not selected
		       ) v(destination, tenant, id, status, source, age, kind)`)
	r := failed(t, db)
	r.Filter.EventTypes = []string{"order.0", "order.1"}
	got, err := outbox.NewStore(db, "public").Replay(r).Overtaken(context.Background())
	if want := (outbox.Overtaken{Aggregates: 1, Looked: 8}); got != want || err != nil {
		t.Errorf("Overtaken() = %+v, %v; want %+v", got, err, want)
	}
	r.Filter.EventTypes = []string{"none"}
	got, err = outbox.NewStore(db, "public").Replay(r).Overtaken(context.Background())
	if want := (outbox.Overtaken{}); got != want || err != nil {
		t.Errorf("Overtaken() of nothing = %+v, %v", got, err)
	}
}
