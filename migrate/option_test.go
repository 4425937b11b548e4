package migrate_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/outboxctl/outboxctl/migrate"
	"github.com/outboxctl/outboxctl/outbox/outboxtest"
	"github.com/outboxctl/outboxctl/outbox/wal"
)

// names of the options that are made and taken away, in the words of the news.
func heard(t *testing.T, news iter.Seq2[migrate.News, error]) (all []string) {
	t.Helper()
	for n, err := range news {
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, n.What+" "+n.Name)
	}
	return all
}

// lines describes the schema, functions of options included, line by line.
func lines(t *testing.T, conn *pgx.Conn, s *migrate.Schema, schema string) []string {
	t.Helper()
	tables := value[[]string](t, conn, `select array_agg(relname::text) from pg_class where relnamespace = $1::text::regnamespace and relkind in ('r', 'p')`, quoted(schema))
	functions := value[[]string](t, conn, `select array_agg(proname::text) from pg_proc where pronamespace = $1::text::regnamespace`, quoted(schema))
	text, err := s.Describe(context.Background(), tables, functions)
	if err != nil {
		t.Fatal(err)
	}
	return strings.SplitAfter(text, "\n")
}

func quoted(name string) string { return pgx.Identifier{name}.Sanitize() }

// Whatever options make is what Verify expects where they are, in every schema.
func TestExpectedIsWhatOptionsMake(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	conn := connect(t, outboxtest.Empty(t))
	for _, name := range names[:2] {
		s := migrate.New(conn, name)
		if _, err := up(s); err != nil {
			t.Fatal(err)
		}
		before := lines(t, conn, s, name)
		var made strings.Builder
		for _, o := range migrate.Options() {
			heard(t, s.With(ctx, o.Name))
			for _, line := range lines(t, conn, s, name) {
				if !slices.Contains(before, line) {
					fmt.Fprintf(&made, "with %s %s", o.Name, line)
				}
			}
			if *update { // what is expected is not known yet
				exec(t, conn, `drop schema `+quoted(name)+` cascade`)
				if _, err := up(s); err != nil {
					t.Fatal(err)
				}
			}
			heard(t, s.Without(ctx, o.Name))
			if after := lines(t, conn, s, name); !slices.Equal(after, before) {
				t.Errorf("option %s leaves %q", o.Name, after)
			}
		}
		if *update {
			if err := os.WriteFile(migrate.ExpectedWithFile, []byte(made.String()), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(migrate.ExpectedWithFile)
		if err != nil {
			t.Fatal(err)
		}
		if made.String() != string(want) {
			t.Errorf("options of %q make\n%s\nwant\n%s", name, made.String(), want)
		}
	}
}

func TestOptionsComeAndGo(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	conn := connect(t, outboxtest.URL(t))
	s := migrate.New(conn, "public")
	has := func(want ...string) {
		t.Helper()
		if got, err := s.Present(ctx); err != nil || !slices.Equal(got, want) {
			t.Errorf("Present() = %v, %v, want %v", got, err, want)
		}
		if got, err := s.Verify(ctx); err != nil || len(got) > 0 {
			t.Errorf("Verify() = %v, %v", got, err)
		}
	}
	has()
	if got := heard(t, s.With(ctx, "notify", "routes")); !slices.Equal(got, []string{"added notify", "added routes"}) {
		t.Errorf("With() = %q", got)
	}
	has("notify", "routes")
	if got := heard(t, s.With(ctx, "notify", "routes")); len(got) > 0 {
		t.Errorf("With() again = %q", got)
	}
	if got := heard(t, s.Without(ctx, "routes")); !slices.Equal(got, []string{"removed routes"}) {
		t.Errorf("Without() = %q", got)
	}
	has("notify")
	if got := heard(t, s.Without(ctx, "routes")); len(got) > 0 {
		t.Errorf("Without() again = %q", got)
	}
	for _, err := range s.With(ctx, "nothing") {
		if !errors.Is(err, migrate.ErrOption) {
			t.Errorf("With(nothing) = %v, want ErrOption", err)
		}
	}
	if got, err := down(s, 1, false); err != nil || len(got) != migrate.Latest-1 {
		t.Errorf("Down(1) = %v, %v", got, err)
	}
	if n := value[int](t, conn, `select count(*) from pg_proc where pronamespace = 'public'::regnamespace`); n != 0 {
		t.Errorf("%d functions are left", n)
	}
}

// What is not as the option makes it is told, and made again.
func TestOptionsAreMended(t *testing.T) {
	t.Parallel()
	tests := []struct{ name, option, change, object, mend string }{
		{"trigger off", "notify", `alter table outbox disable trigger outbox_notify`, "trigger outbox.outbox_notify", "with"},
		{"trigger dropped", "notify", `drop trigger outbox_notify on outbox`, "trigger outbox.outbox_notify", "with"},
		{"body changed", "notify", `create or replace function outbox_notify() returns trigger language plpgsql set search_path = pg_catalog, pg_temp as 'begin return null; end'`, "function outbox_notify()", "with"},
		{"index invalid", "routes", `update pg_index set indisvalid = false where indexrelid = 'outbox_unrouted'::regclass`, "index outbox.outbox_unrouted", "up"},
		{"publication of more", "wal", `do $$ begin execute format('alter publication %I set (publish = ''insert, update'')', (select pubname from pg_publication)); end $$`, "publication of outbox", "with"},
		{"somebody's trigger", "notify", `create trigger mine before insert on outbox for each statement execute function outbox_notify()`, "trigger outbox.mine", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			ctx := context.Background()
			conn := connect(t, outboxtest.URL(t))
			s := migrate.New(conn, "public")
			heard(t, s.With(ctx, tt.option))
			exec(t, conn, tt.change)
			got, err := s.Verify(ctx)
			if err != nil || len(got) != 1 || got[0].Object != tt.object {
				t.Errorf("Verify() = %v, %v, want one difference, of %s", got, err, tt.object)
			}
			switch tt.mend {
			case "with":
				heard(t, s.With(ctx, tt.option))
			case "up":
				heard(t, s.Up(ctx))
			default:
				return
			}
			if got, err := s.Verify(ctx); err != nil || len(got) > 0 {
				t.Errorf("Verify() afterwards = %v, %v", got, err)
			}
		})
	}
}

// A table that goes takes its publication along.
func TestDownTakesThePublicationAlong(t *testing.T) {
	t.Parallel()
	conn := connect(t, outboxtest.URL(t))
	s := migrate.New(conn, "public")
	heard(t, s.With(context.Background(), "wal"))
	if got := value[[]string](t, conn, `select attnames::text[] from pg_publication_tables where pubname = $1`, wal.Publication("public")); value[int](t, conn, `select current_setting('server_version_num')::int / 10000`) >= 15 && !slices.Equal(got, []string{"id", "destination"}) {
		t.Errorf("the publication has columns %q", got)
	}
	if _, err := down(s, 1, false); err != nil {
		t.Fatal(err)
	}
	if n := value[int](t, conn, `select count(*) from pg_publication`); n != 0 {
		t.Errorf("%d publications are left", n)
	}
}

// The trigger says once which destinations have news, and nothing of what is due later.
func TestNotifySaysWhichDestinationsHaveNews(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	url := outboxtest.URL(t)
	conn, listener := connect(t, url), connect(t, url)
	heard(t, migrate.New(conn, "public").With(ctx, "notify"))
	exec(t, listener, `do $$ begin execute 'listen outboxctl_' || left(encode(sha256('outboxctl wake public'), 'hex'), 16); end $$`)
	insert := `insert into outbox (aggregate_type, aggregate_id, event_type, payload, destination, available_at)
select 'order', n::text, 'order.created', '{}', $1, now() + $2::interval from generate_series(1, 3) n`
	exec(t, conn, insert, "later", "1 hour")
	exec(t, conn, insert, "crm", "0")
	exec(t, conn, insert, "", "-1 hour")
	for _, want := range []string{"crm", ""} {
		n, err := listener.WaitForNotification(ctx)
		if err != nil || n.Payload != want {
			t.Errorf("notification %+v, %v, want %q", n, err, want)
		}
	}
}

// Our own statements set updated_at; those of others need not.
func TestUpdatedAtTrigger(t *testing.T) {
	t.Parallel()
	conn := connect(t, outboxtest.URL(t))
	heard(t, migrate.New(conn, "public").With(context.Background(), "updated-at-trigger"))
	exec(t, conn, `select outbox_emit('order', '1', 'order.created', '{}')`)
	exec(t, conn, `update outbox set updated_at = now() - interval '1 day'`)
	if value[bool](t, conn, `select updated_at > now() - interval '1 hour' from outbox`) {
		t.Error("a time that was set was overwritten")
	}
	exec(t, conn, `update outbox set tenant_id = 'acme'`)
	if !value[bool](t, conn, `select updated_at > now() - interval '1 hour' from outbox`) {
		t.Error("an update of others left updated_at as it was")
	}
}
