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
do $block$
begin
perform pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
perform pg_advisory_xact_lock(%[1]d);
if %[2]s then
  return;
end if;
%[3]s
insert into :"schema".outbox_migrations (version, name, min_binary)
values (%[4]d, '%[5]s', %[6]d);
end
$block$;
`

// firstApplied tells whether the first migration was: its table is the one that holds the others.
const firstApplied = `exists (select from pg_tables where schemaname = :'schema' and tablename = 'outbox_migrations')`

// first is what the first block does ahead of its migration: there may be no schema yet.
const first = `if not exists (select from pg_namespace where nspname = :'schema') then
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
			applied, up = firstApplied, first+up
		}
		up = strings.TrimSpace(up)
		text := fmt.Sprintf(block, lockKey(schema), applied, up, m.Version, m.Name, m.Oldest)
		script.WriteString(in(schema, text))
	}
	return script.String(), nil
}
