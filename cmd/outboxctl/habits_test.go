package main_test

import (
	"crypto/rand"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/outboxctl/outboxctl/outbox/outboxtest"
)

// TestOwnSettingsWinOverTheRoles gives a role defaults that would each break a worker which takes what
// it finds, and two dispatchers 2,000 events: B18.
func TestOwnSettingsWinOverTheRoles(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name     string
		settings []string
	}{
		{"serializable, in a hurry", []string{
			`default_transaction_isolation = serializable`, `statement_timeout = '200ms'`, `lock_timeout = '50ms'`,
			`idle_in_transaction_session_timeout = '1s'`, `search_path = evil, pg_catalog`, `client_encoding = 'LATIN1'`,
		}},
		{"repeatable read, reading, talking strangely", []string{
			`default_transaction_isolation = 'repeatable read'`, `default_transaction_read_only = on`, `default_transaction_deferrable = on`,
			`timezone = 'Pacific/Chatham'`, `datestyle = 'SQL, DMY'`, `intervalstyle = sql_standard`, `bytea_output = escape`,
			`extra_float_digits = -15`, `lc_messages = 'C'`, `quote_all_identifiers = on`, `standard_conforming_strings = off`,
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			const n = 2000
			_, db := database(t)
			execute(t, db, evilSQL)
			role := "test_" + strings.ToLower(rand.Text()[:10])
			execute(t, db, fmt.Sprintf(`create role %s login superuser password '%[1]s'`, role)) // owns all that it meets
			t.Cleanup(func() { execute(t, db, `drop role `+role) })
			for _, setting := range tt.settings {
				execute(t, db, `alter role `+role+` set `+setting)
			}
			c := db.Config().ConnConfig
			mine := fmt.Sprintf("host=%s port=%d dbname=%s user=%s password=%[4]s sslmode=disable", c.Host, c.Port, c.Database, role)
			if code, _, words := run(t, mine, "migrate"); code != 0 {
				t.Errorf("migrate: exit code %d: %s", code, words)
			}
			insert(t, db, "order.created", n)
			execute(t, db, `update outbox set payload = '{"n": "Zażółć"}' where id = 1`)
			r := outboxtest.NewReceiver(t, outboxtest.Always(outboxtest.Answer{Delay: time.Millisecond}))
			workers := []*process{dispatch(t, mine, r.URL, "--log-level", "error"), dispatch(t, mine, r.URL, "--log-level", "error")}
			if code, out, words := run(t, mine, "stats"); code != 0 || !strings.Contains(out, "order.created") {
				t.Errorf("stats: exit code %d: %s%s", code, out, words)
			}
			allDelivered(t, db, n)
			for _, w := range workers {
				w.stop()
				if words := w.err.String(); words != "" {
					t.Errorf("a dispatcher had to say: %s", words)
				}
			}
			if got := r.Count(); got != n {
				t.Errorf("%d requests for %d events", got, n)
			}
			if body := string(r.ByKey()[query[string](t, db, `select idempotency_key::text from outbox where id = 1`)][0].Body); !strings.Contains(body, "Zażółć") {
				t.Errorf("the body is %s", body)
			}
		})
	}
}

// evilSQL shadows what our statements use, for whoever searches that schema first.
const evilSQL = `
create schema evil;
create table evil.outbox (id int);
create table evil.outbox_workers (id int);
create function evil.now() returns text language sql as $$ select 'never' $$;
create function evil.clock_timestamp() returns text language sql as $$ select 'never' $$;
create function evil.pg_backend_pid() returns int language sql as $$ select 1 $$;
create function evil.set_config(text, text, boolean) returns text language sql as $$ select 'no' $$;
create function evil.wrong(bigint, bigint) returns boolean language sql as $$ select false $$;
create operator evil.= (leftarg = bigint, rightarg = bigint, function = evil.wrong)`
