package migrate

import (
	"embed"
	"fmt"
	"io/fs"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
)

// Latest is the schema version that this binary makes and needs.
const Latest = 13

// The marks of a migration's file. Its head is a line each, in this order, the last where it applies:
//
//	-- oldest binary: 12
//	-- locks: outbox (share update exclusive), outbox_attempts (access exclusive)
//	-- concurrently
//
// The locks are those on tables that were there before; a test compares them with pg_locks. Where one
// makes producers wait, the way up is a single statement, so that its timeout bounds the whole. A
// file that is marked concurrently holds nothing but indexes to create, of tables with rows in
// them: each is built outside a transaction, while producers and dispatchers go on.
const (
	separator    = "---- down ----\n"
	oldestMark   = "-- oldest binary: "
	locksMark    = "-- locks: "
	concurrently = "-- concurrently\n"
)

//go:embed sql/*.sql sql/with/*.sql
var files embed.FS

// Migration is one step of the schema.
type Migration struct {
	Version int
	Name    string
	Oldest  int    // the oldest binary schema version that may run beside it
	Locks   []Lock // on tables that were there before

	up, down string   // with :"schema" in place of the schema's name
	tables   []string // that it creates
	indexes  []index  // that it creates
	outside  bool     // of a transaction: it holds nothing but indexes to build concurrently
}

// String names the migration as people do.
func (m Migration) String() string { return fmt.Sprintf("migration %d %s", m.Version, m.Name) }

// migrations returns all steps in order. It panics when an embedded file is malformed, which no
// test survives.
func migrations() []Migration {
	entries, err := files.ReadDir("sql")
	if err != nil {
		panic(err)
	}
	var all []Migration
	entries = slices.DeleteFunc(entries, fs.DirEntry.IsDir)
	for i, entry := range entries {
		text, err := files.ReadFile("sql/" + entry.Name())
		if err != nil {
			panic(err)
		}
		m, err := parse(entry.Name(), string(text))
		if err != nil {
			panic(err)
		}
		if m.Version != i+1 {
			panic(fmt.Sprintf("migrate: %s is file number %d", entry.Name(), i+1))
		}
		all = append(all, m)
	}
	return all
}

// parse reads a file such as 002_outbox.sql.
func parse(file, text string) (m Migration, err error) {
	number, name, _ := strings.Cut(strings.TrimSuffix(file, ".sql"), "_")
	m.Name = name
	if m.Version, err = strconv.Atoi(number); err != nil {
		return m, fmt.Errorf("migrate: %s has no number: %w", file, err)
	}
	body, down, found := strings.Cut(text, separator)
	if !found {
		return m, fmt.Errorf("migrate: %s has no way down", file)
	}
	oldest, body, _ := strings.Cut(body, "\n")
	if m.Oldest, err = strconv.Atoi(strings.TrimPrefix(oldest, oldestMark)); err != nil {
		return m, fmt.Errorf("migrate: %s does not begin with %q: %w", file, oldestMark, err)
	}
	locks, body, _ := strings.Cut(body, "\n")
	if m.Locks, err = parseLocks(strings.TrimPrefix(locks, locksMark)); err != nil {
		return m, fmt.Errorf("migrate: %s has no second line %q: %w", file, locksMark, err)
	}
	m.up, m.outside = strings.CutPrefix(body, concurrently)
	m.down = down
	return m, m.readUp(file)
}

var (
	tablePattern   = regexp.MustCompile(`(?m)^create table :"schema"\.(\w+)`)
	commentPattern = regexp.MustCompile(`(?m)^--.*$`)
	indexPattern   = regexp.MustCompile(`(?m)^create (unique )?index (\w+) +on :"schema"\.(\w+) ([^;]*);\n`)
)

// readUp finds what the way up creates.
func (m *Migration) readUp(file string) error {
	for _, found := range tablePattern.FindAllStringSubmatch(m.up, -1) {
		m.tables = append(m.tables, found[1])
	}
	for _, found := range indexPattern.FindAllStringSubmatch(m.up, -1) {
		m.indexes = append(m.indexes, index{table: found[3], name: found[2], unique: found[1] != "", on: found[4]})
	}
	rest := strings.TrimSpace(commentPattern.ReplaceAllString(indexPattern.ReplaceAllString(m.up, ""), ""))
	switch {
	case m.outside && (rest != "" || len(m.indexes) == 0):
		return fmt.Errorf("migrate: %s is marked concurrently and does not hold indexes alone", file)
	case m.blocksWriters() && strings.Count(m.up, ";\n") != 1:
		return fmt.Errorf("migrate: %s makes producers wait for more than one statement", file)
	}
	return nil
}

func (m Migration) blocksWriters() bool { return slices.ContainsFunc(m.Locks, Lock.BlocksWriters) }

// in puts the schema's name into a text: as an identifier for :"schema", as a string for :'schema',
// and what further pairs name. All of it in one pass, since a name may look like a placeholder
// itself, or like dollar quotes.
func in(schema, text string, pairs ...string) string {
	names := schema + strings.Join(pairs, "")
	return strings.NewReplacer(append(pairs,
		`:"schema"`, pgx.Identifier{schema}.Sanitize(),
		`:'schema'`, literal(schema),
		`$block$`, dollars("block", names),
		`$body$`, dollars("body", names),
	)...).Replace(text)
}

// dollars returns dollar quotes that no name ends.
func dollars(tag, names string) string {
	for strings.Contains(names, "$"+tag+"$") {
		tag += "_"
	}
	return "$" + tag + "$"
}

// literal quotes a string for SQL, whatever standard_conforming_strings is.
func literal(s string) string {
	return `E'` + strings.NewReplacer(`'`, `''`, `\`, `\\`).Replace(s) + `'`
}
