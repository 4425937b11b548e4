package commands_test

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/outboxctl/outboxctl/commands"
)

func TestParseTable(t *testing.T) {
	t.Parallel()
	const none = "" // not a table's name
	tests := []struct{ text, schema, table string }{
		{"orders", "public", "orders"},
		{"Orders", "public", "orders"},
		{"shop.ORDERS_2$", "shop", "orders_2$"},
		{`"My-Schema"."Out""box"`, "My-Schema", `Out"box`},
		{`shop."a.b"`, "shop", "a.b"},
		{`"x; drop table y"`, "public", "x; drop table y"},
		{"größe.ÄRGER", "größe", "Ärger"},
		{"Ärger", "public", "Ärger"},
		{"", none, none},
		{"a.b.c", none, none},
		{"a.", none, none},
		{".a", none, none},
		{"a b", none, none},
		{" a", none, none},
		{"1a", none, none},
		{"$a", none, none},
		{`"a`, none, none},
		{`"a"b`, none, none},
		{`""`, none, none},
		{"a\x00", none, none},
		{"\"a\x00\"", none, none},
		{"outbox where 1=1; delete from victim", none, none},
		{"orders--", none, none},
	}
	for _, tt := range tests {
		schema, table, err := commands.ParseTable(tt.text)
		if schema != tt.schema || table != tt.table || (err != nil) != (tt.table == none) {
			t.Errorf("parseTable(%q) = %q, %q, %v, want %q, %q", tt.text, schema, table, err, tt.schema, tt.table)
		}
	}
}

// FuzzParseTable quotes what was read, which must be read as the same.
func FuzzParseTable(f *testing.F) {
	for _, text := range []string{"orders", `"My-Schema"."Out""box"`, "a.b.c", `"`, `""""`, "Ä.\"\xff\""} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		schema, table, err := commands.ParseTable(text)
		if err != nil {
			return
		}
		if schema == "" || table == "" || strings.ContainsRune(schema+table, 0) {
			t.Fatalf("%q is %q.%q", text, schema, table)
		}
		if s, n, err := commands.ParseTable(pgx.Identifier{schema, table}.Sanitize()); err != nil || s != schema || n != table {
			t.Errorf("%q is %q.%q, and that is %q.%q, %v", text, schema, table, s, n, err)
		}
	})
}
