package outbox

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// lateness knows how far the aggregates have got that a queue has sent events of lately, and with that
// the events whose transaction committed after a later one of their aggregate had been sent. Nobody can
// put those in order; it is counted, for the producers do not take turns then.
type lateness struct {
	young, old map[aggregate]int64 // the highest sequence that was sent
	n          int                 // found late and not yet counted in the database
	last       int64               // the id of the last of these
}

// maxKnown bounds the memory: of twice as many aggregates it is known.
const maxKnown = 20_000

// note takes in the outcomes of events that were sent.
func (l *lateness) note(outs []Outcome) {
	for _, out := range outs {
		if !out.Refund && out.event != nil {
			l.sent(out.event)
		}
	}
}

func (l *lateness) sent(ev *Event) {
	of := ev.aggregate()
	if ev.Sequence() <= max(l.young[of], l.old[of]) {
		return
	}
	if l.young == nil || len(l.young) >= maxKnown {
		l.young, l.old = make(map[aggregate]int64), l.young
	}
	l.young[of] = ev.Sequence()
}

// late reports whether a later event of ev's aggregate was sent before.
func (l *lateness) late(ev *Event) bool {
	of := ev.aggregate()
	if ev.Sequence() >= max(l.young[of], l.old[of]) {
		return false
	}
	l.n++
	l.last = ev.ID
	return true
}

const lateSQL = `
insert into {schema}.outbox_late as l (destination, events, last_event)
values (@destination, @n, @last)
    on conflict (destination) do update
   set events = l.events + excluded.events, last_event = excluded.last_event, last_at = clock_timestamp()`

// countLate adds to the destination's count what was found late.
func (q *Queue) countLate(ctx context.Context) error {
	if q.late.n == 0 {
		return nil
	}
	err := q.store.inTx(ctx, queueLimits, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, q.lateSQL, pgx.NamedArgs{"destination": q.o.Destination, "n": q.late.n, "last": q.late.last})
		return err
	})
	if err != nil {
		return fmt.Errorf("count late events: %w", err)
	}
	q.late.n = 0
	return nil
}
