package commands

import (
	"context"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"

	"github.com/outboxctl/outboxctl/outbox"
)

// statusEvery is the rhythm of the status line, unless a watchdog wants a quicker one.
const statusEvery = 10 * time.Second

// supervisor tells systemd how a dispatcher is doing, as sd_notify(3) says: that it has begun, a line
// of status, and to the watchdog that it goes on. Without a NOTIFY_SOCKET it says nothing. What the
// loop calls does not block.
type supervisor struct {
	every time.Duration
	dog   bool          // there is a watchdog
	begun chan struct{} // closed by the first turn
	first sync.Once
	shown string // the status that systemd has

	mu    sync.Mutex
	turns map[*atomic.Int64]bool // of each loop since the last look
	done  map[string]int64       // results by name
	away  bool                   // PostgreSQL does not answer
}

// supervised returns nil when nobody wants to know.
func supervised() *supervisor {
	if os.Getenv("NOTIFY_SOCKET") == "" {
		return nil
	}
	s := &supervisor{every: statusEvery, begun: make(chan struct{}), turns: map[*atomic.Int64]bool{}, done: map[string]int64{}}
	if interval, err := daemon.SdWatchdogEnabled(false); err == nil && interval > 0 {
		s.dog, s.every = true, min(interval/4, statusEvery)
	}
	return s
}

// notify is one message. That systemd does not take it is no reason to stop delivering.
func (s *supervisor) notify(lines ...string) {
	_, _ = daemon.SdNotify(false, strings.Join(lines, "\n"))
}

// waiting says what the start waits for.
func (s *supervisor) waiting(what string) {
	if s != nil {
		s.notify("STATUS=" + what)
	}
}

// observe has the functions of a loop's observer tell the supervisor, too, until end is called.
func (s *supervisor) observe(o outbox.Observer) (seen outbox.Observer, end func()) {
	if s == nil {
		return o, func() {}
	}
	turns := new(atomic.Int64)
	s.mu.Lock()
	s.turns[turns] = true
	s.mu.Unlock()
	seen = o
	seen.Turned = func() {
		turns.Add(1)
		s.first.Do(func() { close(s.begun) })
	}
	seen.Settled = func(r outbox.Report) { s.count(r); o.Settled(r) }
	seen.Trouble = func(err error) { s.setAway(true); o.Trouble(err) }
	seen.Recovered = func() { s.setAway(false); o.Recovered() }
	return seen, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.turns, turns)
	}
}

// watch speaks to systemd from the loop's first turn until life is done.
func (s *supervisor) watch(life, stop context.Context) {
	if s == nil {
		return
	}
	select {
	case <-s.begun:
		s.shown = s.status()
		s.notify(daemon.SdNotifyReady, s.shown)
	case <-life.Done():
		return
	}
	tick := time.NewTicker(s.every)
	defer tick.Stop()
	stopped := stop.Done()
	for {
		select {
		case <-life.Done():
			return
		case <-stopped:
			stopped = nil
			s.notify(daemon.SdNotifyStopping)
		case <-tick.C:
			s.look()
		}
	}
}

// look feeds the watchdog if every loop has turned since the last time, and renews the status.
func (s *supervisor) look() {
	var lines []string
	if s.turned() && s.dog {
		lines = append(lines, daemon.SdNotifyWatchdog)
	}
	if line := s.status(); line != s.shown {
		s.shown = line
		lines = append(lines, line)
	}
	if len(lines) > 0 {
		s.notify(lines...)
	}
}

// turned reports whether every loop goes on.
func (s *supervisor) turned() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := len(s.turns) > 0
	for turns := range s.turns {
		all = turns.Swap(0) > 0 && all
	}
	return all
}

// reloading runs f as a reload.
func (s *supervisor) reloading(f func()) {
	if s == nil {
		f()
		return
	}
	s.notify(daemon.SdNotifyReloading, daemon.SdNotifyMonotonicUsec())
	f()
	s.notify(daemon.SdNotifyReady)
}

func (s *supervisor) count(r outbox.Report) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch out := r.Outcome; {
	case r.Lost, out.Refund:
	case out.Status == outbox.Pending:
		s.done["retried"]++
	default:
		s.done[string(out.Status)]++
	}
}

func (s *supervisor) setAway(away bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.away = away
}

// status is the line that systemctl status shows.
func (s *supervisor) status() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	line := "STATUS=delivered " + thousands(s.done["delivered"])
	for _, name := range []string{"retried", "failed", "dead_letter"} {
		if n := s.done[name]; n > 0 {
			line += ", " + name + " " + thousands(n)
		}
	}
	if s.away {
		line += "; PostgreSQL does not answer"
	}
	return line
}
