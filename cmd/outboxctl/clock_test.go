package main_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outboxctl/outboxctl/outbox/outboxtest"
)

// slack is how late something may come on a busy machine, where wrong times are hours away.
const slack = 3 * time.Second

// TestTimeZonesDoNotMoveTimes gives the dispatcher's role one time zone and the producer another: B35.
func TestTimeZonesDoNotMoveTimes(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ dispatcher, producer string }{
		{"Asia/Tokyo", "America/New_York"}, {"America/New_York", "Europe/Kyiv"}, {"Europe/Kyiv", "Asia/Tokyo"},
	} {
		t.Run(tt.dispatcher, func(t *testing.T) {
			t.Parallel()
			url, db := database(t)
			execute(t, db, `do $$ begin
				execute format('alter role current_user in database %I set timezone = %L', current_database(), '`+tt.dispatcher+`');
			end $$`)
			due := insertFrom(t, url, tt.producer, time.Second)
			r := outboxtest.NewReceiver(t, outboxtest.Script(outboxtest.Answer{Status: 503}, outboxtest.Answer{}))
			d := dispatch(t, url, r.URL, "--backoff", "1s..1s", "--jitter", "0")
			r.Wait(t, 2, patience)
			first, second := r.Requests()[0], r.Requests()[1]
			if late := first.At.Sub(due); late < 0 || late > slack {
				t.Errorf("sent %s after its time, want within %s and not before", late, slack)
			}
			if wait := second.At.Sub(first.Done); wait < time.Second || wait > time.Second+slack {
				t.Errorf("sent again after %s, want 1s", wait)
			}
			var body struct {
				CreatedAt string `json:"created_at"`
			}
			created := query[string](t, db, `select to_char(created_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') from outbox`)
			if err := json.Unmarshal(second.Body, &body); err != nil || body.CreatedAt != created {
				t.Errorf("created_at = %s, want %s: %v", body.CreatedAt, created, err)
			}
			allDelivered(t, db, 1)
			if _, out, _ := run(t, url, "stats", "-o", "json"); !strings.Contains(out, `"lag_seconds": 0`) || strings.Contains(out, ": -") {
				t.Errorf("stats has a time that is none: %s", out)
			}
			d.stop()
		})
	}
}

// insertFrom commits an event from a session of a time zone, written there as text, and returns when
// it is due.
func insertFrom(t *testing.T, url, zone string, after time.Duration) (due time.Time) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	if _, err := conn.Exec(t.Context(), `select set_config('timezone', $1, false)`, zone); err != nil {
		t.Fatal(err)
	}
	err = conn.QueryRow(t.Context(), `
insert into outbox (aggregate_type, aggregate_id, event_type, payload, available_at)
values ('order', '1', 'order.due', '{}', (clock_timestamp() + $1)::text::timestamptz)
returning available_at`, after).Scan(&due)
	if err != nil {
		t.Fatal(err)
	}
	return due
}

// TestEveryTimeHasAZone looks for columns of the tables whose times depend on who reads them: B35.
func TestEveryTimeHasAZone(t *testing.T) {
	t.Parallel()
	_, db := database(t)
	bare := query[*string](t, db, `
select string_agg(table_name || '.' || column_name, ', ')
  from information_schema.columns
 where table_schema = 'public'
   and data_type in ('timestamp without time zone', 'time without time zone', 'date')`)
	if bare != nil {
		t.Errorf("without a time zone: %s", *bare)
	}
	if n := query[int](t, db, `select count(*) from information_schema.columns where table_name = 'outbox' and data_type = 'timestamp with time zone'`); n < 7 {
		t.Errorf("only %d times were found in outbox", n)
	}
}
