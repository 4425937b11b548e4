package storm

import (
	"fmt"
	"sync"
)

// tally counts what a fault has met, seen from outside: its proof.
type tally struct {
	mu    sync.Mutex
	times int
	bytes int64
	first string
	met   chan struct{} // closed at the first
}

func newTally() *tally { return &tally{met: make(chan struct{})} }

func (t *tally) count(what string, bytes int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.times++; t.times == 1 {
		t.first = what
		close(t.met)
	}
	t.bytes += int64(bytes)
}

// proof says what was counted; "" is nothing.
func (t *tally) proof(things string) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.times == 0:
		return ""
	case t.bytes == 0:
		return fmt.Sprintf("%d %s, first %s", t.times, things, t.first)
	}
	return fmt.Sprintf("%d %s, %d bytes, first %s", t.times, things, t.bytes, t.first)
}
