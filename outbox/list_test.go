package outbox_test

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxctl/outboxctl/outbox"
	"github.com/outboxctl/outboxctl/outbox/outboxtest"
)

// list returns the ids of all pages of a listing.
func list(t testing.TB, db *pgxpool.Pool, f outbox.Filter, limit int) (pages [][]int64) {
	t.Helper()
	var after *outbox.Place
	for {
		page, err := outbox.NewStore(db, "public").List(context.Background(), f, after, limit)
		if err != nil {
			t.Fatal(err)
		}
		var ids []int64
		for _, r := range page.Rows {
			ids = append(ids, r.ID)
		}
		pages = append(pages, ids)
		if page.Next == nil {
			return pages
		}
		after = page.Next
	}
}

// mixed is an outbox with some of everything: ids 1 to 12, two of each status, even ones of crm.
func mixed(t testing.TB) *pgxpool.Pool {
	t.Helper()
	db := outboxtest.DB(t)
	exec(t, db, `
insert into outbox (aggregate_type, aggregate_id, event_type, tenant_id, destination, payload, status, attempts, created_at, finished_at,
                    lease, lease_until, error, error_kind, error_code, idempotency_key)
select 'order', (i / 3)::text, 'order.' || (array['created', 'paid'])[1 + i % 2], 'tenant ' || i % 3, (array['', 'crm'])[2 - i % 2], '{}', s, 1,
       now() - interval '1 hour' * (13 - i),
       case when s not in ('pending', 'in_progress') then now() - interval '1 minute' * i end,
       case when s = 'in_progress' then 'w/1' end, case when s = 'in_progress' then now() + interval '1 minute' end,
       case when s in ('failed', 'dead_letter') then 'answered' end, case when s in ('failed', 'dead_letter') then 'http' end,
       case s when 'failed' then 503 when 'dead_letter' then 422 end, ('00000000-0000-4000-8000-00000000000' || to_hex(i))::uuid
  from unnest(array['pending', 'in_progress', 'delivered', 'failed', 'dead_letter', 'discarded', 'pending', 'in_progress', 'delivered', 'failed', 'dead_letter', 'discarded'])
       with ordinality u(s, i)`)
	return db
}

func TestListSelectsAndOrders(t *testing.T) {
	t.Parallel()
	db := mixed(t)
	hoursAgo := func(h int) time.Time { return time.Now().Add(-time.Duration(h)*time.Hour - time.Minute) }
	key := func(id int) uuid.UUID { return uuid.MustParse(fmt.Sprintf("00000000-0000-4000-8000-%012x", id)) }
	tests := []struct {
		name string
		f    outbox.Filter
		want []int64
	}{
		{"all", outbox.Filter{}, []int64{12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1}},
		{"finished, by their end", outbox.Filter{Statuses: []outbox.Status{"failed", "delivered", "discarded", "dead_letter"}}, []int64{3, 4, 5, 6, 9, 10, 11, 12}},
		{"failed or dead", outbox.Filter{Statuses: []outbox.Status{"failed", "dead_letter"}}, []int64{4, 5, 10, 11}},
		{"without a kind of error", outbox.Filter{Statuses: []outbox.Status{"discarded"}}, []int64{6, 12}},
		{"ended before", outbox.Filter{FinishedBefore: time.Now().Add(-330 * time.Second)}, []int64{6, 9, 10, 11, 12}},
		{"open", outbox.Filter{Statuses: []outbox.Status{"pending", "in_progress"}}, []int64{8, 7, 2, 1}},
		{"open and finished", outbox.Filter{Statuses: []outbox.Status{"pending", "failed"}}, []int64{10, 7, 4, 1}},
		{"a code, open or not", outbox.Filter{ErrorCodes: []int{422}}, []int64{11, 5}},
		{"a kind, of the dead", outbox.Filter{Statuses: []outbox.Status{"dead_letter"}, ErrorKinds: []string{"http"}}, []int64{5, 11}},
		{"since", outbox.Filter{Since: hoursAgo(3)}, []int64{12, 11, 10}},
		{"finished since", outbox.Filter{Since: hoursAgo(3), Statuses: []outbox.Status{"failed", "delivered"}}, []int64{10}},
		{"since and until", outbox.Filter{Since: hoursAgo(5), Until: hoursAgo(3)}, []int64{9, 8}},
		{"a type", outbox.Filter{EventTypes: []string{"*.paid"}}, []int64{11, 9, 7, 5, 3, 1}},
		{"an aggregate", outbox.Filter{Aggregates: []outbox.Aggregate{{Type: "order", ID: "1"}}}, []int64{5, 4, 3}},
		{"destination and tenant", outbox.Filter{Destinations: []string{"crm"}, Tenants: []string{"tenant 0"}}, []int64{12, 6}},
		{"the default destination", outbox.Filter{Destinations: []string{""}, Tenants: []string{"tenant 1"}}, []int64{7, 1}},
		{"ids and keys", outbox.Filter{IDs: []int64{5, 6, 99}}, []int64{6, 5}},
		{"keys", outbox.Filter{Keys: []uuid.UUID{key(5), key(12), key(99)}}, []int64{12, 5}},
		{"a key of another status", outbox.Filter{Keys: []uuid.UUID{key(5)}, Statuses: []outbox.Status{"failed"}}, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			for _, limit := range []int{1, 2, 100} {
				if diff := cmp.Diff(tt.want, slices.Concat(list(t, db, tt.f, limit)...), cmpopts.EquateEmpty()); diff != "" {
					t.Errorf("pages of %d (-want +got):\n%s", limit, diff)
				}
			}
		})
	}
}

// A page begins where the one before ended, whatever came in between.
func TestListPagesHoldWhenEventsCome(t *testing.T) {
	t.Parallel()
	db := mixed(t)
	store := outbox.NewStore(db, "public")
	for _, f := range []outbox.Filter{{}, {Statuses: []outbox.Status{"failed", "dead_letter"}}} {
		first, err := store.List(context.Background(), f, nil, 2)
		if err != nil {
			t.Fatal(err)
		}
		finished(t, db, 3, outbox.Failed, "http")
		second, err := store.List(context.Background(), f, first.Next, 2)
		if err != nil {
			t.Fatal(err)
		}
		all := slices.Concat(list(t, db, f, 100)...)
		got := []int64{first.Rows[0].ID, first.Rows[1].ID, second.Rows[0].ID, second.Rows[1].ID}
		if diff := cmp.Diff(all[3:7], got); diff != "" {
			t.Errorf("two pages around a commit (-want +got):\n%s", diff)
		}
	}
}

// What somebody put off for ever, or into a time before ours, is listed like all else.
func TestListBoundsTimes(t *testing.T) {
	t.Parallel()
	db := outboxtest.DB(t)
	insert(t, db, 2)
	exec(t, db, `update outbox set available_at = 'infinity', created_at = '20000-01-01Z', next_attempt_at = '-infinity' where id = 1`)
	exec(t, db, `update outbox set available_at = '0044-03-15 BC', created_at = '-infinity' where id = 2`)
	page, err := outbox.NewStore(db, "public").List(context.Background(), outbox.Filter{}, nil, 2)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, r := range page.Rows {
		got = append(got, fmt.Sprint(r.ID, r.CreatedAt.Year(), r.AvailableAt.Year(), r.Due().Year()))
	}
	if want := "2 1 1 1, 1 9999 9999 1"; strings.Join(got, ", ") != want {
		t.Errorf("years are %s, want %s", strings.Join(got, ", "), want)
	}
}

// No listing reads a large table from end to end when an index has what it wants: the plan of each
// statement names the index that its comment does.
func TestListUsesIndexes(t *testing.T) {
	t.Parallel()
	db := outboxtest.DB(t)
	exec(t, db, `alter table outbox set (autovacuum_enabled = off)`)
	insert(t, db, 2000)
	finished(t, db, 150_000, outbox.Delivered, nil)
	finished(t, db, 500, outbox.Failed, "http")
	exec(t, db, `vacuum analyze outbox`)
	store := outbox.NewStore(db, "public")
	open := []outbox.Status{outbox.Pending, outbox.InProgress}
	since := time.Now().Add(-time.Minute)
	tests := []struct {
		f    outbox.Filter
		want string // an index, or several
	}{
		{outbox.Filter{}, "outbox_pkey"},
		{outbox.Filter{EventTypes: []string{"order.*"}}, "outbox_pkey"},
		{outbox.Filter{IDs: []int64{5}}, "outbox_pkey"},
		{outbox.Filter{Keys: []uuid.UUID{uuid.New()}}, "outbox_key"},
		{outbox.Filter{Keys: []uuid.UUID{uuid.New()}, Statuses: open}, "outbox_key"},
		{outbox.Filter{Statuses: open}, "outbox_lag|outbox_due|outbox_aggregate"},
		{outbox.Filter{Statuses: open, Destinations: []string{"crm"}, Tenants: []string{"a"}}, "outbox_due|outbox_aggregate"},
		{outbox.Filter{Statuses: open, Destinations: []string{""}, Tenants: []string{""}, Aggregates: []outbox.Aggregate{{Type: "order", ID: "77"}}}, "outbox_aggregate"},
		{outbox.Filter{Since: since}, "outbox_done"},
		{outbox.Filter{ErrorCodes: []int{503}}, "outbox_graveyard"},
		{outbox.Filter{Statuses: []outbox.Status{outbox.Failed, outbox.DeadLetter}}, "outbox_graveyard"},
		{outbox.Filter{Statuses: []outbox.Status{outbox.Failed}, Tenants: []string{"a"}, Since: since}, "outbox_graveyard"},
		{outbox.Filter{Statuses: []outbox.Status{outbox.Delivered}}, "outbox_done"},
		{outbox.Filter{FinishedBefore: since}, "outbox_done"},
	}
	for _, tt := range tests {
		plan, err := store.ExplainList(context.Background(), tt.f, &outbox.Place{ID: 1 << 40, Ended: time.Now()})
		if err != nil {
			t.Fatal(err)
		}
		if !regexp.MustCompile(tt.want).MatchString(plan) || strings.Contains(plan, "Seq Scan on outbox") {
			t.Errorf("%+v: want %s:\n%s", tt.f, tt.want, plan)
		}
	}
}
