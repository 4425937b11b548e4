package outbox_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxctl/outboxctl/outbox"
	"github.com/outboxctl/outboxctl/outbox/outboxtest"
)

// newQueue is a queue of the default destination; change tells what is not default about it.
func newQueue(db *pgxpool.Pool, change ...func(*outbox.QueueOptions)) *outbox.Queue {
	o := outbox.QueueOptions{Worker: "test", Lease: 30 * time.Second, MaxAttempts: 10, PollInterval: time.Hour}
	for _, f := range change {
		f(&o)
	}
	return outbox.NewStore(db, "public").Queue(o)
}

// claim claims up to n events from the very start.
func claim(t testing.TB, q *outbox.Queue, n int) []outbox.Event {
	t.Helper()
	return exchange(t, q, nil, n).Events
}

// exchange settles outs and claims up to n events from the very start.
func exchange(t testing.TB, q *outbox.Queue, outs []outbox.Outcome, n int) outbox.Exchanged {
	t.Helper()
	done, err := q.Exchange(context.Background(), outs, outbox.Want{N: n, Fresh: true})
	if err != nil {
		t.Fatalf("Exchange() = %v", err)
	}
	return done
}

// ids are the events' ids, in their order.
func ids(events []outbox.Event) (ids []int64) {
	for _, ev := range events {
		ids = append(ids, ev.ID)
	}
	return ids
}

// reconnect opens a second pool to db's database, with a server setting of its own.
func reconnect(t testing.TB, db *pgxpool.Pool, settings map[string]string) *pgxpool.Pool {
	t.Helper()
	cfg := db.Config()
	for name, value := range settings {
		cfg.ConnConfig.RuntimeParams[name] = value
	}
	again, err := pgxpool.NewWithConfig(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(again.Close)
	return again
}

func TestClaimReturnsTheWholeEvent(t *testing.T) {
	t.Parallel()
	db := outboxtest.DB(t)
	exec(t, db, `insert into outbox (source_id, tenant_id, aggregate_type, aggregate_id, event_type, schema_version,
			idempotency_key, headers, payload, created_at)
		values (41, 'acme', 'order', '7', 'order.created', 3, '5b2d1f6e-8f0a-4a53-9c53-0b1b3b1f3a10',
			'{"traceparent": "00-1", "n": 1.10, "yes": true, "no": null}', '{"b": 9007199254740993, "a": 1.10}', '2026-03-01T09:30:00.123456Z')`)
	ev := claim(t, newQueue(db), 10)[0]
	got := fmt.Sprintln(ev.ID, ev.SourceID, ev.Sequence(), ev.TenantID, ev.AggregateType, ev.AggregateID, ev.Type, ev.SchemaVersion,
		ev.Key, ev.Headers, string(ev.Payload), ev.Binary, ev.Attempts, ev.CreatedAt.UTC().Format(time.RFC3339Nano), ev.Invalid)
	want := "1 41 41 acme order 7 order.created 3 5b2d1f6e-8f0a-4a53-9c53-0b1b3b1f3a10 " +
		`map[n:1.10 traceparent:00-1 yes:true] {"a": 1.10, "b": 9007199254740993} false 1 2026-03-01T09:30:00.123456Z ` + "\n"
	if got != want {
		t.Errorf("the event is\n%s, want\n%s", got, want)
	}
	if !strings.HasPrefix(ev.Lease, "test/") || len(ev.Lease) != len("test/")+16 {
		t.Errorf("the lease is %q, want the worker's name and 64 random bits", ev.Lease)
	}
	row := query[string](t, db, `select concat_ws(' ', status, attempts, lease = $1, extract(epoch from lease_until - last_attempt_at)::int) from outbox`, ev.Lease)
	if row != "in_progress 1 t 30" {
		t.Errorf("the row is %q, want in progress, one attempt, this lease, for 30s", row)
	}
}

func TestClaimIsInOrderOfDueTimeAndID(t *testing.T) {
	t.Parallel()
	db := outboxtest.DB(t)
	insert(t, db, 6)
	exec(t, db, `update outbox set available_at = now() - (array[3, 9, 1, 3, 0, 2])[id] * interval '1 minute'`)
	exec(t, db, `update outbox set next_attempt_at = now() - interval '5 minutes' where id = 2`) // a retry's time counts alone
	if got, want := ids(claim(t, newQueue(db), 4)), []int64{2, 1, 4, 6}; !slices.Equal(got, want) {
		t.Errorf("claimed %v, want %v", got, want)
	}
}

// All time is the database's: what is due and whose lease has lapsed is decided there.
func TestClaimTakesOnlyWhatIsDue(t *testing.T) {
	t.Parallel()
	db := outboxtest.DB(t)
	insert(t, db, 9)
	for id, change := range map[int]string{
		1: `available_at = now() + interval '1 hour'`,
		2: `next_attempt_at = now() + interval '1 hour'`,
		3: `next_attempt_at = now() - interval '1 second', available_at = now() + interval '1 hour'`,
		4: `status = 'in_progress', lease = 'other', lease_until = now() + interval '1 hour'`,
		5: `status = 'in_progress', lease = 'other', lease_until = now() - interval '1 second'`,
		6: `status = 'delivered', finished_at = now()`,
		7: `destination = 'elsewhere'`,
		8: `available_at = 'infinity'`,
	} {
		exec(t, db, `update outbox set `+change+` where id = $1`, id)
	}
	q := newQueue(db)
	if got := ids(claim(t, q, 100)); !slices.Equal(got, []int64{3, 5, 9}) {
		t.Errorf("claimed %v, want 3, 5 and 9", got)
	}
	if got := ids(claim(t, q, 100)); len(got) != 0 {
		t.Errorf("claimed %v again", got)
	}
	exec(t, db, `update outbox set available_at = clock_timestamp() where id = 1`)
	exec(t, db, `update outbox set next_attempt_at = clock_timestamp() where id = 2`)
	exec(t, db, `update outbox set lease_until = clock_timestamp() where id = 4`)
	if got := ids(claim(t, q, 100)); len(got) != 3 {
		t.Errorf("claimed %v after their time came, want 1, 2 and 4", got)
	}
}

// Times that Go's time.Time cannot hold are no reason to stop.
func TestClaimTakesEventsOfAnyTime(t *testing.T) {
	t.Parallel()
	db := outboxtest.DB(t)
	insert(t, db, 4)
	for id, change := range map[int]string{
		1: `available_at = '-infinity', created_at = '-infinity'`,
		2: `available_at = '4713-01-01 BC', created_at = '4713-01-01 BC'`,
		3: `created_at = 'infinity'`,
		4: `created_at = '294276-12-31'`,
	} {
		exec(t, db, `update outbox set `+change+` where id = $1`, id)
	}
	q := newQueue(db)
	events := claim(t, q, 100)
	if len(events) != 4 {
		t.Fatalf("claimed %v, want all four", ids(events))
	}
	var outs []outbox.Outcome
	for _, ev := range events {
		outs = append(outs, outbox.Outcome{ID: ev.ID, Lease: ev.Lease, Status: outbox.Pending})
	}
	if done := exchange(t, q, outs, 0); len(done.Held)+len(done.Lost) > 0 {
		t.Errorf("Exchange() = %+v, want all settled", done)
	}
	again, err := q.Exchange(t.Context(), nil, outbox.Want{N: 100})
	if err != nil || len(again.Events) != 4 {
		t.Errorf("claimed %v from the marks on: %v; want all four", ids(again.Events), err)
	}
}

func TestClaimMarksWhatCannotBeSent(t *testing.T) {
	t.Parallel()
	db := outboxtest.DB(t)
	insert(t, db, 4)
	exec(t, db, `update outbox set headers = (array['[]', '{"a": {"b": 1}}', 'null', '{"a": "b"}'])[id]::jsonb`)
	var invalid []int64
	for _, ev := range claim(t, newQueue(db), 10) {
		if ev.Invalid != "" {
			invalid = append(invalid, ev.ID)
		}
	}
	if !slices.Equal(invalid, []int64{1, 2, 3}) {
		t.Errorf("%v cannot be sent, want 1, 2 and 3", invalid)
	}
}

// A claim writes no index entry: the page has room for its rows' next versions. A lease makes a row
// longer, so of small rows that are all claimed at once, and again, a few do not fit.
func TestClaimsAreHotUpdates(t *testing.T) {
	t.Parallel()
	for _, pad := range []int{0, 250, 600} {
		t.Run(fmt.Sprint("payloads of ", pad), func(t *testing.T) {
			t.Parallel()
			db := outboxtest.DB(t)
			const n, rounds = 1000, 4
			exec(t, db, `alter table outbox set (autovacuum_enabled = off)`)
			exec(t, db, `insert into outbox (aggregate_type, aggregate_id, event_type, payload)
				select 'order', i::text, 'order.created', to_jsonb(repeat('x', $2)) from generate_series(1, $1::int) i`, n, pad)
			for range rounds {
				claimAll(t, db, n)
			}
			u := updates(t, db, 2*n*rounds)
			if share := float64(u.hot) / float64(u.all); u.all != 2*n*rounds || share < 0.95 {
				t.Errorf("%d of %d updates by claims and lapses were HOT, want at least 95 %% of %d", u.hot, u.all, 2*n*rounds)
			}
		})
	}
}

// claimAll claims n rows, whose leases then lapse.
func claimAll(t *testing.T, db *pgxpool.Pool, n int) {
	t.Helper()
	claimer := reconnect(t, db, nil)
	defer claimer.Close() // which writes its statistics
	q := newQueue(claimer)
	for range n / 100 {
		if got := len(claim(t, q, 100)); got != 100 {
			t.Fatalf("claimed %d events, want 100", got)
		}
	}
	// Pruning clears the pages as well, but not beside a long transaction in another database.
	exec(t, db, `vacuum outbox`)
	exec(t, db, `update outbox set lease_until = now() - interval '1 second'`)
	exec(t, db, `vacuum outbox`)
}

type updated struct{ all, hot int }

// updates are the updates of the outbox, once there are as many as expected.
func updates(t *testing.T, db *pgxpool.Pool, expected int) (u updated) {
	t.Helper()
	const statsSQL = `select n_tup_upd, n_tup_hot_upd from pg_stat_user_tables where relid = 'outbox'::regclass`
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if err := db.QueryRow(t.Context(), statsSQL).Scan(&u.all, &u.hot); err != nil {
			t.Fatal(err)
		}
		if u.all >= expected {
			return u
		}
	}
	t.Fatalf("statistics say %d updates, want %d", u.all, expected)
	return u
}

func TestClaimNeverTakesMoreThanItAsksForUnderAnyPlan(t *testing.T) {
	t.Parallel()
	db := outboxtest.DB(t)
	exec(t, db, `alter table outbox set (autovacuum_enabled = off)`)
	exec(t, db, `analyze outbox`) // as empty
	exec(t, db, `insert into outbox (tenant_id, aggregate_type, aggregate_id, event_type, payload)
		select 'tenant ' || i % 5, 'order', i::text, 'order.created', '{}' from generate_series(1, 4000) i`)
	for _, off := range []string{
		"", "indexscan", "bitmapscan", "indexscan bitmapscan indexonlyscan", "seqscan", "nestloop", "hashjoin mergejoin",
		"nestloop hashjoin", "nestloop mergejoin", "nestloop hashjoin mergejoin material", "sort", "hashagg",
		"hashagg hashjoin mergejoin", "hashagg hashjoin mergejoin material", "hashagg hashjoin mergejoin indexscan bitmapscan material memoize",
	} {
		t.Run("without "+off, func(t *testing.T) {
			settings := map[string]string{}
			for _, method := range strings.Fields(off) {
				settings["enable_"+method] = "off"
			}
			claimsExactly(t, db, reconnect(t, db, settings))
		})
	}
	exec(t, db, `analyze outbox`)
	t.Run("with fresh statistics", func(t *testing.T) { claimsExactly(t, db, reconnect(t, db, nil)) })
}

// claimsExactly claims from the start and from the marks, often enough for a generic plan, and
// checks that the rows taken are those handed out and no more than wanted.
func claimsExactly(t *testing.T, db, claimer *pgxpool.Pool) {
	t.Helper()
	q := newQueue(claimer)
	var outs []outbox.Outcome
	for i, n := range []int{1, 7, 7, 7, 7, 7, 7, 3, 3, 3, 3, 3, 3, 90} {
		done, err := q.Exchange(t.Context(), outs, outbox.Want{N: n, Fresh: i%7 == 0})
		if err != nil {
			t.Fatal(err)
		}
		taken := query[int](t, db, `select count(*) from outbox where status = 'in_progress'`)
		if len(done.Events) != n || taken != n {
			t.Fatalf("claim %d of %d events took %d and returned %d", i, n, taken, len(done.Events))
		}
		outs = outs[:0]
		for _, ev := range done.Events {
			outs = append(outs, outbox.Outcome{ID: ev.ID, Lease: ev.Lease, Status: outbox.Pending, Refund: true})
		}
	}
	exchange(t, q, outs, 0)
}

// Statistics from when nothing was open say that one row is, whatever has come since. A claim must
// not depend on them: it reads little more than it takes.
func TestClaimReadsLittleMoreThanItTakes(t *testing.T) {
	t.Parallel()
	db := outboxtest.DB(t)
	exec(t, db, `alter table outbox set (autovacuum_enabled = off)`)
	finished(t, db, 20_000, outbox.Delivered, nil)
	exec(t, db, `vacuum analyze outbox`)
	claimer := reconnect(t, db, nil)
	q := newQueue(claimer)
	for i := range 12 { // an idle time, in which plans are settled
		if _, err := q.Exchange(t.Context(), nil, outbox.Want{N: 100, Fresh: i%2 == 0}); err != nil {
			t.Fatal(err)
		}
	}
	insert(t, db, 20_000)
	const claims = 10
	for i := range claims {
		done, err := q.Exchange(t.Context(), nil, outbox.Want{N: 100, Fresh: i == 5})
		if err != nil || len(done.Events) != 100 {
			t.Fatalf("claimed %d events: %v", len(done.Events), err)
		}
	}
	claimer.Close() // which writes its statistics
	updates(t, db, claims*100)
	if read, most := reads(t, db), claims*100*10; read > most {
		t.Errorf("%d claims of 100 read %d entries and rows, want at most %d", claims, read, most)
	}
}

// reads are the entries and rows of the outbox that all sessions so far have read.
func reads(t *testing.T, db *pgxpool.Pool) int {
	t.Helper()
	return query[int](t, db, `select sum(idx_tup_read) + (select seq_tup_read from pg_stat_user_tables where relid = 'outbox'::regclass)
		from pg_stat_user_indexes where relid = 'outbox'::regclass`)
}

// settled is what a figure of the statistics comes to when sessions that are gone have written theirs.
func settled(t *testing.T, figure func() int) int {
	t.Helper()
	before := -1
	now := figure()
	for ; now != before; now = figure() {
		before = now
		time.Sleep(300 * time.Millisecond)
	}
	return now
}

// The rows of a tenant that is not selected are not read.
func TestSelectedTenantsAreFoundWithoutReadingTheOthers(t *testing.T) {
	t.Parallel()
	db := outboxtest.DB(t)
	exec(t, db, `insert into outbox (tenant_id, aggregate_type, aggregate_id, event_type, payload)
		select case when i <= 20000 then 'big' else 'small' end, 'order', '1', 'order.created', '{}' from generate_series(1, 20100) i`)
	claimer := reconnect(t, db, nil)
	q := newQueue(claimer, func(o *outbox.QueueOptions) { o.Only.Tenants = []string{"small"} })
	for range 10 {
		if events := claim(t, q, 10); len(events) != 10 || events[0].TenantID != "small" {
			t.Fatalf("claimed %v, want ten events of the small one", ids(events))
		}
	}
	claimer.Close() // which writes its statistics
	updates(t, db, 100)
	if read := reads(t, db); read > 5000 {
		t.Errorf("ten claims of 10 read %d entries and rows, want at most 5000", read)
	}
}

func TestParallelClaimsNeverShareAnEvent(t *testing.T) {
	t.Parallel()
	db := outboxtest.DB(t)
	exec(t, db, `insert into outbox (tenant_id, aggregate_type, aggregate_id, event_type, payload)
		select 'tenant ' || i % 3, 'order', i::text, 'order.created', '{}' from generate_series(1, 3000) i`)
	var mu sync.Mutex
	var wg sync.WaitGroup
	claims := map[int64]int{}
	for worker := range 8 {
		wg.Go(func() {
			q := newQueue(db)
			for {
				done, err := q.Exchange(t.Context(), nil, outbox.Want{N: 20 + 7*worker})
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				for _, ev := range done.Events {
					claims[ev.ID]++
				}
				mu.Unlock()
				if len(done.Events) == 0 && done.CameRound {
					return
				}
			}
		})
	}
	wg.Wait()
	if len(claims) != 3000 {
		t.Errorf("%d events were claimed, want 3000", len(claims))
	}
	for id, n := range claims {
		if n != 1 {
			t.Errorf("event %d was claimed %d times", id, n)
		}
	}
	if n := query[int](t, db, `select count(*) from outbox where attempts <> 1`); n != 0 {
		t.Errorf("%d events have not one attempt", n)
	}
}

// While others hold rows locked, a claim takes the rest at once.
func TestClaimSkipsLockedRows(t *testing.T) {
	t.Parallel()
	db := outboxtest.DB(t)
	insert(t, db, 10)
	release := lockRows(t, db, 2, 3, 4)
	began := time.Now()
	if got := ids(claim(t, newQueue(db), 5)); !slices.Equal(got, []int64{1, 5, 6, 7, 8}) {
		t.Errorf("claimed %v, want 1 and 5 to 8", got)
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("the claim took %s", took)
	}
	release()
}

// lockRows locks rows as somebody's session does, until the function that it returns is called.
func lockRows(t testing.TB, db *pgxpool.Pool, ids ...int64) (release func()) {
	t.Helper()
	tx, err := db.Begin(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	release = sync.OnceFunc(func() { _ = tx.Rollback(context.Background()) })
	t.Cleanup(release)
	if _, err := tx.Exec(context.Background(), `select from outbox where id = any ($1) for update`, ids); err != nil {
		t.Fatal(err)
	}
	return release
}

func TestSelectionNarrowsAClaim(t *testing.T) {
	t.Parallel()
	db := outboxtest.DB(t)
	types := []string{"order.created", "order.paid", "order_created", `a\b`, "100%", "a*b", "ordering", "user.created", "a_b", "axb"}
	exec(t, db, `insert into outbox (tenant_id, aggregate_type, aggregate_id, event_type, payload)
		select t, 'order', '1', e, '{}' from unnest($1::text[]) e, unnest('{acme,globex}'::text[]) t`, types)
	for _, tt := range []struct {
		name string
		only outbox.Selection
		want []string
	}{
		{"all", outbox.Selection{}, types},
		{"a prefix", outbox.Selection{EventTypes: []string{"order.*"}}, []string{"order.created", "order.paid"}},
		{"a suffix", outbox.Selection{EventTypes: []string{"*.created"}}, []string{"order.created", "user.created"}},
		{"an underscore is itself", outbox.Selection{EventTypes: []string{"order_created"}}, []string{"order_created"}},
		{"a percent sign is itself", outbox.Selection{EventTypes: []string{"1%%", "100%"}}, []string{"100%"}},
		{"a backslash is itself", outbox.Selection{EventTypes: []string{`a\b`}}, []string{`a\b`}},
		{"a trailing backslash is itself", outbox.Selection{EventTypes: []string{`a\`}}, nil},
		{"a star in the middle", outbox.Selection{EventTypes: []string{"a*b"}}, []string{`a\b`, "a*b", "a_b", "axb"}},
		{"several", outbox.Selection{EventTypes: []string{"user.*", "*.paid"}}, []string{"order.paid", "user.created"}},
		{"all but some", outbox.Selection{ExcludeEventTypes: []string{"order*", "a*"}}, []string{"100%", "user.created"}},
		{"some but some", outbox.Selection{EventTypes: []string{"*.created"}, ExcludeEventTypes: []string{"user.*"}}, []string{"order.created"}},
		{"nothing", outbox.Selection{EventTypes: []string{""}}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for _, tenants := range [][]string{nil, {"globex"}, {"globex", "acme"}, {"nobody"}} {
				only := tt.only
				only.Tenants = tenants
				want := len(tt.want) * map[int]int{0: 2, 1: 1, 2: 2}[len(tenants)]
				if slices.Equal(tenants, []string{"nobody"}) {
					want = 0
				}
				selects(t, db, only, tt.want, want)
			}
		})
	}
}

// selects checks that a queue with that selection hands out n events of these types, that the due
// count agrees, and gives them back.
func selects(t *testing.T, db *pgxpool.Pool, only outbox.Selection, types []string, n int) {
	t.Helper()
	q := newQueue(db, func(o *outbox.QueueOptions) { o.Only = only })
	counts, err := outbox.NewStore(db, "public").Due(t.Context(), "", only, 1000)
	if err != nil {
		t.Fatal(err)
	}
	due := 0
	for _, c := range counts {
		due += int(c.N)
	}
	if due != n {
		t.Errorf("%+v: %d events are due, want %d", only, due, n)
	}
	for _, fresh := range []bool{true, false} { // from the start, and from the marks
		done, err := q.Exchange(t.Context(), nil, outbox.Want{N: 100, Fresh: fresh})
		if err != nil {
			t.Fatal(err)
		}
		var outs []outbox.Outcome
		for _, ev := range done.Events {
			if !slices.Contains(types, ev.Type) || only.Tenants != nil && !slices.Contains(only.Tenants, ev.TenantID) {
				t.Errorf("%+v: claimed %s of %s", only, ev.Type, ev.TenantID)
			}
			outs = append(outs, outbox.Outcome{ID: ev.ID, Lease: ev.Lease, Status: outbox.Pending, Refund: true})
		}
		if len(done.Events) != n {
			t.Errorf("%+v: claimed %d events, want %d", only, len(done.Events), n)
		}
		if len(outs) > 0 {
			exchange(t, q, outs, 0)
		}
	}
}

// Producers may own schemas and put them first in everybody's search path. What is called now() or
// outbox there, and what <= means there, is nothing to us.
func TestHostileSearchPathChangesNothing(t *testing.T) {
	t.Parallel()
	db := outboxtest.DB(t)
	insert(t, db, 3)
	exec(t, db, `update outbox set available_at = now() + interval '1 hour' where id = 3`)
	exec(t, db, `create schema evil`)
	exec(t, db, `create table evil.outbox (like public.outbox)`)
	exec(t, db, `create function evil.now() returns timestamptz language sql as $$ select 'infinity'::timestamptz $$`)
	exec(t, db, `create function evil.clock_timestamp() returns timestamptz language sql as $$ select '-infinity'::timestamptz $$`)
	exec(t, db, `create function evil.yes(timestamptz, timestamptz) returns bool language sql as $$ select true $$`)
	exec(t, db, `create function evil.no(text, text) returns bool language sql as $$ select false $$`)
	exec(t, db, `create operator evil.<= (leftarg = timestamptz, rightarg = timestamptz, function = evil.yes)`)
	exec(t, db, `create operator evil.= (leftarg = text, rightarg = text, function = evil.no)`)
	exec(t, db, fmt.Sprintf(`alter database %s set search_path = evil, pg_catalog, public`,
		pgx.Identifier{db.Config().ConnConfig.Database}.Sanitize()))
	victim := reconnect(t, db, nil)
	if path := query[string](t, victim, `show search_path`); path != "evil, pg_catalog, public" {
		t.Fatalf("the search path is %s", path)
	}
	q := newQueue(victim)
	events := claim(t, q, 10)
	if !slices.Equal(ids(events), []int64{1, 2}) {
		t.Errorf("claimed %v, want 1 and 2", ids(events))
	}
	sink := &recorder{}
	outs := []outbox.Outcome{
		{ID: 1, Lease: events[0].Lease, Status: outbox.Delivered},
		{ID: 2, Lease: events[1].Lease, Status: outbox.Pending},
	}
	if done := exchange(t, q, outs, 0); len(done.Lost)+len(done.Held) > 0 {
		t.Errorf("Exchange() = %+v, want all settled", done)
	}
	if s := run(t, newDispatcher(victim, sink)); s.Delivered != 1 {
		t.Errorf("delivered %d, want 1", s.Delivered)
	}
	if st, err := outbox.NewStore(victim, "public").Stats(t.Context(), outbox.Look{Window: time.Hour, Top: 10}); err != nil || st.Status[outbox.Delivered] != 2 || st.Lag != 0 {
		t.Errorf("Stats() = %+v, %v; want two delivered, no lag", st, err)
	}
	if n := query[int](t, db, `select count(*) from public.outbox where finished_at between pg_catalog.now() - interval '1 minute' and pg_catalog.now()`); n != 2 {
		t.Errorf("%d rows ended in the last minute, want 2", n)
	}
	if n := query[int](t, db, `select count(*) from evil.outbox`); n != 0 {
		t.Errorf("%d rows in another schema's table", n)
	}
}
