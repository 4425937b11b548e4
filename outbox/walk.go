package outbox

import "time"

const (
	maxVisits = 1000        // tenants that one claim looks at
	margin    = time.Second // a transaction may take this long from its now() to its commit and still be seen at once
)

// tenantWalkSQL visits the tenants that have open events at a destination, from @from on: a loose scan,
// with a probe of outbox_due or outbox_aggregate, which both lead so, for each.
const tenantWalkSQL = `
with recursive tenant as (
	(select tenant_id
	   from {schema}.outbox
	  where destination = @destination
	    and finished_at is null
	    and tenant_id >= @from
	  order by tenant_id
	  limit 1)
	union all
	select (select n.tenant_id
	          from {schema}.outbox n
	         where n.destination = @destination
	           and n.finished_at is null
	           and n.tenant_id > t.tenant_id
	         order by n.tenant_id
	         limit 1)
	  from tenant t
	 where t.tenant_id is not null)`

// walk remembers where a queue's claims have got to.
//
// A full walk visits every tenant and its due rows from the very start, in as many claims as that
// takes; it finds everything: late commits, lapsed leases, new tenants. Between two full walks the
// claims go to the tenants it knows and start each at its mark, the place reached last; see
// claimMarkedSQL.
type walk struct {
	every time.Duration // a full walk at least this often

	tenants []mark    // that the last full walk found, in the order of their turn
	ended   time.Time // when it came round
	nothing bool      // a marked claim found nothing: only a full walk can tell whether there is nothing

	full  bool   // the claim under way is part of a full walk
	from  string // the tenant at which it starts
	found []mark // by the full walk so far
	dry   bool   // no claim of the full walk so far got all it wanted

	turns turns // of fresh events and retries
	asked int   // events that the claim under way asked for
}

// mark is the place among a tenant's due rows before which nothing is left, but for rows that
// committed late or whose lease has lapsed.
type mark struct {
	tenant string
	due    time.Time
	id     int64
}

// next decides what the next claim is and reports whether it is part of a full walk.
func (w *walk) next(fresh bool) bool {
	if w.full { // and goes on
		return true
	}
	if w.full = fresh || w.nothing || len(w.tenants) == 0 || time.Since(w.ended) >= w.every; w.full {
		w.from, w.found, w.dry = "", nil, true
	}
	return w.full
}

// marks are the known tenants and their places, as arrays.
func (w *walk) marks() (tenants []string, dues []time.Time, ids []int64) {
	for _, m := range w.tenants {
		tenants, dues, ids = append(tenants, m.tenant), append(dues, m.due), append(ids, m.id)
	}
	return tenants, dues, ids
}

// took notes what a claim brought. It reports whether the walk has come round to its start without
// finding all that was wanted. That nothing at all is due, only a full walk can say.
func (w *walk) took(c *claimed, want int) (cameRound bool) {
	looked := len(c.events) + max(int(c.left), 0)
	short := looked < want
	if !w.full {
		w.tenants = advance(w.tenants, c)
		w.nothing = looked == 0
		return short && !w.nothing
	}
	w.dry = w.dry && short
	w.found = advance(w.merge(c.tenants), c)
	if c.next != nil {
		w.from = *c.next
		return false
	}
	w.tenants, w.found = w.found, nil
	if len(w.tenants) > maxVisits { // too many to name in every claim
		w.tenants = nil
	}
	w.ended, w.full, w.nothing = time.Now(), false, false
	return w.dry
}

// fronts are the known tenants, each from its very start.
func (w *walk) fronts() (tenants []string, dues []time.Time, ids []int64) {
	tenants, _, ids = w.marks()
	clear(ids)
	return tenants, make([]time.Time, len(ids)), ids
}

// shared is took where retries have a share: claims of them and of fresh events alone say
// nothing about what is due besides.
func (w *walk) shared(c *claimed) (cameRound bool) {
	t, short := &w.turns, len(c.events) < w.asked
	if t.front && !w.full { // the marks are those of the fresh events
		w.tenants = rotated(w.tenants, c)
		t.took(c, !short, short)
		return false
	}
	marked := !w.full
	cameRound = w.took(c, w.asked)
	if t.fresh && marked {
		w.nothing = false
		if short {
			w.tenants = past(w.tenants, c.moment)
		}
	}
	return !t.took(c, !short, cameRound || marked && short) && cameRound
}

// rotated puts the tenants that gave events to the end of the line, where they are.
func rotated(marks []mark, c *claimed) []mark {
	gave := make(map[string]bool)
	for _, ev := range c.events {
		gave[ev.TenantID] = true
	}
	waiting := make([]mark, 0, len(marks))
	var served []mark
	for _, m := range marks {
		if gave[m.tenant] {
			served = append(served, m)
		} else {
			waiting = append(waiting, m)
		}
	}
	return append(waiting, served...)
}

// merge adds tenants to those found so far, with the marks known of them.
func (w *walk) merge(tenants []string) []mark {
	seen := make(map[string]bool, len(w.found))
	for _, m := range w.found {
		seen[m.tenant] = true
	}
	known := make(map[string]mark, len(w.tenants))
	for _, m := range w.tenants {
		known[m.tenant] = m
	}
	for _, tenant := range tenants {
		if !seen[tenant] {
			m := known[tenant]
			m.tenant = tenant
			w.found = append(w.found, m)
		}
	}
	return w.found
}

// advance moves the marks behind the events that were taken, and the tenants that gave some to the
// end of the line: the others have their turn first.
func advance(marks []mark, c *claimed) []mark {
	reached := make(map[string]mark)
	latest := c.moment.Add(-margin)
	for _, ev := range c.events { // in order of due and id
		m := mark{tenant: ev.TenantID, due: ev.Due, id: ev.ID}
		if !ev.Due.Before(latest) {
			m.due, m.id = latest, 0
		}
		reached[ev.TenantID] = m
	}
	waiting := make([]mark, 0, len(marks))
	var served []mark
	for _, m := range marks {
		if r, ok := reached[m.tenant]; ok {
			served = append(served, r)
		} else {
			waiting = append(waiting, m)
		}
	}
	return append(waiting, served...)
}
