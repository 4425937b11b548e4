package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
)

var errNotProved = errors.New("not proved")

// proof holds both ends, the orders that the shop has and what the receiver remembers, and what the
// outbox says in between.
type proof struct {
	placed      int
	committed   []int64
	deadLetters int
	receiver    tally

	copied    int64 // later orders than this went to the warehouse, too
	warehouse tally
	inVain    int // requests to it while it was down
}

// claim is one thing that must hold.
type claim struct {
	holds bool
	words string
}

const committedSQL = `
select id
  from orders
 order by id`

const deadLettersSQL = `
select count(*)
  from outbox
 where status = 'dead_letter'`

func (d *demo) gather(ctx context.Context) (proof, error) {
	p := proof{
		placed: placed + late + copied, receiver: d.receiver.remembered(),
		copied: placed + late, warehouse: d.warehouse.remembered(), inVain: d.inVain,
	}
	rows, err := d.db.Query(ctx, committedSQL)
	if err != nil {
		return p, err
	}
	if p.committed, err = pgx.CollectRows(rows, pgx.RowTo[int64]); err != nil {
		return p, err
	}
	return p, d.db.QueryRow(ctx, deadLettersSQL).Scan(&p.deadLetters)
}

func (p proof) claims() []claim {
	arrived, ghosts := p.compare()
	copies, missing, strange := p.compareCopies()
	r, w := p.receiver, p.warehouse
	return []claim{
		{arrived == len(p.committed) && len(r.refused) == 1 && p.deadLetters == 1,
			fmt.Sprintf("%d of %d committed orders arrived: %d taken, %d refused and kept as a dead letter",
				arrived, len(p.committed), len(r.taken), len(r.refused))},
		{ghosts == 0 && len(p.committed) < p.placed,
			fmt.Sprintf("%d of %d rolled-back orders arrived", ghosts, p.placed-len(p.committed))},
		{r.failed > 0,
			fmt.Sprintf("%d of %d requests were answered with 500, and made again", r.failed, r.requests)},
		{r.duplicates > 0 && once(r.taken),
			fmt.Sprintf("%d requests came twice because of the kill: known by their keys, no order was taken twice",
				r.duplicates)},
		{missing == 0 && strange == 0 && copies > 0 && once(w.taken) && p.inVain > 0 && p.inVain < copies,
			fmt.Sprintf("%d of %d copies arrived at the warehouse, which was dead first: only %d requests were in vain",
				copies-missing, copies, p.inVain)},
		{r.forged == 0 && w.forged == 0 && r.requests > 0,
			fmt.Sprintf("%d of %d requests had a bad signature", r.forged+w.forged, r.requests+w.requests)},
	}
}

// compare counts the committed orders that arrived, and those that arrived without being committed.
func (p proof) compare() (arrived, ghosts int) {
	came := map[int64]bool{}
	for id := range p.receiver.taken {
		came[id] = true
	}
	for id := range p.receiver.refused {
		came[id] = true
	}
	for _, id := range p.committed {
		if came[id] {
			arrived++
		}
	}
	return arrived, len(came) - arrived
}

// compareCopies counts the orders that the warehouse should have, those of them that it has not, and
// others that it has.
func (p proof) compareCopies() (want, missing, strange int) {
	for _, id := range p.committed {
		if id <= p.copied {
			continue
		}
		want++
		if p.warehouse.taken[id] == 0 {
			missing++
		}
	}
	return want, missing, len(p.warehouse.taken) - (want - missing)
}

// once reports whether no order was booked twice.
func once(taken map[int64]int) bool {
	for _, times := range taken {
		if times > 1 {
			return false
		}
	}
	return true
}
