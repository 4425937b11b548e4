package main

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxctl/outboxctl/outbox/outboxtest"
)

// patience is how long a scene waits for what must come.
const patience = time.Minute

// demo is what the scenes share. Each scene says what it does, does it, and leaves to close what it
// has opened.
type demo struct {
	*screen
	closers []func()

	url      string // of the shop's database
	db       *pgxpool.Pool
	program  program
	receiver *receiver
	producer *producer
	worker   *worker // the dispatcher that runs

	warehouse *receiver // of copies
	inVain    int       // requests to it while it was down
}

func (d *demo) atEnd(f func()) { d.closers = append(d.closers, f) }

// close undoes the scenes, the last one first.
func (d *demo) close() {
	for _, f := range slices.Backward(d.closers) {
		f()
	}
}

func (d *demo) startPostgres(ctx context.Context) error {
	d.scene("A throw-away PostgreSQL", "It lives as long as this demo does.")
	cluster, err := outboxtest.Start(outboxtest.Options{})
	if err != nil {
		return err
	}
	d.atEnd(func() { cluster.Close() })
	d.url = cluster.URL("postgres")
	if d.db, err = pgxpool.New(ctx, d.url); err != nil {
		return err
	}
	d.atEnd(d.db.Close)
	var version string
	if err := d.db.QueryRow(ctx, "show server_version").Scan(&version); err != nil {
		return err
	}
	d.line("PostgreSQL " + version)
	return nil
}

func (d *demo) migrate(ctx context.Context) error {
	d.scene("The outbox", "Build the binary, and let it create its table in the shop's database.")
	dir, err := os.MkdirTemp("", "outboxctl-demo-")
	if err != nil {
		return err
	}
	d.atEnd(func() { os.RemoveAll(dir) })
	d.program = program{screen: d.screen, path: filepath.Join(dir, "outboxctl"), url: d.url, secret: newSecret()}
	if err := d.program.build(ctx); err != nil {
		return err
	}
	return d.program.run(ctx, "migrate")
}

// newSecret makes a secret of the form that Standard Webhooks recommends.
func newSecret() string {
	var key [32]byte
	_, _ = rand.Read(key[:]) // never fails
	return "whsec_" + base64.StdEncoding.EncodeToString(key[:])
}

func (d *demo) startReceiver(context.Context) error {
	d.scene("A receiver",
		"It checks both signatures of each request and remembers the keys of orders it has taken.",
		"It answers one request in five with 500, is slow now and then, and refuses one order with 422.")
	var err error
	if d.receiver, err = newReceiver(d.program.secret); err != nil {
		return err
	}
	d.atEnd(d.receiver.close)
	d.line("listening on " + d.receiver.url)
	return nil
}

func (d *demo) deliver(ctx context.Context) error {
	d.scene("Orders and a dispatcher",
		fmt.Sprintf("A shop writes %d orders:  begin; insert into orders …; insert into outbox …; commit;", placed),
		"One in ten is rolled back, and once the shop crashes between the two inserts. A dispatcher delivers",
		"meanwhile. (A short lease and backoff keep the demo short; of the log, one line of each kind is shown.)")
	d.producer = &producer{db: d.db}
	if err := d.producer.createTable(ctx); err != nil {
		return err
	}
	if err := d.dispatch("worker-1", "--backoff", "200ms..2s"); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	wait := d.producer.start(ctx)
	d.atEnd(func() { cancel(); wait() })
	return nil
}

// dispatch starts the binary's dispatcher.
func (d *demo) dispatch(name string, more ...string) error {
	var err error
	args := append([]string{"dispatch", "--to", d.receiver.url, "--allow-private", "--lease", "7s", "--worker-id", name}, more...)
	d.worker, err = d.program.start(args...)
	if err == nil {
		d.atEnd(d.worker.kill)
	}
	return err
}

const leasedSQL = `
select count(*)
  from outbox
 where status = 'in_progress'`

func (d *demo) crash(ctx context.Context) error {
	if err := d.await(ctx, d.receiver.half); err != nil {
		return err
	}
	d.worker.kill()
	d.scene("kill -9", "In the middle of its work: the receiver has just taken an order and not answered yet.")
	d.command(fmt.Sprintf("kill -9 %d", d.worker.pid()))
	var leased int
	if err := d.db.QueryRow(ctx, leasedSQL).Scan(&leased); err != nil {
		return err
	}
	d.line(fmt.Sprintf("%d events were leased to it. Nobody needs to clean up: the leases lapse.", leased))
	return nil
}

func (d *demo) takeOver(ctx context.Context) error {
	d.scene("Another one takes over",
		"At once what is due; what the dead one held, seven seconds later. What had arrived, arrives again.")
	if err := d.dispatch("worker-2", "--backoff", "200ms..2s"); err != nil {
		return err
	}
	if err := d.await(ctx, d.producer.done); err != nil {
		return err
	}
	if d.producer.err != nil {
		return fmt.Errorf("producer: %w", d.producer.err)
	}
	return d.awaitEmpty(ctx)
}

// await waits for something that the dispatcher's end would prevent.
func (d *demo) await(ctx context.Context, what <-chan struct{}) error {
	select {
	case <-what:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-d.worker.done:
		return d.worker.ended()
	case <-time.After(patience):
		return fmt.Errorf("nothing happened for %s", patience)
	}
}

const openSQL = `
select count(*) = 0
  from outbox
 where finished_at is null`

// awaitEmpty waits until no event is open.
func (d *demo) awaitEmpty(ctx context.Context) error { return d.awaitTrue(ctx, openSQL) }

// awaitTrue waits until what sql asks is so.
func (d *demo) awaitTrue(ctx context.Context, sql string) error {
	for begin := time.Now(); time.Since(begin) < patience; {
		var is bool
		if err := d.db.QueryRow(ctx, sql).Scan(&is); err != nil || is {
			return err
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-d.worker.done:
			return d.worker.ended()
		}
	}
	return errors.New("nothing has come of it after " + patience.String() + ":" + sql)
}

func (d *demo) stats(ctx context.Context) error {
	d.scene("How it went", "The dead dispatcher is listed until it has not been seen for 30 seconds.")
	return d.program.run(ctx, "stats")
}

func (d *demo) stop(context.Context) error {
	d.scene("The end", "SIGTERM lets a dispatcher finish what it has begun; it sums up and exits with 0.")
	d.command(fmt.Sprintf("kill %d", d.worker.pid()))
	return d.worker.terminate()
}

func (d *demo) prove(ctx context.Context) error {
	d.scene("The proof", "The shop's own table against what the receiver remembers.")
	p, err := d.gather(ctx)
	if err != nil {
		return err
	}
	proved := true
	for _, c := range p.claims() {
		d.verdict(c.holds, c.words)
		proved = proved && c.holds
	}
	if !proved {
		return errNotProved
	}
	return nil
}
