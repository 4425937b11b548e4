// Package file delivers events to the end of a file, one JSON object a line (NDJSON).
//
// A delivered event survives a power cut: it counts as delivered only after fsync. Deliveries that
// run at the same time share one, so more of them at once are faster. Several processes may append
// to one file. The file stays open: rotate it by copy and truncate, or restart after a move.
package file

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"github.com/outboxctl/outboxctl/outbox"
)

// Kind is the error_kind of a file that cannot be written.
const Kind = "file"

var errLost = errors.New("an fsync before failed, so this line may be lost")

// Sink delivers events to one file.
type Sink struct {
	file    *os.File
	regular bool // pipes and devices have nothing to sync

	writing sync.Mutex // guards what follows
	torn    bool       // the file does not end with a line break
	lines   int64      // written so far

	syncing sync.Mutex // guards what follows
	synced  int64      // lines that are safe
	lost    int64      // lines up to the last failed fsync: the kernel reports it once
}

var _ outbox.Sink = (*Sink)(nil)

// New opens the file at path for appending. It makes the file if needed, for its owner alone:
// events may hold personal data.
func New(path string) (*Sink, error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	stat, err := f.Stat()
	if err != nil {
		f.Close()
		return nil, err
	}
	s := &Sink{file: f, regular: stat.Mode().IsRegular()}
	if s.regular {
		s.torn = isTorn(path, stat.Size())
		syncFolder(path)
	}
	return s, nil
}

// isTorn reports whether a file ends inside a line: an earlier process died or the disk was full.
// The next line then begins on a line of its own.
func isTorn(path string, size int64) bool {
	f, err := os.Open(path)
	if err != nil || size == 0 {
		return false
	}
	defer f.Close()
	var last [1]byte
	_, err = f.ReadAt(last[:], size-1)
	return err == nil && last[0] != '\n'
}

// syncFolder makes a new file's name as safe as its content. Some file systems cannot; the content
// is what the promise is about.
func syncFolder(path string) {
	if folder, err := os.Open(filepath.Dir(path)); err == nil {
		folder.Sync()
		folder.Close()
	}
}

// Close closes the file.
func (s *Sink) Close() error { return s.file.Close() }

// Deliver appends ev's envelope as one line, in one write, and returns when it is safe.
func (s *Sink) Deliver(ctx context.Context, ev outbox.Event) (outbox.Receipt, error) {
	if err := ctx.Err(); err != nil {
		return outbox.Receipt{}, err
	}
	line, size, err := s.append(ev)
	if err == nil {
		err = s.sync(line)
	}
	if err != nil {
		return outbox.Receipt{}, &outbox.DeliveryError{Kind: Kind, Err: err}
	}
	return outbox.Receipt{Text: fmt.Sprintf("%d bytes", size)}, nil
}

// append writes one line and returns its number and size.
func (s *Sink) append(ev outbox.Event) (line int64, size int, err error) {
	text := ev.AppendLine([]byte{'\n'})
	s.writing.Lock()
	defer s.writing.Unlock()
	if !s.torn {
		text = text[1:]
	}
	n, err := s.file.Write(text)
	if err != nil {
		s.torn = s.torn || n > 0
		return 0, 0, err
	}
	s.torn = false
	s.lines++
	return s.lines, n, nil
}

// sync returns when a line is on the disk. Whoever comes first syncs for all that have written.
func (s *Sink) sync(line int64) error {
	if !s.regular {
		return nil
	}
	s.syncing.Lock()
	defer s.syncing.Unlock()
	switch {
	case line <= s.lost:
		return errLost
	case line <= s.synced:
		return nil
	}
	s.writing.Lock()
	end := s.lines
	s.writing.Unlock()
	if err := s.file.Sync(); err != nil {
		s.lost = end
		return err
	}
	s.synced = end
	return nil
}
