package outbox

import "time"

// Share is what retries may have of a claim. A retry is an event with an attempt before this one.
type Share struct {
	Retries int // at most, while fresh events wait
	Alone   int // at most, when none does
}

// and is the smaller share.
func (s *Share) and(other *Share) *Share {
	if s == nil || other == nil {
		if s == nil {
			return other
		}
		return s
	}
	return &Share{Retries: min(s.Retries, other.Retries), Alone: min(s.Alone, other.Alone)}
}

// A claim looks at due events in order and leaves those retries that are more than their share. While some
// are left so, fresh events and retries are claimed by turns: fresh ones from the marks on, which are
// past the retries that were left, and retries from the very front, where they are the oldest. So
// however many retries are due, nobody reads past them in every claim. When no fresh event waits, retries
// take what is free.
type turns struct {
	left  bool // retries are due that were left
	calm  bool // the last claim of fresh events found too few: none waits
	front bool // the claim under way is for retries, from the front
	fresh bool // it is for fresh events alone
}

// choose decides what the next claim is for and cuts it down to that.
func (t *turns) choose(want Want) (n, retries int) {
	front := t.front
	t.front, t.fresh = false, false
	switch s := want.Share; {
	case s == nil:
		t.left = false
		return want.N, want.N
	case !t.left:
		return want.N, min(s.Retries, want.N)
	case t.calm && s.Alone > 0:
		t.front, n = true, s.Alone
	case !front && s.Retries > 0:
		t.front, n = true, s.Retries
	default:
		t.fresh = true
		return want.N, 0
	}
	n = min(n, want.N)
	return n, n
}

// took notes what a claim brought: all it asked for, or what there was all around. It reports whether the
// claim says nothing yet about what is due besides.
func (t *turns) took(c *claimed, all, around bool) (goesOn bool) {
	switch {
	case t.front:
		t.left, t.calm = !around, false
		return true
	case t.fresh:
		t.calm = !all && around
		return true
	}
	t.left, t.calm = c.left > 0, false
	return t.left
}

// The parts of a claim that keep retries to their share. A row that is locked and left is free again at
// the end of the claim.
const (
	isRetrySQL = `, o.attempts > 0 as retry`
	retrySQL   = `, d.retry`
	freshSQL   = `
		   and o.attempts = 0`
	chosenSQL = `select id from due where not retry
	                       union all
	                       (select id from due where retry limit @retries)`
	leftSQL = `(select count(*) from due where retry) - @retries`
)

// past moves the marks behind everything that a claim of fresh events alone has seen: it found no more
// of them up to its moment, and what it passed are retries.
func past(marks []mark, moment time.Time) []mark {
	latest := moment.Add(-margin)
	for i := range marks {
		if marks[i].due.Before(latest) {
			marks[i].due, marks[i].id = latest, 0
		}
	}
	return marks
}
