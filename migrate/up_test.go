package migrate_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outboxctl/outboxctl/migrate"
	"github.com/outboxctl/outboxctl/outbox/outboxtest"
)

// names need quoting, or are what someone might try.
var names = []string{"public", "app", `My-"Schema"`, "with space", "dot.ted", "Größe🙂", `x"; drop table victim; --`, `:"schema"`, "new\nline", `$body$ $block$ %s`, "select", `o'clock\`}

func connect(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(context.Background(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(context.Background()) })
	return conn
}

// up migrates and returns the versions that this call applied.
func up(s *migrate.Schema) (versions []int, err error) {
	for n, err := range s.Up(context.Background()) {
		if err != nil {
			return versions, err
		}
		if n.What == migrate.Applied {
			versions = append(versions, n.Version)
		}
	}
	return versions, nil
}

// rounds is how often something random is tried.
func rounds(short, full int) int {
	if os.Getenv("OUTBOXCTL_TEST_LONG") != "" {
		return full
	}
	return short
}

func everyVersion() (versions []int) {
	for v := range migrate.Latest {
		versions = append(versions, v+1)
	}
	return versions
}

func TestUpAppliesEachMigrationOnce(t *testing.T) {
	t.Parallel()
	conn := connect(t, outboxtest.Empty(t))
	for _, name := range names {
		s := migrate.New(conn, name)
		got, err := up(s)
		if err != nil {
			t.Fatalf("Up() in %q: %v", name, err)
		}
		if !slices.Equal(got, everyVersion()) {
			t.Errorf("Up() in %q applied %v, want %v", name, got, everyVersion())
		}
		if got, err = up(s); err != nil || len(got) > 0 {
			t.Errorf("second Up() in %q = %v, %v, want nothing", name, got, err)
		}
		if version, err := s.Check(context.Background()); err != nil || version != migrate.Latest {
			t.Errorf("Check() in %q = %d, %v", name, version, err)
		}
	}
}

func TestUpRefusesImpossibleNames(t *testing.T) {
	t.Parallel()
	conn := connect(t, outboxtest.Empty(t))
	long := "a name that is longer than the sixty-three bytes of an identifier"
	for _, name := range []string{"", long, "nul\x00"} {
		if _, err := up(migrate.New(conn, name)); !errors.Is(err, migrate.ErrName) {
			t.Errorf("Up() in %q = %v, want ErrName", name, err)
		}
	}
}

// Eight cold starts at once: all succeed, and each migration is applied by one of them.
func TestUpIsSafeAtOnce(t *testing.T) {
	t.Parallel()
	url := outboxtest.Empty(t)
	conns := make([]*pgx.Conn, 8)
	for i := range conns {
		conns[i] = connect(t, url)
	}
	for round := range rounds(2, 20) {
		name := fmt.Sprintf(`My-"Schema" %d`, round)
		var mu sync.Mutex
		var applied []int
		var wg sync.WaitGroup
		for _, conn := range conns {
			wg.Go(func() {
				versions, err := up(migrate.New(conn, name))
				if err != nil {
					t.Error(err)
				}
				mu.Lock()
				defer mu.Unlock()
				applied = append(applied, versions...)
			})
		}
		wg.Wait()
		slices.Sort(applied)
		if !slices.Equal(applied, everyVersion()) {
			t.Errorf("applied %v, want %v", applied, everyVersion())
		}
		verified(t, conns[0], name)
	}
}

// A migrate that is cut off anywhere leaves whole migrations, and no lock.
func TestUpGoesOnAfterACut(t *testing.T) {
	t.Parallel()
	url := outboxtest.Empty(t)
	conn := connect(t, url)
	for round := range rounds(4, 40) {
		name := fmt.Sprintf("round %d", round)
		victim := connect(t, url)
		ctx, cancel := context.WithTimeout(context.Background(), rand.N(80*time.Millisecond))
		for _, err := range migrate.New(victim, name).Up(ctx) {
			if err != nil && ctx.Err() == nil {
				t.Error(err)
			}
		}
		cancel()
		if _, err := up(migrate.New(conn, name)); err != nil {
			t.Fatal(err)
		}
		verified(t, conn, name)
	}
}

func TestUpWaitsForOthersLocks(t *testing.T) {
	t.Parallel()
	url := outboxtest.Empty(t)
	conn, holder := connect(t, url), connect(t, url)
	s := migrate.New(conn, "public")
	upTo(t, s, 2)
	exec(t, holder, `begin; lock table outbox_migrations in share mode`)
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		time.Sleep(2500 * time.Millisecond) // beyond the lock_timeout
		holder.Exec(context.Background(), `rollback`)
	})
	got, err := up(s)
	if err != nil || !slices.Equal(got, everyVersion()[2:]) {
		t.Errorf("Up() = %v, %v, want all from 3 on", got, err)
	}
}

func TestUpStopsWithItsContext(t *testing.T) {
	t.Parallel()
	url := outboxtest.Empty(t)
	conn, holder := connect(t, url), connect(t, url)
	s := migrate.New(conn, "public")
	upTo(t, s, 1)
	exec(t, holder, `begin; lock table outbox_migrations`)
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	start := time.Now()
	for _, err := range s.Up(ctx) {
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Up() = %v, want the context's error", err)
		}
	}
	if took := time.Since(start); took > time.Second {
		t.Errorf("took %s to stop", took)
	}
}

// Someone's own outbox is neither taken over nor harmed.
func TestUpLeavesAForeignOutboxAlone(t *testing.T) {
	t.Parallel()
	conn := connect(t, outboxtest.Empty(t))
	exec(t, conn, `create table outbox (mine int)`)
	_, err := up(migrate.New(conn, "public"))
	pg, ok := errors.AsType[*pgconn.PgError](err)
	if !ok || pg.Code != "42P07" {
		t.Errorf("Up() = %v, want duplicate_table", err)
	}
	exec(t, conn, `insert into outbox (mine) values (1)`)
}

// constraint returns the name of the one that err is about.
func constraint(err error) string {
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		return pg.ConstraintName
	}
	return ""
}
