package wal_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outboxctl/outboxctl/migrate"
	"github.com/outboxctl/outboxctl/outbox"
	"github.com/outboxctl/outboxctl/outbox/outboxtest"
	"github.com/outboxctl/outboxctl/outbox/wal"
)

// logical is a cluster whose log can be followed. It ends with the process.
var logical = sync.OnceValues(func() (*outboxtest.Cluster, error) {
	return outboxtest.Start(outboxtest.Options{Settings: []string{"wal_level = logical", "max_wal_senders = 20", "max_replication_slots = 20"}})
})

// database makes one with an outbox in the logical cluster, and returns its URL.
func database(t *testing.T, options ...string) string {
	t.Helper()
	cluster, err := logical()
	if err != nil {
		t.Fatal(err)
	}
	name := "wal_" + strings.ToLower(rand.Text()[:12])
	exec(t, connect(t, cluster.URL("postgres")), "create database "+name)
	conn := connect(t, cluster.URL(name))
	s := migrate.New(conn, "public")
	for _, err := range s.Up(context.Background()) {
		if err != nil {
			t.Fatal(err)
		}
	}
	with(t, conn, options...)
	return cluster.URL(name)
}

func with(t *testing.T, conn *pgx.Conn, options ...string) {
	t.Helper()
	for _, err := range migrate.New(conn, "public").With(context.Background(), options...) {
		if err != nil {
			t.Fatal(err)
		}
	}
}

func connect(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(context.Background(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(context.Background()) })
	return conn
}

func exec(t *testing.T, conn *pgx.Conn, sql string, args ...any) {
	t.Helper()
	if _, err := conn.Exec(context.Background(), sql, args...); err != nil {
		t.Fatal(err)
	}
}

func value[T any](t *testing.T, conn *pgx.Conn, sql string, args ...any) (v T) {
	t.Helper()
	if err := conn.QueryRow(context.Background(), sql, args...).Scan(&v); err != nil {
		t.Fatal(err)
	}
	return v
}

const insertSQL = `
insert into outbox (aggregate_type, aggregate_id, event_type, payload, destination)
select 'order', n::text, 'order.created', '{}', $1 from generate_series(1, $2::int) n`

// slotsSQL counts the slots of the database.
const slotsSQL = `select count(*) from pg_replication_slots where database = current_database()`

// follow starts a follower of the database's outbox; what it hears comes on the channel, "*" for all.
// end ends it and waits for that.
func follow(t *testing.T, url string, dial pgconn.DialFunc) (heard chan string, end func()) {
	t.Helper()
	heard = make(chan string, 10000)
	f := &wal.Follower{
		Schema: "public",
		Connect: func(ctx context.Context) (*pgconn.PgConn, error) {
			config, err := pgconn.ParseConfig(url)
			if err != nil {
				return nil, err
			}
			config.RuntimeParams["replication"] = "database"
			if dial != nil {
				config.DialFunc = dial
			}
			return pgconn.ConnectConfig(ctx, config)
		},
		Ear: outbox.Ear{
			News: func(destination string, all bool) {
				if all {
					destination = "*"
				}
				heard <- destination
			},
			Trouble: func(err error) {
				if _, ok := errors.AsType[*outbox.Refusal](err); ok {
					heard <- "refused: " + err.Error()
					return
				}
				heard <- "trouble"
			},
			Recovered: func() { heard <- "recovered" },
		},
	}
	ctx, cancel := context.WithCancel(context.Background())
	var beside sync.WaitGroup
	beside.Go(func() { f.Follow(ctx) })
	end = func() { cancel(); beside.Wait() }
	t.Cleanup(end)
	return heard, end
}

const patience = 20 * time.Second

func hears(t *testing.T, heard <-chan string, want ...string) {
	t.Helper()
	for _, w := range want {
		if got := next(t, heard); got != w {
			t.Fatalf("heard %q, want %q", got, w)
		}
	}
}

func next(t *testing.T, heard <-chan string) string {
	t.Helper()
	select {
	case got := <-heard:
		return got
	case <-time.After(patience):
		t.Fatalf("heard nothing for %s", patience)
	}
	return ""
}

// eventually waits until the query says so.
func eventually(t *testing.T, conn *pgx.Conn, within time.Duration, sql string) {
	t.Helper()
	for deadline := time.Now().Add(within); ; time.Sleep(50 * time.Millisecond) {
		if value[bool](t, conn, sql) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("not within %s: %s", within, sql)
		}
	}
}

// Each destination of a transaction is told once, after it is committed, and nothing of one that is
// rolled back, or of rows that change or go.
func TestFollowerHearsWhatIsCommitted(t *testing.T) {
	t.Parallel()
	url := database(t, "wal")
	conn := connect(t, url)
	heard, _ := follow(t, url, nil)
	hears(t, heard, "*")
	exec(t, conn, insertSQL, "crm", 3)
	hears(t, heard, "crm")
	exec(t, conn, `begin`)
	exec(t, conn, insertSQL, "rolled-back", 3)
	exec(t, conn, `rollback`)
	exec(t, conn, `update outbox set event_type = 'order.paid'`)
	exec(t, conn, `delete from outbox`)
	exec(t, conn, insertSQL, "", 1)
	hears(t, heard, "")
	exec(t, conn, `begin`)
	for range 2 {
		exec(t, conn, insertSQL, "crm", 1)
		exec(t, conn, insertSQL, "mail", 1)
	}
	exec(t, conn, `commit`)
	both := []string{next(t, heard), next(t, heard)}
	slices.Sort(both)
	if !slices.Equal(both, []string{"crm", "mail"}) {
		t.Errorf("heard %q, want crm and mail", both)
	}
	exec(t, conn, `begin`)
	for n := range 1100 {
		exec(t, conn, insertSQL, fmt.Sprint("tenant-", n), 1)
	}
	exec(t, conn, `commit`)
	for n := range 1000 {
		hears(t, heard, fmt.Sprint("tenant-", n))
	}
	hears(t, heard, "*") // too many to remember
	exec(t, conn, insertSQL, "crm", 1)
	hears(t, heard, "crm")
}

// A huge transaction takes no memory, also where payloads are sent along, and delays nothing after it.
func TestFollowerKeepsNoRows(t *testing.T) {
	url := database(t, "wal")
	conn := connect(t, url)
	rows := 30_000
	if os.Getenv("OUTBOXCTL_TEST_LONG") != "" {
		rows = 300_000
	}
	exec(t, conn, `do $$ begin execute format('alter publication %I set table outbox', (select pubname from pg_publication)); end $$`)
	heard, _ := follow(t, url, nil)
	hears(t, heard, "*")
	const bigSQL = `insert into outbox (aggregate_type, aggregate_id, event_type, payload, destination)
select 'order', n::text, 'order.created', jsonb_build_object('text', repeat(md5(n::text), 32)), $1 from generate_series(1, $2::int) n`
	var before runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	exec(t, conn, `begin`)
	exec(t, conn, bigSQL, "rolled-back", rows)
	exec(t, conn, `rollback`)
	exec(t, conn, bigSQL, "crm", rows)
	exec(t, conn, insertSQL, "mail", 1)
	begin := time.Now()
	hears(t, heard, "crm")
	early := time.Since(begin)
	var most uint64
	for done := false; !done; {
		select {
		case got := <-heard:
			if got != "mail" {
				t.Fatalf("heard %q, want mail", got)
			}
			done = true
		case <-time.After(20 * time.Millisecond):
			var now runtime.MemStats
			runtime.ReadMemStats(&now)
			most = max(most, now.HeapAlloc-min(now.HeapAlloc, before.HeapAlloc))
		}
	}
	t.Logf("%d rows of 1 kB: told %s after their commit and read in %s; the heap grew by %.1f MB", rows,
		early.Round(time.Millisecond), time.Since(begin).Round(time.Millisecond), float64(most)/1e6)
	if most > 16<<20 {
		t.Errorf("the heap grew by %d bytes", most)
	}
}

// A session that is ended is made anew, with its slot, and everybody looks then.
func TestFollowerSurvivesItsSession(t *testing.T) {
	t.Parallel()
	url := database(t, "wal")
	conn := connect(t, url)
	heard, end := follow(t, url, nil)
	hears(t, heard, "*")
	for range 2 {
		exec(t, conn, `select pg_terminate_backend(active_pid) from pg_replication_slots where database = current_database()`)
		hears(t, heard, "trouble", "recovered", "*")
		exec(t, conn, insertSQL, "crm", 1)
		hears(t, heard, "crm")
		if n := value[int](t, conn, slotsSQL+` and temporary`); n != 1 {
			t.Errorf("%d slots, want one that is temporary", n)
		}
	}
	end()
	eventually(t, conn, patience, `select count(*) = 0 from pg_replication_slots where database = current_database()`)
}

// What a process that was killed leaves behind is a closed connection: the slot goes with it.
func TestSlotGoesWithItsProcess(t *testing.T) {
	t.Parallel()
	url := database(t, "wal")
	conn := connect(t, url)
	var mu sync.Mutex
	var open []*net.TCPConn
	heard, end := follow(t, url, func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := new(net.Dialer).DialContext(ctx, network, address)
		if err != nil {
			return nil, err
		}
		mu.Lock()
		defer mu.Unlock()
		if len(open) > 0 {
			c.Close()
			return nil, errors.New("dead")
		}
		open = append(open, c.(*net.TCPConn))
		return c, nil
	})
	hears(t, heard, "*")
	if n := value[int](t, conn, slotsSQL); n != 1 {
		t.Errorf("%d slots, want 1", n)
	}
	mu.Lock()
	open[0].SetLinger(0)
	open[0].Close()
	mu.Unlock()
	hears(t, heard, "trouble")
	eventually(t, conn, patience, `select count(*) = 0 from pg_replication_slots where database = current_database()`)
	end()
}

// B63: while nothing happens in the outbox, what others write is not kept for its sake.
func TestIdleOutboxRetainsNoLog(t *testing.T) {
	t.Parallel()
	url := database(t, "wal")
	conn := connect(t, url)
	heard, _ := follow(t, url, nil)
	hears(t, heard, "*")
	exec(t, conn, `create table other (text text)`)
	written := value[string](t, conn, `select pg_current_wal_lsn()::text`)
	rounds := 10
	if os.Getenv("OUTBOXCTL_TEST_LONG") != "" {
		rounds = 55 // 500 MB
	}
	for range rounds {
		exec(t, conn, `insert into other select repeat(md5(n::text), 30) from generate_series(1, 10000) n`)
	}
	if n := value[int64](t, conn, `select pg_current_wal_lsn() - $1::pg_lsn`, written); n < int64(rounds)*9<<20 {
		t.Fatalf("only %d bytes were written: the test proves nothing", n)
	}
	exec(t, conn, `checkpoint`) // after which decoding could begin
	eventually(t, conn, time.Minute, `select bool_and(pg_current_wal_lsn() - restart_lsn < 64 << 20) from pg_replication_slots where database = current_database()`)
	exec(t, conn, insertSQL, "crm", 1)
	hears(t, heard, "crm")
}

// A connection that swallows everything is noticed, and made anew.
func TestFollowerNoticesADeadConnection(t *testing.T) {
	t.Parallel()
	url := database(t, "wal")
	var mu sync.Mutex
	var open []*deaf
	heard, _ := follow(t, url, func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := new(net.Dialer).DialContext(ctx, network, address)
		if err != nil {
			return nil, err
		}
		mu.Lock()
		defer mu.Unlock()
		open = append(open, &deaf{Conn: c})
		return open[len(open)-1], nil
	})
	hears(t, heard, "*")
	mu.Lock()
	for _, d := range open {
		d.swallow()
	}
	mu.Unlock()
	begin := time.Now()
	hears(t, heard, "trouble", "recovered", "*")
	if took := time.Since(begin); took < 5*time.Second || took > 15*time.Second {
		t.Errorf("a dead connection was left after %s", took)
	}
}

// deaf is a connection that can be made to answer nothing any more, without being closed.
type deaf struct {
	net.Conn
	mu   sync.Mutex
	dead bool
}

func (d *deaf) swallow() { d.mu.Lock(); d.dead = true; d.mu.Unlock() }

func (d *deaf) isDead() bool { d.mu.Lock(); defer d.mu.Unlock(); return d.dead }

func (d *deaf) Read(p []byte) (int, error) {
	n, err := d.Conn.Read(p)
	for err == nil && d.isDead() { // until the deadline that its user sets
		_, err = d.Conn.Read(p)
		n = 0
	}
	return n, err
}

func (d *deaf) Write(p []byte) (int, error) {
	if d.isDead() {
		return len(p), nil
	}
	return d.Conn.Write(p)
}

// What is missing is told once, with what to do; done, the log is followed.
func TestFollowerSaysWhatIsMissing(t *testing.T) {
	t.Parallel()
	t.Run("publication", func(t *testing.T) {
		t.Parallel()
		url := database(t)
		heard, _ := follow(t, url, nil)
		hears(t, heard, "refused: there is no publication of the outbox: outboxctl migrate --with wal")
		with(t, connect(t, url), "wal")
		hears(t, heard, "recovered", "*")
	})
	t.Run("right", func(t *testing.T) {
		t.Parallel()
		url := database(t, "wal")
		conn := connect(t, url)
		role := "app_" + strings.ToLower(rand.Text()[:12])
		exec(t, conn, `create role `+role+` login`)
		heard, _ := follow(t, strings.Replace(url, "postgres@", role+"@", 1), nil)
		if got, want := next(t, heard), "refused: the role may not replicate: alter role "+role+" replication (PostgreSQL: "; !strings.HasPrefix(got, want) {
			t.Errorf("heard %q, want %q…", got, want)
		}
		exec(t, conn, `alter role `+role+` replication`)
		hears(t, heard, "recovered", "*")
	})
	t.Run("wal_level", func(t *testing.T) {
		t.Parallel()
		cluster, err := outboxtest.Start(outboxtest.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer cluster.Close()
		heard, end := follow(t, cluster.URL("postgres"), nil)
		hears(t, heard, "refused: wal_level is replica: alter system set wal_level = logical, and restart PostgreSQL")
		end()
	})
}

// B65: a slot that loses its log ends with its session, and is made anew.
func TestFollowerSurvivesALostSlot(t *testing.T) {
	t.Parallel()
	cluster, err := outboxtest.Start(outboxtest.Options{Settings: []string{"wal_level = logical", "max_slot_wal_keep_size = 16MB", "max_wal_size = 32MB"}})
	if err != nil {
		t.Fatal(err)
	}
	defer cluster.Close()
	url := cluster.URL("postgres")
	conn, old := connect(t, url), connect(t, url)
	for _, err := range migrate.New(conn, "public").Up(context.Background()) {
		if err != nil {
			t.Fatal(err)
		}
	}
	with(t, conn, "wal")
	heard, end := follow(t, url, nil)
	hears(t, heard, "*")
	exec(t, old, `begin`)
	exec(t, old, `select pg_current_xact_id()`) // keeps the slot's log from here on
	for range 6 {                               // of 16 MB, most of it empty
		exec(t, conn, `select pg_logical_emit_message(false, 'other', '')`)
		exec(t, conn, `select pg_switch_wal()`)
	}
	exec(t, conn, `checkpoint`)
	hears(t, heard, "trouble")
	exec(t, old, `rollback`)
	hears(t, heard, "recovered", "*")
	exec(t, conn, insertSQL, "crm", 1)
	hears(t, heard, "crm")
	end()
}
