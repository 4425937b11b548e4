package main_test

import (
	"testing"

	"github.com/outboxctl/outboxctl/outbox/outboxtest"
)

// TestNumbersAtTheEndOfTheirRangeHoldUpNobody has rows whose attempts cannot be counted further, and
// times beyond any calendar, among healthy ones: B27.
func TestNumbersAtTheEndOfTheirRangeHoldUpNobody(t *testing.T) {
	t.Parallel()
	url, db := database(t)
	insert(t, db, "healthy", 20)
	for _, tt := range []struct{ name, columns, values string }{
		{"attempts", "attempts", "2147483647"},
		{"attempts but one", "attempts", "2147483646"},
		{"due for ever", "available_at", "'-infinity'"},
		{"due long since", "available_at", "'4713-01-01 BC'"},
		{"never due", "available_at", "'infinity'"},
		{"due late", "available_at", "'294276-12-31'"},
		{"made never", "created_at", "'infinity'"},
		{"made late", "created_at", "'294276-12-31'"},
		{"made early", "created_at", "'4713-01-01 BC'"},
		{"made before all", "created_at", "'-infinity'"},
		{"tried again for ever", "next_attempt_at", "'-infinity'"},
		{"versions", "schema_version", "2147483647"},
	} {
		execute(t, db, `insert into outbox (aggregate_type, aggregate_id, event_type, payload, `+tt.columns+`)
			values ('odd', $1, 'odd', '{}', `+tt.values+`)`, tt.name)
	}
	insert(t, db, "healthy", 20)
	r := outboxtest.NewReceiver(t, nil)
	code, words := once(t, url, r.URL, "--batch-size", "10", "--max-attempts", "100000")
	if code != 3 {
		t.Errorf("exit code %d, want 3, as two have no attempts left: %s", code, words)
	}
	for sql, want := range map[string]string{
		`select string_agg(aggregate_id, ', ' order by id) from outbox where status = 'dead_letter' and error_kind = 'crashed'`: "attempts, attempts but one",
		`select string_agg(aggregate_id, ', ' order by id) from outbox where status = 'pending'`:                                "never due, due late",
		`select count(*)::text from outbox where status = 'delivered' and attempts = 1`:                                         "48",
	} {
		if got := query[string](t, db, sql); got != want {
			t.Errorf("%s = %s, want %s", sql, got, want)
		}
	}
	if code, out, words := run(t, url, "stats", "-o", "json"); code != 0 {
		t.Errorf("stats: exit code %d: %s%s", code, out, words)
	}
}

// TestAttemptsEndWhereTheirNumbersDo allows as many attempts as can be counted.
func TestAttemptsEndWhereTheirNumbersDo(t *testing.T) {
	t.Parallel()
	url, db := database(t)
	execute(t, db, `insert into outbox (aggregate_type, aggregate_id, event_type, payload, attempts)
		select 'order', k::text, 'order.created', '{}', k from unnest(array[2147483645, 2147483646, 2147483647]) k`)
	r := outboxtest.NewReceiver(t, outboxtest.Always(outboxtest.Answer{Status: 500}))
	code, words := once(t, url, r.URL, "--max-attempts", "2147483647", "--backoff", "1m..36500d", "--wait", "0")
	if code != 3 || r.Count() != 3 {
		t.Errorf("exit code %d after %d requests, want 3 after 3: %s", code, r.Count(), words)
	}
	got := query[string](t, db, `select string_agg(status || ' ' || attempts, ', ' order by id) from outbox`)
	if want := "pending 2147483646, failed 2147483647, failed 2147483647"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	years := query[float64](t, db, `select (extract(epoch from next_attempt_at - updated_at) / 86400 / 365.25)::float8 from outbox where status = 'pending'`)
	if years < 79 || years > 121 {
		t.Errorf("due again in %.1f years, want 100±20 %%", years)
	}
}
