package migrate_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/outboxctl/outboxctl/migrate"
	"github.com/outboxctl/outboxctl/outbox/outboxtest"
)

// names need quoting, or are what someone might try.
var names = []string{"public", "app", `My-"Schema"`, "with space", "dot.ted", "Größe🙂", `x"; drop table victim; --`, `:"schema"`, "new\nline", `$outboxctl$`, "select", `o'clock\`}

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
	for m, err := range s.Up(context.Background()) {
		if err != nil {
			return versions, err
		}
		versions = append(versions, m.Version)
	}
	return versions, nil
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
	for range 6 {
		url := outboxtest.Empty(t)
		var mu sync.Mutex
		var applied []int
		var wg sync.WaitGroup
		for range 8 {
			conn := connect(t, url)
			wg.Go(func() {
				versions, err := up(migrate.New(conn, `My-"Schema"`))
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
	}
}
