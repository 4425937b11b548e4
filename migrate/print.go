package migrate

import (
	"fmt"
	"strings"
)

// header opens a printed script. The schema's name stays out of it: a name may hold a line break.
const header = `-- The outbox's schema, as "outboxctl migrate" makes it. Each migration is one statement, applied
-- only where it is missing: the script may be run again, in one transaction or not, by any client.
`

// block applies one migration unless it was applied. As a DO block it is atomic in autocommit mode
// too, and needs no begin and commit that would break a transaction around the script.
const block = `
do %[1]s
begin
perform pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
perform pg_advisory_xact_lock(%[2]d);
if %[3]s then
  return;
end if;
%[4]s
insert into :"schema".outbox_migrations (version, name, min_binary)
values (%[5]d, '%[6]s', %[7]d);
end
%[1]s;
`

// first is what the first block does ahead of its migration: there may be no schema yet.
const first = `if not exists (select from pg_namespace where nspname = %s) then
  create schema :"schema";
end if;
`

// Print returns a script that brings the schema of that name up to date.
func Print(schema string) (string, error) {
	if err := checkName(schema); err != nil {
		return "", err
	}
	var script strings.Builder
	script.WriteString(header)
	for _, m := range migrations() {
		applied := fmt.Sprintf(`exists (select from :"schema".outbox_migrations where version = %d)`, m.Version)
		up := m.up
		if m.Version == 1 {
			applied = fmt.Sprintf(`exists (select from pg_tables where schemaname = %s and tablename = 'outbox_migrations')`, literal(schema))
			up = fmt.Sprintf(first, literal(schema)) + up
		}
		script.WriteString(in(schema, fmt.Sprintf(block,
			quotes(schema), lockKey(schema), applied, strings.TrimSpace(up), m.Version, m.Name, m.Oldest)))
	}
	return script.String(), nil
}

// literal quotes a string for SQL, backslashes included, whatever standard_conforming_strings is.
func literal(s string) string {
	s = strings.ReplaceAll(s, `'`, `''`)
	return `E'` + strings.ReplaceAll(s, `\`, `\\`) + `'`
}

// quotes returns dollar quotes that the schema's name does not end.
func quotes(schema string) string {
	tag := "outboxctl"
	for strings.Contains(schema, "$"+tag+"$") {
		tag += "_"
	}
	return "$" + tag + "$"
}
