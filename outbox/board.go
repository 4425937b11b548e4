package outbox

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

// Standing is how a destination stands with everybody who serves it: what is paused.
type Standing struct {
	For     time.Duration            // that it is still paused; 0 = it is not, [Forever] = until resumed
	Reason  string                   // of its pause
	Tenants map[string]time.Duration // that are paused, likewise

	heard int // asked pauses that are part of it
}

// equal compares what is paused, not for how long: that shrinks all the time.
func (s Standing) equal(other Standing) bool {
	same := func(a, b time.Duration) bool {
		return (a == Forever) == (b == Forever) && (a-b).Abs() < time.Second
	}
	return same(s.For, other.For) && s.Reason == other.Reason && maps.EqualFunc(s.Tenants, other.Tenants, same)
}

// Board is where the dispatchers of one destination learn what is paused and leave word of what they
// have found: outbox_destinations. It looks once in a while, so that a claim need not.
type Board struct {
	Trouble func(error) // what it wrote was refused; nil = nobody listens. Set it before Live

	store       *Store
	destination string
	every       time.Duration
	standings   chan Standing
	poke        chan struct{}

	mu      sync.Mutex
	breaker string   // to be written; "" = nothing
	asked   []Hold   // to be written
	heard   int      // written
	last    Standing // told
	read    time.Time
	told    bool
}

// Hold is a pause that a destination has asked for by its answers.
type Hold struct {
	For    time.Duration // [Forever] = until it is resumed
	Reason string        // its answer
}

// Board returns the board of a destination, looked at that often.
func (s *Store) Board(destination string, every time.Duration) *Board {
	return &Board{
		store: s, destination: destination, every: every,
		standings: make(chan Standing, 1), poke: make(chan struct{}, 1),
	}
}

// Standings yields how the destination stands whenever that has changed, the latest only.
func (b *Board) Standings() <-chan Standing { return b.standings }

// Breaker leaves word of a breaker's state. It does not block.
func (b *Board) Breaker(state string) {
	b.mu.Lock()
	b.breaker = state
	b.mu.Unlock()
	b.wake()
}

// Ask leaves word of a pause that the destination has asked for. It does not block.
func (b *Board) Ask(h Hold) {
	b.mu.Lock()
	b.asked = append(b.asked, h)
	b.mu.Unlock()
	b.wake()
}

func (b *Board) wake() {
	select {
	case b.poke <- struct{}{}:
	default:
	}
}

// Look reads the board now. Before a dispatcher starts it makes sure that nothing paused is claimed.
func (b *Board) Look(ctx context.Context) error {
	b.mu.Lock()
	heard := b.heard // before it is read: what is written later may not be in it
	b.mu.Unlock()
	pauses, err := b.store.pauses(ctx, &b.destination)
	if err != nil {
		return err
	}
	s := Standing{heard: heard}
	for _, p := range pauses {
		if p.Tenant == "" {
			s.For, s.Reason = p.For, p.Reason
			continue
		}
		if s.Tenants == nil {
			s.Tenants = map[string]time.Duration{}
		}
		s.Tenants[p.Tenant] = p.For
	}
	b.tell(s)
	return nil
}

// tell passes a standing on if it is news. What time alone has changed is none.
func (b *Board) tell(s Standing) {
	now := time.Now()
	if b.told && s.heard == b.last.heard && s.equal(b.last.after(now.Sub(b.read))) {
		return
	}
	b.last, b.read, b.told = s, now, true
	select {
	case <-b.standings:
	default:
	}
	b.standings <- s
}

// after is the standing when d has passed.
func (s Standing) after(d time.Duration) Standing {
	rest := func(left time.Duration) time.Duration {
		if left == Forever {
			return left
		}
		return max(left-d, 0)
	}
	old := s.Tenants
	if s.Tenants = nil; old != nil {
		s.Tenants = map[string]time.Duration{}
	}
	for tenant, left := range old {
		if left := rest(left); left > 0 {
			s.Tenants[tenant] = left
		}
	}
	if s.For = rest(s.For); s.For == 0 {
		s.Reason = ""
	}
	return s
}

// Live looks at the board again and again, and writes what is to be written, until ctx is done. While
// PostgreSQL is away all stays as it was read last. The end of ctx does not cut a write off: the last
// word of a loop that has ended may be a pause that others are to see.
func (b *Board) Live(ctx context.Context) {
	last := context.WithoutCancel(ctx)
	next := b.every
	for {
		select {
		case <-ctx.Done():
			_ = b.write(last)
			return
		case <-b.poke:
		case <-time.After(next):
		}
		next = b.every
		if err := b.write(last); err != nil {
			if b.Trouble != nil && ctx.Err() == nil {
				b.Trouble(err)
			}
			if wait(ctx, time.Second) != nil {
				_ = b.write(last)
				return
			}
			b.wake()
			continue
		}
		_ = b.Look(ctx) // else the next look tells
	}
}

const (
	breakerSQL = `
insert into {schema}.outbox_destinations as d (destination, breaker, breaker_at, updated_at)
values (@destination, @breaker, clock_timestamp(), now())
    on conflict (destination) do update
   set breaker = excluded.breaker, breaker_at = excluded.breaker_at, updated_at = excluded.updated_at
 where d.breaker <> excluded.breaker`

	// A pause that lasts longer stays: what an operator has said, or another answer.
	askSQL = `
insert into {schema}.outbox_destinations as d (destination, paused_until, pause_reason, paused_by, updated_at)
values (@destination, coalesce(now() + @for::bigint * interval '1 microsecond', 'infinity'), @reason, 'the destination', now())
    on conflict (destination) do update
   set paused_until = excluded.paused_until, pause_reason = excluded.pause_reason, paused_by = excluded.paused_by,
       updated_at = excluded.updated_at
 where d.paused_until is null
    or d.paused_until < excluded.paused_until`
)

// write puts on the board what is left for it.
func (b *Board) write(ctx context.Context) error {
	b.mu.Lock()
	breaker, asked := b.breaker, b.asked
	b.mu.Unlock()
	if breaker == "" && len(asked) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, workerLimits.statement)
	defer cancel()
	err := b.store.inTx(ctx, workerLimits, func(tx pgx.Tx) error {
		if breaker != "" {
			if _, err := tx.Exec(ctx, b.store.sql(breakerSQL), pgx.NamedArgs{"destination": b.destination, "breaker": breaker}); err != nil {
				return err
			}
		}
		if len(asked) == 0 {
			return nil
		}
		longest := slices.MaxFunc(asked, func(x, y Hold) int { return cmp.Compare(x.For, y.For) })
		_, err := tx.Exec(ctx, b.store.sql(askSQL), pgx.NamedArgs{
			"destination": b.destination, "for": pauseMicros(longest.For), "reason": clean(longest.Reason),
		})
		return err
	})
	if err != nil {
		return fmt.Errorf("outbox_destinations: %w", err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.breaker == breaker {
		b.breaker = ""
	}
	b.asked = b.asked[len(asked):]
	b.heard += len(asked)
	return nil
}
