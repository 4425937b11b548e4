package commands

import (
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/schollz/progressbar/v3"

	"github.com/outboxctl/outboxctl/outbox"
)

// progress is a bar on stderr, on a terminal only. Log lines go through it, so that they and the
// bar do not write over each other. Without a bar it is a plain writer, to which work that logs
// nothing by itself writes a line every ten seconds.
type progress struct {
	mu   sync.Mutex
	out  io.Writer
	bar  *progressbar.ProgressBar
	on   bool // a bar
	told bool // or lines

	what, unit   string
	steps        int64
	began, spoke time.Time
}

// progressLines is how often a line says how far the work is where there is no bar.
const progressLines = 10 * time.Second

func (a *app) newProgress(wanted bool) *progress {
	wanted = wanted && !a.global.noProgress
	return &progress{out: a.Err, on: wanted && terminal(a.Err), told: wanted && !terminal(a.Err)}
}

// shown reports whether there is a bar to look at.
func (p *progress) shown() bool { return p.on }

// begin shows a bar of that many steps; a negative number is an unknown one.
func (p *progress) begin(what, unit string, steps int64) {
	p.what, p.unit, p.steps, p.began, p.spoke = what, unit, steps, time.Now(), time.Now()
	if !p.on {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.bar = progressbar.NewOptions64(steps,
		progressbar.OptionSetWriter(p.out),
		progressbar.OptionSetDescription(what),
		progressbar.OptionSetWidth(30),
		progressbar.OptionShowCount(),
		progressbar.OptionShowIts(),
		progressbar.OptionSetItsString(unit),
		progressbar.OptionThrottle(100*time.Millisecond),
		progressbar.OptionClearOnFinish(),
		progressbar.OptionSetTheme(progressbar.Theme{Saucer: "━", SaucerHead: "━", SaucerPadding: "─", BarStart: "", BarEnd: ""}),
	)
}

// add counts an event that has come to its end in this run; there may be more than were due at its
// beginning.
func (p *progress) add(r outbox.Report) {
	if p.bar == nil || r.Outcome.Status == outbox.Pending {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.bar.State().CurrentNum >= p.bar.GetMax64() && p.bar.GetMax64() > 0 {
		p.bar.AddMax64(1)
	}
	_ = p.bar.Add(1)
}

// set says that n steps are done.
func (p *progress) set(n int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.bar != nil:
		if n > p.bar.GetMax64() && p.bar.GetMax64() > 0 {
			p.bar.ChangeMax64(n)
		}
		_ = p.bar.Set64(n)
	case p.told && time.Since(p.spoke) >= progressLines:
		p.spoke = time.Now()
		fmt.Fprintln(p.out, p.line(n))
	}
}

// line says how far the work is, how fast it goes, and when it will be done.
func (p *progress) line(n int64) string {
	took := time.Since(p.began)
	if p.steps < n {
		return fmt.Sprintf("%s: %s %s, %s/s", p.what, thousands(n), p.unit, perSecond(n, took))
	}
	left := time.Duration(float64(took) / float64(max(n, 1)) * float64(p.steps-n))
	return fmt.Sprintf("%s: %s of %s %s, %s/s, %s left", p.what, thousands(n), thousands(p.steps), p.unit, perSecond(n, took), age(left))
}

func (p *progress) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.bar != nil {
		_ = p.bar.Clear()
		p.bar = nil
	}
}

// Write prints a log line above the bar.
func (p *progress) Write(line []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.bar != nil {
		_ = p.bar.Clear()
		defer func() { _ = p.bar.RenderBlank() }()
	}
	return p.out.Write(line)
}
