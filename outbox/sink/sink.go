// Package sink makes the sink that a URL names.
//
// A technology is a folder below this one and a line in the table of schemes here.
package sink

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/outboxctl/outboxctl/outbox"
	"github.com/outboxctl/outboxctl/outbox/sink/file"
	"github.com/outboxctl/outboxctl/outbox/sink/stdout"
	"github.com/outboxctl/outboxctl/outbox/sink/webhook"
)

// Options is what a destination may set beside its URL. A sink takes what it knows.
type Options struct {
	Webhook webhook.Config // its URL does not count
	Stdout  io.Writer      // where stdout: writes
}

// opener makes the sink of one scheme. The URL is whole; errors name the setting and show neither
// password nor query.
type opener func(url string, o Options) (outbox.Sink, error)

// schemes says what a URL may begin with.
var schemes = map[string]opener{
	"file":   openFile,
	"http":   openWebhook,
	"https":  openWebhook,
	"stdout": openStdout,
}

// Schemes lists the known schemes in order.
func Schemes() []string { return slices.Sorted(maps.Keys(schemes)) }

// Open makes the sink that url names, or says what is wrong with it. It connects to nothing. A sink
// that holds something open is an [io.Closer]; one with a Warnings method has something to say.
func Open(url string, o Options) (outbox.Sink, error) {
	scheme, _, found := strings.Cut(url, ":")
	open, known := schemes[strings.ToLower(scheme)]
	switch {
	case known && found:
		return open(url, o)
	case strings.Contains(url, "://"):
		return nil, fmt.Errorf("url: scheme %q is unknown; known: %s", scheme, strings.Join(Schemes(), ", "))
	}
	return nil, fmt.Errorf("url: begins with none of the known schemes: %s", strings.Join(Schemes(), ", "))
}

// Check says what is wrong with a destination, as [Open] would, and opens no file.
func Check(url string, o Options) error {
	if scheme, path, found := strings.Cut(url, ":"); found && strings.EqualFold(scheme, "file") {
		_, err := filePath(path)
		return err
	}
	_, err := Open(url, o)
	return err
}

func openWebhook(url string, o Options) (outbox.Sink, error) {
	o.Webhook.URL = url
	s, err := webhook.New(o.Webhook)
	if err != nil {
		return nil, err
	}
	return s, nil
}

func openStdout(url string, o Options) (outbox.Sink, error) {
	switch _, rest, _ := strings.Cut(url, ":"); {
	case rest != "" && rest != "//":
		return nil, errors.New("url: stdout: takes nothing after the colon")
	case o.Stdout == nil:
		return nil, errors.New("url: there is no standard output here")
	}
	return stdout.New(o.Stdout), nil
}

// openFile takes file:PATH, where PATH is used as it is, and file:///PATH.
func openFile(url string, _ Options) (outbox.Sink, error) {
	_, path, _ := strings.Cut(url, ":")
	path, err := filePath(path)
	if err != nil {
		return nil, err
	}
	s, err := file.New(path)
	if err != nil {
		return nil, fmt.Errorf("url: %w", err)
	}
	return s, nil
}

func filePath(path string) (string, error) {
	if rest, ok := strings.CutPrefix(path, "//"); ok {
		if !strings.HasPrefix(rest, "/") {
			return "", errors.New("url: file:// has a host; write file:PATH or file:///PATH")
		}
		path = rest
	}
	if path == "" {
		return "", errors.New("url: file: needs a path")
	}
	return path, nil
}
