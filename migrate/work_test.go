package migrate_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outboxctl/outboxctl/migrate"
	"github.com/outboxctl/outboxctl/outbox/outboxtest"
)

// connectAs connects with an application_name.
func connectAs(t *testing.T, url, name string) *pgx.Conn {
	t.Helper()
	conn := connect(t, url)
	exec(t, conn, `select set_config('application_name', $1, false)`, name)
	return conn
}

// A migration that somebody's lock keeps out lets those who queue behind it pass again and again,
// says who holds the lock, and in the end gives up with that name.
func TestUpLetsWritersPass(t *testing.T) {
	t.Parallel()
	url := outboxtest.URL(t)
	conn, holder := connect(t, url), connectAs(t, url, "nightly report")
	exec(t, holder, `begin; select count(*) from outbox`)
	blocker := fmt.Sprintf("pid %d (nightly report)", holder.PgConn().PID())

	s := withExtra(t, conn, "public")
	limits := migrate.Limits{Lock: 700 * time.Millisecond, Tries: 3}
	s.Limit(limits)
	writer := writeFor(t, url)
	var waiting []string
	var failure error
	for n, err := range s.Up(context.Background()) {
		if err != nil {
			failure = err
			continue
		}
		waiting = append(waiting, fmt.Sprint(n.What, " ", n.Name, " ", n.Blockers))
	}
	longest, writes := writer.stop()

	if want := []string{fmt.Sprintf("waiting migration %d alter [%s]", migrate.Latest+1, blocker)}; !slices.Equal(waiting, want) {
		t.Errorf("news = %q, want %q", waiting, want)
	}
	if !errors.Is(failure, migrate.ErrBusy) || !strings.Contains(failure.Error(), blocker) {
		t.Errorf("Up() = %v, want ErrBusy with %s", failure, blocker)
	}
	if slack := 400 * time.Millisecond; longest > limits.Lock+slack {
		t.Errorf("a writer waited %s, want at most %s", longest, limits.Lock)
	}
	if longest < limits.Lock/2 {
		t.Errorf("no writer waited more than %s: the migration did not try", longest)
	}
	if writes < 60 {
		t.Errorf("%d writes in all: the queue was not let go", writes)
	}
	exec(t, holder, `rollback`)
	if got, err := up(s); err != nil || !slices.Equal(got, []int{migrate.Latest + 1, migrate.Latest + 2}) {
		t.Errorf("Up() after the lock = %v, %v", got, err)
	}
}

// A statement that works too long while writers queue behind it is cut off.
func TestUpBoundsTheWorkThatWritersWaitFor(t *testing.T) {
	t.Parallel()
	url := outboxtest.URL(t)
	conn := connect(t, url)
	s := migrate.New(conn, "public")
	err := s.Add(later(1, "slow"), `-- oldest binary: 9
-- locks: outbox (access exclusive)
alter table :"schema".outbox add column slow text default pg_sleep(60)::text;
---- down ----
`)
	if err != nil {
		t.Fatal(err)
	}
	exec(t, conn, `select outbox_emit('order', '1', 'order.created', '{}')`)
	writer := writeFor(t, url)
	start := time.Now()
	if _, err := up(s); err == nil || time.Since(start) > 10*time.Second {
		t.Errorf("Up() = %v after %s, want a timeout", err, time.Since(start))
	}
	if longest, _ := writer.stop(); longest > migrate.MaxLock+500*time.Millisecond {
		t.Errorf("a writer waited %s, want at most %s", longest, migrate.MaxLock)
	}
}

// writer inserts events without a pause and knows how long the slowest insert took.
type writer struct {
	cancel  context.CancelFunc
	done    chan struct{}
	longest time.Duration
	writes  int
}

const insertSQL = `insert into outbox (aggregate_type, aggregate_id, event_type, payload) values ('order', '1', 'order.created', '{}')`

func writeFor(t *testing.T, url string) *writer {
	t.Helper()
	conn := connect(t, url)
	ctx, cancel := context.WithCancel(context.Background())
	w := &writer{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(w.done)
		for ctx.Err() == nil {
			start := time.Now()
			_, err := conn.Exec(context.Background(), insertSQL)
			if err != nil {
				t.Error(err)
				return
			}
			w.longest = max(w.longest, time.Since(start))
			w.writes++
			time.Sleep(2 * time.Millisecond)
		}
	}()
	t.Cleanup(func() { w.stop() })
	return w
}

func (w *writer) stop() (longest time.Duration, writes int) {
	w.cancel()
	<-w.done
	return w.longest, w.writes
}

// Whoever stops listening ends the work, also while it waits.
func TestUpEndsWhenNobodyListens(t *testing.T) {
	t.Parallel()
	url := outboxtest.URL(t)
	conn, holder := connect(t, url), connect(t, url)
	exec(t, holder, `begin; lock table outbox`)
	start := time.Now()
	for n, err := range withExtra(t, conn, "public").Up(context.Background()) {
		if err != nil || n.What != migrate.Waiting {
			t.Errorf("news %+v, %v", n, err)
		}
		break
	}
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("took %s to end", took)
	}
	exec(t, holder, `rollback`)
	eventually(t, holder, noLockSQL, migrate.LockKey("public"))
}

// noLockSQL says that nobody holds the advisory lock of a key.
const noLockSQL = `
select not exists (
	select from pg_locks
	 where locktype = 'advisory' and objsubid = 1 and classid::bigint << 32 | objid::bigint = $1
	   and database = (select oid from pg_database where datname = current_database()))`

// The one that has to wait for another migration says for whom.
func TestUpNamesAnotherMigration(t *testing.T) {
	t.Parallel()
	url := outboxtest.Empty(t)
	conn, other := connect(t, url), connectAs(t, url, "another migrate")
	exec(t, other, `select pg_advisory_lock($1)`, migrate.LockKey("public"))
	var waited string
	for n, err := range migrate.New(conn, "public").Up(context.Background()) {
		if err != nil {
			t.Fatal(err)
		}
		if n.What == migrate.Waiting {
			waited = fmt.Sprint(n.Blockers)
			exec(t, other, `select pg_advisory_unlock_all()`)
		}
	}
	if want := fmt.Sprintf("[pid %d (another migrate)]", other.PgConn().PID()); waited != want {
		t.Errorf("waited for %s, want %s", waited, want)
	}
	verified(t, conn, "public")
}

// A lock on the record of migrations keeps even the first look out; that, too, ends with a name.
func TestUpNamesWhoLocksItsRecord(t *testing.T) {
	t.Parallel()
	url := outboxtest.URL(t)
	conn, holder := connect(t, url), connectAs(t, url, "psql")
	exec(t, holder, `begin; lock table outbox_migrations`)
	s := migrate.New(conn, "public")
	s.Limit(migrate.Limits{Lock: 200 * time.Millisecond, Tries: 5})
	_, err := up(s)
	if want := fmt.Sprintf("pid %d (psql)", holder.PgConn().PID()); !errors.Is(err, migrate.ErrBusy) || !strings.Contains(err.Error(), want) {
		t.Errorf("Up() = %v, want ErrBusy with %s", err, want)
	}
}

// What a role or a database has as its defaults is made for queries, and may be against us.
func TestMigrationsHaveTheirOwnSettings(t *testing.T) {
	t.Parallel()
	url := outboxtest.Empty(t)
	setup := connect(t, url)
	database := pgx.Identifier{setup.Config().Database}.Sanitize()
	for _, setting := range []string{
		`statement_timeout = '200ms'`, `lock_timeout = '50ms'`, `idle_in_transaction_session_timeout = '1s'`,
		`default_transaction_isolation = 'serializable'`, `default_transaction_read_only = on`,
		`search_path = 'nowhere'`, `standard_conforming_strings = off`, `TimeZone = 'Asia/Tokyo'`,
	} {
		exec(t, setup, `alter database `+database+` set `+setting)
	}
	conn := connect(t, url)
	s := migrate.New(conn, `o'clock\`)
	if got, err := up(s); err != nil || !slices.Equal(got, everyVersion()) {
		t.Fatalf("Up() = %v, %v", got, err)
	}
	exec(t, setup, `drop index "o'clock\".outbox_lag`)
	exec(t, setup, `insert into "o'clock\".outbox (aggregate_type, aggregate_id, event_type, payload)
select 'order', n::text, 'order.created', '{}' from generate_series(1, 10000) n`)
	if got := news(t, s, nil); !slices.Equal(got, []string{"restored outbox_lag"}) {
		t.Errorf("Up() = %q", got)
	}
	verified(t, conn, `o'clock\`)
	if got, err := s.Losses(context.Background(), 0); err != nil || len(got) != 1 {
		t.Errorf("Losses() = %v, %v", got, err)
	}
	if got, err := down(s, 0, true); err != nil || len(got) != migrate.Latest {
		t.Errorf("Down() = %v, %v", got, err)
	}
}
