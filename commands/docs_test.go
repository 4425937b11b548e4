package commands_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// words splits a command line as a shell would that only knows quotes.
func words(line string) (all []string) {
	for _, m := range regexp.MustCompile(`(?:'[^']*'|"[^"]*"|[^\s'"])+`).FindAllString(line, -1) {
		all = append(all, strings.NewReplacer(`'`, "", `"`, "").Replace(m))
	}
	return all
}

// shown finds the command lines in a text: in fenced blocks and between backquotes.
var shown = regexp.MustCompile("(?m)(?:^ *(?:[$] )?|`|[*] +|[|] *)outboxctl ([a-z][^`|;\n]*)")

// placeholders are what a reader puts something else for.
var placeholders = strings.NewReplacer("ID", "42", "VERSION", "9", "…", "something")

// Every command line in the docs is one that this binary takes, with all its flags.
func TestDocsShowCommandsThatExist(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("../docs/*.md")
	if err != nil || len(files) < 5 {
		t.Fatalf("docs are %v, %v", files, err)
	}
	n := 0
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range shown.FindAllStringSubmatch(string(text), -1) {
			line, _, _ := strings.Cut(m[1], " #")
			line = strings.TrimSuffix(strings.TrimSpace(placeholders.Replace(line)), "2>&1")
			if code, _, said := outboxctl("", append(words(line), "--help")...); code != 0 {
				t.Errorf("%s: outboxctl %s: exit %d: %s", filepath.Base(file), line, code, said)
			}
			n++
		}
	}
	if n < 40 {
		t.Errorf("only %d command lines were found", n)
	}
}
