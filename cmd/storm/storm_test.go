package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/outboxctl/outboxctl/outbox/outboxtest/storm"
)

// lasts is how long a smoke storm writes and breaks; healing and judging come on top.
var lasts = "20s"

var folder string // of the binaries, set by TestMain

func TestMain(m *testing.M) {
	if os.Getenv("OUTBOXCTL_TEST_LONG") != "" {
		lasts = "2m"
	}
	var err error
	if folder, err = os.MkdirTemp("", "outboxctl-storm-test-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	os.RemoveAll(folder)
	os.Exit(code)
}

// programs are the command itself, without the race detector, which would take most of a small machine, and what it
// runs.
type programs struct{ storm, plain, armed string }

var built = sync.OnceValues(func() (programs, error) {
	p := programs{filepath.Join(folder, "storm"), filepath.Join(folder, "outboxctl"), filepath.Join(folder, "outboxctl-armed")}
	if out, err := exec.Command("go", "build", "-o", p.storm, ".").CombinedOutput(); err != nil {
		return p, fmt.Errorf("go build: %w: %s", err, out)
	}
	return p, storm.Build(context.Background(), p.plain, p.armed)
})

// TestSmokeStorms runs a storm for each family of faults and one without any. Two at once are what a small machine can
// bear: promises about time break under more.
func TestSmokeStorms(t *testing.T) {
	t.Parallel()
	slots := make(chan struct{}, 2)
	for i, tt := range []struct {
		name  string
		flags []string
	}{
		{"calm", []string{"--control"}},
		{"processes", []string{"--faults=kill,term,stop"}},
		{"crashes", []string{"--faults=crash:*", "--every=1500ms"}},
		{"database", []string{"--faults=postgres,frozen,terminate,lock,snapshot,connections"}},
		{"wires", []string{"--faults=wire:*", "--every=700ms"}},
		{"receivers", []string{"--faults=receiver:*", "--every=400ms"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			slots <- struct{}{}
			defer func() { <-slots }()
			p, err := built()
			if err != nil {
				t.Fatal(err)
			}
			args := []string{"--seed", fmt.Sprint(1 + i), "--duration", lasts, "--rate", "50", "--dir", t.TempDir(), "--binary", p.plain, "--armed", p.armed}
			cmd := exec.Command(p.storm, append(args, tt.flags...)...)
			out, err := cmd.CombinedOutput()
			if err != nil || !strings.Contains(string(out), "promises kept") || tt.name != "calm" && !strings.Contains(string(out), "proven  fault") {
				t.Errorf("storm %s: %v, want faults and all promises kept:\n%s", strings.Join(cmd.Args[1:], " "), err, out)
			}
		})
	}
}

// TestRoundThatCannotBeginNamesItsFolder: there is no history then, and the folder may be one that nobody has chosen.
func TestRoundThatCannotBeginNamesItsFolder(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "one", "postgres.log", "in the way"), 0o755); err != nil {
		t.Fatal(err)
	}
	o, all := &options{binary: "outboxctl"}, &report{}
	err := o.playAll(t.Context(), dir, []round{{name: "one"}}, all)
	if folder := filepath.Join(dir, "one"); err == nil || !strings.HasSuffix(err.Error(), ": see "+folder) || len(all.rounds) > 0 {
		t.Errorf("playAll() = %v with %d rounds, want an error that names %s and none", err, len(all.rounds), folder)
	}
}
