package outbox_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/outboxctl/outboxctl/outbox"
	"github.com/outboxctl/outboxctl/outbox/outboxtest"
)

func TestExplainDecides(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)
	in := func(d time.Duration) *time.Time { return new(now.Add(d)) }
	served := outbox.Surround{Breaker: "closed", Serving: 1, Dispatchers: 1}
	tests := []struct {
		name string
		row  *outbox.Row
		at   outbox.Surround
		root bool
		want outbox.Explanation
	}{
		{"gone", nil, served, false, outbox.Explanation{Reason: "purged"}},
		{"delivered", &outbox.Row{Status: "delivered"}, outbox.Surround{}, false, outbox.Explanation{Reason: "delivered"}},
		{"failed", &outbox.Row{Status: "failed"}, served, false, outbox.Explanation{Reason: "failed"}},
		{"dead", &outbox.Row{Status: "dead_letter"}, served, false, outbox.Explanation{Reason: "dead_letter"}},
		{"discarded", &outbox.Row{Status: "discarded"}, served, false, outbox.Explanation{Reason: "discarded"}},
		{"leased", &outbox.Row{Status: "in_progress", LeaseUntil: in(time.Second)}, outbox.Surround{}, true, outbox.Explanation{Reason: "leased", NextAt: in(time.Second)}},
		{"lapsed", &outbox.Row{Status: "in_progress", LeaseUntil: in(-time.Second), AvailableAt: now}, served, false, outbox.Explanation{Reason: "lapsed", Also: []outbox.Reason{}, NextAt: in(0)}},
		{"future", &outbox.Row{AvailableAt: now.Add(time.Hour)}, served, false, outbox.Explanation{Reason: "future", NextAt: in(time.Hour)}},
		{"released early", &outbox.Row{NextAttemptAt: in(time.Hour)}, served, false, outbox.Explanation{Reason: "future", NextAt: in(time.Hour)}},
		{"backing off", &outbox.Row{Attempts: 1, NextAttemptAt: in(time.Hour)}, served, false, outbox.Explanation{Reason: "backing_off", NextAt: in(time.Hour)}},
		{"future, and nobody serves it", &outbox.Row{AvailableAt: now.Add(time.Hour)}, outbox.Surround{}, false,
			outbox.Explanation{Reason: "future", Also: []outbox.Reason{"unserved"}}},
		{"backing off, paused for longer", &outbox.Row{Attempts: 1, NextAttemptAt: in(time.Hour)}, paused(served, in(2*time.Hour)), false,
			outbox.Explanation{Reason: "backing_off", Also: []outbox.Reason{"paused"}, NextAt: in(2 * time.Hour)}},
		{"due", &outbox.Row{AvailableAt: now}, served, false, outbox.Explanation{Reason: "due", NextAt: in(0)}},
		{"due behind 100 at 50 a minute", &outbox.Row{AvailableAt: now}, outbox.Surround{Serving: 1, Before: 100, PerMinute: 50}, false,
			outbox.Explanation{Reason: "due", NextAt: in(2 * time.Minute)}},
		{"due and nothing delivered", &outbox.Row{AvailableAt: now}, outbox.Surround{Serving: 1, Before: 100}, false, outbox.Explanation{Reason: "due"}},
		{"due behind too many", &outbox.Row{AvailableAt: now}, outbox.Surround{Serving: 1, Before: outbox.MaxCount, PerMinute: 50}, false, outbox.Explanation{Reason: "due"}},
		{"nobody alive", &outbox.Row{AvailableAt: now}, outbox.Surround{}, false, outbox.Explanation{Reason: "unserved", Also: []outbox.Reason{}}},
		{"others serve others", &outbox.Row{AvailableAt: now, Destination: "crm"}, outbox.Surround{Dispatchers: 1}, false,
			outbox.Explanation{Reason: "unserved", Also: []outbox.Reason{}}},
		{"not routed", &outbox.Row{AvailableAt: now}, outbox.Surround{Dispatchers: 1}, false, outbox.Explanation{Reason: "unrouted", Also: []outbox.Reason{}}},
		{"paused for a time", &outbox.Row{AvailableAt: now}, paused(served, in(time.Hour)), false,
			outbox.Explanation{Reason: "paused", Also: []outbox.Reason{}, NextAt: in(time.Hour)}},
		{"paused for ever", &outbox.Row{AvailableAt: now}, paused(served, nil), false, outbox.Explanation{Reason: "paused", Also: []outbox.Reason{}}},
		{"the breaker", &outbox.Row{AvailableAt: now}, outbox.Surround{Serving: 1, Breaker: "half_open"}, false, outbox.Explanation{Reason: "breaker_open", Also: []outbox.Reason{}}},
		{"everything", &outbox.Row{AvailableAt: now, LeaseUntil: in(-1)}, paused(outbox.Surround{Breaker: "open"}, in(time.Hour)), true,
			outbox.Explanation{Reason: "unserved", Also: []outbox.Reason{"paused", "breaker_open", "blocked", "lapsed"}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			f := &outbox.Facts{Now: now, Row: tt.row, Place: tt.at}
			if tt.root {
				f.Root = &outbox.Facts{}
			}
			if diff := cmp.Diff(tt.want, f.Explain()); diff != "" {
				t.Errorf("Explain() (-want +got):\n%s", diff)
			}
		})
	}
}

func paused(s outbox.Surround, until *time.Time) outbox.Surround {
	p := outbox.Paused{}
	if until != nil {
		p.Until = *until
	}
	s.Pauses = []outbox.Paused{p}
	return s
}

// The facts are those of this event's destination, tenant and aggregate, and of no other's.
func TestExplainGathersFacts(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	db := outboxtest.DB(t)
	store := outbox.NewStore(db, "public")
	exec(t, db, `insert into outbox (tenant_id, aggregate_type, aggregate_id, event_type, payload, destination, available_at)
		select t, 'order', '1', 'order.created', '{}', d, now() - interval '1 hour' + i * interval '1 s'
		  from generate_series(1, 3) i, unnest('{a,b}'::text[]) t, unnest('{crm,mail}'::text[]) d order by i, t, d`)
	// ids: 1 a crm, 2 a mail, 3 b crm, 4 b mail, 5 a crm, …, 9 a crm, 10 a mail, 11 b crm, 12 b mail
	exec(t, db, `insert into outbox_destinations (destination, ordering, breaker, breaker_at, paused_until, pause_reason, paused_by)
		values ('crm', 'aggregate', 'open', now(), 'infinity', 'broken', 'anna'), ('mail', 'none', 'closed', null, now() - interval '1 s', 'over', 'anna')`)
	exec(t, db, `insert into outbox_tenant_pauses (destination, tenant_id, paused_until, reason) values ('crm', 'a', now() + interval '1 h', 'floods'), ('crm', 'b', 'infinity', 'x')`)
	exec(t, db, `insert into outbox_workers (worker, name, destinations, seen_at) values ('w/1', 'w', '{crm}', now()), ('v/1', 'v', '{mail}', now() - interval '1 m')`)
	exec(t, db, `insert into outbox_rollup (minute, worker, destination, event_type, outcome, attempt, n, latency, age)
		values (date_trunc('minute', now()), 1, 'crm', 'order.created', 'delivered', 1, 30, '0', '0'), (date_trunc('minute', now()), 1, 'mail', 'order.created', 'delivered', 1, 15, '0', '0')`)
	exec(t, db, `update outbox set attempts = 1, next_attempt_at = now() + interval '1 h', error_kind = 'http', error_code = 503 where id in (1, 3, 2)`)
	exec(t, db, `update outbox set source_id = 100 where id = 5`) // its place is after 9

	f, err := store.Explain(ctx, outbox.Ref{ID: 9})
	if err != nil {
		t.Fatal(err)
	}
	p := f.Place
	if !p.Ordered || p.Breaker != "open" || p.BreakerAt == nil || len(p.Pauses) != 2 || p.Pauses[0].Reason != "broken" || p.Pauses[1].Reason != "floods" ||
		p.Serving != 1 || p.Dispatchers != 1 || p.Before != 2 || p.PerMinute != 2 {
		t.Errorf("how its destination stands: %+v", p)
	}
	if f.Root == nil || f.Root.ID != 1 || f.Behind != 1 || f.Prior != 1 {
		t.Errorf("behind %d events, the last %d, the first %+v; want event 1 alone", f.Behind, f.Prior, f.Root)
	}
	if f, err := store.Explain(ctx, outbox.Ref{ID: 5}); err != nil || f.Behind != 2 || f.Prior != 9 {
		t.Errorf("a routed copy is behind %d, the last %d, %v; want 2, the last 9", f.Behind, f.Prior, err)
	}
	f, err = store.Explain(ctx, outbox.Ref{ID: 1})
	if err != nil || f.Alike != (outbox.Fellows{Same: 2, Looked: 2}) || f.Root != nil {
		t.Errorf("alike = %+v, root %v, %v; want those of crm, of both tenants", f.Alike, f.Root, err)
	}
	f, err = store.Explain(ctx, outbox.Ref{ID: 12})
	if err != nil || f.Place.Ordered || len(f.Place.Pauses) != 0 || f.Place.Serving != 0 || f.Root != nil || f.Place.Before != 4 {
		t.Errorf("facts of another destination: %+v, %v", f.Place, err)
	}
}

func TestExplainKnowsWhoHoldsALease(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	db := outboxtest.DB(t)
	insert(t, db, 3)
	exec(t, db, `insert into outbox_workers (worker, name, seen_at) values ('a/1', 'a', now()), ('a/2', 'a', now() - interval '1 h'), ('b/1', 'b', now() - interval '31 s')`)
	exec(t, db, `update outbox set status = 'in_progress', lease = (array['a/x', 'b/x', 'c/x'])[id], lease_until = now() + interval '1 minute'`)
	for id, want := range map[int64]bool{1: true, 2: false, 3: false} {
		f, err := outbox.NewStore(db, "public").Explain(ctx, outbox.Ref{ID: id})
		if err != nil || f.HolderAlive() != want || (f.Place.HolderSeen == nil) != (id == 3) {
			t.Errorf("event %d: alive %v, seen %v, %v; want %v", id, f.HolderAlive(), f.Place.HolderSeen, err, want)
		}
	}
}

func TestExplainOfWhatHasEnded(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	db := outboxtest.DB(t)
	store := outbox.NewStore(db, "public")
	finished(t, db, 3, outbox.Failed, "http")
	finished(t, db, 2, outbox.DeadLetter, "http")
	exec(t, db, `update outbox set error_code = 500 where id = 1`)
	exec(t, db, `update outbox set headers = '{"redacted": {}}' where id = 4`)
	exec(t, db, `insert into outbox_attempts (event_id, attempt, lease, destination, outcome) values (99, 2, 'w/1', '', 'failed')`)
	if f, err := store.Explain(ctx, outbox.Ref{ID: 2}); err != nil || f.Alike != (outbox.Fellows{Same: 2, Looked: 5}) || f.Redacted {
		t.Errorf("failed: %+v, %v", f, err)
	}
	if f, err := store.Explain(ctx, outbox.Ref{ID: 4}); err != nil || !f.Redacted {
		t.Errorf("redacted: %+v, %v", f, err)
	}
	if f, err := store.Explain(ctx, outbox.Ref{ID: 99}); err != nil || f.Row != nil || f.Last.Number != 2 {
		t.Errorf("purged: %+v, %v", f, err)
	}
	if _, err := store.Explain(ctx, outbox.Ref{ID: 98}); !errors.Is(err, outbox.ErrNotFound) {
		t.Errorf("unknown: %v", err)
	}
}
