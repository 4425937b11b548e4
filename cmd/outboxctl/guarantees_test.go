package main_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	promise  = regexp.MustCompile(`^\| (G\d+) \|`)
	testName = regexp.MustCompile(`\bTest[A-Z]\w*|\b\w+\.txtar`)
	testFunc = regexp.MustCompile(`(?m)^func (Test[A-Z]\w*)\(`)
)

// TestGuaranteesNameTheirTests keeps docs/guarantees.md from promising what nothing proves.
func TestGuaranteesNameTheirTests(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/guarantees.md")
	if err != nil {
		t.Fatal(err)
	}
	tests := readTests(t, "../..")
	promises := 0
	for line := range strings.Lines(string(page)) {
		names := testName.FindAllString(line, -1)
		if m := promise.FindStringSubmatch(line); m != nil {
			promises++
			if len(names) == 0 {
				t.Errorf("%s names no test", m[1])
			}
		}
		for _, name := range names {
			if !tests[name] {
				t.Errorf("there is no %s", name)
			}
		}
	}
	if promises == 0 {
		t.Error("no promise was found: the table has changed its form")
	}
}

// TestSecurityPageNamesItsTests does the same for docs/security.md.
func TestSecurityPageNamesItsTests(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/security.md")
	if err != nil {
		t.Fatal(err)
	}
	tests := readTests(t, "../..")
	names := testName.FindAllString(string(page), -1)
	for _, name := range names {
		if !tests[name] {
			t.Errorf("there is no %s", name)
		}
	}
	if len(names) < 30 {
		t.Errorf("only %d tests are named", len(names))
	}
	_, threats, _ := strings.Cut(string(page), "\n## What is checked\n")
	threats, _, _ = strings.Cut(threats, "\n## ")
	for line := range strings.Lines(threats) {
		row := strings.HasPrefix(line, "| ") && !strings.HasPrefix(line, "| threat")
		if row && len(testName.FindAllString(line, -1)) == 0 {
			t.Errorf("no test stands behind: %s", line)
		}
	}
}

var (
	caseRow  = regexp.MustCompile(`^\| (B\d\d) \|`)
	caseWord = regexp.MustCompile(`\bB\d\d\b`)
)

// TestCasesNameTheirTests does the same for docs/cases.md, and finds cases that comments speak of and the page does not.
func TestCasesNameTheirTests(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/cases.md")
	if err != nil {
		t.Fatal(err)
	}
	tests, cases := readTests(t, "../.."), map[string]bool{}
	for line := range strings.Lines(string(page)) {
		m := caseRow.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		cases[m[1]] = true
		names := testName.FindAllString(line, -1)
		for _, name := range names {
			if !tests[name] {
				t.Errorf("%s: there is no %s", m[1], name)
			}
		}
		if len(names) == 0 {
			t.Errorf("%s names no test", m[1])
		}
	}
	if len(cases) < 40 {
		t.Errorf("only %d cases were found: the tables have changed their form", len(cases))
	}
	for _, file := range goFiles(t, "../..") {
		source, err := os.ReadFile(filepath.Join("../..", file))
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range caseWord.FindAllString(string(source), -1) {
			if !cases[name] {
				t.Errorf("%s speaks of %s, which docs/cases.md does not have", file, name)
			}
		}
	}
}

// readTests returns the names of all test functions below root and of the scripts.
func readTests(t *testing.T, root string) map[string]bool {
	t.Helper()
	names := map[string]bool{}
	scripts, err := filepath.Glob(filepath.Join(root, "testdata/script/*.txtar"))
	if err != nil {
		t.Fatal(err)
	}
	for _, script := range scripts {
		names[filepath.Base(script)] = true
	}
	for _, file := range goFiles(t, root) {
		if !strings.HasSuffix(file, "_test.go") {
			continue
		}
		source, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range testFunc.FindAllSubmatch(source, -1) {
			names[string(m[1])] = true
		}
	}
	return names
}
