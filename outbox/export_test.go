package outbox

import (
	"context"
	"strings"

	"github.com/jackc/pgx/v5"
)

// ExplainClaim returns the plan of the queue's next claim, from the very start or from its marks.
func (q *Queue) ExplainClaim(ctx context.Context, want Want) (string, error) {
	const lease = "test/0123456789abcdef"
	if q.ordered {
		return q.store.explain(ctx, inOrderSQL, q.orderedSQL[want.Rooms != nil], q.orderedArgs(want, lease))
	}
	sql, args := q.claimStatement(want, lease)
	return q.store.explain(ctx, inOrderSQL, sql, args)
}

// What makes causes of errors.
var (
	Fingerprint = fingerprint
	Alike       = alike
)

// ExplainStats returns the plans of what Stats asks of a large table.
func (s *Store) ExplainStats(ctx context.Context) (string, error) {
	var plans []string
	depth := strings.NewReplacer("/*open*/", strings.Replace(openSQL, "/*state*/", stateSQL, 1), "/*finished*/", graveyardSQL).Replace(depthSQL)
	args := pgx.NamedArgs{
		"table": s.schema + ".outbox", "open": exactOpen, "finished": exactFinished, "top": 10, "destinations": byDestination,
		"open_weight": 1.0, "finished_weight": 1.0,
	}
	for sql, before := range map[string]string{sizeSQL: byIndexSQL, depth: byPageSQL, lagSQL: byIndexSQL, createdSQL: byIndexSQL} {
		plan, err := s.explain(ctx, before, s.sql(sql), args)
		if err != nil {
			return "", err
		}
		plans = append(plans, plan)
	}
	return strings.Join(plans, "\n"), nil
}

// ExplainList returns the plan of the last statement that a listing of a large table may need.
func (s *Store) ExplainList(ctx context.Context, f Filter, after *Place) (string, error) {
	settings, sql := f.allSQL()
	args := f.args(pgx.NamedArgs{"before": after.ID})
	if f.ByEnd() {
		settings = byIndexSQL
		sql, args = f.endedSQL(after, false)
	}
	args["limit"] = 50
	return s.explain(ctx, byIndexSQL+"; "+settings, s.sql(sql), args)
}

func (s *Store) explain(ctx context.Context, before, sql string, args pgx.NamedArgs) (string, error) {
	var lines []string
	err := s.inTx(ctx, queueLimits, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, before); err != nil {
			return err
		}
		rows, err := tx.Query(ctx, "explain "+sql, args)
		if err != nil {
			return err
		}
		lines, err = pgx.CollectRows(rows, pgx.RowTo[string])
		return err
	})
	return strings.Join(lines, "\n"), err
}

// Step is step, for tests of what keeps a run's progress.
func (r *Run) Step(ctx context.Context, f func(tx pgx.Tx, p *Progress) (int, error)) (int, error) {
	return r.step(ctx, f)
}

// Skip and Move are skip and move.
func (p *Progress) Skip(reason string, n int64) { p.skip(reason, n) }
func (p *Progress) Move(v any) error            { return p.move(v) }

// Explain returns the plans of a change: of its walks and of what it does to a thousand rows.
func (c *Change) Explain(ctx context.Context) (plans []string, err error) {
	args := c.filter.args(pgx.NamedArgs{
		"before": c.before, "window": 1000, "destination": "", "tenant": "", "at": "-infinity", "id": int64(0),
		"ids": make([]int64, 1000), "operation": int64(1), "due": c.before, "gap": int64(1),
	})
	for name, value := range c.args {
		args[name] = value
	}
	for _, sql := range append(c.walks, c.write) {
		plan, err := c.store.explain(ctx, byIndexSQL, sql, args)
		if err != nil {
			return nil, err
		}
		plans = append(plans, plan)
	}
	return plans, nil
}

// AggregatePercentile is where percent places an event's aggregate.
var AggregatePercentile = aggregatePercentile

// HeardOf is s as a board tells it that has written n asked pauses.
func HeardOf(s Standing, n int) Standing {
	s.heard = n
	return s
}
