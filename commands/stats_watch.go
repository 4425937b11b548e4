package commands

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/guptarohit/asciigraph"
	"golang.org/x/term"

	"github.com/outboxctl/outboxctl/outbox"
)

// minWatch is the shortest pause between two looks.
const minWatch = 500 * time.Millisecond

// watchStats looks again and again until it is stopped. On a terminal it redraws the screen; elsewhere it
// writes a block or a line of JSON each time. When PostgreSQL goes away meanwhile it says so and
// goes on.
func (o *statsOptions) watchStats(ctx context.Context, a *app, store *outbox.Store) error {
	show := a.streamed
	if a.global.output == "table" && terminal(a.Out) && a.Getenv("TERM") != "dumb" {
		s := &screen{app: a, every: time.Duration(o.watch)}
		defer s.leave()
		show = s.show
	}
	tick := time.NewTicker(time.Duration(o.watch))
	defer tick.Stop()
	for looks := 0; ; looks++ {
		st, err := store.Stats(ctx, o.look(a))
		switch {
		case ctx.Err() != nil:
			return nil // somebody has seen enough
		case err != nil && looks == 0:
			return statsFailure(err)
		}
		if err := show(st, statsFailure(err)); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// streamed writes one look for a pipe or a log, or why there is none.
func (a *app) streamed(st *outbox.Stats, trouble error) error {
	switch {
	case trouble != nil:
		fmt.Fprintf(a.Err, "outboxctl: %s; trying again\n", a.inWords(trouble))
		return nil
	case a.global.output == "json":
		enc := json.NewEncoder(escaping{a.Out})
		enc.SetEscapeHTML(false)
		return enc.Encode(newStatsDocument(st))
	}
	var block bytes.Buffer
	inside := *a
	inside.Out = &block
	fmt.Fprintf(&block, "at          %s\n", time.Now().Format(time.RFC3339))
	if err := inside.printStats(st); err != nil {
		return err
	}
	block.WriteByte('\n')
	_, err := a.Out.Write(block.Bytes()) // at once, so that who follows never sees a part
	return err
}

// inWords is an error as one line.
func (a *app) inWords(err error) string { return oneLine(a.classify(err).Error()) }

// screen is a terminal that shows the present and a little of the past.
type screen struct {
	*app
	every   time.Duration
	history history
	last    *outbox.Stats
	since   time.Time // when looks began to fail; zero = they do not
}

// history holds what the charts show, the newest at the end.
type history struct{ rate, backlog, lag, errors []float64 }

const historyLength = 1000

// What a terminal is told: another screen without a cursor, and back; the first place, the rest of a
// line, the rest of the screen.
const (
	enterScreen = "\x1b[?1049h\x1b[?25l"
	leaveScreen = "\x1b[?25h\x1b[?1049l"
	home        = "\x1b[H"
	restOfLine  = "\x1b[K"
	restOfPage  = "\x1b[J"
)

// leave gives the terminal back as it was.
func (s *screen) leave() {
	if s.last != nil {
		_, _ = io.WriteString(s.Out, leaveScreen)
	}
}

// show redraws everything, as wide and high as the terminal is by now.
func (s *screen) show(st *outbox.Stats, trouble error) error {
	if s.last == nil {
		if _, err := io.WriteString(s.Out, enterScreen); err != nil {
			return err
		}
	}
	if trouble == nil {
		s.last, s.since = st, time.Time{}
		s.history.add(st)
	} else if s.since.IsZero() {
		s.since = time.Now()
	}
	width, height, err := term.GetSize(int(s.Out.(*os.File).Fd()))
	if err != nil || width < 1 || height < 1 {
		width, height = 80, 24
	}
	page, err := s.page(width, height, trouble)
	if err != nil {
		return err
	}
	_, err = io.WriteString(s.Out, page)
	return err
}

// page is the whole screen.
func (s *screen) page(width, height int, trouble error) (string, error) {
	var text bytes.Buffer
	inside := *s.app
	inside.Out = &text
	fmt.Fprintf(&text, "outboxctl stats · schema %s · every %s · %s · Ctrl-C ends\n", s.global.schema, printDuration(s.every), time.Now().Format(time.TimeOnly))
	if trouble != nil {
		fmt.Fprintf(&text, "%-11s for %s: %s\n", "ATTENTION", age(time.Since(s.since)), s.inWords(trouble))
	}
	fmt.Fprintln(&text)
	inside.printAttention(s.last)
	inside.printHealth(s.last)
	fmt.Fprintln(&text)
	text.WriteString(s.history.charts(width))
	for _, section := range []func(*outbox.Stats) error{inside.printDestinations, inside.printEventTypes, inside.printAnswers, inside.printDispatchers} {
		if err := section(s.last); err != nil {
			return "", err
		}
	}
	return s.fit(text.String(), width, height), nil
}

// fit cuts a text to the screen, and clears what was there before.
func (s *screen) fit(text string, width, height int) string {
	const red, plain = "\x1b[1;31m", "\x1b[0m"
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	lines = lines[:min(len(lines), height)]
	for i, line := range lines {
		if letters := []rune(line); len(letters) > width {
			line = string(letters[:width-1]) + "…"
		}
		if strings.HasPrefix(line, "ATTENTION") && s.Getenv("NO_COLOR") == "" && s.global.color != "never" {
			line = red + line + plain
		}
		lines[i] = line + restOfLine
	}
	return home + strings.Join(lines, "\r\n") + restOfPage
}

func (h *history) add(st *outbox.Stats) {
	push := func(values *[]float64, v float64) {
		*values = append(*values, v)
		if over := len(*values) - historyLength; over > 0 {
			*values = (*values)[over:]
		}
	}
	push(&h.rate, st.Delivered["1m"])
	push(&h.backlog, float64(st.Due+st.Status[outbox.InProgress]))
	push(&h.lag, st.Lag.Seconds())
	push(&h.errors, st.ErrorShare())
}

// charts draws rate and backlog side by side where there is room, and else the sparklines alone.
func (h *history) charts(width int) string {
	const labels, chartHeight, least = 12, 5, 90
	sparks := fmt.Sprintf("%-11s %s\n%-11s %s\n\n", "lag", sparkline(last(h.lag, width-labels)), "errors", sparkline(last(h.errors, width-labels)))
	if width < least {
		return sparks + fmt.Sprintf("%-11s %s\n%-11s %s\n", "per minute", sparkline(last(h.rate, width-labels)), "backlog", sparkline(last(h.backlog, width-labels)))
	}
	half := width/2 - 2
	left, right := chart("delivered per minute", h.rate, half, chartHeight), chart("backlog", h.backlog, half, chartHeight)
	var text strings.Builder
	for i := range left {
		fmt.Fprintf(&text, "%s%s  %s\n", left[i], strings.Repeat(" ", max(0, half-len([]rune(left[i])))), right[i])
	}
	return sparks + text.String()
}

// chart is a plot with its name above, as lines of at most that width.
func chart(name string, values []float64, width, height int) []string {
	const axis = 12
	values = last(values, width-axis)
	if len(values) == 1 {
		values = append(values, values[0])
	}
	top := 1.0
	for _, v := range values {
		top = max(top, v)
	}
	plot := asciigraph.Plot(values, asciigraph.Height(height-1), asciigraph.LowerBound(0), asciigraph.UpperBound(top), asciigraph.Precision(0),
		asciigraph.YAxisValueFormatter(func(v float64) string { return thousands(int64(v + 0.5)) }))
	lines := append([]string{name}, strings.Split(plot, "\n")...)
	for len(lines) < height+1 {
		lines = append(lines, "")
	}
	return lines[:height+1]
}

func last(values []float64, n int) []float64 { return values[max(0, len(values)-max(n, 1)):] }

// sparkline draws values between nothing and the largest of them.
func sparkline(values []float64) string {
	blocks := []rune("▁▂▃▄▅▆▇█")
	top := 0.0
	for _, v := range values {
		top = max(top, v)
	}
	var text strings.Builder
	for _, v := range values {
		level := 0
		if top > 0 {
			level = int(v / top * float64(len(blocks)-1))
		}
		text.WriteRune(blocks[level])
	}
	return text.String()
}

// checkWatch refuses what --watch has no form for.
func (o *statsOptions) checkWatch(a *app) error {
	switch {
	case time.Duration(o.watch) < minWatch:
		return usage(fmt.Errorf("--watch must be %s or longer", minWatch), "")
	case o.check.on || o.by != "" || o.outputFile != "":
		return usage(errors.New("--watch goes without --check, --by and --output-file"), "")
	case a.global.output != "table" && a.global.output != "json":
		return usage(fmt.Errorf("--watch has no form for -o %s: want table or json", a.global.output), "")
	}
	return nil
}
