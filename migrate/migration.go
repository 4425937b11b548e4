package migrate

import (
	"embed"
	"fmt"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
)

// Latest is the schema version that this binary makes and needs.
const Latest = 9

const (
	separator  = "---- down ----\n"
	oldestMark = "-- oldest binary: "
)

//go:embed sql/*.sql
var files embed.FS

// Migration is one step of the schema.
type Migration struct {
	Version int
	Name    string
	Oldest  int // the oldest binary schema version that may run beside it

	up, down string // with :"schema" in place of the schema's name
}

// migrations returns all steps in order. It panics when an embedded file is malformed, which no
// test survives.
func migrations() []Migration {
	entries, err := files.ReadDir("sql")
	if err != nil {
		panic(err)
	}
	var all []Migration
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
func parse(file, text string) (Migration, error) {
	var m Migration
	number, name, _ := strings.Cut(strings.TrimSuffix(file, ".sql"), "_")
	first, body, _ := strings.Cut(text, "\n")
	up, down, found := strings.Cut(body, separator)
	if !found {
		return m, fmt.Errorf("migrate: %s has no way down", file)
	}
	version, err := strconv.Atoi(number)
	if err != nil {
		return m, fmt.Errorf("migrate: %s has no number: %w", file, err)
	}
	oldest, err := strconv.Atoi(strings.TrimPrefix(first, oldestMark))
	if err != nil {
		return m, fmt.Errorf("migrate: %s does not begin with %q: %w", file, oldestMark, err)
	}
	return Migration{Version: version, Name: name, Oldest: oldest, up: up, down: down}, nil
}

// in puts the schema's name into a text: as an identifier for :"schema", as a string for :'schema'.
// All of it in one pass, since a name may look like a placeholder itself, or like dollar quotes.
func in(schema, text string) string {
	return strings.NewReplacer(
		`:"schema"`, pgx.Identifier{schema}.Sanitize(),
		`:'schema'`, literal(schema),
		`$block$`, dollars("block", schema),
		`$body$`, dollars("body", schema),
	).Replace(text)
}

// dollars returns dollar quotes that the schema's name does not end.
func dollars(tag, schema string) string {
	for strings.Contains(schema, "$"+tag+"$") {
		tag += "_"
	}
	return "$" + tag + "$"
}

// literal quotes a string for SQL, whatever standard_conforming_strings is.
func literal(s string) string {
	return `E'` + strings.NewReplacer(`'`, `''`, `\`, `\\`).Replace(s) + `'`
}
