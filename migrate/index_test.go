package migrate_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxctl/outboxctl/migrate"
	"github.com/outboxctl/outboxctl/outbox/outboxtest"
)

// fill inserts events, most of them delivered.
func fill(t *testing.T, conn *pgx.Conn) {
	t.Helper()
	exec(t, conn, `
insert into outbox (aggregate_type, aggregate_id, event_type, payload, status, finished_at)
select 'order', n::text, 'order.created', '{}', case when n % 10 = 0 then 'pending' else 'delivered' end, case when n % 10 > 0 then now() end
  from generate_series(1, $1::int) n`, rounds(10_000, 1_000_000))
}

// news runs Up and returns what it told, without who was in the way.
func news(t *testing.T, s *migrate.Schema, also func(migrate.News)) (all []string) {
	t.Helper()
	for n, err := range s.Up(context.Background()) {
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, n.What+" "+n.Name)
		if also != nil {
			also(n)
		}
	}
	return all
}

// eventually waits for something that a query says.
func eventually(t *testing.T, conn *pgx.Conn, sql string, args ...any) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !value[bool](t, conn, sql, args...); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("still not: %s", sql)
		}
	}
}

// Indexes that somebody dropped, or that a build left invalid, come back while writers go on.
func TestUpRestoresIndexes(t *testing.T) {
	t.Parallel()
	url := outboxtest.URL(t)
	conn := connect(t, url)
	fill(t, conn)
	exec(t, conn, `
drop index outbox_due, outbox_key, outbox_attempts_event;
update pg_index set indisvalid = false where indexrelid = 'outbox_lag'::regclass`)
	writer := writeFor(t, url)
	pool, err := pgxpool.New(context.Background(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	got := news(t, migrate.New(pool, "public"), nil)
	slices.Sort(got)
	want := []string{"restored outbox_attempts_event", "restored outbox_due", "restored outbox_key", "restored outbox_lag"}
	if !slices.Equal(got, want) {
		t.Errorf("news = %q, want %q", got, want)
	}
	if longest, _ := writer.stop(); longest > time.Second {
		t.Errorf("a writer waited %s", longest)
	}
	verified(t, conn, "public")
	if got := news(t, migrate.New(conn, "public"), nil); len(got) > 0 {
		t.Errorf("second Up() = %q, want nothing", got)
	}
}

// A migration may build its index concurrently. It is cut off, goes on, and is recorded at its end.
func TestUpBuildsConcurrently(t *testing.T) {
	t.Parallel()
	url := outboxtest.URL(t)
	conn, watch, old := connect(t, url), connect(t, url), connectAs(t, url, "old transaction")
	fill(t, conn)
	waits := fmt.Sprintf("waiting index outbox_extra [pid %d (old transaction)]", old.PgConn().PID())
	s := withExtra(t, conn, "public")
	upTo(t, s, migrate.Latest+1)
	exec(t, old, `begin; select outbox_emit('order', '1', 'order.created', '{}')`)
	var failure error
	var told []string
	for n, err := range s.Up(context.Background()) {
		if err != nil {
			failure = err
			continue
		}
		told = append(told, fmt.Sprint(n.What, " ", n.Name, " ", n.Blockers))
		exec(t, watch, `
select pg_terminate_backend(pid) from pg_stat_activity
 where datname = current_database() and query like 'create %index concurrently%'`)
	}
	if failure == nil || !slices.Equal(told, []string{waits}) {
		t.Errorf("cut off Up() = %q, %v, want %q", told, failure, waits)
	}
	eventually(t, watch, `select exists (select from pg_index where indexrelid = to_regclass('outbox_extra') and not indisvalid)`)
	exec(t, old, `rollback`)

	writer := writeFor(t, url)
	if got := news(t, s, nil); !slices.Equal(got, []string{"applied index"}) {
		t.Errorf("Up() after the cut = %q", got)
	}
	if longest, _ := writer.stop(); longest > time.Second {
		t.Errorf("a writer waited %s", longest)
	}
	if !value[bool](t, conn, `select indisvalid and indisunique from pg_index where indexrelid = 'outbox_extra'::regclass`) {
		t.Error("the index is not valid and unique")
	}
}

// Eight find the same index missing: one builds it, the others wait for that one.
func TestUpBuildsOnce(t *testing.T) {
	t.Parallel()
	url := outboxtest.URL(t)
	conn := connect(t, url)
	fill(t, conn)
	exec(t, conn, `drop index outbox_due`)
	schemas := make([]*migrate.Schema, 8)
	for i := range schemas {
		schemas[i] = withExtra(t, connect(t, url), "public")
	}
	var mu sync.Mutex
	var done []string
	var wg sync.WaitGroup
	for _, s := range schemas {
		wg.Go(func() {
			for n, err := range s.Up(context.Background()) {
				if err != nil {
					t.Error(err)
				}
				if n.What == migrate.Applied || n.What == migrate.Restored {
					mu.Lock()
					done = append(done, n.What+" "+n.Name)
					mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
	slices.Sort(done)
	if want := []string{"applied alter", "applied index", "restored outbox_due"}; !slices.Equal(done, want) {
		t.Errorf("done = %q, want %q", done, want)
	}
}

// A build by hand that is going on looks like an invalid index. It is left to end.
func TestUpLeavesSomebodyElsesBuildAlone(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	url := outboxtest.URL(t)
	conn, builder, old := connect(t, url), connectAs(t, url, "psql"), connect(t, url)
	exec(t, conn, `drop index outbox_lag`)
	exec(t, old, `begin; select outbox_emit('order', '1', 'order.created', '{}')`)
	built := make(chan error)
	go func() {
		_, err := builder.Exec(ctx, `create index concurrently outbox_lag on outbox (available_at) where finished_at is null`)
		built <- err
	}()
	eventually(t, conn, `select to_regclass('outbox_lag') is not null`)
	oid := value[uint32](t, conn, `select to_regclass('outbox_lag')::oid`)
	got := news(t, migrate.New(conn, "public"), func(n migrate.News) {
		if want := fmt.Sprintf("[pid %d (psql)]", builder.PgConn().PID()); fmt.Sprint(n.Blockers) != want {
			t.Errorf("waits for %v, want %s", n.Blockers, want)
		}
		exec(t, old, `rollback`)
	})
	if err := <-built; err != nil {
		t.Errorf("the build by hand failed: %v", err)
	}
	if want := []string{"waiting index outbox_lag"}; !slices.Equal(got, want) {
		t.Errorf("news = %q, want %q", got, want)
	}
	if now := value[uint32](t, conn, `select 'outbox_lag'::regclass::oid`); now != oid {
		t.Error("the index was built again")
	}
	verified(t, conn, "public")
}

// Rows that a unique index cannot hold are nobody's secret, and not ours to print.
func TestUpCannotRestoreAUniqueIndexOverDuplicates(t *testing.T) {
	t.Parallel()
	conn := connect(t, outboxtest.URL(t))
	exec(t, conn, `drop index outbox_key`)
	exec(t, conn, `insert into outbox (aggregate_type, aggregate_id, event_type, payload, idempotency_key)
select 'order', '1', 'order.created', '{}', $1 from generate_series(1, 2)`, key)
	_, err := up(migrate.New(conn, "public"))
	if err == nil || !strings.Contains(err.Error(), "index outbox_key") || strings.Contains(err.Error(), key) {
		t.Errorf("Up() = %v, want one that names the index and no key", err)
	}
}

// Behind a pooler a session's lock would stay behind in a backend: nothing is built there. What
// needs no session goes on.
func TestUpRefusesAPoolerForIndexes(t *testing.T) {
	t.Parallel()
	direct := outboxtest.Empty(t)
	pooled := connect(t, pooler(t, direct))
	if got, err := up(migrate.New(pooled, "public")); err != nil || len(got) != migrate.Latest {
		t.Errorf("Up() without an index to build = %v, %v", got, err)
	}
	exec(t, pooled, `drop index outbox_lag`)
	if _, err := up(migrate.New(pooled, "public")); !errors.Is(err, migrate.ErrPooled) {
		t.Errorf("Up() = %v, want ErrPooled", err)
	}
	if !value[bool](t, pooled, noLockSQL, migrate.LockKey("public")) {
		t.Error("a lock was left behind")
	}
	if got := news(t, migrate.New(connect(t, direct), "public"), nil); !slices.Equal(got, []string{"restored outbox_lag"}) {
		t.Errorf("Up() past the pooler = %q", got)
	}
}

// pooler stands between client and server and gives clients process ids of its own, as poolers do.
// It returns the URL through it.
func pooler(t *testing.T, url string) string {
	t.Helper()
	config, err := pgx.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	network, address := pgconn.NetworkAddress(config.Host, config.Port)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	t.Cleanup(func() { l.Close(); wg.Wait() })
	wg.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial(network, address)
			if err != nil {
				client.Close()
				continue
			}
			wg.Go(func() { io.Copy(server, client); server.Close() })
			wg.Go(func() { renumber(client, server); client.Close() })
		}
	})
	host, port, _ := net.SplitHostPort(l.Addr().String())
	return fmt.Sprintf("host=%s port=%s user=%s password='%s' dbname=%s sslmode=disable", host, port, config.User, config.Password, config.Database)
}

// renumber copies the server's messages and changes the process id that it tells.
func renumber(client io.Writer, server io.Reader) {
	messages := pgproto3.NewFrontend(server, nil)
	for {
		message, err := messages.Receive()
		if err != nil {
			return
		}
		if k, ok := message.(*pgproto3.BackendKeyData); ok {
			k.ProcessID++
		}
		bytes, err := message.(pgproto3.Message).(interface{ Encode([]byte) ([]byte, error) }).Encode(nil)
		if err != nil {
			return
		}
		if _, err := client.Write(bytes); err != nil {
			return
		}
	}
}
