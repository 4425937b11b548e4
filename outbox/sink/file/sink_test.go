package file_test

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/outboxctl/outboxctl/outbox"
	"github.com/outboxctl/outboxctl/outbox/sink/file"
)

func open(t testing.TB, path string) *file.Sink {
	t.Helper()
	s, err := file.New(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func event(payload string) outbox.Event { return outbox.Event{Payload: []byte(payload)} }

func TestManyAtOnceLeaveWholeLines(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "out.ndjson")
	sinks := []*file.Sink{open(t, path), open(t, path)} // as two processes would
	const events = 100
	var wg sync.WaitGroup
	for i := range events {
		wg.Go(func() {
			if _, err := sinks[i%2].Deliver(t.Context(), event(`"`+strings.Repeat("x", 100*i)+`"`)); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	lines := strings.Split(strings.TrimSuffix(read(t, path), "\n"), "\n")
	if len(lines) != events {
		t.Errorf("%d lines, want %d", len(lines), events)
	}
	for _, line := range lines {
		if !json.Valid([]byte(line)) {
			t.Errorf("torn line %.100s", line)
		}
	}
}

func TestLinesAreAppendedToWhatIsThere(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ before, want string }{
		"nothing":         {"", ""},
		"whole lines":     {"{}\n", "{}\n"},
		"a torn last one": {"{}\n{\"event_id\":", "{}\n{\"event_id\":\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "out.ndjson")
			if err := os.WriteFile(path, []byte(tt.before), 0o600); err != nil {
				t.Fatal(err)
			}
			s := open(t, path)
			for _, payload := range []string{"1", "2"} {
				if _, err := s.Deliver(t.Context(), event(payload)); err != nil {
					t.Fatal(err)
				}
			}
			want := string(event("2").AppendLine(event("1").AppendLine([]byte(tt.want))))
			if got := read(t, path); got != want {
				t.Errorf("file is\n%s\nwant\n%s", got, want)
			}
		})
	}
}

func TestNewFileIsItsOwnersAlone(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "out.ndjson")
	open(t, path)
	stat, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if got := stat.Mode().Perm(); got != 0o600 {
		t.Errorf("mode = %v, want 0600", got)
	}
}

// A pipe whose reader goes away takes a part of a long line, as a full disk would.
func TestLineAfterATornOneStandsAlone(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	go readByte(path)
	s := open(t, path)
	long := event(`"` + strings.Repeat("x", 1<<20) + `"`)
	if _, err := s.Deliver(t.Context(), long); !errors.Is(err, syscall.EPIPE) {
		t.Fatalf("Deliver() = %v, want a broken pipe", err)
	}
	r, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	sent := make(chan error)
	go func() {
		_, err := s.Deliver(t.Context(), event("2"))
		sent <- err
		s.Close()
	}()
	lines := bufio.NewReader(r)
	if torn, err := lines.ReadString('\n'); err != nil || json.Valid([]byte(torn)) {
		t.Errorf("torn line %.100s, %v", torn, err)
	}
	if err := <-sent; err != nil {
		t.Errorf("a pipe has nothing to sync, but Deliver() = %v", err)
	}
	want := string(event("2").AppendLine(nil))
	if got, err := lines.ReadString('\n'); got != want {
		t.Errorf("line after the torn one = %q, %v, want %q", got, err, want)
	}
}

func readByte(path string) {
	r, err := os.Open(path)
	if err != nil {
		return
	}
	defer r.Close()
	r.Read(make([]byte, 1))
}

func TestClosedSinkDeliversNothing(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "out.ndjson")
	s := open(t, path)
	s.Close()
	if _, err := s.Deliver(t.Context(), event("1")); !errors.Is(err, os.ErrClosed) {
		t.Errorf("Deliver() = %v, want an error of a closed file", err)
	}
	if got := read(t, path); got != "" {
		t.Errorf("file is %q", got)
	}
}

var _ io.Closer = (*file.Sink)(nil)

// BenchmarkDeliver shows what one fsync for all that wait is worth.
func BenchmarkDeliver(b *testing.B) {
	s := open(b, filepath.Join(b.TempDir(), "out.ndjson"))
	b.SetParallelism(5)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if _, err := s.Deliver(b.Context(), event(`{"a": 1}`)); err != nil {
				b.Error(err)
			}
		}
	})
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "events/s")
}
