package main_test

import (
	"context"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxctl/outboxctl/outbox"
)

const ordersSQL = `
create table orders (id bigint primary key, customer_id text, amount_cents int, currency text, status text, created_at timestamptz not null);
create index orders_created on orders (created_at, id)`

// backfillOrders are the flags for them.
func backfillOrders(more ...string) []string {
	return append([]string{"backfill", "--table", "orders", "--event-type", "order.created", "--aggregate-type", "order", "--aggregate-id", "id",
		"--time-column", "created_at", "--payload", "order_id=id,customer_id,amount_cents,currency", "--yes"}, more...)
}

// TestBackfillWritesEachEventOnce kills a backfill at ten moments and starts it again, by its name,
// with another one beside it, while producers write orders and their events. Some of these have their
// transactions open for long: B61.
func TestBackfillWritesEachEventOnce(t *testing.T) {
	t.Parallel()
	dsn, db := database(t)
	orders := 20_000
	if long {
		orders = 200_000
	}
	execute(t, db, ordersSQL)
	execute(t, db, `insert into orders select i, 'c-' || i % 7, i, 'EUR', 'new', now() - interval '1 day' + i * interval '1 ms' from generate_series(1, $1::int) i`, orders)
	// Every tenth was written when it should have been, and some of these are delivered.
	execute(t, db, `insert into outbox (aggregate_type, aggregate_id, event_type, payload, status, finished_at)
select 'order', i::text, 'order.created', '{}', case when i % 20 = 0 then 'delivered' else 'pending' end, case when i % 20 = 0 then now() end
  from generate_series(10, $1::int, 10) i`, orders)

	producing, stop := context.WithCancel(context.Background())
	var producers sync.WaitGroup
	for p := range 3 {
		producers.Go(func() { produceOrders(producing, t, db, 10_000_000*(p+1)) })
	}
	beside := start(t, dsn, backfillOrders("--all")...)
	begin, kills := []string{"--all", "--name", "gap"}, 0
	for kills < 10 {
		p := start(t, dsn, backfillOrders(append(begin, "--batch-size", "50", "--rate", "20000/s")...)...)
		select {
		case <-p.done:
		case <-time.After(rand.N(600 * time.Millisecond)):
			p.kill()
		}
		kills++
		if query[bool](t, db, `select exists (select from outbox_operations where name = 'gap')`) {
			begin = []string{"--resume", "gap"}
		}
	}
	if code := beside.wait(10 * patience); code != 0 {
		t.Errorf("the one beside it: exit code %d", code)
	}
	stop()
	producers.Wait()
	p := start(t, dsn, backfillOrders("--all")...)
	if code := p.wait(10 * patience); code != 0 {
		t.Errorf("the last one: exit code %d", code)
	}
	eachOrderHasOneEvent(t, db)
	var unnamed int
	for key, id := range query[map[string]string](t, db, `
select coalesce(jsonb_object_agg(idempotency_key, aggregate_id), '{}') from outbox where origin like 'backfill:%'`) {
		if outbox.BackfillKey("public.orders", "order.created", 1, id).String() != key {
			unnamed++
		}
	}
	if unnamed > 0 {
		t.Errorf("%d events have keys of no row", unnamed)
	}
	if disorder := query[int](t, db, `
select count(*) from (select origin, o.created_at, lag(o.created_at) over (partition by origin order by e.id) before
                        from outbox e join orders o on o.id::text = e.aggregate_id where origin <> '') x
 where created_at < before`); disorder > 0 {
		t.Errorf("%d events are out of their source's order", disorder)
	}
	if early := query[int](t, db, `select count(*) from outbox where available_at < created_at`); early > 0 {
		t.Errorf("%d events jump ahead", early)
	}
}

// produceOrders writes orders with their events, by keys of its own, until ctx is done.
func produceOrders(ctx context.Context, t *testing.T, db *pgxpool.Pool, from int) {
	for id := from; ctx.Err() == nil; id++ {
		err := pgx.BeginFunc(context.Background(), db, func(tx pgx.Tx) error {
			if _, err := tx.Exec(context.Background(), `insert into orders values ($1, 'c', 1, 'EUR', 'new', now())`, id); err != nil {
				return err
			}
			_, err := tx.Exec(context.Background(), `insert into outbox (aggregate_type, aggregate_id, event_type, payload) values ('order', $1::bigint::text, 'order.created', '{}')`, id)
			if id%10 == 0 { // later ones are committed before it
				time.Sleep(rand.N(200 * time.Millisecond))
			}
			return err
		})
		if err != nil {
			t.Errorf("produce: %v", err)
			return
		}
		time.Sleep(rand.N(20 * time.Millisecond))
	}
}

func eachOrderHasOneEvent(t *testing.T, db *pgxpool.Pool) {
	t.Helper()
	got := query[string](t, db, `
select format('%s orders, %s without an event, %s with two', count(*), count(*) filter (where n is null), count(*) filter (where n > 1))
  from orders o
  left join (select aggregate_id, count(*) n from outbox where event_type = 'order.created' group by 1) e on e.aggregate_id = o.id::text`)
	if !strings.HasSuffix(got, " orders, 0 without an event, 0 with two") {
		t.Error(got)
	}
}

// TestBackfillKnowsTheArchive finds events where a purge has put them.
func TestBackfillKnowsTheArchive(t *testing.T) {
	t.Parallel()
	dsn, db := database(t)
	execute(t, db, ordersSQL)
	execute(t, db, `insert into orders select i, 'c', 1, 'EUR', 'new', now() from generate_series(1, 30) i`)
	insert(t, db, "order.created", 10)
	if code, _, words := run(t, dsn, backfillOrders("--all", "--payload", "id")...); code != 0 {
		t.Fatalf("exit code %d: %s", code, words)
	}
	execute(t, db, `update outbox set status = 'delivered', finished_at = now() - interval '2 days'`)
	archive(t, db)
	if n := query[int](t, db, `select count(*) from outbox`); n != 0 {
		t.Fatalf("%d events are not archived", n)
	}
	code, out, words := run(t, dsn, backfillOrders("--all")...)
	if want := "nothing to do; skipped: 20 repeat · 10 exists\n"; code != 0 || out != want {
		t.Errorf("exit code %d, %q, want 0, %q: %s", code, out, want, words)
	}
}

// archive does what a purge with --archive does.
func archive(t *testing.T, db *pgxpool.Pool) {
	t.Helper()
	execute(t, db, `select outbox_archive_prepare(array[now() - interval '2 days'])`)
	execute(t, db, `
with gone as (delete from outbox where finished_at is not null returning *)
insert into outbox_archive (id, source_id, tenant_id, aggregate_type, aggregate_id, event_type, schema_version, idempotency_key, destination, headers,
       payload, payload_bytes, status, attempts, available_at, finished_at, created_at, updated_at, origin)
select id, source_id, tenant_id, aggregate_type, aggregate_id, event_type, schema_version, idempotency_key, destination, headers,
       payload, payload_bytes, status, attempts, available_at, finished_at, created_at, updated_at, origin
  from gone`)
}

// TestOperationsPageBackfills runs the page's own example.
func TestOperationsPageBackfills(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(text), "\n## After a gap\n")
	section, _, _ = strings.Cut(section, "\n## ")
	dsn, db := database(t)
	script(t, db, blocks(section, "sql")[0])
	execute(t, db, `insert into orders select i, 'acme', 'c-7', 1999, case when i = 2 then '00-1' end, '2026-02-01 12:00Z' from generate_series(1, 3) i`)
	insert(t, db, "order.created", 1)
	file := filepath.Join(t.TempDir(), "orders.yaml")
	if err := os.WriteFile(file, []byte(blocks(section, "yaml")[0]), 0o600); err != nil {
		t.Fatal(err)
	}
	window := []string{"--spec", file, "--since", "2026-01-31", "--until", "2026-02-03"}
	// The event that is there has no tenant, so it is of another aggregate.
	if code, out, _ := run(t, dsn, append([]string{"backfill", "detect"}, window...)...); code != 3 || !strings.HasPrefix(out, "3 of 3 rows without an event ") {
		t.Errorf("detect: exit code %d: %s", code, out)
	}
	execute(t, db, `update outbox set tenant_id = 'acme'`)
	if code, out, _ := run(t, dsn, append([]string{"backfill", "detect"}, window...)...); code != 3 || !strings.HasPrefix(out, "2 of 3 rows without an event ") {
		t.Errorf("detect: exit code %d: %s", code, out)
	}
	if code, out, words := run(t, dsn, append([]string{"backfill", "--rate", "200/s", "--name", "gap", "--yes"}, window...)...); code != 0 || !strings.HasPrefix(out, "backfilled 2 events ") {
		t.Errorf("backfill: exit code %d: %s%s", code, out, words)
	}
	got := query[string](t, db, `select tenant_id || headers || payload from outbox where aggregate_id = '2'`)
	if want := `acme{"occurred_at": "2026-02-01T12:00:00.000000Z", "traceparent": "00-1"}{"order_id": 2, "customer_id": "c-7", "amount_cents": 1999}`; got != want {
		t.Errorf("an event is %s, want %s", got, want)
	}
}
