package migrate

import (
	"context"
	"strings"

	"github.com/jackc/pgx/v5"
)

// ExpectedFile is what Verify compares with.
const ExpectedFile = "expected.txt"

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
