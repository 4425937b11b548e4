package main_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/outboxctl/outboxctl/outbox"
)

// TestOperationsPageCountsTheAttemptsRight compares the table of outages with the default backoff.
func TestOperationsPageCountsTheAttemptsRight(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := regexp.MustCompile(`(?m)^\| (\d+) \| ([\dhms]+) \|$`).FindAllStringSubmatch(string(page), -1)
	if len(rows) < 4 {
		t.Fatalf("the table of outages has %d rows", len(rows))
	}
	for _, row := range rows {
		attempts, _ := strconv.Atoi(row[1])
		said, err := time.ParseDuration(row[2])
		var want time.Duration
		for attempt := 1; attempt < attempts; attempt++ {
			want += outbox.DefaultPolicy().Backoff.Delay(attempt)
		}
		if err != nil || said != want {
			t.Errorf("%d attempts take %s, the page says %s", attempts, want, row[2])
		}
	}
}

// TestPagesNameFlagsThatExist compares every page with the help of every command.
func TestPagesNameFlagsThatExist(t *testing.T) {
	t.Parallel()
	known := regexp.MustCompile(`--[a-z][a-z-]*`)
	help := map[string]bool{"--some-flag": true, "--x-y": true}
	commands := [][]string{nil}
	for len(commands) > 0 { // each names those below it
		_, out, _ := run(t, "", append(commands[0], "--help")...)
		for _, flag := range known.FindAllString(out, -1) {
			help[flag] = true
		}
		_, below, _ := strings.Cut(out, "\nAvailable Commands:\n")
		below, _, _ = strings.Cut(below, "\n\n")
		for line := range strings.Lines(below) {
			if name := strings.Fields(line)[0]; name != "help" && name != "completion" {
				commands = append(commands, append(slices.Clone(commands[0]), name))
			}
		}
		commands = commands[1:]
	}
	storm, err := os.ReadFile("../storm/main.go") // whose page is among them
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`Var\(&o\.\w+, "([a-z-]+)"`).FindAllStringSubmatch(string(storm), -1) {
		help["--"+m[1]] = true
	}
	pages, err := filepath.Glob("../../docs/*.md")
	if err != nil || len(pages) < 4 {
		t.Fatalf("%d pages were found: %v", len(pages), err)
	}
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile("[ `(](--[a-z][a-z-]*)").FindAllStringSubmatch(string(text), -1) {
			if !help[m[1]] {
				t.Errorf("%s names %s, which no command has", filepath.Base(page), m[1])
			}
		}
	}
}
