// Package edit builds and tests outboxctl from sources that are changed on their way to the compiler, by
// go's -overlay: to die at a named point, or to be wrong in a known way. So the product's own sources hold
// nothing of it, and an edit that does not fit them any more is an error that names it.
package edit

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Edit is a change to one source file.
type Edit struct {
	Name string // of what it is for, told in errors
	File string // from the module's root, with slashes
	Old  string // occurs in the file exactly once; "" = there is no such file, and it is added
	New  string
}

// sources are changed files by their path from the module's root.
type sources map[string]string

// Check reports whether edits fit the sources, one on top of the other.
func Check(edits ...Edit) error {
	root, err := moduleRoot()
	if err != nil {
		return err
	}
	_, err = apply(root, edits)
	return err
}

// apply makes edits in turn: what one has written, the next may change.
func apply(root string, edits []Edit) (sources, error) {
	changed := sources{}
	for _, e := range edits {
		text, there, err := changed.read(root, e.File)
		if err != nil {
			return nil, fmt.Errorf("edit %s: %w", e.Name, err)
		}
		if err := e.fits(text, there); err != nil {
			return nil, fmt.Errorf("edit %s: %w", e.Name, err)
		}
		changed[e.File] = e.New
		if there {
			changed[e.File] = strings.Replace(text, e.Old, e.New, 1)
		}
	}
	return changed, nil
}

// read returns a file as the edits so far have left it.
func (s sources) read(root, file string) (text string, there bool, err error) {
	if text, there = s[file]; there {
		return text, true, nil
	}
	data, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(file)))
	if errors.Is(err, fs.ErrNotExist) {
		return "", false, nil
	}
	return string(data), err == nil, err
}

// fits says what is wrong between an edit and its file.
func (e Edit) fits(text string, there bool) error {
	n := strings.Count(text, e.Old)
	switch {
	case e.Old == "" && there:
		return fmt.Errorf("%s is to be added and is there already", e.File)
	case e.Old == "":
		return nil
	case !there:
		return fmt.Errorf("%s is not there", e.File)
	case n != 1:
		return fmt.Errorf("%s has its text %d times, which must be once: %q", e.File, n, firstLine(e.Old))
	case e.Old == e.New:
		return fmt.Errorf("%s stays as it is", e.File)
	}
	return nil
}

func firstLine(text string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(text), "\n")
	return line
}

// files lists the changed ones in order.
func (s sources) files() []string { return slices.Sorted(maps.Keys(s)) }

// moduleRoot is the folder with go.mod, from the current one upwards.
func moduleRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for from := dir; ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", fmt.Errorf("no go.mod in %s or above", from)
		}
	}
}
