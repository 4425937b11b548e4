package outbox_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxctl/outboxctl/outbox"
	"github.com/outboxctl/outboxctl/outbox/outboxtest"
)

// begin opens the record of an operator's command.
func begin(t *testing.T, db *pgxpool.Pool, command string) *outbox.Run {
	t.Helper()
	run, err := outbox.NewStore(db, "public").Begin(t.Context(), outbox.Operation{Command: command, Who: "anna", Reason: "maintenance", Planned: -1})
	if err != nil {
		t.Fatal(err)
	}
	return run
}

func pause(t *testing.T, db *pgxpool.Pool, p outbox.Pause) {
	t.Helper()
	run := begin(t, db, "pause")
	if err := run.Pause(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	if err := run.End(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
}

func resume(t *testing.T, db *pgxpool.Pool, destination, tenant string) bool {
	t.Helper()
	was, err := begin(t, db, "resume").Resume(t.Context(), destination, tenant)
	if err != nil {
		t.Fatal(err)
	}
	return was
}

// look is how a destination stands, rounded to what does not change while a test runs.
func look(t *testing.T, b *outbox.Board) (s outbox.Standing, news bool) {
	t.Helper()
	if err := b.Look(t.Context()); err != nil {
		t.Fatal(err)
	}
	select {
	case s = <-b.Standings():
		return rounded(s), true
	default:
		return s, false
	}
}

func rounded(s outbox.Standing) outbox.Standing {
	round := func(d time.Duration) time.Duration {
		if d == outbox.Forever {
			return d
		}
		return d.Round(time.Minute)
	}
	s.For = round(s.For)
	for tenant, left := range s.Tenants {
		s.Tenants[tenant] = round(left)
	}
	return outbox.Standing{For: s.For, Reason: s.Reason, Tenants: s.Tenants}
}

func TestBoardShowsWhatIsPaused(t *testing.T) {
	t.Parallel()
	db := outboxtest.DB(t)
	store := outbox.NewStore(db, "public")
	crm, other := store.Board("crm", time.Hour), store.Board("", time.Hour)
	wants := func(name string, b *outbox.Board, want outbox.Standing, wantNews bool) {
		t.Helper()
		got, news := look(t, b)
		if diff := cmp.Diff(want, got, cmp.AllowUnexported(outbox.Standing{})); diff != "" || news != wantNews {
			t.Errorf("%s: news %v, want %v; standing (-want +got):\n%s", name, news, wantNews, diff)
		}
	}
	wants("at first", crm, outbox.Standing{}, true)
	wants("at first", other, outbox.Standing{}, true)
	pause(t, db, outbox.Pause{Destination: "crm", For: 2 * time.Hour, Reason: "they move", By: "anna"})
	pause(t, db, outbox.Pause{Destination: "crm", Tenant: "acme", For: outbox.Forever, Reason: "too noisy", By: "anna"})
	want := outbox.Standing{For: 2 * time.Hour, Reason: "they move", Tenants: map[string]time.Duration{"acme": outbox.Forever}}
	wants("paused", crm, want, true)
	wants("not that one", other, outbox.Standing{}, false)
	wants("paused still", crm, outbox.Standing{}, false)

	paused, err := store.Pauses(t.Context())
	if err != nil || len(paused) != 2 || paused[0].Until.IsZero() || !paused[1].Until.IsZero() || paused[1].Tenant != "acme" {
		t.Errorf("Pauses() = %+v, %v", paused, err)
	}
	if resume(t, db, "", "") || resume(t, db, "crm", "globex") || !resume(t, db, "crm", "") || resume(t, db, "crm", "") {
		t.Error("Resume() does not tell whether there was a pause")
	}
	want.For, want.Reason = 0, ""
	wants("the tenant still", crm, want, true)
	if !resume(t, db, "crm", "acme") {
		t.Error("the tenant was not paused")
	}
	wants("resumed", crm, outbox.Standing{}, true)

	pause(t, db, outbox.Pause{Destination: "crm", For: outbox.Forever, Reason: "again"})
	wants("for ever", crm, outbox.Standing{For: outbox.Forever, Reason: "again"}, true)
	pause(t, db, outbox.Pause{Destination: "crm", For: time.Microsecond, Reason: "over at once"})
	wants("over by its time", crm, outbox.Standing{}, true)
	got := query[string](t, db, `select string_agg(concat_ws(' ', command, done, reason, who like 'anna%'), ', ' order by id) from outbox_operations where id in (1, 3, 5)`)
	if want := "pause 1 maintenance t, resume 0 maintenance t, resume 1 maintenance t"; got != want {
		t.Errorf("the record is %q, want %q", got, want)
	}
}

// What a destination asks for stands beside what operators say: the longer pause counts, and it ends
// when somebody resumes it.
func TestBoardKeepsWhatIsLeftThere(t *testing.T) {
	t.Parallel()
	db := outboxtest.DB(t)
	b := outbox.NewStore(db, "public").Board("crm", time.Hour)
	live(t, b)
	state := func() string {
		return query[string](t, db, `select coalesce((select concat_ws(' ', breaker, breaker_at is not null, pause_reason, paused_by, round(extract(epoch from nullif(paused_until, 'infinity') - now()) / 60))
  from outbox_destinations where destination = 'crm'), 'nothing')`)
	}
	b.Breaker("open")
	becomes(t, "open t", state)
	b.Ask(outbox.Hold{For: 10 * time.Minute, Reason: "answered 429"})
	becomes(t, "open t answered 429 the destination 10", state)
	if s := rounded(<-b.Standings()); s.For != 0 && s.For != 10*time.Minute {
		t.Errorf("the standing is %+v", s)
	}
	pause(t, db, outbox.Pause{Destination: "crm", For: time.Hour, Reason: "they move", By: "anna"})
	b.Ask(outbox.Hold{For: 20 * time.Minute, Reason: "answered 503"})
	b.Breaker("closed")
	role := query[string](t, db, `select session_user`)
	becomes(t, "closed t they move anna (database role "+role+") 60", state)
	b.Ask(outbox.Hold{For: 2 * time.Minute, Reason: "answered 503"})
	b.Ask(outbox.Hold{For: outbox.Forever, Reason: "answered 410"})
	becomes(t, "closed t answered 410 the destination", state)
}

// live runs the board as long as the test.
func live(t *testing.T, b *outbox.Board) {
	ctx, end := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { b.Live(ctx); close(done) }()
	t.Cleanup(func() { end(); <-done })
}

func becomes(t *testing.T, want string, get func() string) {
	t.Helper()
	var got string
	for range 500 {
		if got = get(); got == want {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("it is %q in the end, want %q", got, want)
}

func TestKnownDestinations(t *testing.T) {
	t.Parallel()
	db := outboxtest.DB(t)
	store := outbox.NewStore(db, "public")
	pause(t, db, outbox.Pause{Destination: "crm", For: time.Hour})
	exec(t, db, `insert into outbox_workers (worker, destinations) values ('a', '{mail}')`)
	exec(t, db, `insert into outbox_workers (worker, destinations, seen_at) values ('b', '{old}', now() - interval '1 hour')`)
	exec(t, db, `insert into outbox (aggregate_type, aggregate_id, event_type, payload, destination) values ('a', '1', 'e', '{}', 'waiting')`)
	for name, want := range map[string][2]bool{
		"": {true, false}, "crm": {true, false}, "mail": {true, true}, "old": {true, false}, "waiting": {true, false}, "cmr": {false, false},
	} {
		all, known, served, err := store.Known(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		if known != want[0] || served != want[1] {
			t.Errorf("%q: known %v, served %v, want %v", name, known, served, want)
		}
		if wantAll := []string{"", "crm", "mail", "old"}; !slices.Equal(all, wantAll) {
			t.Errorf("known are %q, want %q", all, wantAll)
		}
	}
}
