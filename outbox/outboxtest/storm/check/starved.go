package check

import (
	"time"

	"github.com/outboxctl/outboxctl/outbox/outboxtest/storm/history"
)

// waited is how long a process waited for a processor in that time.
func (s *story) waited(name string, from, to time.Time) (total time.Duration) {
	for _, w := range s.Waits {
		if w.Name == name && w.To.After(from) && w.From.Before(to) {
			total += w.Waited
		}
	}
	return min(total, to.Sub(from))
}

// starved is how long a process and the wires on its way waited in that time, on a machine that had others to serve.
func (s *story) starved(name string, from, to time.Time) time.Duration {
	return min(s.waited(name, from, to)+s.waited(history.Runner, from, to), to.Sub(from))
}
