package storm

import (
	"sync"
	"time"

	"github.com/outboxctl/outboxctl/outbox/outboxtest/storm/history"
)

// book is the history while it is written, by all at once.
type book struct {
	mu sync.Mutex
	h  history.History
}

// add keeps what it is given.
func add[T any](b *book, list *[]T, more ...T) {
	b.mu.Lock()
	defer b.mu.Unlock()
	*list = append(*list, more...)
}

// fault keeps one that is over, with the next number.
func (b *book) fault(f history.Fault) {
	b.mu.Lock()
	defer b.mu.Unlock()
	f.N = len(b.h.Faults) + 1
	b.h.Faults = append(b.h.Faults, f)
}

// looked keeps what one look at all sessions has found.
func (b *book) looked(seen []history.Session) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.h.Looks++
	b.h.Sessions = append(b.h.Sessions, seen...)
}

// Progress is how far a run has come.
type Progress struct {
	Phase    string
	Elapsed  time.Duration
	Writes   int
	Requests int
	Faults   int
	Void     int // faults without a proof
}

func (b *book) progress(phase string) Progress {
	b.mu.Lock()
	defer b.mu.Unlock()
	p := Progress{Phase: phase, Writes: len(b.h.Writes), Requests: len(b.h.Requests), Faults: len(b.h.Faults)}
	p.Elapsed = time.Since(b.h.Began)
	for _, f := range b.h.Faults {
		if f.Proof == "" {
			p.Void++
		}
	}
	return p
}
