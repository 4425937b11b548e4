package migrate

import (
	"errors"
	"slices"
)

// What a [News] is about.
const (
	Applied  = "applied"  // a migration
	Reverted = "reverted" // a migration
	Restored = "restored" // an index of the schema that was missing or invalid
	Added    = "added"    // an option
	Removed  = "removed"  // an option
	Waiting  = "waiting"  // somebody else's lock is in the way
)

// News is a piece of progress, told while it is made.
type News struct {
	What     string    // one of the constants above
	Version  int       // of the migration that was applied or reverted
	Name     string    // of the migration, of the index, of the option, or of what waits
	Blockers []Blocker // who is waited for
}

// teller passes news on to whoever runs a migration, until they have heard enough.
type teller struct {
	yield func(News, error) bool
	over  bool
	told  []Blocker // last; nobody wants to hear it twice
}

// errOver ends the work of who stopped listening.
var errOver = errors.New("nobody listens")

func (t *teller) tell(n News) error {
	if t.over || !t.yield(n, nil) {
		t.over = true
		return errOver
	}
	return nil
}

// waits tells who is in the way of what, unless that is known.
func (t *teller) waits(what string, blockers []Blocker) error {
	if len(blockers) == 0 || slices.Equal(blockers, t.told) {
		return nil
	}
	t.told = blockers
	return t.tell(News{What: Waiting, Name: what, Blockers: blockers})
}

// end tells the error that the work ended with.
func (t *teller) end(err error) {
	if err != nil && !t.over {
		t.yield(News{}, err)
	}
}
