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
	return judge(names, string(out), err)
}

var (
	begun     = regexp.MustCompile(`(?m)^=== RUN   (Test\w+)$`) // not the tests within
	failed    = regexp.MustCompile(`(?m)^--- FAIL: (Test\w+) `)
	broken    = regexp.MustCompile(`(?m)^(panic: .*|WARNING: DATA RACE)$`)
	timedOut  = regexp.MustCompile(`(?m)^panic: test timed out after `)
	said      = regexp.MustCompile(`(?m)^\s+\w+_test\.go:\d+: (.*)$`)
	stageless = regexp.MustCompile(`(?m)^\s+\w+\.go:\d+: (outboxtest: no database: .*)$`)
)

// judge reads what came of the tests. A mistake is found by a test that fails, or that panics or races and takes the others with
// it. A run that ends otherwise, as by a signal, its timeout or for want of a database, has looked for nothing.
func judge(names []string, out string, end error) (found Found, err error) {
	ran, fell := matches(begun, out), matches(failed, out)
	crash := ""
	if len(ran) > 0 && end != nil && !timedOut.MatchString(out) {
		crash = broken.FindString(out)
	}
	for _, name := range names {
		if !slices.Contains(ran, name) && crash == "" {
			return found, fmt.Errorf("%w: %s was not run (%v): %s", ErrUnfit, name, end, out)
		}
	}
	if m := stageless.FindStringSubmatch(out); m != nil {
		return found, fmt.Errorf("%w: %s", ErrUnfit, m[1])
	}
	switch {
	case end == nil:
		return found, nil
	case len(fell) > 0:
		found.By, found.How = fell[0], crash
	case crash != "":
		found.By, found.How = "the tests' end", crash
	default:
		return found, fmt.Errorf("%w: no test failed, and yet %w: %s", ErrUnfit, end, out)
	}
	if m := said.FindStringSubmatch(out); m != nil {
		found.How = m[1]
	}
	return found, nil
}

// matches are the first groups of all of them.
func matches(re *regexp.Regexp, text string) (all []string) {
	for _, m := range re.FindAllStringSubmatch(text, -1) {
		all = append(all, m[1])
	}
	return all
}
