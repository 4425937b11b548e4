package outbox

import (
	"time"

	"github.com/jackc/pgx/v5"
)

// KindDiscarded is the error kind of an event that a person gave up.
const KindDiscarded = "discarded"

// Discard says which events are to be given up, and why.
type Discard struct {
	Filter Filter    // with statuses: pending, failed, dead_letter
	Before time.Time // events that were created or ended later are not meant
	Reason string
}

// discardSQL ends an event. What its error was is in the history of its attempts.
const discardSQL = `
	update {schema}.outbox o
	   set status = 'discarded',
	       lease = null,
	       lease_until = null,
	       finished_at = clock_timestamp(),
	       error = @reason,
	       error_kind = @kind,
	       error_code = null,
	       updated_at = clock_timestamp()
	  from touched t
	 where o.id = t.id`

// Discard returns the change that ends events which nobody needs any more. They are never sent, and
// stay in the table until they are purged.
func (s *Store) Discard(d Discard) *Change {
	c := s.change(d.Filter, d.Before, pgx.NamedArgs{"action": "discard", "reason": clean(d.Reason), "kind": KindDiscarded})
	c.compose("", discardSQL)
	return c
}
