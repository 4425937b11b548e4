package main_test

import (
	"os"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxctl/outboxctl/outbox/outboxtest"
)

// pooler puts a PgBouncer before the server of a database URL.
func pooler(t *testing.T, url string, settings ...string) *outboxtest.Pooler {
	t.Helper()
	p, err := outboxtest.StartPooler(url, settings...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

// TestEveryCommandWorksThroughPgBouncer has PgBouncer in transaction mode with two connections, and
// a database whose settings make text of values look strange: B25.
func TestEveryCommandWorksThroughPgBouncer(t *testing.T) {
	t.Parallel()
	const n = 400
	url := outboxtest.Empty(t)
	db := connect(t, url)
	name := db.Config().ConnConfig.Database
	for _, setting := range []string{`datestyle = 'German, DMY'`, `intervalstyle = 'iso_8601'`, `bytea_output = 'escape'`, `timezone = 'Asia/Kolkata'`} {
		execute(t, db, `alter database `+name+` set `+setting)
	}
	p := pooler(t, url)
	pooled := p.URL(name)

	if code, _, words := run(t, pooled, "migrate"); code != 0 {
		t.Fatalf("migrate: exit code %d: %s", code, words)
	}
	for _, command := range []string{"down --to 8 --yes", "plan", "up", "status", "verify"} {
		if code, _, words := run(t, pooled, append([]string{"migrate"}, strings.Fields(command)...)...); code != 0 {
			t.Errorf("migrate %s: exit code %d: %s", command, code, words)
		}
	}
	insert(t, db, "order.created", n)
	execute(t, db, `insert into outbox (aggregate_type, aggregate_id, event_type, payload_bytes)
		select 'order', 'b' || i, 'order.scanned', decode('00ff' || repeat('5c', 40000 * i), 'hex') from generate_series(1, 2) i`)
	if code, out, words := run(t, pooled, "dispatch", "--to", "stdout:", "--once", "--dry-run"); code != 0 || !strings.Contains(out, "402 events would go") {
		t.Errorf("dispatch --dry-run: exit code %d: %s%s", code, out, words)
	}
	r := outboxtest.NewReceiver(t, func(n int, _ *outboxtest.Request) outboxtest.Answer {
		if n%7 == 0 {
			return outboxtest.Answer{Status: 503, Body: `no \x00 time`}
		}
		return outboxtest.Answer{}
	})
	first := dispatch(t, pooled, r.URL, "--parallel", "8", "--backoff", "100ms..1s", "--log-level", "warn")
	second := dispatch(t, pooled, r.URL, "--parallel", "8", "--backoff", "100ms..1s", "--log-level", "warn")
	eventually(t, "both have said that they live", func() bool { return query[int](t, db, `select count(*) from outbox_workers`) == 2 })
	code, out, words := run(t, pooled, "stats")
	if code != 0 || !strings.Contains(out, "DISPATCHER") {
		t.Errorf("stats: exit code %d: %s%s", code, out, words)
	}
	allDelivered(t, db, n+2)
	if got := len(r.ByKey()); got != n+2 {
		t.Errorf("%d events were received, want %d", got, n+2)
	}
	for _, p := range []*process{first, second} {
		p.stop()
		if words := p.err.String(); strings.Contains(words, "PostgreSQL") || strings.Contains(words, "prepared") {
			t.Errorf("trouble through the pooler: %s", words)
		}
	}
	noTraces(t, db)

	// An index on a table with rows in it takes a session: a line that says which setting leads to one.
	execute(t, db, `drop index outbox_lag`)
	code, _, words = run(t, pooled, "migrate")
	if code != 2 || strings.Count(words, "\n") != 1 || !strings.Contains(words, "--direct-database-url") {
		t.Errorf("migrate of an index through the pooler: exit code %d: %s", code, words)
	}
	both := startWith(t, []string{"DATABASE_URL=" + pooled, "OUTBOXCTL_DIRECT_DATABASE_URL=" + url}, "migrate")
	if code := both.wait(patience); code != 0 || !strings.Contains(both.err.String(), "restored index outbox_lag") {
		t.Errorf("migrate past the pooler: exit code %d: %s", code, both.err.String())
	}
	noTraces(t, db)
	if log, err := os.ReadFile(p.LogFile()); err != nil || strings.Contains(string(log), "unsupported") {
		t.Errorf("the pooler's log (%v): %s", err, log)
	}
}

// noTraces looks at the sessions that the pooler keeps: no lock, statement, listener or setting may be
// left behind in them. PostgreSQL takes a moment to see that a process has gone, whose session had some.
func noTraces(t *testing.T, db *pgxpool.Pool) {
	t.Helper()
	eventually(t, "no advisory lock is left behind", func() bool {
		return query[int](t, db, `select count(*) from pg_locks where locktype = 'advisory' and database = (select oid from pg_database where datname = current_database())`) == 0
	})
	eventually(t, "no session sits in a transaction", func() bool {
		return query[int](t, db, `select count(*) from pg_stat_activity where datname = current_database() and state like 'idle in transaction%'`) == 0
	})
}

// TestPgBouncerRefusesInOneLine asks for a setting that a pooler does not pass on.
func TestPgBouncerRefusesInOneLine(t *testing.T) {
	t.Parallel()
	url, db := database(t)
	name := db.Config().ConnConfig.Database
	p := pooler(t, url)
	tests := []struct {
		name    string
		setting string
		code    int
		words   string // the end of all that is said
	}{
		{"settings of ours", "statement_timeout=1&search_path=x&lock_timeout=1ms&client_encoding=LATIN1&application_name=billing", 0, ""},
		{"of other programs", "pgbouncer=true", 0, `the parameter "pgbouncer" is not PostgreSQL's, it is ignored` + "\n"},
		{"of the session", "work_mem=64MB", 4, "take work_mem out of the database URL, or name it in PgBouncer's ignore_startup_parameters\n"},
		{"options", "options=-cwork_mem%3D64MB", 4, "take options out of the database URL, or name it in PgBouncer's ignore_startup_parameters\n"},
		{"the usual advice for pgx", "default_query_exec_mode=simple_protocol", 0, ""},
	}
	for _, tt := range tests {
		code, _, words := run(t, withSetting(p.URL(name), tt.setting), "stats")
		if code != tt.code || !strings.HasSuffix(words, tt.words) || strings.Count(words, "\n") != strings.Count(tt.words, "\n") {
			t.Errorf("%s: exit code %d, want %d: %s", tt.name, code, tt.code, words)
		}
	}

	// What comes next on the pool's sessions finds nothing of ours.
	left := connect(t, withSetting(p.URL(name), "default_query_exec_mode=exec"))
	got := query[string](t, left, `select concat_ws(' ', current_setting('statement_timeout'), current_setting('lock_timeout'),
		(select count(*) from pg_prepared_statements), (select count(*) from pg_listening_channels()))`)
	if got != "0 0 0 0" {
		t.Errorf("timeouts, prepared statements and listeners left in a session of the pool: %q", got)
	}
}
