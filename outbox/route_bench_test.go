package outbox_test

import (
	"context"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxctl/outboxctl/migrate"
	"github.com/outboxctl/outboxctl/outbox"
	"github.com/outboxctl/outboxctl/outbox/outboxtest"
)

// BenchmarkFourDestinations routes events to four destinations, each event to one of them, and delivers
// them there meanwhile; against the same events delivered to one destination without a router. The aim is
// a ratio of 0.6 at least.
func BenchmarkFourDestinations(b *testing.B) {
	for b.Loop() {
		db, url := outboxtest.DB(b), receiver(b)
		withOption(b, db, "routes")
		compare(b, "one",
			func() float64 { return routedRate(b, db, load(), url) },
			func() float64 { return dispatchRate(b, db, load(), best, newWebhook(b, url, best)) })
	}
}

// withOption adds an option to the schema.
func withOption(tb testing.TB, db *pgxpool.Pool, name string) {
	tb.Helper()
	for _, err := range migrate.New(db, "public").With(context.Background(), name) {
		if err != nil {
			tb.Fatal(err)
		}
	}
}

// routedRate is how many events a second a router and the dispatchers of four destinations deliver.
func routedRate(b *testing.B, db *pgxpool.Pool, n int, url string) float64 {
	const destinations = 4
	fill(b, db, n)
	exec(b, db, `update outbox set event_type = 'type.' || id % $1 where finished_at is null`, destinations)
	exec(b, db, `vacuum analyze outbox`)
	exec(b, db, `checkpoint`)
	store := outbox.NewStore(db, "public")
	woken := map[string]chan struct{}{}
	var routes outbox.Routes
	var dispatchers []*outbox.Dispatcher
	stop, done := context.WithCancel(b.Context())
	defer done()
	var delivered atomic.Int64
	for i := range destinations {
		name := "d" + strconv.Itoa(i)
		woken[name] = make(chan struct{}, 1)
		routes = append(routes, outbox.Route{EventTypes: []string{"type." + strconv.Itoa(i)}, To: []string{name}})
		d := newDispatcher(db, newWebhook(b, url, best))
		d.Once, d.BatchSize, d.Parallel, d.PollInterval, d.Woken = false, best.batch, best.parallel, 2*time.Second, woken[name]
		d.Source = store.Queue(outbox.QueueOptions{
			Destination: name, Worker: "test", Lease: d.Lease, MaxAttempts: d.Policy.MaxAttempts, PollInterval: d.PollInterval,
		})
		d.Observer.Settled = func(r outbox.Report) {
			if r.Outcome.Status == outbox.Delivered && delivered.Add(1) == int64(n) {
				done()
			}
		}
		dispatchers = append(dispatchers, d)
	}
	router := store.Router(routes)
	router.Routed = func(names []string) {
		for _, name := range names {
			select {
			case woken[name] <- struct{}{}:
			default:
			}
		}
	}
	began := time.Now()
	var all sync.WaitGroup
	for _, d := range dispatchers {
		all.Go(func() { _, _ = d.Run(stop, context.Background()) })
	}
	all.Go(func() {
		outbox.Follow(stop, router.Step, 1000, 2*time.Second, nil, func(err error) { b.Error(err) })
	})
	<-stop.Done()
	took := time.Since(began)
	all.Wait()
	if delivered.Load() != int64(n) {
		b.Fatalf("%d of %d events were delivered", delivered.Load(), n)
	}
	return float64(n) / took.Seconds()
}
