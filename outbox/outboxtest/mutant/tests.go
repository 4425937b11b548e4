package mutant

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/outboxctl/outboxctl/outbox/outboxtest/edit"
)

// tests are some of one package.
type tests struct {
	folder string // from the module's root
	names  []string
}

func testsOf(folder string, names ...string) *tests { return &tests{folder, names} }

// meet runs the tests on edited sources, and returns which one fails first.
func (t *tests) meet(ctx context.Context, edits []edit.Edit) (found Found, err error) {
	dir, err := os.MkdirTemp("", "outboxctl-mutant-")
	if err != nil {
		return found, err
	}
	defer os.RemoveAll(dir)
	o, err := edit.NewOverlay(edits...)
	if err != nil {
		return found, err
	}
	defer o.Close()
	binary := filepath.Join(dir, "test")
	if out, err := o.Go(ctx, "test", "-c", "-o", binary, "./"+t.folder).CombinedOutput(); err != nil {
		return found, fmt.Errorf("%w: %w: %s", ErrUnfit, err, out)
	}
	names := slices.Compact(slices.Sorted(slices.Values(t.names)))
	cmd := exec.CommandContext(ctx, binary, "-test.v", "-test.timeout", "4m", "-test.run", "^("+strings.Join(names, "|")+")$")
	cmd.Dir = o.Folder(t.folder)
	cmd.Env = append(os.Environ(), "GOFLAGS="+strings.TrimSpace(os.Getenv("GOFLAGS")+" "+o.Flag())) // for tests that build outboxctl
	out, err := cmd.CombinedOutput()
	if ctx.Err() != nil {
		return found, ctx.Err()
	}
	if ran := strings.Count(string(out), "=== RUN   Test"); ran < len(names) {
		return found, fmt.Errorf("%w: %d of the tests %s were run: %s", ErrUnfit, ran, strings.Join(names, ", "), out)
	}
	if err == nil {
		return found, nil
	}
	return failure(string(out)), nil
}

var (
	failed = regexp.MustCompile(`(?m)^\s*--- FAIL: (Test\w+)`)
	broken = regexp.MustCompile(`(?m)^panic: (.*)$`)
	said   = regexp.MustCompile(`(?m)^\s+\w+_test\.go:\d+: (.*)$`)
)

// failure reads what failed first, and its first words.
func failure(out string) Found {
	f := Found{By: "the tests' end"}
	if m := broken.FindStringSubmatch(out); m != nil {
		f.How = "panic: " + m[1]
	}
	if m := failed.FindStringSubmatch(out); m != nil {
		f.By = m[1]
	}
	if m := said.FindStringSubmatch(out); m != nil {
		f.How = m[1]
	}
	return f
}
