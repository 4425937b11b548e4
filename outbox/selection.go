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

// The conditions of a selection. A tenant that is not wanted is left out before its rows are read.
const (
	typesSQL = `
		   and (@types::text[] is null or o.event_type like any (@types))
		   and (@not_types::text[] is null or not o.event_type like any (@not_types))`
	tenantsSQL = `
	   and tenant_id = any (@only_tenants)`
)

// narrow puts the conditions into a statement, which does without them where nothing is selected.
func (s Selection) narrow(sql string) string {
	types, tenants := "", ""
	if len(s.EventTypes)+len(s.ExcludeEventTypes) > 0 {
		types = typesSQL
	}
	if len(s.Tenants) > 0 {
		tenants = tenantsSQL
	}
	return strings.NewReplacer("/*types*/", types, "/*tenants*/", tenants).Replace(sql)
}

// args are their values; parts that are not used are null.
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
