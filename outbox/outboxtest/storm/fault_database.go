package storm

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// The server as a whole is for one fault at a time.
const server = "server"

func databaseFaults() []fault {
	one := []string{server}
	return []fault{
		{kind: "postgres", weight: 2, targets: theServer, strike: restartServer},
		{kind: "frozen", weight: 4, targets: sessions, needs: one, strike: freeze},
		{kind: "terminate", weight: 6, targets: sessions, needs: one, strike: disconnect},
		{kind: "lock", weight: 4, targets: theServer, strike: lock},
		{kind: "snapshot", weight: 1, targets: only("snapshot"), strike: pin},
		{kind: "connections", weight: 2, targets: only("connections"), strike: exhaust},
	}
}

func theServer(*run) []string { return []string{server} }

func only(name string) func(*run) []string { return func(*run) []string { return []string{name} } }

// sessions are whose sessions can be hit.
func sessions(r *run) []string {
	var names []string
	for _, name := range append(r.names(), "producer") {
		names = append(names, "sessions of "+name)
	}
	return names
}

func appOf(target string) string { return target[len("sessions of "):] }

// restartServer ends PostgreSQL without a checkpoint and starts it again after a while.
func restartServer(ctx context.Context, r *run, _ string, random *rand.Rand) string {
	from := r.logSize()
	if err := r.cluster.Stop("immediate"); err != nil {
		r.fail(fmt.Errorf("stop postgres: %w", err))
		return ""
	}
	pause(ctx, nil, between(random, 100*time.Millisecond, 2*time.Second))
	if err := r.cluster.Restart(); err != nil {
		r.fail(fmt.Errorf("restart postgres: %w", err))
		return ""
	}
	return r.logged(ctx, from, "received immediate shutdown request")
}

// freeze suspends a server process of somebody's.
func freeze(ctx context.Context, r *run, target string, random *rand.Rand) string {
	pids := r.backends(ctx, appOf(target))
	if len(pids) == 0 {
		return ""
	}
	pid := pids[random.IntN(len(pids))]
	if syscall.Kill(pid, syscall.SIGSTOP) != nil {
		return ""
	}
	defer syscall.Kill(pid, syscall.SIGCONT)
	proof := ""
	if stopped(ctx, pid) {
		proof = fmt.Sprintf("backend %d: state T in /proc", pid)
	}
	pause(ctx, nil, between(random, 500*time.Millisecond, 4*time.Second))
	return proof
}

const terminateSQL = `
select pg_terminate_backend($1)`

// disconnect has PostgreSQL end some of somebody's sessions.
func disconnect(ctx context.Context, r *run, target string, random *rand.Rand) string {
	pids := r.backends(ctx, appOf(target))
	if len(pids) == 0 {
		return ""
	}
	from := r.logSize()
	random.Shuffle(len(pids), func(i, j int) { pids[i], pids[j] = pids[j], pids[i] })
	some := pids[:1+random.IntN(len(pids))]
	for _, pid := range some {
		if _, err := r.admin.Exec(ctx, terminateSQL, pid); err != nil {
			break
		}
	}
	return r.logged(ctx, from, "terminating connection due to administrator command")
}

const backendsSQL = `
select pid
  from pg_stat_activity
 where application_name = $1
 order by pid`

// backends are the server processes of an application, as soon as there are some.
func (r *run) backends(ctx context.Context, app string) []int {
	for range 300 {
		rows, err := r.admin.Query(ctx, backendsSQL, app)
		if err == nil {
			if pids, err := pgx.CollectRows(rows, pgx.RowTo[int]); err == nil && len(pids) > 0 {
				return pids
			}
		}
		pause(ctx, nil, 100*time.Millisecond)
	}
	return nil
}

const (
	lockTableSQL = `
lock table outbox in share row exclusive mode`

	lockRowsSQL = `
select count(*)
  from (select from outbox where finished_at is null order by id limit 300 for update) locked`

	waitingSQL = `
select count(*)
  from pg_stat_activity
 where $1::int = any (pg_blocking_pids(pid))`
)

// lock holds the table, or its oldest open rows, until somebody waits for it, and a little longer.
func lock(ctx context.Context, r *run, _ string, random *rand.Rand) string {
	conn, err := r.connect(ctx)
	if err != nil {
		return ""
	}
	defer conn.Close(ctx)
	sql, what := lockTableSQL, "the table"
	if random.IntN(2) == 0 {
		sql, what = lockRowsSQL, "open rows"
	}
	if _, err := conn.Exec(ctx, "begin"); err != nil {
		return ""
	}
	if _, err := conn.Exec(ctx, sql); err != nil {
		return ""
	}
	d := between(random, 200*time.Millisecond, 2*time.Second)
	pid := int(conn.PgConn().PID())
	most := 0
	for end := time.Now().Add(d); time.Now().Before(end); {
		var n int
		if r.admin.QueryRow(ctx, waitingSQL, pid).Scan(&n) == nil {
			most = max(most, n)
		}
		pause(ctx, nil, 50*time.Millisecond)
	}
	if _, err := conn.Exec(ctx, "rollback"); err != nil {
		return ""
	}
	return fmt.Sprintf("backend %d held %s for %s, up to %d waited", pid, what, d.Round(time.Millisecond), most)
}

const (
	pinSQL = `
begin isolation level repeatable read`

	// The first query of the transaction takes the snapshot.
	firstSQL = `
select from outbox limit 1`

	pinnedSQL = `
select backend_xmin::text
  from pg_stat_activity
 where pid = $1
   and backend_xmin is not null`
)

// pin keeps a snapshot for a while, so that nothing that dies can be cleaned up.
func pin(ctx context.Context, r *run, _ string, random *rand.Rand) string {
	conn, err := r.connect(ctx)
	if err != nil {
		return ""
	}
	defer conn.Close(ctx)
	if _, err := conn.Exec(ctx, pinSQL); err != nil {
		return ""
	}
	if _, err := conn.Exec(ctx, firstSQL); err != nil {
		return ""
	}
	var xmin string
	if err := r.admin.QueryRow(ctx, pinnedSQL, conn.PgConn().PID()).Scan(&xmin); err != nil {
		return ""
	}
	pause(ctx, nil, between(random, 5*time.Second, 20*time.Second))
	return fmt.Sprintf("backend %d held xmin %s", conn.PgConn().PID(), xmin)
}

// crowd is how many open connections at once.
const crowd = 16

// exhaust takes all connections that PostgreSQL has for others than its superuser.
func exhaust(ctx context.Context, r *run, _ string, random *rand.Rand) string {
	d := between(random, 500*time.Millisecond, 3*time.Second)
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	full, met := context.WithCancel(ctx)
	defer met()
	refusals := newTally()
	var wg sync.WaitGroup
	for range crowd {
		wg.Go(func() { r.crowd(ctx, full, refusals, met) })
	}
	<-full.Done()
	pause(ctx, nil, d)
	cancel() // they leave
	wg.Wait()
	return refusals.proof("refusals")
}

// crowd opens connections until one is refused, and keeps them until ctx ends.
func (r *run) crowd(ctx, full context.Context, refusals *tally, met func()) {
	for full.Err() == nil {
		c, err := pgx.Connect(full, r.url(crowdRole, r.server, "storm"))
		var refused *pgconn.PgError
		if errors.As(err, &refused) && refused.Code == "53300" {
			refusals.count(refused.Message, 0)
			met()
		}
		if err != nil {
			pause(full, nil, 10*time.Millisecond)
			continue
		}
		defer c.Close(context.WithoutCancel(ctx))
	}
	<-ctx.Done()
}

// logSize is how much the server has written to its log.
func (r *run) logSize() int64 {
	info, err := os.Stat(r.cluster.LogFile())
	if err != nil {
		return 0
	}
	return info.Size()
}

// logged finds a line of the server's log that came after from, as soon as it is there.
func (r *run) logged(ctx context.Context, from int64, text string) string {
	for range 200 {
		if all, err := os.ReadFile(r.cluster.LogFile()); err == nil && int64(len(all)) > from {
			for line := range strings.Lines(string(all[from:])) {
				if strings.Contains(line, text) {
					return strings.TrimSpace(line)
				}
			}
		}
		pause(ctx, nil, 50*time.Millisecond)
	}
	return ""
}
