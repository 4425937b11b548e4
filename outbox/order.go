package outbox

import "slices"

// Ordering says which events of a destination wait for each other.
type Ordering string

// The orderings; the zero value is [OrderingNone].
const (
	OrderingNone      Ordering = "none"      // none waits: each is sent when it is due
	OrderingAggregate Ordering = "aggregate" // those of one aggregate are sent one after the other, in order of [Event.Sequence]
)

// Orderings lists them.
func Orderings() []Ordering { return []Ordering{OrderingNone, OrderingAggregate} }

// Valid reports whether o is one of them.
func (o Ordering) Valid() bool { return slices.Contains(Orderings(), o) }

// OnDead says what becomes of an aggregate's later events, where they are ordered, when one has
// failed for good.
type OnDead string

// The answers to it; the zero value is [OnDeadContinue].
const (
	OnDeadContinue OnDead = "continue" // they are sent without it
	OnDeadHold     OnDead = "hold"     // they wait until a person has replayed or discarded it
)

// OnDeads lists them.
func OnDeads() []OnDead { return []OnDead{OnDeadContinue, OnDeadHold} }

// Valid reports whether o is one of them.
func (o OnDead) Valid() bool { return slices.Contains(OnDeads(), o) }

// aggregate is whose events wait for each other. Its parts stay apart: ("order:1", "2") is not
// ("order", "1:2").
type aggregate struct{ tenant, kind, id string }

func (e *Event) aggregate() aggregate { return aggregate{e.TenantID, e.AggregateType, e.AggregateID} }

// goesOn reports whether, after out, the next event of its aggregate may be sent.
func (o OnDead) goesOn(out Outcome) bool {
	return out.Status == Delivered || out.Status.Final() && o != OnDeadHold
}
