package commands_test

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/outboxctl/outboxctl/outbox/outboxtest"
)

// openTerminal returns both ends of a pseudo-terminal of that size.
func openTerminal(t *testing.T, width, height uint16) (keyboard, screen *os.File) {
	t.Helper()
	keyboard, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = keyboard.Close() })
	fd := int(keyboard.Fd())
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	number, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	if screen, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = screen.Close() })
	if err := unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: height, Col: width}); err != nil {
		t.Fatal(err)
	}
	return keyboard, screen
}

// On a terminal the page is redrawn in its place, cut to its size, and Ctrl-C leaves the terminal as it
// was.
func TestWatchLeavesTheTerminalAsItWas(t *testing.T) {
	t.Parallel()
	url := outboxtest.URL(t)
	execute(t, url, `insert into outbox (aggregate_type, aggregate_id, event_type, payload, available_at)
		values ('order', '1', repeat('long', 100), '{}', now() - interval '1 hour')`)
	const width, height = 70, 20
	keyboard, screen := openTerminal(t, width, height)
	out := &pressed{text: "\x1b[J", times: 3, signals: make(chan os.Signal, 1)}
	var wg sync.WaitGroup
	wg.Go(func() { _, _ = io.Copy(writerFunc(out.Write), keyboard) }) // ends with an error when the screen is closed
	code, words := watch(url, screen, out.signals)
	_ = screen.Close()
	wg.Wait()
	text := out.String()
	if code != 0 || words != "" {
		t.Errorf("exit %d: %s", code, words)
	}
	if !strings.HasPrefix(text, "\x1b[?1049h\x1b[?25l\x1b[H") || !strings.HasSuffix(text, "\x1b[?25h\x1b[?1049l") {
		t.Errorf("it begins with %q and ends with %q", text[:min(30, len(text))], text[max(0, len(text)-30):])
	}
	page := text[max(0, strings.LastIndex(text, "\x1b[H")):]
	lines := strings.Split(page, "\n")
	if len(lines) > height {
		t.Errorf("%d lines on a screen of %d", len(lines), height)
	}
	plain := strings.NewReplacer("\x1b[H", "", "\x1b[K", "", "\x1b[J", "", "\r", "", "\x1b[1;31m", "", "\x1b[0m", "", "\x1b[?25h", "", "\x1b[?1049l", "")
	for _, line := range lines {
		if n := len([]rune(plain.Replace(line))); n > width {
			t.Errorf("a line of %d on a screen of %d: %q", n, width, line)
		}
	}
	if !strings.Contains(page, "ATTENTION   nobody is looking: 1 event of destination") {
		t.Errorf("the page does not say what matters: %q", page)
	}
}
