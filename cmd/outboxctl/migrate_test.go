package main_test

import (
	"context"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxctl/outboxctl/outbox/outboxtest"
)

// rounds is how often something random is tried.
func rounds(short, full int) int {
	if long {
		return full
	}
	return short
}

// empty is a database without an outbox: its URL and a pool.
func empty(t testing.TB) (string, *pgxpool.Pool) {
	t.Helper()
	url := outboxtest.Empty(t)
	db, err := pgxpool.New(context.Background(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	return url, db
}

// tool finds one of PostgreSQL's client programs, "" where there is none.
func tool(name string) string {
	if path, err := exec.LookPath(filepath.Join(os.Getenv("OUTBOXCTL_TEST_PGBIN"), name)); err == nil {
		return path
	}
	if path, err := exec.LookPath(name); err == nil {
		return path
	}
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/" + name)
	if len(found) == 0 {
		return ""
	}
	return slices.Max(found)
}

// dump returns the database's schema as pg_dump writes it; "" where there is no pg_dump, or one
// that is older than the server.
func dump(t testing.TB, url string) string {
	t.Helper()
	program := tool("pg_dump")
	if program == "" {
		return ""
	}
	out, err := exec.Command(program, "--schema-only", "--no-owner", "-d", url).Output()
	if failed, ok := err.(*exec.ExitError); ok && strings.Contains(string(failed.Stderr), "version mismatch") {
		return ""
	}
	if err != nil {
		t.Fatalf("pg_dump: %v", err)
	}
	var lines []string
	for line := range strings.Lines(string(out)) {
		if !strings.HasPrefix(line, `\restrict`) && !strings.HasPrefix(line, `\unrestrict`) { // random
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "")
}

// migrated fails the test unless a database is as a migration without trouble leaves it.
func migrated(t *testing.T, url, clean string) {
	t.Helper()
	if code, out, words := run(t, url, "migrate", "verify"); code != 0 {
		t.Errorf("migrate verify = %d\n%s%s", code, out, words)
	}
	if got := dump(t, url); got != clean {
		t.Errorf("the schema is\n%s\nwant\n%s", got, clean)
	}
}

// lockedSQL counts the advisory locks of the database.
const lockedSQL = `
select count(*) from pg_locks
 where locktype = 'advisory' and database = (select oid from pg_database where datname = current_database())`

// B53: a migrate that is killed at any moment leaves no lock, and the next one ends where one
// without trouble does.
func TestMigrateGoesOnAfterAKill(t *testing.T) {
	t.Parallel()
	if _, err := binary(); err != nil { // to build it takes longer than to run it
		t.Fatal(err)
	}
	url, _ := empty(t)
	began := time.Now()
	if code, _, words := run(t, url, "migrate"); code != 0 {
		t.Fatalf("migrate = %d: %s", code, words)
	}
	took, clean := time.Since(began), dump(t, url)
	for range rounds(3, 20) {
		url, db := empty(t)
		moment := rand.N(took)
		p := start(t, url, "migrate")
		time.Sleep(moment)
		_ = p.cmd.Process.Kill() // it may have ended
		<-p.done
		eventually(t, "no lock is left", func() bool { return query[int](t, db, lockedSQL) == 0 })
		if code, _, words := run(t, url, "migrate"); code != 0 {
			t.Errorf("migrate after a kill at %s = %d: %s", moment, code, words)
		}
		migrated(t, url, clean)
	}
}

// B53: eight cold starts at once.
func TestMigrateIsSafeAtOnce(t *testing.T) {
	t.Parallel()
	url, _ := empty(t)
	if code, _, words := run(t, url, "migrate"); code != 0 {
		t.Fatalf("migrate = %d: %s", code, words)
	}
	clean := dump(t, url)
	for range rounds(1, 20) {
		url, db := empty(t)
		processes := make([]*process, 8)
		for i := range processes {
			processes[i] = start(t, url, "migrate")
		}
		for _, p := range processes {
			if code := p.wait(patience); code != 0 {
				t.Errorf("migrate = %d: %s", code, p.err.String())
			}
		}
		if n := query[int](t, db, lockedSQL); n != 0 {
			t.Errorf("%d locks are left", n)
		}
		migrated(t, url, clean)
	}
}

const buildingSQL = `
select count(*) from pg_stat_activity
 where datname = current_database() and state = 'active' and query like 'create index concurrently%'`

// B55: the build of an index is cut off, by the server and by kill -9. Each time the next migrate
// begins where it should; what is left invalid is reported, and built again in the end.
func TestMigrateRestoresAnIndexAfterCuts(t *testing.T) {
	t.Parallel()
	url, db := database(t)
	clean := dump(t, url)
	insert(t, db, "order.created", rounds(10_000, 1_000_000))
	execute(t, db, `drop index outbox_due`)
	old := begin(t, db) // an older transaction, which a build waits for
	if _, err := old.Exec(context.Background(), insertSQL, "order.created", 1); err != nil {
		t.Fatal(err)
	}

	first := start(t, url, "migrate")
	first.says("index outbox_due waits for pid ")
	execute(t, db, `select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and query like 'create index concurrently%'`)
	if code := first.wait(patience); code != 4 {
		t.Errorf("migrate with its backend terminated = %d, want 4", code)
	}
	code, out, _ := run(t, url, "migrate", "verify")
	if code != 1 || !strings.Contains(out, "index outbox.outbox_due is ") || !strings.Contains(out, "INVALID") {
		t.Errorf("migrate verify = %d: %s", code, out)
	}

	second := start(t, url, "migrate")
	second.says("index outbox_due waits for pid ")
	second.signal(syscall.SIGKILL)
	<-second.done
	if _, err := db.Exec(context.Background(), `set client_connection_check_interval = '2s'`); err == nil {
		eventually(t, "no lock is left, although the old transaction is there", func() bool {
			return query[int](t, db, lockedSQL) == 0 && query[int](t, db, buildingSQL) == 0
		})
	} // else the server notices a dead client when the build is done

	third := start(t, url, "migrate")
	third.says(" waits for pid ")
	commit(t, old)
	if code := third.wait(patience * 10); code != 0 || !strings.Contains(third.err.String(), "restored index outbox_due") {
		t.Errorf("migrate at last = %d: %s", code, third.err.String())
	}
	migrated(t, url, clean)
	execute(t, db, `analyze outbox`)
	plan := query[string](t, db, `explain (format json) select id from outbox
where destination = '' and tenant_id = '' and finished_at is null and coalesce(next_attempt_at, available_at) <= now()
order by coalesce(next_attempt_at, available_at), id limit 100 for update skip locked`)
	if !strings.Contains(plan, `"outbox_due"`) {
		t.Errorf("a claim does not use the index: %s", plan)
	}
}

// B56: the printed script ends at the same schema from every version, in one transaction and not.
func TestPrintedScriptMakesTheSameSchema(t *testing.T) {
	t.Parallel()
	psql := tool("psql")
	if psql == "" {
		t.Fatal("psql is missing: install PostgreSQL's client programs")
	}
	clean := dump(t, outboxtest.URL(t))
	_, script, _ := run(t, "", "migrate", "print")
	once, apart := []string{"-1", "-f", "-"}, []string{"-f", "-"}
	type printed struct {
		version string
		way     []string
	}
	tests := []printed{{"0", once}, {"0", apart}, {"4", once}, {"8", apart}}
	if long {
		for _, version := range strings.Split("1 2 3 4 5 6 7 8 9", " ") {
			tests = append(tests, printed{version, once}, printed{version, apart})
		}
	}
	for _, tt := range tests {
		url := outboxtest.URL(t)
		if code, _, words := run(t, url, "migrate", "down", "--to", tt.version); code != 0 {
			t.Fatalf("migrate down --to %s = %d: %s", tt.version, code, words)
		}
		cmd := exec.Command(psql, append([]string{"-X", "-q", "-v", "ON_ERROR_STOP=1", "-d", url}, tt.way...)...)
		cmd.Stdin = strings.NewReader(script)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("psql %v from version %s: %v: %s", tt.way, tt.version, err, out)
		}
		migrated(t, url, clean)
	}
}
