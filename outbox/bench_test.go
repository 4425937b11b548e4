package outbox_test

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxctl/outboxctl/outbox"
	"github.com/outboxctl/outboxctl/outbox/outboxtest"
	"github.com/outboxctl/outboxctl/outbox/sink/webhook"
)

// The benchmarks report a ratio to a ceiling that is measured in the same run, in turns: absolute
// figures of one machine say nothing about another. `make bench` runs them.

// load is how many events one measurement moves; OUTBOXCTL_BENCH_EVENTS changes it.
func load() int {
	if n, err := strconv.Atoi(os.Getenv("OUTBOXCTL_BENCH_EVENTS")); err == nil {
		return n
	}
	return 100_000
}

// rounds is how often each side is measured.
const rounds = 3

// tuning are the flags that matter for speed.
type tuning struct{ batch, parallel int }

var (
	defaults = tuning{batch: 100, parallel: 10}
	best     = tuning{batch: 1000, parallel: 32}
)

// BenchmarkNoopSink is the loop alone, against the bare statements of a claim and a settle on the
// same table.
func BenchmarkNoopSink(b *testing.B) {
	for b.Loop() {
		db := outboxtest.DB(b)
		compare(b, "sql",
			func() float64 { return dispatchRate(b, db, load(), best, noop{}) },
			func() float64 { return sqlRate(b, db, load(), best.batch) })
	}
}

// BenchmarkWebhook delivers to a local receiver, against what a plain sender and the bare statements
// reach when they share the same cores: 1/(1/sender + 1/sql).
func BenchmarkWebhook(b *testing.B) {
	for b.Loop() {
		db, url := outboxtest.DB(b), receiver(b)
		compare(b, "series",
			func() float64 { return dispatchRate(b, db, load(), best, newWebhook(b, url, best)) },
			func() float64 {
				sender := senderRate(b, url, load(), best.parallel)
				sql := sqlRate(b, db, load(), best.batch)
				return 1 / (1/sender + 1/sql)
			})
	}
}

// BenchmarkDefaults delivers with the default flags, against the best ones.
func BenchmarkDefaults(b *testing.B) {
	for b.Loop() {
		db, url := outboxtest.DB(b), receiver(b)
		compare(b, "best",
			func() float64 { return dispatchRate(b, db, load(), defaults, newWebhook(b, url, defaults)) },
			func() float64 { return dispatchRate(b, db, load(), best, newWebhook(b, url, best)) })
	}
}

// BenchmarkMillionDelivered delivers beside a million rows that are delivered, against a table
// without any.
func BenchmarkMillionDelivered(b *testing.B) {
	for b.Loop() {
		full, empty := outboxtest.DB(b), outboxtest.DB(b)
		exec(b, full, `insert into outbox (aggregate_type, aggregate_id, event_type, payload, status, finished_at)
			select 'order', i::text, 'order.created', '{"n": 1}', 'delivered', now() - interval '1 hour'
			  from generate_series(1, 1000000) i`)
		exec(b, full, `vacuum analyze outbox`)
		url := receiver(b)
		compare(b, "empty",
			func() float64 { return dispatchRate(b, full, load(), best, newWebhook(b, url, best)) },
			func() float64 { return dispatchRate(b, empty, load(), best, newWebhook(b, url, best)) })
	}
}

// BenchmarkTwentyTenants delivers the events of twenty tenants, against as many of one. The aim is a ratio of
// 0.85 at least, which a busy machine hides from less than seven rounds.
func BenchmarkTwentyTenants(b *testing.B) {
	for b.Loop() {
		twenty, one := outboxtest.DB(b), outboxtest.DB(b)
		exec(b, twenty, `alter table outbox alter tenant_id set default floor(random() * 20)::text`)
		url := receiver(b)
		compareOver(b, 7, "one",
			func() float64 { return dispatchRate(b, twenty, load(), best, newWebhook(b, url, best)) },
			func() float64 { return dispatchRate(b, one, load(), best, newWebhook(b, url, best)) })
	}
}

// compare measures both sides as often as most benchmarks do.
func compare(b *testing.B, ceiling string, ours, theirs func() float64) {
	compareOver(b, rounds, ceiling, ours, theirs)
}

// compareOver measures both sides in turns, each first in every other round, and reports the medians: of either side, and
// of the ratios of the rounds, in which a machine that is busy for a while slows both.
func compareOver(b *testing.B, rounds int, ceiling string, ours, theirs func() float64) {
	var a, c, ratios []float64
	for i := range rounds {
		var x, y float64
		if i%2 == 0 {
			x, y = ours(), theirs()
		} else {
			y, x = theirs(), ours()
		}
		a, c, ratios = append(a, x), append(c, y), append(ratios, x/y)
	}
	b.ReportMetric(median(a), "events/s")
	b.ReportMetric(median(c), ceiling+"/s")
	b.ReportMetric(median(ratios), "ratio")
	b.ReportMetric(0, "ns/op")
}

func median(values []float64) float64 {
	slices.Sort(values)
	return values[len(values)/2]
}

type noop struct{}

func (noop) Deliver(context.Context, outbox.Event) (outbox.Receipt, error) {
	return outbox.Receipt{}, nil
}

// fill leaves exactly n due events in a table without dead rows of the round before.
func fill(b *testing.B, db *pgxpool.Pool, n int) {
	exec(b, db, `delete from outbox where finished_at > now() - interval '30 minutes'`)
	exec(b, db, `truncate outbox_attempts, outbox_rollup`)
	insert(b, db, n)
	exec(b, db, `vacuum analyze outbox`)
	exec(b, db, `checkpoint`)
}

// dispatchRate is how many events a second a dispatcher delivers.
func dispatchRate(b *testing.B, db *pgxpool.Pool, n int, tune tuning, sink outbox.Sink) float64 {
	fill(b, db, n)
	d := newDispatcher(db, sink)
	d.BatchSize, d.Parallel, d.PollInterval = tune.batch, tune.parallel, 2*time.Second
	d.Source = queueFor(db, d)
	began := time.Now()
	summary, err := d.Run(b.Context(), context.Background())
	took := time.Since(began)
	if err != nil || summary.Delivered != n {
		b.Fatalf("Run() delivered %d of %d: %v", summary.Delivered, n, err)
	}
	return float64(n) / took.Seconds()
}

// The bare statements do what a claim and a settle must, with nothing around them: they lease rows
// and return their payloads; they write outcomes behind the fence, the history of failures and the
// rollup. They are prepared and run in turns on one connection.
const (
	bareClaimSQL = `
update outbox o
   set status = 'in_progress', attempts = o.attempts + 1, lease = $1, lease_until = clock_timestamp() + $2::bigint * interval '1 second',
       last_attempt_at = clock_timestamp(), updated_at = clock_timestamp()
 where o.id = any (array (
   select id from outbox
    where destination = '' and tenant_id = '' and finished_at is null
      and coalesce(next_attempt_at, available_at) <= now() and (lease_until is null or lease_until < now())
    order by coalesce(next_attempt_at, available_at), id
    limit $3
      for update skip locked))
returning o.id, o.payload::text`

	bareSettleSQL = `
with v as (
	select * from unnest($1::bigint[], $2::text[], $3::text[], $4::bigint[], $5::int[], $6::text[], $7::text[], $8::text[], $9::int[], $10::bigint[])
	    as v(id, lease, status, delay, refund, receipt, error, error_kind, error_code, latency)),
done as (
	update outbox o
	   set status = v.status, lease = null, lease_until = null, attempts = o.attempts - v.refund,
	       next_attempt_at = case when v.status = 'pending' then clock_timestamp() + v.delay * interval '1 microsecond' else o.next_attempt_at end,
	       finished_at = case when v.status <> 'pending' then clock_timestamp() end,
	       receipt = coalesce(v.receipt, o.receipt), error = v.error, error_kind = v.error_kind, error_code = v.error_code,
	       updated_at = clock_timestamp()
	  from v where o.id = v.id and o.lease = v.lease
	returning o.id, o.destination, o.event_type, o.attempts, o.created_at, v.lease, v.status, v.refund, v.error, v.error_kind, v.error_code, v.latency),
history as (
	insert into outbox_attempts (event_id, attempt, lease, destination, outcome, error_kind, error_code, error)
	select id, attempts, lease, destination, status, error_kind, error_code, error
	  from done where status <> 'delivered' and (refund = 0 or status <> 'pending')),
rolled as (
	insert into outbox_rollup as r
	select date_trunc('minute', clock_timestamp()), 0, destination, event_type, status, coalesce(error_kind, ''), coalesce(error_code, 0),
	       least(attempts, 20)::smallint, count(*), sum(latency) * interval '1 microsecond', sum(clock_timestamp() - created_at)
	  from done where refund = 0 or status <> 'pending' group by 1, 2, 3, 4, 5, 6, 7, 8 order by 1, 2, 3, 4, 5, 6, 7, 8
	on conflict (minute, worker, destination, event_type, outcome, error_kind, error_code, attempt, shadow)
	do update set n = r.n + excluded.n, latency = r.latency + excluded.latency, age = r.age + excluded.age)
select id from done`
)

// sqlRate is how many events a second the bare statements move.
func sqlRate(b *testing.B, db *pgxpool.Pool, n, batch int) float64 {
	fill(b, db, n)
	conn, err := db.Acquire(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	defer conn.Release()
	began := time.Now()
	for moved := 0; moved < n; {
		ids := bareClaim(b, conn, batch)
		bareSettle(b, conn, ids)
		moved += len(ids)
	}
	return float64(n) / time.Since(began).Seconds()
}

const bareLease = "bench/0123456789abcdef"

func bareClaim(b *testing.B, conn *pgxpool.Conn, batch int) (ids []int64) {
	rows, err := conn.Query(b.Context(), bareClaimSQL, bareLease, 30, batch)
	if err != nil {
		b.Fatal(err)
	}
	var id int64
	var payload []byte
	_, err = pgx.ForEachRow(rows, []any{&id, &payload}, func() error {
		ids = append(ids, id)
		return nil
	})
	if err != nil {
		b.Fatal(err)
	}
	return ids
}

func bareSettle(b *testing.B, conn *pgxpool.Conn, ids []int64) {
	n := len(ids)
	_, err := conn.Exec(b.Context(), bareSettleSQL, ids, slices.Repeat([]string{bareLease}, n), slices.Repeat([]string{"delivered"}, n),
		make([]int64, n), make([]int32, n), make([]*string, n), make([]*string, n), make([]*string, n), make([]*int32, n), make([]int64, n))
	if err != nil {
		b.Fatal(err)
	}
}

// receiver is a local one that reads what it gets and says 200.
func receiver(b *testing.B) string {
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
	}))
	b.Cleanup(s.Close)
	return s.URL
}

const benchSecret = "a-secret-of-more-than-24-bytes"

func newWebhook(b *testing.B, url string, tune tuning) outbox.Sink {
	s, err := webhook.New(webhook.Config{URL: url, AllowPrivate: true, Secrets: []string{benchSecret}, Parallel: tune.parallel})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = s.Close() })
	return s
}

// senderRate is how many requests a second plain net/http sends: the same body, headers and
// signatures, the same number at once, and no database.
func senderRate(b *testing.B, url string, n, parallel int) float64 {
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: parallel, DisableCompression: true}}
	defer client.CloseIdleConnections()
	var left atomic.Int64
	left.Store(int64(n))
	var wg sync.WaitGroup
	began := time.Now()
	for range parallel {
		wg.Go(func() {
			for left.Add(-1) >= 0 {
				if err := sendPlain(client, url); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	return float64(n) / time.Since(began).Seconds()
}

func sendPlain(client *http.Client, url string) error {
	ev := outbox.Event{AggregateType: "order", AggregateID: "1", Type: "order.created", Payload: []byte(`{"n": 1}`)}
	body := ev.AppendEnvelope(nil, time.Time{})
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	mac := hmac.New(sha256.New, []byte(benchSecret))
	mac.Write(body)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-Signature", "sha256="+hex.EncodeToString(mac.Sum(nil)))
	req.Header.Set("X-Idempotency-Key", ev.Key.String())
	if err := webhook.Sign(req.Header, ev.Key.String(), time.Now(), body, benchSecret); err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	_, _ = io.Copy(io.Discard, resp.Body)
	return resp.Body.Close()
}
