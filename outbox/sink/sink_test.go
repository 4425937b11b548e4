package sink_test

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/outboxctl/outboxctl/outbox"
	"github.com/outboxctl/outboxctl/outbox/sink"
	"github.com/outboxctl/outboxctl/outbox/sink/file"
	"github.com/outboxctl/outboxctl/outbox/sink/stdout"
	"github.com/outboxctl/outboxctl/outbox/sink/webhook"
)

func TestOpenMakesTheSinkOfEachScheme(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, url := range []string{
		"https://example.com/hook", "http://example.com/hook", "HTTPS://example.com/hook",
		"stdout:", "stdout://", "file:" + filepath.Join(dir, "a b?c%20d"), "file://" + filepath.Join(dir, "absolute"),
	} {
		s, err := sink.Open(url, sink.Options{Stdout: io.Discard})
		if err != nil {
			t.Errorf("Open(%s) = %v", url, err)
			continue
		}
		if got := kind(s); !strings.HasPrefix(strings.ToLower(url), got) {
			t.Errorf("Open(%s) is a sink of %s", url, got)
		}
		if c, ok := s.(io.Closer); ok {
			c.Close()
		}
	}
	for _, name := range []string{"a b?c%20d", "absolute"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			t.Error(err)
		}
	}
}

func kind(s outbox.Sink) string {
	switch s.(type) {
	case *webhook.Sink:
		return "http"
	case *stdout.Sink:
		return "stdout"
	case *file.Sink:
		return "file"
	}
	return "nothing known"
}

func TestOpenSaysWhatIsWrong(t *testing.T) {
	t.Parallel()
	const known = "file, http, https, stdout"
	for url, want := range map[string]string{
		"ftp://user:CANARY@example.com/": `url: scheme "ftp" is unknown; known: ` + known,
		"localhost:8080":                 "url: begins with none of the known schemes: " + known,
		"CANARY:CANARY@example.com":      "url: begins with none of the known schemes: " + known,
		"https":                          "url: begins with none of the known schemes: " + known,
		"":                               "url: begins with none of the known schemes: " + known,
		"http://127.0.0.1/":              "url: 127.0.0.1 is not public; allow_private opens it",
		"stdout:x":                       "url: stdout: takes nothing after the colon",
		"stdout:":                        "url: there is no standard output here",
		"file:":                          "url: file: needs a path",
		"file://host/path":               "url: file:// has a host; write file:PATH or file:///PATH",
		"file:/no/such/folder/x":         "url: open /no/such/folder/x: no such file or directory",
	} {
		s, err := sink.Open(url, sink.Options{})
		if err == nil || err.Error() != want || s != nil {
			t.Errorf("Open(%s) = %v, %v, want nil, %s", url, s, err, want)
		}
	}
}

func TestOptionsReachTheSink(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	s, err := sink.Open("stdout:", sink.Options{Stdout: &out})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Deliver(t.Context(), outbox.Event{Payload: []byte("1")}); err != nil || !strings.Contains(out.String(), `"payload":1}`) {
		t.Errorf("Deliver() = %v, wrote %q", err, &out)
	}
	if _, err := sink.Open("http://localhost/", sink.Options{Webhook: webhook.Config{AllowPrivate: true}}); err != nil {
		t.Errorf("Open() = %v", err)
	}
}
