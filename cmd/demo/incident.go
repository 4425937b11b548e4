package main

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// late is how many orders customers place while the receiver is down.
const late = 40

const failedSQL = `
select count(*), coalesce(min(id), 0)
  from outbox
 where status = 'failed'`

// outage lets events fail: the receiver is down for longer than they are tried.
func (d *demo) outage(ctx context.Context) error {
	d.scene("An incident",
		fmt.Sprintf("The receiver goes down: 503 for everybody. The shop goes on and writes %d more orders.", late),
		"With three attempts and a short backoff, their events are failed within a second.")
	d.receiver.down.Store(true)
	if err := d.dispatch("worker-3", "--max-attempts", "3", "--backoff", "100ms..300ms"); err != nil {
		return err
	}
	if err := d.producer.placeAll(ctx, placed, placed+late); err != nil {
		return err
	}
	return d.awaitEmpty(ctx)
}

// diagnose asks what an operator would ask.
func (d *demo) diagnose(ctx context.Context) error {
	d.scene("What is wrong, and why", "How is it going, what explains the failures, and why does this one event not move?")
	if err := d.program.run(ctx, "stats", "errors"); err != nil {
		return err
	}
	var failed, first int64
	if err := d.db.QueryRow(ctx, failedSQL).Scan(&failed, &first); err != nil {
		return err
	}
	if failed == 0 {
		return errors.New("no event has failed")
	}
	return d.program.run(ctx, "events", "explain", fmt.Sprint(first))
}

// replay sends the failed events again, with care.
func (d *demo) replay(ctx context.Context) error {
	d.scene("The receiver is back",
		"One event goes first, then ten, then the rest: should the receiver not be well, the replay would stop",
		"by itself and leave the rest untouched.")
	d.receiver.recover()
	if err := d.program.run(ctx, "replay", "--status=failed", "--canary", "1,10", "--yes"); err != nil {
		return err
	}
	return d.awaitEmpty(ctx)
}

// tidy shows what a purge would do.
func (d *demo) tidy(ctx context.Context) error {
	d.scene("Tidying up", "What was delivered need not stay. A dry run says what would go, and what never does.")
	time.Sleep(time.Second) // so that all of it is older than a second
	return d.program.run(ctx, "purge", "--older-than=1s", "--dry-run")
}
