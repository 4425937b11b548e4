package outbox

import (
	"slices"
	"time"
)

// round remembers where the claims of an ordered destination have got to.
//
// Each tenant's aggregates are visited in turns, in a circle: a claim goes on behind the aggregate at
// which the last one was satisfied. When it has been all around without being satisfied, there is no
// more to be had. Tenants take turns, too: who was visited last is last in line.
type round struct {
	every time.Duration // tenants are looked for at least this often
	fixed bool          // they are selected by name, and not looked for

	line   []circle  // in the order of their turn
	listed time.Time // when the tenants were found last, all of them
	from   string    // the tenant at which the list goes on
	found  []string  // by the list so far; nil = none is under way
	owners []int     // by piece of the claim under way, where its tenant is in line
}

// circle is one tenant's aggregates: from behind a spot to the end, and from the begin to it.
type circle struct {
	tenant  string
	after   spot // visited last
	start   spot // of this time around
	wrapped bool // past the end, and on from the begin
	done    bool // all around
}

// spot is an aggregate of a tenant. The zero one comes before all.
type spot struct{ kind, id string }

// stop is where a claim ended before it was all around; piece 0 means that it did not.
type stop struct {
	piece     int // from 1
	at        spot
	satisfied bool // with all the events it wanted
}

// maxPieces is how many pieces are named in one claim.
const maxPieces = 1000

// newRound returns one over the tenants selected, nil for all there are. The empty one, which is the
// only one where there are no tenants, need not be found.
func newRound(every time.Duration, only []string) round {
	r := round{every: every, fixed: only != nil}
	if !r.fixed {
		only = []string{""}
	}
	for _, tenant := range slices.Compact(slices.Sorted(slices.Values(only))) {
		r.line = append(r.line, circle{tenant: tenant})
	}
	return r
}

// lists reports whether the next claim is to look for tenants, and from which one on.
func (r *round) lists(fresh bool) (from string, lists bool) {
	if r.fixed {
		return "", false
	}
	if r.found == nil && (fresh || r.listed.IsZero() || time.Since(r.listed) >= r.every) {
		r.found, r.from = []string{}, ""
	}
	return r.from, r.found != nil
}

// pieces are what the next claim is to visit, as arrays. Tenants without room are passed over this time
// around.
func (r *round) pieces(rooms *Rooms) (tenants, afterKinds, afterIDs []string, untilKinds, untilIDs []*string) {
	r.owners = r.owners[:0]
	add := func(i int, after spot, until *spot) {
		r.owners = append(r.owners, i)
		tenants, afterKinds, afterIDs = append(tenants, r.line[i].tenant), append(afterKinds, after.kind), append(afterIDs, after.id)
		var kind, id *string
		if until != nil {
			kind, id = &until.kind, &until.id
		}
		untilKinds, untilIDs = append(untilKinds, kind), append(untilIDs, id)
	}
	for i := range r.line {
		c := &r.line[i]
		c.done = c.done || rooms != nil && rooms.of(c.tenant) == 0
		if c.done || len(r.owners)+2 > maxPieces {
			continue
		}
		start := c.start
		switch {
		case c.wrapped:
			add(i, c.after, &start)
		case start == spot{}:
			add(i, c.after, nil)
		default:
			add(i, c.after, nil)
			add(i, spot{}, &start)
		}
	}
	return tenants, afterKinds, afterIDs, untilKinds, untilIDs
}

// took notes where a claim has ended and which tenants it has found. It reports whether it has come round without
// getting all that was wanted.
func (r *round) took(s stop, tenants []string) (cameRound bool) {
	visited := r.walked(s)
	r.line = append(r.line[visited:len(r.line):len(r.line)], r.line[:visited]...)
	news := r.list(tenants)
	if s.satisfied {
		r.begin()
		return false
	}
	if news || r.found != nil || slices.ContainsFunc(r.line, func(c circle) bool { return !c.done }) {
		return false
	}
	r.begin()
	return true
}

// walked moves the circles on that a claim has visited, and returns how many of the line it got to.
func (r *round) walked(s stop) (visited int) {
	for n, i := range r.owners {
		c := &r.line[i]
		visited = i + 1
		if n+1 == s.piece {
			c.wrapped = c.wrapped || n > 0 && r.owners[n-1] == i
			c.after = s.at
			return visited
		}
		c.done = n+1 == len(r.owners) || r.owners[n+1] != i
	}
	return visited
}

// begin lets every circle start anew where it has got to.
func (r *round) begin() {
	for i := range r.line {
		c := &r.line[i]
		if c.done {
			c.after = c.start
		}
		c.start, c.wrapped, c.done = c.after, false, false
	}
}

// list takes in what was found of the tenants. It reports whether there are new ones.
func (r *round) list(tenants []string) (news bool) {
	if r.found == nil {
		return false
	}
	known := make(map[string]bool, len(r.line))
	for _, c := range r.line {
		known[c.tenant] = true
	}
	for _, tenant := range tenants {
		r.found = append(r.found, tenant)
		if !known[tenant] {
			r.line = slices.Insert(r.line, 0, circle{tenant: tenant})
			known[tenant], news = true, true
		}
	}
	if len(tenants) == maxVisits {
		r.from = tenants[len(tenants)-1]
		return news
	}
	open := map[string]bool{"": true}
	for _, tenant := range r.found {
		open[tenant] = true
	}
	r.line = slices.DeleteFunc(r.line, func(c circle) bool { return !open[c.tenant] })
	r.found, r.listed = nil, time.Now()
	return news
}
