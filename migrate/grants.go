package migrate

import (
	_ "embed"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
)

//go:embed grants.sql
var grants string

// Roles are those of [Grants], without a prefix.
func Roles() []string { return []string{"producer", "dispatcher", "operator", "reader", "cdc"} }

// Grants returns a script that creates the roles of an outbox, their names behind a prefix, and lets
// each do its work and no more. It is for a role that may create roles and owns the schema's tables.
// Names that cannot be are [ErrName] and [ErrRole].
func Grants(schema, prefix string) (string, error) {
	if err := checkName(schema); err != nil {
		return "", err
	}
	pairs := []string{":tables", list("table ", schema), ":functions", list("function ", schema)}
	for _, role := range Roles() {
		name := prefix + role
		if checkName(name) != nil {
			return "", fmt.Errorf("%w: %q", ErrRole, name)
		}
		pairs = append(pairs, `:"`+role+`"`, pgx.Identifier{name}.Sanitize(), `:'`+role+`'`, literal(name))
	}
	return in(schema, grants, pairs...), nil
}

// list lists the expected objects of a kind for SQL: functions with their arguments' types.
func list(kind, schema string) string {
	var all []string
	for _, o := range objects(expected) {
		if name, ok := strings.CutPrefix(o.name, kind); ok {
			all = append(all, pgx.Identifier{schema}.Sanitize()+"."+name)
		}
	}
	return strings.Join(all, ", ")
}
