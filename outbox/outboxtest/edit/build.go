package edit

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

// Overlay is a set of edits, written to a folder of its own for the go command. It is good until Close.
type Overlay struct {
	root, dir, file string
}

// NewOverlay writes edits, in the order in which they are made.
func NewOverlay(edits ...Edit) (*Overlay, error) {
	root, err := moduleRoot()
	if err != nil {
		return nil, err
	}
	changed, err := apply(root, edits)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "outboxctl-edit-")
	if err != nil {
		return nil, err
	}
	o := &Overlay{root: root, dir: dir, file: filepath.Join(dir, "overlay.json")}
	if err := o.write(changed); err != nil {
		return nil, errors.Join(err, o.Close())
	}
	return o, nil
}

// write lists the changed files as go wants them: which path is read from where.
func (o *Overlay) write(changed sources) error {
	replace := map[string]string{}
	for i, file := range changed.files() {
		copied := filepath.Join(o.dir, strconv.Itoa(i)+"-"+filepath.Base(file))
		if err := os.WriteFile(copied, []byte(changed[file]), 0o644); err != nil {
			return err
		}
		replace[filepath.Join(o.root, filepath.FromSlash(file))] = copied
	}
	list, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return err
	}
	return os.WriteFile(o.file, list, 0o644)
}

// Close removes what was written.
func (o *Overlay) Close() error { return os.RemoveAll(o.dir) }

// Flag has any go command read the edited sources.
func (o *Overlay) Flag() string { return "-overlay=" + o.file }

// Folder is one of the module's, by its path from the root.
func (o *Overlay) Folder(path string) string { return filepath.Join(o.root, filepath.FromSlash(path)) }

// Go is a go command over the edited sources, without the race detector: "build", "test" or "vet".
func (o *Overlay) Go(ctx context.Context, verb string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "go", append([]string{verb, o.Flag(), "-buildvcs=false"}, args...)...)
	cmd.Dir = o.root
	return cmd
}

// Build builds outboxctl from the edited sources; without edits, from the sources.
func Build(ctx context.Context, output string, edits ...Edit) error {
	o, err := NewOverlay(edits...)
	if err != nil {
		return err
	}
	defer o.Close()
	output, err = filepath.Abs(output)
	if err != nil {
		return err
	}
	if out, err := o.Go(ctx, "build", "-o", output, "./cmd/outboxctl").CombinedOutput(); err != nil {
		return fmt.Errorf("build outboxctl with %s: %w: %s", names(edits), err, out)
	}
	return nil
}

func names(edits []Edit) string {
	if len(edits) == 0 {
		return "no edits"
	}
	var all []string
	for _, e := range edits {
		if len(all) == 0 || all[len(all)-1] != e.Name {
			all = append(all, e.Name)
		}
	}
	return strings.Join(all, ", ")
}
