// Package crash has outboxctl die by SIGKILL at named points of its code, the worst moments there are: after a
// commit whose reply nobody has read, after a 2xx that nobody has noted. The points are edits of the sources, see
// package edit; one binary has them all.
//
// A process dies at the point that OUTBOXCTL_CRASH_AT names, as it comes by it the nth time:
//
//	OUTBOXCTL_CRASH_AT=after-settle:3 OUTBOXCTL_CRASH_PROOF=/tmp/proof outboxctl dispatch …
//
// Before it does, it writes the point and the time to the file of OUTBOXCTL_CRASH_PROOF, which then has a line
// for every death. With OUTBOXCTL_CRASH_BY=panic the point panics: a death that leaves a dump.
package crash

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/outboxctl/outboxctl/outbox/outboxtest/edit"
)

// The variables that arm a process.
const (
	At    = "OUTBOXCTL_CRASH_AT"
	Proof = "OUTBOXCTL_CRASH_PROOF"
	By    = "OUTBOXCTL_CRASH_BY" // "panic", or a SIGKILL
)

// Env arms a process to die as it comes by a point the nth time, from 1.
func Env(point string, nth int, proof string) []string {
	return []string{At + "=" + point + ":" + strconv.Itoa(nth), Proof + "=" + proof}
}

// Build builds outboxctl with all points, and further edits.
func Build(ctx context.Context, output string, more ...edit.Edit) error {
	return edit.Build(ctx, output, append(Edits(), more...)...)
}

// helper is what each package with points gets; PACKAGE is its name.
//
//go:embed point.txt
var helper string

// Edits returns the points as edits, and the function that they call.
func Edits() []edit.Edit {
	var edits []edit.Edit
	with := map[string]bool{}
	for _, p := range points {
		folder := path.Dir(p.file)
		if !with[folder] {
			with[folder] = true
			edits = append(edits, edit.Edit{Name: "crash points of " + folder, File: folder + "/crash_point.go",
				New: strings.Replace(helper, "PACKAGE", path.Base(folder), 1)})
		}
		edits = append(edits, p.edit())
	}
	return edits
}

// Death is one line of a proof.
type Death struct {
	Point string
	At    time.Time
	Pid   int
}

// Deaths reads a proof; a file that is not there has none.
func Deaths(proof string) ([]Death, error) {
	text, err := os.ReadFile(proof)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var all []Death
	for line := range strings.Lines(string(text)) {
		var d Death
		var at string
		if _, err := fmt.Sscan(line, &d.Point, &at, &d.Pid); err != nil {
			return nil, fmt.Errorf("proof of a crash: %q: %w", line, err)
		}
		if d.At, err = time.Parse(time.RFC3339Nano, at); err != nil {
			return nil, fmt.Errorf("proof of a crash: %w", err)
		}
		all = append(all, d)
	}
	return all, nil
}
