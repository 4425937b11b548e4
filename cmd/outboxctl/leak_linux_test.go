package main_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxctl/outboxctl/outbox/outboxtest"
)

// bad are answers of receivers of all kinds, most of which cost a connection.
var bad = []outboxtest.Answer{
	{}, {Status: 500}, {Delay: 20 * time.Millisecond}, {Hang: true}, {Reset: true}, {HalfClose: true}, {Stall: true},
	{Raw: "HTTP/1.1 9"}, {Raw: "garbage\r\n\r\n"}, {Raw: "HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nshort"}, {Status: 422},
	{Body: strings.Repeat("x", 1<<20)}, {Status: 503, Body: strings.Repeat("x", 1<<20)}, {Status: 302},
}

// TestNothingLeaksUnderAnyMixOfAnswers keeps a dispatcher at work against receivers of all kinds,
// while its sessions are ended again and again, and looks at what it holds after a while and much
// later: B75.
func TestNothingLeaksUnderAnyMixOfAnswers(t *testing.T) {
	t.Parallel()
	const parallel = 10
	warmUp, while := 2*time.Second, 8*time.Second
	if long {
		warmUp, while = 5*time.Minute, 25*time.Minute
	}
	url, db := database(t)
	r := outboxtest.NewReceiver(t, func(n int, _ *outboxtest.Request) outboxtest.Answer { return bad[n%len(bad)] })
	begin := func() *process {
		return startPlain(t, url, "dispatch", "--to", r.URL, "--allow-private", "--log-level", "error", "--poll-interval", "200ms",
			"--request-timeout", "300ms", "--lease", "3s", "--max-attempts", "2", "--backoff", "50ms..100ms", "--batch-size", "20")
	}
	p := begin()
	mix(t, db, warmUp)
	early := holds(t, p)
	mix(t, db, while)
	late := holds(t, p)
	goroutines := goroutinesOf(t, p)

	fresh := begin()
	mix(t, db, time.Second)
	few := goroutinesOf(t, fresh)

	t.Logf("%d requests; after %s %+v, after %s more %+v; %d goroutines, %d in a fresh process", r.Count(), warmUp, early, while, late, goroutines, few)
	if r.Count() < 200 {
		t.Errorf("%d requests: too few to see a leak", r.Count())
	}
	// Connections that are kept for the next request come and go.
	if late.files > early.files+early.files/10+parallel {
		t.Errorf("%d files are open, %d were after the warm-up", late.files, early.files)
	}
	if late.memory > early.memory+early.memory/10+4<<10 {
		t.Errorf("%d kB of memory, %d were after the warm-up", late.memory, early.memory)
	}
	if goroutines > few+few/10+2*parallel {
		t.Errorf("%d goroutines, a fresh process has %d", goroutines, few)
	}
}

// mix writes events for a while, ends the dispatcher's sessions once a second, and returns when no
// event is open.
func mix(t *testing.T, db *pgxpool.Pool, while time.Duration) {
	t.Helper()
	for end, i := time.Now().Add(while), 0; time.Now().Before(end); i++ {
		insert(t, db, "order.created", 10)
		if i%10 == 9 {
			execute(t, db, `select pg_terminate_backend(pid) from pg_stat_activity
				where application_name = 'outboxctl' and datname = current_database()`)
		}
		time.Sleep(100 * time.Millisecond)
	}
	eventually(t, "no event is open", func() bool {
		return query[int](t, db, `select count(*) from outbox where finished_at is null`) == 0
	})
}

// held is what a process holds.
type held struct{ files, memory int } // memory in kB

// holds is the least that a process holds within a second.
func holds(t *testing.T, p *process) held {
	t.Helper()
	least := held{1 << 30, 1 << 30}
	for range 10 {
		proc := fmt.Sprintf("/proc/%d", p.cmd.Process.Pid)
		files, err := os.ReadDir(filepath.Join(proc, "fd"))
		if err != nil {
			t.Fatal(err)
		}
		status, err := os.ReadFile(filepath.Join(proc, "status"))
		if err != nil {
			t.Fatal(err)
		}
		m := regexp.MustCompile(`(?m)^VmRSS:\s+(\d+) kB`).FindSubmatch(status)
		if m == nil {
			t.Fatalf("no VmRSS in %s", status)
		}
		memory, _ := strconv.Atoi(string(m[1]))
		least = held{min(least.files, len(files)), min(least.memory, memory)}
		time.Sleep(100 * time.Millisecond)
	}
	return least
}

// goroutinesOf ends a process with a dump of its goroutines, and counts them.
func goroutinesOf(t *testing.T, p *process) int {
	t.Helper()
	p.signal(syscall.SIGQUIT)
	p.wait(patience)
	return len(regexp.MustCompile(`(?m)^goroutine \d+ `).FindAllString(p.err.String(), -1))
}
