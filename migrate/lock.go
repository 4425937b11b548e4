package migrate

import (
	"fmt"
	"slices"
	"strings"
)

// Lock is a lock on a table of the schema.
type Lock struct {
	Table string
	Mode  string // in PostgreSQL's words: "share update exclusive"
}

// String says the lock as a migration's file does.
func (l Lock) String() string { return l.Table + " (" + l.Mode + ")" }

// modes are PostgreSQL's table locks, the weakest first. From writerWaits on they conflict with the
// row exclusive lock of an insert, update or delete.
var modes = []string{
	"access share", "row share", "row exclusive", "share update exclusive",
	"share", "share row exclusive", "exclusive", "access exclusive",
}

const writerWaits = "share"

// BlocksWriters reports whether producers and dispatchers wait while the lock is held, and while
// somebody waits for it.
func (l Lock) BlocksWriters() bool {
	return slices.Index(modes, l.Mode) >= slices.Index(modes, writerWaits)
}

// parseLocks reads the form of a migration's file, such as "outbox (share), outbox_attempts
// (access exclusive)", or "none".
func parseLocks(text string) (locks []Lock, err error) {
	if text == "none" {
		return nil, nil
	}
	for part := range strings.SplitSeq(text, ", ") {
		table, mode, _ := strings.Cut(strings.TrimSuffix(part, ")"), " (")
		if !slices.Contains(modes, mode) {
			return nil, fmt.Errorf("%q is not a table and a lock mode", part)
		}
		locks = append(locks, Lock{table, mode})
	}
	return locks, nil
}
