package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
	"sync"
	"unicode/utf8"

	"golang.org/x/term"
)

const (
	indent = "   "
	hang   = "    " // of the continuation of a long line
	width  = 100    // beyond which a line is long
)

// screen prints what happens: a heading for each scene, below it words, commands as they are typed,
// and what they print. It has colours on a terminal, unless NO_COLOR is set.
type screen struct {
	mu     sync.Mutex
	out    io.Writer
	color  bool
	scenes int
}

func newScreen(out *os.File) *screen {
	return &screen{out: out, color: os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb" &&
		term.IsTerminal(int(out.Fd()))}
}

// The colours, as a terminal knows them.
const (
	bold  = "1"
	dim   = "2"
	red   = "31"
	green = "32"
	cyan  = "36"
)

func paint(color, text string) string { return "\x1b[" + color + "m" + text + "\x1b[0m" }

var colors = regexp.MustCompile("\x1b\\[[0-9;]*m")

// plain is text without colours.
func plain(text string) string { return colors.ReplaceAllString(text, "") }

// scene begins a scene: its title, and in a few words what happens in it.
func (s *screen) scene(title string, words ...string) {
	if s.scenes++; s.scenes > 1 {
		s.print("\n")
	}
	s.print(paint(bold, fmt.Sprintf("%d  %s", s.scenes, title)) + "\n")
	for _, line := range words {
		s.line(paint(dim, line))
	}
}

// command shows a command as one would type it, a flag and its value on one line.
func (s *screen) command(line string) {
	rows := fold(strings.ReplaceAll("$ "+line, " --", "\n--"), "\n")
	for i, row := range rows {
		if i < len(rows)-1 {
			row += " \\"
		}
		s.line(paint(cyan, row))
	}
}

// logged prints a line of a log.
func (s *screen) logged(text string) {
	for _, row := range fold(text, " ") {
		s.line(row)
	}
}

// fold puts the words of a text into rows that are not too long.
func fold(text, separator string) []string {
	var rows []string
	row := ""
	for word := range strings.SplitSeq(text, separator) {
		switch {
		case row == "":
			row = word
		case utf8.RuneCountInString(plain(row+word)) < width:
			row += " " + word
		default:
			rows = append(rows, row)
			row = hang + word
		}
	}
	return append(rows, row)
}

func (s *screen) line(text string) { s.print(strings.TrimRight(indent+text, " ") + "\n") }

func (s *screen) verdict(holds bool, words string) {
	mark := paint(green, "✓")
	if !holds {
		mark = paint(red, "✗")
	}
	s.line(mark + " " + words)
}

// end prints the last line.
func (s *screen) end(words string) { s.print("\n" + words + "\n") }

func (s *screen) print(text string) {
	if !s.color {
		text = plain(text)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	io.WriteString(s.out, text)
}

// lines is a writer that passes on whole lines.
type lines struct {
	show func(line string)
	rest []byte
}

func (l *lines) Write(p []byte) (int, error) {
	l.rest = append(l.rest, p...)
	for {
		line, rest, found := bytes.Cut(l.rest, []byte("\n"))
		if !found {
			return len(p), nil
		}
		l.show(string(line))
		l.rest = rest
	}
}
