package main_test

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/outboxctl/outboxctl/outbox/outboxtest"
)

// absence is how long PostgreSQL is away, and calm what a dispatcher may do meanwhile: of 30 s, 40
// lines in the log, 60 attempts to connect, and a twentieth of a processor. B22.
func absence() time.Duration {
	if long {
		return 30 * time.Second
	}
	return 4 * time.Second
}

const maxLines, maxAttempts, maxShare = 40, 60, 0.05

// watch begins to watch a dispatcher through an absence; what it returns ends that, and judges.
func watch(t *testing.T, name string, d *process, p *proxy) (judge func()) {
	t.Helper()
	began := time.Now()
	used, attempts, lines := cpuTime(t, d), p.attempts.Load(), strings.Count(d.err.String(), "\n")
	return func() {
		t.Helper()
		took := time.Since(began)
		used, attempts, lines := cpuTime(t, d)-used, p.attempts.Load()-attempts, strings.Count(d.err.String(), "\n")-lines
		t.Logf("%s: %d attempts to connect, %d lines, %s of CPU in %s", name, attempts, lines, used, took)
		if attempts > maxAttempts || lines > maxLines || used.Seconds() > maxShare*took.Seconds() {
			t.Errorf("%s: want no more than %d attempts, %d lines and %.0f %% of CPU", name, maxAttempts, maxLines, 100*maxShare)
		}
		if attempts == 0 && took > 5*time.Second {
			t.Errorf("%s: it does not try any more", name)
		}
	}
}

// cpuTime is what a process has used so far, 0 where the system does not tell.
func cpuTime(t *testing.T, p *process) time.Duration {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
	if os.IsNotExist(err) {
		return 0
	}
	if err != nil {
		t.Fatal(err)
	}
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:])) // a name may hold blanks
	var ticks int
	for _, field := range fields[11:13] { // utime and stime
		n, err := strconv.Atoi(field)
		if err != nil {
			t.Fatal(err)
		}
		ticks += n
	}
	const perSecond = 100
	return time.Duration(ticks) * time.Second / perSecond
}

// TestAbsentPostgreSQLIsMetCalmly takes the server away under load, and has a dispatcher begin without
// it. Both go on within five seconds of its return, and nothing is lost.
func TestAbsentPostgreSQLIsMetCalmly(t *testing.T) {
	t.Parallel()
	const n, parallel = 3000, 8
	c := cluster(t, outboxtest.Options{})
	before, url := newProxy(t, c.URL("postgres"))
	insert(t, connect(t, c.URL("postgres")), "order.created", n)
	r := outboxtest.NewReceiver(t, outboxtest.Always(outboxtest.Answer{Delay: 5 * time.Millisecond}))
	flags := []string{"--parallel", fmt.Sprint(parallel), "--lease", "5s", "--request-timeout", "1s", "--log-level", "error"}
	loaded := dispatch(t, url, r.URL, flags...)
	r.Wait(t, n/10, patience)
	if err := c.Stop("immediate"); err != nil {
		t.Fatal(err)
	}
	loaded.says("PostgreSQL does not answer, trying again")
	after, url := newProxy(t, c.URL("postgres"))
	fresh := dispatch(t, url, r.URL, flags...)
	fresh.says("waiting for PostgreSQL")
	judgeLoaded, judgeFresh := watch(t, "under load", loaded, before), watch(t, "begun meanwhile", fresh, after)
	time.Sleep(absence())
	judgeLoaded()
	judgeFresh()

	sent := r.Count()
	if err := c.Restart(); err != nil {
		t.Fatal(err)
	}
	r.Wait(t, sent+1, 5*time.Second)
	db := connect(t, c.URL("postgres"))
	alive := func() bool {
		return query[int](t, db, `select count(*) from outbox_workers where seen_at > now() - interval '10 s'`) == 2
	}
	within(t, 5*time.Second, "both dispatchers are back", alive)
	allDelivered(t, db, n)
	loaded.stop()
	fresh.stop()
	const unsettled = 100 // the batch: results that wait for the server longer than the lease are sent again
	if twice := r.Count() - len(r.ByKey()); len(r.ByKey()) != n || twice > unsettled+parallel {
		t.Errorf("%d events were received, %d twice; want %d and no more than were claimed, %d", len(r.ByKey()), twice, n, unsettled+parallel)
	}
}

// within is eventually for what must not take longer than d.
func within(t *testing.T, d time.Duration, what string, ok func() bool) {
	t.Helper()
	began := time.Now()
	eventually(t, what, ok)
	if took := time.Since(began); took > d {
		t.Errorf("%s after %s, want within %s", what, took, d)
	}
}

// TestStandbyIsRefusedUntilItIsThePrimary has a dispatcher wait at a hot standby, which takes
// connections and no writes.
func TestStandbyIsRefusedUntilItIsThePrimary(t *testing.T) {
	t.Parallel()
	c := cluster(t, outboxtest.Options{})
	standby, err := c.Standby()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { standby.Close() })
	db := connect(t, c.URL("postgres"))
	insert(t, db, "order.created", 10)
	p, url := newProxy(t, standby.URL("postgres"))
	replica := connect(t, url)
	eventually(t, "the standby has the events", func() bool { return query[int](t, replica, `select count(*) from outbox`) == 10 })

	if code, out, words := run(t, url, "stats"); code != 0 || !strings.Contains(out, "10 pending") {
		t.Errorf("stats of a standby: exit code %d: %s%s", code, out, words)
	}
	if code, out, words := run(t, url, "dispatch", "--to", "stdout:", "--once", "--dry-run"); code != 0 || !strings.Contains(out, "10 events") {
		t.Errorf("dry run on a standby: exit code %d: %s%s", code, out, words)
	}
	host := strings.TrimSuffix(strings.TrimPrefix(url, "postgres://postgres@"), "/postgres")
	want := fmt.Sprintf("outboxctl: PostgreSQL at %s, database \"postgres\", is a standby, on which nothing can be written; "+
		"give the primary's address, or those of all servers: host1:5432,host2:5432\n", host)
	if code, _, words := run(t, url, "dispatch", "--to", "stdout:", "--once", "--log-level", "error"); code != 4 || words != want {
		t.Errorf("--once on a standby: exit code %d, %s\nwant %s", code, words, want)
	}
	if code, _, words := run(t, url, "migrate", "down", "--to", "8", "--yes"); code != 4 || !strings.Contains(words, "give the primary's address") {
		t.Errorf("migrate down on a standby: exit code %d: %s", code, words)
	}
	any := withSetting(url, "target_session_attrs=any")
	if code, _, words := run(t, any, "dispatch", "--to", "stdout:", "--once", "--log-level", "error"); code != 4 || !strings.Contains(words, "give the primary's address") {
		t.Errorf("--once on whatever server: exit code %d: %s", code, words)
	}

	r := outboxtest.NewReceiver(t, nil)
	d := dispatch(t, url, r.URL, "--log-level", "error")
	d.says("is a standby")
	judge := watch(t, "at a standby", d, p)
	time.Sleep(absence())
	judge()
	if err := c.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := standby.Promote(); err != nil {
		t.Fatal(err)
	}
	r.Wait(t, 10, 5*time.Second)
	d.stop()
}

// TestFailoverIsFollowed kills the primary of two servers under load and promotes the other: B22.
func TestFailoverIsFollowed(t *testing.T) {
	t.Parallel()
	const n, parallel = 3000, 8
	c := cluster(t, outboxtest.Options{})
	standby, err := c.Standby()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { standby.Close() })
	db := connect(t, c.URL("postgres"))
	execute(t, db, `alter system set synchronous_standby_names = '*'`) // what is committed is on both
	execute(t, db, `select pg_reload_conf()`)
	eventually(t, "the standby is a synchronous one", func() bool {
		return query[int](t, db, `select count(*) from pg_stat_replication where sync_state = 'sync'`) == 1
	})
	insert(t, db, "order.created", n)
	second := strings.TrimSuffix(strings.TrimPrefix(standby.URL("postgres"), "postgres://postgres@"), "/postgres?sslmode=disable")
	both := strings.Replace(c.URL("postgres"), "/postgres?", ","+second+"/postgres?", 1)

	r := outboxtest.NewReceiver(t, outboxtest.Always(outboxtest.Answer{Delay: 5 * time.Millisecond}))
	d := dispatch(t, both, r.URL, "--parallel", fmt.Sprint(parallel), "--lease", "5s", "--request-timeout", "1s", "--log-level", "error")
	r.Wait(t, n/10, patience)
	if err := c.Kill(); err != nil {
		t.Fatal(err)
	}
	d.says("PostgreSQL does not answer, trying again")
	code, _, words := run(t, both, "dispatch", "--to", "stdout:", "--once", "--log-level", "error")
	if want := second + " is a standby, on which nothing can be written\n"; code != 4 || !strings.HasSuffix(words, want) || strings.Count(words, "\n") != 1 {
		t.Errorf("--once before the promotion: exit code %d: %s", code, words)
	}
	sent := r.Count()
	if err := standby.Promote(); err != nil {
		t.Fatal(err)
	}
	r.Wait(t, sent+1, 15*time.Second)
	db = connect(t, standby.URL("postgres"))
	allDelivered(t, db, n)
	d.stop()
	if code, out, words := run(t, both, "stats"); code != 0 || !strings.Contains(out, "3,000 delivered") {
		t.Errorf("stats of the pair: exit code %d: %s%s", code, out, words)
	}
	if twice := r.Count() - len(r.ByKey()); len(r.ByKey()) != n || twice > parallel {
		t.Errorf("%d events were received, %d twice; want %d and no more than were in flight, %d", len(r.ByKey()), twice, n, parallel)
	}
}
