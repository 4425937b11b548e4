package commands_test

import (
	"strings"
	"testing"

	"github.com/outboxctl/outboxctl/commands"
)

func TestExpandReplacesVariablesInValues(t *testing.T) {
	t.Parallel()
	env := map[string]string{"A": "one", "B": "${A}", "Q": "\", x: [}"}
	for _, tt := range []struct{ text, want, err string }{
		{"plain $5 {A} $A", "plain $5 {A} $A", ""},
		{"${A}", "one", ""},
		{"<${A}-${A}>", "<one-one>", ""},
		{"${A:-two}", "one", ""},
		{"${NO:-two}", "two", ""},
		{"${NO:-}", "", ""},
		{"${NO:-a:-b}", "a:-b", ""},
		{"${B}", "${A}", ""}, // what a variable holds is not looked at again
		{"${Q}", `", x: [}`, ""},
		{"$${A} ${A}", "${A} one", ""},
		{"${NO}", "", "NO is not set"},
		{"${A", "", "want ${NAME}"},
		{"${}", "", "want ${NAME}"},
		{"${A B}", "", "want ${NAME}"},
		{"${A-x}", "", "want ${NAME}"},
		{"${NO:-${A}}", "", "want ${NAME}"},
	} {
		got, err := commands.Expand(tt.text, func(name string) string { return env[name] })
		if got != tt.want || (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
			t.Errorf("Expand(%q) = %q, %v, want %q, %s", tt.text, got, err, tt.want, tt.err)
		}
	}
}

// FuzzConfigFile reads whatever comes, and what stands behind a name that nobody knows, or in a
// variable, is never shown.
func FuzzConfigFile(f *testing.F) {
	for _, text := range []string{
		"", "schema: public\n", "redact: [\"$.a\", $]\n", "schema: [", "a: {b: c, d: [e]}\n", "color: pink\ncolor: auto\n",
		"jitter: ${SECRET}\n", "x: &x\n  y: *x\n", "worker_id: |\n  a\n", "- a\n- ", "\"a\": 'b'\n", "---\n", "schema:\n", "? [a]\n: b\n",
	} {
		f.Add(text)
	}
	const secret = "hunter2-hunter2"
	f.Fuzz(func(t *testing.T, text string) {
		if strings.Contains(text, secret) {
			return
		}
		said := commands.ConfigMistakes([]byte(text+"\nwurst: "+secret+"\nlog_level: ${SECRET}\n"), func(string) string { return secret })
		if strings.Contains(said, secret) {
			t.Errorf("mistakes of %q show the secret:\n%s", text, said)
		}
	})
}
