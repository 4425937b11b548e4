package outbox

import (
	"cmp"
	"context"
	"slices"

	"github.com/jackc/pgx/v5"
)

// samplesShown is how many events a rehearsal keeps to be looked at.
const samplesShown = 3

// Samples are the first events that the rehearsal has found missing, as they would be written.
func (b *Backfill) Samples() []Event { return b.samples }

func (b *Backfill) takeSamples(ctx context.Context, tx pgx.Tx, from backfillCursor, rows []row, missing []*row) error {
	want := min(samplesShown-len(b.samples), len(missing))
	if want <= 0 {
		return nil
	}
	found, err := tx.Query(ctx, b.sql.sample.from(from), b.eventArgs(from, rows, missing[:want]))
	if err != nil {
		return err
	}
	taken, err := pgx.CollectRows(found, func(r pgx.CollectableRow) (ev Event, err error) {
		return ev, r.Scan(&ev.TenantID, &ev.AggregateType, &ev.AggregateID, &ev.Type, &ev.SchemaVersion, &ev.Key, &ev.Destination,
			&ev.Headers, &ev.Payload, &ev.AvailableAt, nil, &ev.CreatedAt)
	})
	if err == nil {
		b.samples = append(b.samples, taken...)
	}
	return err
}

// Gap is what a day lacks of a type.
type Gap struct {
	Day       string // in UTC; "" where rows have no time
	EventType string
	Rows      int64 // of the source
	Present   int64 // with an event
	Missing   int64 // without one
	Invalid   int64 // that can have none
}

// Detect counts what a backfill would have to do, by day and type. It changes nothing. After each
// page it tells seen, which may be nil, how many rows there were.
func (b *Backfill) Detect(ctx context.Context, batch int, seen func(n int)) ([]Gap, error) {
	gaps := map[[2]string]*Gap{}
	b.look = func(rows []row) {
		for _, r := range rows {
			id := [2]string{r.day, r.event.Type}
			if gaps[id] == nil {
				gaps[id] = &Gap{Day: r.day, EventType: r.event.Type}
			}
			gaps[id].count(r)
		}
	}
	defer func() { b.look = nil }()
	if err := b.Gather(ctx); err != nil {
		return nil, err
	}
	if err := Drain(ctx, b.Step(b.store.Rehearse(), 0), Pace{Batch: batch}, seen); err != nil {
		return nil, err
	}
	var all []Gap
	for _, gap := range gaps {
		all = append(all, *gap)
	}
	slices.SortFunc(all, func(x, y Gap) int {
		return cmp.Or(cmp.Compare(x.Day, y.Day), cmp.Compare(x.EventType, y.EventType))
	})
	return all, nil
}

func (g *Gap) count(r row) {
	g.Rows++
	switch r.fate {
	case "":
		g.Missing++
	case fateInvalid:
		g.Invalid++
	default:
		g.Present++
	}
}
