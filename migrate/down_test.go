package migrate_test

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"testing"

	"github.com/outboxctl/outboxctl/migrate"
	"github.com/outboxctl/outboxctl/outbox/outboxtest"
)

// down reverts and returns the versions that were reverted.
func down(s *migrate.Schema, to int, destroy bool) (versions []int, err error) {
	for n, err := range s.Down(context.Background(), to, destroy) {
		if err != nil {
			return versions, err
		}
		if n.What == migrate.Reverted {
			versions = append(versions, n.Version)
		}
	}
	return versions, nil
}

func TestDownLeavesAnOlderVersion(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s := withExtra(t, connect(t, outboxtest.Empty(t)), `My-"Schema"`)
	latest := migrate.Latest + len(extra)
	want := map[int]string{0: ""}
	for n, err := range s.Up(ctx) {
		if err != nil {
			t.Fatal(err)
		}
		want[n.Version] = describe(t, ctx, s)
	}
	for to := latest; to >= 0; to-- {
		var versions []int
		if to < latest {
			versions = []int{to + 1}
		}
		if got, err := down(s, to, false); err != nil || !slices.Equal(got, versions) {
			t.Fatalf("Down(%d) = %v, %v, want %v", to, got, err, versions)
		}
		if got := describe(t, ctx, s); got != want[to] {
			t.Errorf("Down(%d) left\n%s\nwant\n%s", to, got, want[to])
		}
	}
	if got, err := up(s); err != nil || len(got) != latest {
		t.Errorf("Up() afterwards = %v, %v", got, err)
	}
	if got, err := down(s, 3, false); err != nil || len(got) != latest-3 {
		t.Errorf("Down(3) in one go = %v, %v", got, err)
	}
}

// describe returns all of the schema that a migration may have made.
func describe(t *testing.T, ctx context.Context, s *migrate.Schema) string {
	t.Helper()
	tables, functions := migrate.OurNames()
	text, err := s.Describe(ctx, tables, functions)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func TestDownDestroysNothingUnasked(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	conn := connect(t, outboxtest.URL(t))
	s := migrate.New(conn, "public")
	exec(t, conn, `select outbox_emit('order', n::text, 'order.created', '{}') from generate_series(1, 3) n`)
	exec(t, conn, `insert into outbox_attempts (event_id, attempt, lease, destination, outcome) values (1, 1, 'w', '', 'failed')`)
	want := []migrate.Loss{{Table: "outbox", Rows: 3}, {Table: "outbox_attempts", Rows: 1}}
	if got, err := s.Losses(ctx, 1); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("Losses(1) = %v, %v, want %v", got, err, want)
	}
	if got, err := s.Losses(ctx, 3); err != nil || len(got) > 0 {
		t.Errorf("Losses(3) = %v, %v, want none", got, err)
	}
	var before []int
	for version := migrate.Latest; version > 3; version-- {
		before = append(before, version)
	}
	got, err := down(s, 0, false)
	if !errors.Is(err, migrate.ErrData) || !slices.Equal(got, before) {
		t.Errorf("Down(0) = %v, %v, want ErrData before 3", got, err)
	}
	if n := value[int](t, conn, `select count(*) from outbox_attempts`); n != 1 {
		t.Errorf("%d attempts are left, want 1", n)
	}
	if got, err := down(s, 0, true); err != nil || !slices.Equal(got, []int{3, 2, 1}) {
		t.Errorf("Down(0) with consent = %v, %v", got, err)
	}
	if version, err := s.Check(ctx); version != 0 || !errors.Is(err, migrate.ErrMissing) {
		t.Errorf("Check() = %d, %v, want ErrMissing", version, err)
	}
}

// An event that is committed while down waits for its table is seen.
func TestDownSeesWhatIsCommittedMeanwhile(t *testing.T) {
	t.Parallel()
	url := outboxtest.URL(t)
	conn, producer := connect(t, url), connect(t, url)
	exec(t, producer, `begin; select outbox_emit('order', '1', 'order.created', '{}')`)
	for n, err := range migrate.New(conn, "public").Down(context.Background(), 1, false) {
		switch {
		case err != nil && !errors.Is(err, migrate.ErrData):
			t.Errorf("Down() = %v, want ErrData", err)
		case n.What == migrate.Waiting:
			exec(t, producer, `commit`)
		case n.What == migrate.Reverted && n.Version == 2:
			t.Error("the outbox is gone")
		}
	}
	if n := value[int](t, conn, `select count(*) from outbox`); n != 1 {
		t.Errorf("%d events, want 1", n)
	}
}

func TestDownRefusesANewerSchema(t *testing.T) {
	t.Parallel()
	conn := connect(t, outboxtest.URL(t))
	exec(t, conn, `insert into outbox_migrations (version, name, min_binary) values ($1, 'later', 1)`, migrate.Latest+1)
	s := migrate.New(conn, "public")
	if _, err := down(s, 0, true); !errors.Is(err, migrate.ErrNewer) {
		t.Errorf("Down() = %v, want ErrNewer", err)
	}
	if _, err := s.Losses(context.Background(), 0); !errors.Is(err, migrate.ErrNewer) {
		t.Errorf("Losses() = %v, want ErrNewer", err)
	}
}
