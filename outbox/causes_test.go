package outbox_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/outboxctl/outboxctl/outbox"
	"github.com/outboxctl/outboxctl/outbox/outboxtest"
)

// Five hundred texts of errors are a handful of causes; each says where it hits, since when, and which
// event to look at.
func TestCausesOfManyTextsAreFew(t *testing.T) {
	t.Parallel()
	db := outboxtest.DB(t)
	exec(t, db, `insert into outbox (aggregate_type, aggregate_id, event_type, destination, payload, status, attempts, error, error_kind, error_code,
			last_attempt_at, finished_at, next_attempt_at)
		select 'order', i::text, 'order.' || i % 2, case when i % 3 = 0 then 'crm' else '' end, '{}', s, 1, e, k, c, at,
		       case when s <> 'pending' then at end, case when s = 'pending' then now() + interval '1 hour' end
		  from (select i, now() - interval '1 hour' + i * interval '1 second' as at,
		               case when i % 4 = 0 then 'pending' else 'failed' end as s,
		               case i % 5 when 4 then 'customer ' || chr(65 + i % 26) || chr(97 + i % 19) || 'x is unknown here'
		                          else 'request ' || md5(i::text) || ' of order ' || i || ' timed out after ' || i || 'ms' end as e,
		               case i % 5 when 4 then 'http' else 'timeout' end as k,
		               case i % 5 when 4 then 400 + i % 2 end as c
		          from generate_series(1, 500) i) v`)
	exec(t, db, `insert into outbox (aggregate_type, aggregate_id, event_type, payload, status, error, error_kind, finished_at) values
		('a', '1', 'a', '{}', 'discarded', 'sent by hand', 'discarded', now()), ('a', '1', 'a', '{}', 'dead_letter', 'old', 'http', now() - interval '3 days')`)
	c, err := outbox.NewStore(db, "public").Causes(t.Context(), 24*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, cause := range c.All {
		got = append(got, fmt.Sprint(cause.N, " ", cause.Kind, " ", cause.Code, " ", cause.Text, " ", cause.Status, " ", cause.Destinations, cause.EventTypes, cause.EventID,
			" ", cause.Last.Sub(cause.First)))
	}
	want := []string{
		"400 timeout 0 request <id> of order <n> timed out after <n> map[failed:300 pending:100] [ crm] [order.0 order.1] 500 8m19s",
		"50 http 400 customer <…> is unknown here map[failed:25 pending:25] [ crm] [order.0] 494 8m10s",
		"50 http 401 customer <…> is unknown here map[failed:50] [ crm] [order.1] 499 8m10s",
	}
	if fmt.Sprint(got) != fmt.Sprint(want) || c.Failures != 500 || c.Capped {
		t.Errorf("%d failures, capped %v:\n%q, want 500:\n%q", c.Failures, c.Capped, got, want)
	}
	if n, part := c.Explain(0.9); n != 2 || part != 0.9 {
		t.Errorf("%d causes explain %v, want 2 and 0.9", n, part)
	}
}

func TestCausesSayWhenTheyAreNotAll(t *testing.T) {
	t.Parallel()
	db := outboxtest.DB(t)
	finished(t, db, 20_001, outbox.Failed, "http")
	c, err := outbox.NewStore(db, "public").Causes(t.Context(), time.Hour)
	if err != nil || !c.Capped || c.Failures != 20_000 || len(c.All) != 1 {
		t.Errorf("%d failures of %d causes, capped %v: %v; want 20,000 of one, capped", c.Failures, len(c.All), c.Capped, err)
	}
}
