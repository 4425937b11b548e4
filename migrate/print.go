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

// bound keeps producers from queueing for long behind a migration that needs a lock of theirs.
const bound = `perform set_config('lock_timeout', '%[1]s', true), set_config('statement_timeout', '%[2]s', true);
`

// inside says what it means that a script cannot build an index as migrate up does.
const inside = `-- These indexes are built while producers wait, and those that an unfinished build left are dropped
-- first: where the table holds many rows, rather run "outboxctl migrate".
`

// Print returns a script that brings the schema of that name up to date and adds those options.
func Print(schema string, with ...string) (string, error) {
	if err := checkName(schema); err != nil {
		return "", err
	}
	asked, err := options(with)
	if err != nil {
		return "", err
	}
	text := script(schema, migrations())
	for _, o := range asked {
		text += in(schema, fmt.Sprintf(optionBlock, lockKey(schema), o.step.body()))
	}
	return text, nil
}

// optionBlock makes an option, anew where it is there.
const optionBlock = `
do $block$
begin
perform pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
perform pg_advisory_xact_lock(%[1]d);
%[2]s
end
$block$;
`

func script(schema string, steps []Migration) string {
	var text strings.Builder
	text.WriteString(header)
	for _, m := range steps {
		applied := fmt.Sprintf(`exists (select from :"schema".outbox_migrations where version = %d)`, m.Version)
		if m.Version == 1 {
			applied = firstApplied
		}
		part := fmt.Sprintf(block, lockKey(schema), applied, m.body(), m.Version, m.Name, m.Oldest)
		text.WriteString(in(schema, part))
	}
	return text.String()
}

// body is the way up as a block holds it.
func (m Migration) body() string {
	var text strings.Builder
	switch {
	case m.Version == 1:
		text.WriteString(first)
	case m.blocksWriters():
		fmt.Fprintf(&text, bound, milliseconds(Defaults().Lock), milliseconds(MaxLock))
	case m.outside:
		text.WriteString(inside)
		for _, ix := range m.indexes {
			fmt.Fprintf(&text, "drop index if exists :\"schema\".%s;\n", ix.name)
		}
	}
	return strings.TrimSpace(text.String() + m.up)
}
