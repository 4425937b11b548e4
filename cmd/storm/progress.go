package main

import (
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/term"

	"github.com/outboxctl/outboxctl/outbox/outboxtest/storm"
)

// elsewhereEvery is how often progress is told where no terminal is.
const elsewhereEvery = 10 * time.Second

// progress is one line that changes on a terminal, and a new line now and then elsewhere.
type progress struct {
	out      *os.File
	terminal bool
	name     string
	duration time.Duration
	last     time.Time
}

func newProgress(out *os.File, name string, duration time.Duration) *progress {
	return &progress{out: out, terminal: term.IsTerminal(int(out.Fd())), name: name, duration: duration}
}

func (p *progress) show(now storm.Progress) {
	if !p.terminal && time.Since(p.last) < elsewhereEvery {
		return
	}
	p.last = time.Now()
	line := fmt.Sprintf("%-12s %-6s %5s of %s  %7d events  %7d requests  %5d faults", p.name, now.Phase,
		now.Elapsed.Round(time.Second), p.duration, now.Writes, now.Requests, now.Faults)
	if now.Void > 0 {
		line += fmt.Sprintf("  %d without proof", now.Void)
	}
	if p.terminal {
		fmt.Fprintf(p.out, "\r%s%s", line, strings.Repeat(" ", 4))
		return
	}
	fmt.Fprintln(p.out, line)
}

func (p *progress) end() {
	if p.terminal {
		fmt.Fprintln(p.out)
	}
}
