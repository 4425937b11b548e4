package webhook_test

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/outboxctl/outboxctl/outbox"
)

// Whoever meets an error kind finds it in the operators' page.
func TestEveryErrorKindIsExplained(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	doc, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	_, list, _ := strings.Cut(string(doc), "The error kinds that the package gives:")
	kinds := regexp.MustCompile(`(?m)^//\t([a-z]+) {2}|\btls:[a-z_]+`).FindAllStringSubmatch(list, -1)
	if len(kinds) < 20 {
		t.Fatalf("only %d kinds were found in doc.go", len(kinds))
	}
	names := []string{outbox.KindShutdown, outbox.KindCrashed, outbox.KindInvalid, outbox.KindOversize, outbox.KindTimeout}
	for _, m := range kinds {
		if name := strings.TrimPrefix(strings.TrimSpace(m[0]), "//\t"); name != "canceled" { // becomes shutdown
			names = append(names, name)
		}
	}
	for _, name := range names {
		if !strings.Contains(string(page), "`"+name+"`") {
			t.Errorf("docs/operations.md does not explain %s", name)
		}
	}
}
