package main_test

import (
	"strings"
	"testing"
	"time"
)

// TestPurgesDayHas24Hours purges at noon of the day on which Kyiv has 23 hours: what was delivered 23.5
// hours ago stays, whatever the session's time zone says of a day: B35.
func TestPurgesDayHas24Hours(t *testing.T) {
	t.Parallel()
	c, url, db := ownClock(t)
	shift(t, c, time.Until(time.Date(2026, 3, 29, 9, 0, 0, 0, time.UTC))) // 12:00 there
	execute(t, db, `alter database postgres set timezone = 'Europe/Kyiv'`)
	for _, age := range []string{"23 hours 30 minutes", "24 hours 30 minutes"} {
		execute(t, db, `
insert into outbox (aggregate_type, aggregate_id, event_type, payload, status, finished_at)
values ('order', '`+age+`', 'order.created', '{}', 'delivered', now() - interval '`+age+`')`)
	}
	if day := query[string](t, connect(t, url), `select (now() - (now() - interval '1 day'))::text || current_setting('timezone')`); !strings.Contains(day, "Kyiv") {
		t.Fatalf("the session is not in Kyiv: %s", day)
	}
	if code, out, words := run(t, url, "purge", "--older-than", "1d", "--yes"); code != 0 || !strings.HasPrefix(out, "purged 1 event ") {
		t.Errorf("exit %d: %s %s", code, out, words)
	}
	if left := query[string](t, db, `select string_agg(aggregate_id, ', ') from outbox`); left != "23 hours 30 minutes" {
		t.Errorf("left: %s", left)
	}
}
