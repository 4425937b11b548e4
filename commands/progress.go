package commands

import (
	"io"
	"sync"
	"time"

	"github.com/schollz/progressbar/v3"

	"github.com/outboxctl/outboxctl/outbox"
)

// progress is a bar on stderr, on a terminal only. Log lines go through it, so that they and the
// bar do not write over each other. Without a bar it is a plain writer.
type progress struct {
	mu  sync.Mutex
	out io.Writer
	bar *progressbar.ProgressBar
	on  bool
}

func (a *app) newProgress(wanted bool) *progress {
	return &progress{out: a.Err, on: wanted && !a.global.noProgress && terminal(a.Err)}
}

// shown reports whether there is a bar to look at.
func (p *progress) shown() bool { return p.on }

// begin shows a bar of that many steps; a negative number is an unknown one.
func (p *progress) begin(steps int64) {
	if !p.on {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.bar = progressbar.NewOptions64(steps,
		progressbar.OptionSetWriter(p.out),
		progressbar.OptionSetDescription("delivering"),
		progressbar.OptionSetWidth(30),
		progressbar.OptionShowCount(),
		progressbar.OptionShowIts(),
		progressbar.OptionSetItsString("events"),
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
