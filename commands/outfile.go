package commands

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
)

// toFile has f print into a file, which is there as a whole or as it was before: whoever reads it
// never sees a part. Without a name f prints to standard output.
func (a *app) toFile(name string, f func(*app) error) error {
	if name == "" {
		return f(a)
	}
	var text bytes.Buffer
	inside := *a
	inside.Out = &text
	if err := f(&inside); err != nil {
		return err
	}
	// The draft's name has no extension: the textfile collector reads *.prom alone.
	draft, err := os.CreateTemp(filepath.Dir(name), "."+filepath.Base(name)+"-*")
	if err != nil {
		return fmt.Errorf("--output-file: %w", err)
	}
	defer os.Remove(draft.Name()) // unless it has the file's name by then
	_, err = draft.Write(text.Bytes())
	if err == nil {
		err = draft.Chmod(0o644)
	}
	if closing := draft.Close(); err == nil {
		err = closing
	}
	if err == nil {
		err = os.Rename(draft.Name(), name)
	}
	if err != nil {
		return fmt.Errorf("--output-file: %w", err)
	}
	return nil
}
