package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// copied is how many orders customers place while each goes to two destinations.
const copied = 40

// fileText is the configuration; the URLs are the receivers'.
const fileText = `poll_interval: 200ms
destinations:
  partner:
    url: %s
    secrets: ["${OUTBOXCTL_SECRET}"]
    allow_private: true
  warehouse:
    url: %s
    secrets: ["${OUTBOXCTL_SECRET}"]
    allow_private: true
    breaker: {failures: 5, cooldown: 2s}
routes:
  - {event_type: "order.*", to: [partner, warehouse]}
`

// fanOut sends each event to two destinations, one of which is down.
func (d *demo) fanOut(ctx context.Context) error {
	d.scene("Two destinations",
		"The warehouse is to get a copy of each order, too, and is down: 503. A file says what goes where.",
		"(A warning may name worker-1, the killed one: it is listed until it has not been seen for 30 seconds.)")
	var err error
	if d.warehouse, err = newReceiver(d.program.secret); err != nil {
		return err
	}
	d.atEnd(d.warehouse.close)
	d.warehouse.well.Store(true)
	d.warehouse.down.Store(true)
	file := filepath.Join(filepath.Dir(d.program.path), "outboxctl.yaml")
	text := fmt.Sprintf(fileText, d.receiver.url, d.warehouse.url)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		return err
	}
	d.command("cat outboxctl.yaml")
	for line := range strings.Lines(text) {
		d.line(strings.TrimSuffix(line, "\n"))
	}
	if err := d.program.run(ctx, "migrate", "--with", "routes"); err != nil {
		return err
	}
	d.program.dir = filepath.Dir(file)
	if d.worker, err = d.program.start("dispatch", "--config", "outboxctl.yaml", "--worker-id", "worker-4"); err != nil {
		return err
	}
	d.atEnd(d.worker.kill)
	return d.producer.placeAll(ctx, placed+late, placed+late+copied)
}

const (
	partnersSQL = `
select count(*) = 0
  from outbox
 where finished_at is null
   and destination <> 'warehouse'`

	breakerSQL = `
select count(*) = 1
  from outbox_destinations
 where destination = 'warehouse'
   and breaker = 'open'`
)

// isolate shows that the one that is down holds up nothing but its own copies.
func (d *demo) isolate(ctx context.Context) error {
	began := time.Now()
	if err := d.awaitTrue(ctx, partnersSQL); err != nil {
		return err
	}
	took := time.Since(began)
	if err := d.awaitTrue(ctx, breakerSQL); err != nil {
		return err
	}
	d.scene("One is dead, the other does not notice",
		fmt.Sprintf("The partner has all orders %.1f seconds after the last was placed. The warehouse's copies wait:", took.Seconds()),
		"after five failures in a row its breaker is open, nothing is sent, and no attempts are spent.")
	if err := d.program.run(ctx, "stats"); err != nil {
		return err
	}
	d.scene("The warehouse is back", "Nobody needs to do anything: the next trial closes the breaker, and the copies follow.")
	d.inVain = d.warehouse.remembered().requests
	d.warehouse.recover()
	return d.awaitEmpty(ctx)
}
