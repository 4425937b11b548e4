package migrate

import (
	"context"
	"strings"

	"github.com/jackc/pgx/v5"
)

// ExpectedFile is what Verify compares with.
const ExpectedFile = "expected.txt"

// Add adds a migration to those that the schema knows.
func (s *Schema) Add(file, text string) error {
	m, err := parse(file, text)
	s.steps = append(s.steps, m)
	return err
}

// Script is Print with the migrations that the schema knows.
func (s *Schema) Script() string { return script(s.name, s.steps) }

// Execute applies a migration in a transaction of the test, and returns what it says that it locks.
func (s *Schema) Execute(ctx context.Context, tx pgx.Tx, version int) ([]Lock, error) {
	m := s.steps[version-1]
	return s.planned(m).Locks, s.execute(ctx, tx, m)
}

// LockKey is the advisory lock of a schema's migrations.
func LockKey(schema string) int64 { return lockKey(schema) }

// Describe returns the schema's description in the form of that file.
func (s *Schema) Describe(ctx context.Context, tables, functions []string) (string, error) {
	var text strings.Builder
	err := s.read(ctx, func(tx pgx.Tx) error {
		all, err := s.describe(ctx, tx, tables, functions)
		for _, o := range all {
			text.WriteString(o.name + ": " + o.definition + "\n")
		}
		return err
	})
	return text.String(), err
}

// OurNames returns the names of the expected tables and functions.
func OurNames() (tables, functions []string) { return ourNames() }

// ExpectedWithFile is what Verify compares options with.
const ExpectedWithFile = "expected_with.txt"
