package outbox_test

import (
	"context"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outboxctl/outboxctl/migrate"
	"github.com/outboxctl/outboxctl/outbox"
	"github.com/outboxctl/outboxctl/outbox/outboxtest"
)

// listen starts a listener on the database's outbox; what it hears comes on the channel, "*" for all.
func listen(t *testing.T, url string, dial func(ctx context.Context, network, address string) (net.Conn, error)) <-chan string {
	t.Helper()
	heard := make(chan string, 1000)
	l := &outbox.Listener{
		Channel: outbox.NewStore(nil, "public").Channel(),
		Connect: func(ctx context.Context) (*pgx.Conn, error) {
			config, err := pgx.ParseConfig(url)
			if err != nil {
				return nil, err
			}
			if dial != nil {
				config.DialFunc = dial
			}
			return pgx.ConnectConfig(ctx, config)
		},
		Ear: outbox.Ear{
			News: func(destination string, all bool) {
				if all {
					destination = "*"
				}
				heard <- destination
			},
			Trouble:   func(error) { heard <- "trouble" },
			Recovered: func() { heard <- "recovered" },
		},
	}
	ctx, cancel := context.WithCancel(context.Background())
	var beside sync.WaitGroup
	beside.Go(func() { l.Listen(ctx) })
	t.Cleanup(func() { cancel(); beside.Wait() })
	return heard
}

func hears(t *testing.T, heard <-chan string, within time.Duration, want ...string) {
	t.Helper()
	for _, w := range want {
		select {
		case got := <-heard:
			if got != w {
				t.Fatalf("heard %q, want %q", got, w)
			}
		case <-time.After(within):
			t.Fatalf("heard nothing for %s, want %q", within, w)
		}
	}
}

func TestListenerHearsNewsAndSurvivesItsConnection(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	url := outboxtest.URL(t)
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	for _, err := range migrate.New(conn, "public").With(ctx, "notify") {
		if err != nil {
			t.Fatal(err)
		}
	}
	insert := func() {
		t.Helper()
		if _, err := conn.Exec(ctx, `insert into outbox (aggregate_type, aggregate_id, event_type, payload, destination) values ('order', '1', 'order.created', '{}', 'crm')`); err != nil {
			t.Fatal(err)
		}
	}
	heard := listen(t, url, nil)
	hears(t, heard, 10*time.Second, "*")
	for range 3 {
		insert()
		hears(t, heard, 10*time.Second, "crm")
		if _, err := conn.Exec(ctx, `select pg_terminate_backend(pid) from pg_stat_activity where query like 'listen %' and datname = current_database()`); err != nil {
			t.Fatal(err)
		}
		// What came meanwhile is found: everybody may have news.
		hears(t, heard, 10*time.Second, "trouble", "recovered", "*")
	}
	insert()
	hears(t, heard, 10*time.Second, "crm")
}

// A connection that swallows everything is noticed within ten seconds, and made anew.
func TestListenerNoticesADeadConnection(t *testing.T) {
	t.Parallel()
	url := outboxtest.URL(t)
	var mu sync.Mutex
	var open []*deaf
	heard := listen(t, url, func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := new(net.Dialer).DialContext(ctx, network, address)
		if err != nil {
			return nil, err
		}
		d := &deaf{Conn: c}
		mu.Lock()
		defer mu.Unlock()
		open = append(open, d)
		return d, nil
	})
	hears(t, heard, 10*time.Second, "*")
	mu.Lock()
	for _, d := range open {
		d.swallow()
	}
	mu.Unlock()
	begin := time.Now()
	hears(t, heard, 15*time.Second, "trouble", "recovered", "*")
	if took := time.Since(begin); took < 4*time.Second || took > 13*time.Second {
		t.Errorf("a dead connection was left after %s", took)
	}
}

// deaf is a connection that can be made to answer nothing any more, without being closed.
type deaf struct {
	net.Conn
	mu   sync.Mutex
	dead bool
}

func (d *deaf) swallow() { d.mu.Lock(); d.dead = true; d.mu.Unlock() }

func (d *deaf) Read(p []byte) (int, error) {
	n, err := d.Conn.Read(p)
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.dead || err != nil {
		return n, err
	}
	for { // until the deadline that its user sets
		if _, err := d.Conn.Read(p); err != nil {
			return 0, err
		}
	}
}

func (d *deaf) Write(p []byte) (int, error) {
	d.mu.Lock()
	dead := d.dead
	d.mu.Unlock()
	if dead {
		return len(p), nil
	}
	return d.Conn.Write(p)
}
