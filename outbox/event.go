package outbox

import (
	"time"

	"github.com/google/uuid"
)

// Status is where an event stands. The words are the same in SQL, Go, flags and docs.
type Status string

// The statuses of an event. All but [Pending] and [InProgress] are terminal.
const (
	Pending    Status = "pending"     // waits to be due and claimed
	InProgress Status = "in_progress" // leased to a worker
	Delivered  Status = "delivered"   // the destination said yes; final
	Failed     Status = "failed"      // attempts spent on transient errors; safe to replay in bulk
	DeadLetter Status = "dead_letter" // permanent or poison; a person must edit or discard it
	Discarded  Status = "discarded"   // a person gave it up, with a reason
)

// Statuses lists every status in the order of an event's life.
func Statuses() []Status {
	return []Status{Pending, InProgress, Delivered, Failed, DeadLetter, Discarded}
}

// Final reports whether no worker will touch an event of this status again.
func (s Status) Final() bool { return s != Pending && s != InProgress }

// Event is one fact on its way to one destination.
//
// A producer fills the first block and passes it to [Append]; a zero field there means the
// column's default. The second block is filled by a claim.
type Event struct {
	TenantID      string            // for whom; "" when there are no tenants
	AggregateType string            // what changed: order, invoice, user; required
	AggregateID   string            // which one; required
	Type          string            // what happened: order.created
	SchemaVersion int               // of the payload; 0 means 1
	Key           uuid.UUID         // the event's identity for consumers; zero means a random one
	Destination   string            // "" = not routed yet, or the only destination
	Headers       map[string]string // traceparent, content-type, …
	Payload       []byte            // JSON, or any bytes when Binary is set
	Binary        bool              // Payload is stored as bytes, not as jsonb
	AvailableAt   time.Time         // not before; zero means now

	ID        int64     // order of insertion; never a cursor (ids are not commit order)
	SourceID  int64     // a routed copy's original; 0 = none
	Attempts  int       // sink calls so far, this one included
	Shutdowns int       // of these, cut off by a shutdown; known only beyond the policy's limit
	Lease     string    // who holds it: the fence of its settle
	CreatedAt time.Time // when the producer's transaction began
	Due       time.Time // when this delivery became due, by the database's clock
	Invalid   string    // why the row cannot be sent, "" when it can
	Size      int       // of the payload in bytes; 0 also when it is Deferred and not known yet
	Late      bool      // a later event of its aggregate was sent before this one could be seen; see [Ordering]
	Shadow    bool      // a copy that a shadow route made, see [ShadowOrigin]
	Deferred  bool      // the payload is large and is read just before it is sent; Payload is nil until then
}

// Sequence is the event's place among its aggregate's: a routed copy keeps its original's.
func (e Event) Sequence() int64 {
	if e.SourceID != 0 {
		return e.SourceID
	}
	return e.ID
}
