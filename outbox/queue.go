package outbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// queueLimits bound an exchange. The lock timeout is short: claims skip locked rows, so only a
// settle waits, and it has a better way than waiting; see settleAlone.
var queueLimits = limits{statement: 10 * time.Second, lock: 500 * time.Millisecond, idle: dispatchIdle}

// exchangeTimeout bounds an exchange as seen from here, the way to the server included.
const exchangeTimeout = 15 * time.Second

// QueueOptions say whose events a [Queue] hands out, to whom and for how long.
type QueueOptions struct {
	Destination  string        // "" = the default one
	Worker       string        // a name for logs and leases; the fence is the claim's random part
	Lease        time.Duration // how long a claimed event is ours
	MaxAttempts  int           // beyond it, a claim looks up how many attempts shutdowns cut off
	PollInterval time.Duration // a walk from the very start happens at least this often
	Only         Selection
	DeadLetter   string // the destination that gets a copy of what fails or is a dead letter; "" = none
	Ordering     Ordering
	OnDead       OnDead // with OrderingAggregate
}

// Queue is one destination's side of the lease protocol: it claims due events and settles what
// became of them. It implements [Source] and serves one loop.
type Queue struct {
	store    *Store
	o        QueueOptions
	slot     int16 // spreads the workers' rollup rows
	walk     walk
	claimSQL map[claimKind]string
	settle   string
	bodySQL  string
	okSQL    string
	freeSQL  string
	heldSQL  string
	doubtful map[claimKey]bool // settled once, with the reply lost
	blocked  map[claimKey]bool // found locked or refused, to be settled without a claim beside it

	ordered    bool
	round      round
	late       lateness
	turn       string          // the name of the lock of its claims
	orderedSQL map[bool]string // by whether tenants have limits
	tenantsSQL string
	claimedSQL string
	lateSQL    string
}

var _ Source = (*Queue)(nil)

// Queue returns the queue of one destination.
func (s *Store) Queue(o QueueOptions) *Queue {
	o.Worker = clean(o.Worker)
	q := &Queue{store: s, o: o, slot: int16(mathrand.N(1 << 15)), walk: walk{every: o.PollInterval}, doubtful: map[claimKey]bool{}}
	q.claimSQL = q.claimStatements()
	q.settle, q.okSQL = s.sql(settleStatement(o)), s.sql(wentThroughSQL)
	q.bodySQL = s.sql(payloadSQL)
	q.freeSQL, q.heldSQL = s.sql(freeSQL), s.sql(heldSQL)
	if q.ordered = o.Ordering == OrderingAggregate; q.ordered {
		q.round = newRound(o.PollInterval, o.Only.Tenants)
		q.turn = s.schema + " outboxctl claim " + o.Destination
		q.orderedSQL = q.orderedStatements()
		q.tenantsSQL, q.claimedSQL, q.lateSQL = s.sql(openTenantsSQL), s.sql(claimedSQL), s.sql(lateSQL)
	}
	return q
}

// Exchange settles outs and claims up to want.N due events, in one transaction and one round trip; where
// events are ordered, in two transactions, of which the first has ended before the second waits
// for its turn.
//
// An error never loses an outcome: what was not settled for sure is in the result's Held, also
// when the error is not nil.
func (q *Queue) Exchange(ctx context.Context, outs []Outcome, want Want) (Exchanged, error) {
	ctx, cancel := context.WithTimeout(ctx, exchangeTimeout)
	defer cancel()
	slices.SortFunc(outs, func(a, b Outcome) int { return cmp.Compare(a.ID, b.ID) }) // the order of locks
	if q.ordered {
		q.late.note(outs)
	}
	done, err := q.exchange(ctx, outs, want)
	return done, errors.Join(err, q.confirm(ctx, outs, &done), q.countShutdowns(ctx, done.Events), q.countLate(ctx))
}

// exchange tries the one round trip, and the settle alone when PostgreSQL refuses that.
func (q *Queue) exchange(ctx context.Context, outs []Outcome, want Want) (Exchanged, error) {
	if slices.ContainsFunc(outs, func(out Outcome) bool { return q.blocked[out.key()] }) {
		return q.settleAlone(ctx, outs)
	}
	done, settled, err := q.roundTrip(ctx, outs, want)
	switch {
	case err == nil:
		return done, nil
	case settled:
		return done, fmt.Errorf("claim: %w", err)
	case refused(err) && len(outs) > 0:
		alone, settleErr := q.settleAlone(ctx, outs)
		return alone, errors.Join(settleErr, claimTrouble(err, settleErr))
	}
	q.doubt(outs, err)
	return Exchanged{Held: outs}, fmt.Errorf("exchange: %w", err)
}

// doubt notes that a settle of outs may have gone through although it ended with err.
func (q *Queue) doubt(outs []Outcome, err error) {
	if refused(err) || pgconn.SafeToRetry(err) {
		return
	}
	for _, out := range outs {
		q.doubtful[out.key()] = true
	}
}

// refused reports whether PostgreSQL answered with an error and is still there: nothing of the
// transaction was done.
func refused(err error) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return ok && pg.SeverityUnlocalized != "FATAL" && pg.SeverityUnlocalized != "PANIC" && !strings.HasPrefix(pg.Code, "57P")
}

// claimTrouble keeps the first error for the caller, unless a settle alone has explained it: a
// locked or bad outcome is no reason to stop claiming. Were it the claim's own, the next one tells.
func claimTrouble(err, settleErr error) error {
	pg, _ := errors.AsType[*pgconn.PgError](err)
	if settleErr == nil && (pg.Code == lockNotAvailable || aboutARow(err)) {
		return nil
	}
	return fmt.Errorf("claim: %w", err)
}

const lockNotAvailable = "55P03"

// aboutARow reports whether a single row of a batch may be all that is wrong: its data, or what a
// constraint or a trigger of somebody's says of it.
func aboutARow(err error) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return ok && slices.Contains([]string{"22", "23", "44", "P0"}, pg.Code[:min(2, len(pg.Code))])
}

// turnLimits bound an ordered claim, which waits for its turn.
var turnLimits = limits{statement: queueLimits.statement, lock: 5 * time.Second, idle: dispatchIdle}

// roundTrip sends the whole exchange as one pipeline. It reports whether the settle has ended well,
// which an ordered claim that fails has no part in any more.
func (q *Queue) roundTrip(ctx context.Context, outs []Outcome, want Want) (done Exchanged, settled bool, err error) {
	conn, err := q.store.db.Acquire(ctx)
	if err != nil {
		return Exchanged{}, false, err
	}
	defer conn.Release() // a connection inside a failed transaction is closed, not reused

	var (
		batch pgx.Batch
		ours  map[claimKey]bool
		claim = claimed{destination: q.o.Destination, lease: withToken(q.o.Worker), late: q.late.late}
	)
	if len(outs) > 0 || !q.ordered {
		begin(&batch, queueLimits)
	}
	if len(outs) > 0 {
		batch.Queue(q.settle, settleArgs(outs, q.slot, q.o.DeadLetter)).Query(func(rows pgx.Rows) (err error) {
			ours, err = keySet(rows)
			return err
		})
	}
	if len(outs) > 0 && q.ordered {
		batch.Queue(commitSQL).Exec(func(pgconn.CommandTag) error {
			settled = true
			return nil
		})
	}
	switch {
	case q.ordered && want.N > 0:
		begin(&batch, turnLimits)
		q.queueOrdered(&batch, want, &claim)
		batch.Queue(commitSQL)
	case !q.ordered:
		if want.N > 0 {
			q.queueClaim(&batch, want, &claim)
		}
		batch.Queue(commitSQL)
	}
	err = conn.SendBatch(ctx, &batch).Close()
	if err == nil && len(claim.ids) > 0 {
		err = q.readClaimed(ctx, conn, &claim)
	}
	if err != nil && !settled {
		return Exchanged{}, false, err
	}
	for _, out := range outs {
		if !ours[out.key()] {
			done.Lost = append(done.Lost, out)
		}
	}
	if err == nil && want.N > 0 {
		done.Events, done.CameRound = claim.events, q.cameRound(&claim, want)
	}
	return done, settled, err
}

// begin opens a transaction of a pipeline.
func begin(batch *pgx.Batch, l limits) {
	batch.Queue(beginSQL)
	batch.Queue(localSQL, l.args()...)
}

// cameRound notes how far a claim has got.
func (q *Queue) cameRound(c *claimed, want Want) bool {
	if q.ordered {
		return q.round.took(c.stop, c.tenants)
	}
	return q.walk.shared(c)
}
