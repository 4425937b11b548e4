package edit_test

import (
	"context"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/outboxctl/outboxctl/outbox/outboxtest/edit"
)

func TestEditThatDoesNotFitIsNamed(t *testing.T) {
	t.Parallel()
	const file = "outbox/backoff.go"
	for _, tt := range []struct {
		name string
		edit edit.Edit
		want string
	}{
		{"its text is gone", edit.Edit{Name: "gone", File: file, Old: "return min(d, b.Lid)", New: "return d"},
			`edit gone: outbox/backoff.go has its text 0 times, which must be once: "return min\(d, b.Lid\)"`},
		{"its text is there twice", edit.Edit{Name: "twice", File: file, Old: "return", New: "panic"},
			`edit twice: outbox/backoff.go has its text \d+ times, which must be once: "return"`},
		{"its file is gone", edit.Edit{Name: "moved", File: "outbox/waiting.go", Old: "x", New: "y"},
			"edit moved: outbox/waiting.go is not there"},
		{"its new file is there", edit.Edit{Name: "new", File: file, New: "package outbox"},
			"edit new: outbox/backoff.go is to be added and is there already"},
		{"it changes nothing", edit.Edit{Name: "same", File: file, Old: "return min(d, b.Cap)", New: "return min(d, b.Cap)"},
			"edit same: outbox/backoff.go stays as it is"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			want := regexp.MustCompile("^" + tt.want + "$")
			if err := edit.Check(tt.edit); err == nil || !want.MatchString(err.Error()) {
				t.Errorf("Check() = %v, want %s", err, want)
			}
			if err := edit.Build(t.Context(), filepath.Join(t.TempDir(), "outboxctl"), tt.edit); err == nil || !want.MatchString(err.Error()) {
				t.Errorf("Build() = %v, want %s", err, want)
			}
		})
	}
}

// TestBuildUsesTheEdits has one edit on top of another and a file that is added.
func TestBuildUsesTheEdits(t *testing.T) {
	t.Parallel()
	const file = "cmd/outboxctl/main.go"
	edits := []edit.Edit{
		{Name: "call", File: file, Old: "func main() {", New: "func main() {\n\tspeak()"},
		{Name: "call twice", File: file, Old: "\tspeak()", New: "\tspeak()\n\tspeak()"},
		{Name: "words", File: "cmd/outboxctl/speak.go", New: "package main\n\nfunc speak() { println(\"edited\") }\n"},
	}
	output := filepath.Join(t.TempDir(), "outboxctl")
	if err := edit.Build(t.Context(), output, edits...); err != nil {
		t.Fatal(err)
	}
	if out := run(t, output); !strings.HasPrefix(out, "edited\nedited\n") {
		t.Errorf("the edited binary says %q", out)
	}
}

func run(t *testing.T, binary string) string {
	t.Helper()
	out, err := exec.CommandContext(context.Background(), binary, "version").CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return string(out)
}
