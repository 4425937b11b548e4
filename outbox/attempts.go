package outbox

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
)

// AnswerStats counts attempts by what came back.
type AnswerStats struct {
	Kind string // error_kind; "" = delivered
	Code int    // 0 = none
	N    int64
}

// Tally counts attempts.
type Tally struct {
	Attempts int64
	Errors   int64         // of these, not delivered
	Answers  []AnswerStats // of these, the most frequent first
	latency  time.Duration // of all of them
}

// ErrorShare is the share of attempts that did not deliver, 0..1.
func (t *Tally) ErrorShare() float64 { return share(t.Errors, t.Attempts) }

// Latency is the mean of the attempts.
func (t *Tally) Latency() time.Duration {
	if t.Attempts == 0 {
		return 0
	}
	return t.latency / time.Duration(t.Attempts)
}

func (t *Tally) add(a AnswerStats, latency time.Duration) {
	count(&t.Answers, a)
	t.Attempts += a.N
	if a.Kind != "" {
		t.Errors += a.N
	}
	t.latency += latency
}

// Tries counts attempts by their number, which stands for itself up to 20, for 20 and more there.
type Tries struct {
	Delivered map[int]int64 // attempts until success
	Retried   map[int]int64 // that will be made again
	Ended     map[int]int64 // that ended their event otherwise
}

// attemptSQL leaves out deliveries that a shutdown cut off: they say nothing about the destination.
const attemptSQL = `
select destination, shadow, outcome, error_kind, error_code, attempt, sum(n)::bigint,
       coalesce(extract(epoch from sum(latency)), 0)::float8
  from {schema}.outbox_rollup -- outbox_rollup_pkey
 where minute > now() - @window::bigint * interval '1 microsecond'
   and error_kind <> 'shutdown'
 group by destination, shadow, outcome, error_kind, error_code, attempt
 order by destination, shadow, outcome, error_kind, error_code, attempt`

// attemptStats sums up what was attempted in the window: for all, by destination, by answer and by the
// attempt's number.
func (s *Store) attemptStats(ctx context.Context, tx pgx.Tx, look Look, st *Stats) error {
	rows, err := tx.Query(ctx, s.sql(attemptSQL), pgx.NamedArgs{"window": look.Window.Microseconds()})
	if err != nil {
		return err
	}
	st.Tries = Tries{Delivered: map[int]int64{}, Retried: map[int]int64{}, Ended: map[int]int64{}}
	var destination string
	var shadow bool
	var outcome Status
	var attempt int
	var latency float64
	var a AnswerStats
	_, err = pgx.ForEachRow(rows, []any{&destination, &shadow, &outcome, &a.Kind, &a.Code, &attempt, &a.N, &latency}, func() error {
		d := st.destination(destination)
		d.Tally.add(a, seconds(latency))
		if shadow {
			return nil
		}
		d.judged.Tally.add(a, seconds(latency))
		st.Tally.add(a, seconds(latency))
		st.Tries.add(outcome, attempt, a.N)
		return nil
	})
	sortAnswers(st.Answers)
	for _, d := range st.Destinations {
		sortAnswers(d.Answers)
		sortAnswers(d.judged.Answers)
	}
	return err
}

func (t *Tries) add(outcome Status, attempt int, n int64) {
	switch outcome {
	case Delivered:
		t.Delivered[attempt] += n
	case Pending:
		t.Retried[attempt] += n
	default:
		t.Ended[attempt] += n
	}
}

// count adds an answer to those of its kind and code.
func count(all *[]AnswerStats, a AnswerStats) {
	i := slices.IndexFunc(*all, func(b AnswerStats) bool { return b.Kind == a.Kind && b.Code == a.Code })
	if i < 0 {
		*all = append(*all, a)
		return
	}
	(*all)[i].N += a.N
}

func sortAnswers(all []AnswerStats) {
	slices.SortFunc(all, func(a, b AnswerStats) int {
		return cmp.Or(cmp.Compare(b.N, a.N), cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Code, b.Code))
	})
}

// lastSQL walks back from now, past minutes in which nothing was delivered.
const lastSQL = `
select coalesce((select greatest(extract(epoch from now() - minute), 0)
                   from {schema}.outbox_rollup -- outbox_rollup_pkey
                  where minute > now() - interval '1 day'
                    and outcome = 'delivered'
                    and not shadow
                  order by minute desc
                  limit 1), -1)::float8`

func (s *Store) lastStats(ctx context.Context, tx pgx.Tx, _ Look, st *Stats) error {
	var since float64
	err := tx.QueryRow(ctx, s.sql(lastSQL)).Scan(&since)
	st.LastDelivered = seconds(since)
	return err
}

const buriedSQL = `
select coalesce(sum(n) filter (where outcome = 'failed'), 0)::bigint, coalesce(sum(n) filter (where outcome = 'dead_letter'), 0)::bigint
  from {schema}.outbox_rollup -- outbox_rollup_pkey
 where minute > now() - interval '1 hour'
   and outcome in ('failed', 'dead_letter')
   and not shadow`

func (s *Store) buriedStats(ctx context.Context, tx pgx.Tx, _ Look, st *Stats) error {
	var failed, dead int64
	err := tx.QueryRow(ctx, s.sql(buriedSQL)).Scan(&failed, &dead)
	st.Buried = map[Status]int64{Failed: failed, DeadLetter: dead}
	return err
}

// Drain is how long the backlog of due events will take at the rates of the last five minutes:
// 0 when there is none, less than 0 when it does not shrink. Shadow copies are created and delivered like
// others.
func (st *Stats) Drain() time.Duration {
	const span = "5m"
	all := st.Depth.and(st.shadows)
	backlog, shrinks := all.Due+all.Status[InProgress], st.Delivered[span]+st.shadowsDelivered-st.Created[span]
	switch {
	case backlog == 0:
		return 0
	case shrinks <= 0:
		return -1
	}
	return time.Duration(min(float64(backlog)/shrinks, 1e6) * float64(time.Minute))
}
