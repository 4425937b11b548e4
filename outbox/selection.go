package outbox

import (
	"strings"

	"github.com/jackc/pgx/v5"
)

// Selection narrows a queue. The zero value takes every event.
type Selection struct {
	EventTypes        []string // globs such as order.*; nil = all
	ExcludeEventTypes []string // globs
	Tenants           []string // exact; nil = all
}

// empty reports whether s takes every event.
func (s Selection) empty() bool {
	return len(s.EventTypes)+len(s.ExcludeEventTypes)+len(s.Tenants) == 0
}

// narrowSQL are the selection's conditions; its parts are null when not used.
const narrowSQL = `
		   and (@types::text[] is null or o.event_type like any (@types))
		   and (@not_types::text[] is null or not o.event_type like any (@not_types))
		   and (@only_tenants::text[] is null or o.tenant_id = any (@only_tenants))`

// narrow puts the conditions into a claim, which does without them where nothing is selected.
func (s Selection) narrow(sql string) string {
	if s.empty() {
		return strings.Replace(sql, "/*only*/", "", 1)
	}
	return strings.Replace(sql, "/*only*/", narrowSQL, 1)
}

// args are the values of narrowSQL.
func (s Selection) args() pgx.NamedArgs {
	return pgx.NamedArgs{
		"types":        likePatterns(s.EventTypes),
		"not_types":    likePatterns(s.ExcludeEventTypes),
		"only_tenants": s.Tenants,
	}
}

// likePatterns turns globs into patterns of LIKE: * is any run of characters, all else is itself.
func likePatterns(globs []string) []string {
	var patterns []string
	for _, glob := range globs {
		patterns = append(patterns, strings.NewReplacer(`\`, `\\`, `%`, `\%`, `_`, `\_`, `*`, `%`).Replace(glob))
	}
	return patterns
}
