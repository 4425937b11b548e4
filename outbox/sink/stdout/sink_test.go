package stdout_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"sync"
	"testing"

	"github.com/outboxctl/outboxctl/outbox"
	"github.com/outboxctl/outboxctl/outbox/sink/stdout"
)

// writes counts writes, to see that a line is one of them.
type writes struct {
	bytes.Buffer
	n int
}

func (w *writes) Write(p []byte) (int, error) {
	w.n++
	return w.Buffer.Write(p)
}

func TestEachEventIsOneLineInOneWrite(t *testing.T) {
	t.Parallel()
	var out writes
	s := stdout.New(&out)
	const events = 50
	var wg sync.WaitGroup
	for i := range events {
		wg.Go(func() {
			_, err := s.Deliver(t.Context(), outbox.Event{ID: int64(i), Type: "a\nb", Payload: []byte(`{"a": "<&>"}`)})
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	lines := strings.SplitAfter(strings.TrimSuffix(out.String(), "\n"), "\n")
	if len(lines) != events || out.n != events {
		t.Fatalf("%d lines in %d writes, want %d", len(lines), out.n, events)
	}
	for _, line := range lines {
		if !json.Valid([]byte(line)) || !strings.Contains(line, `"payload":{"a": "<&>"}}`) {
			t.Errorf("line %s", line)
		}
	}
}

func TestReceiptSaysHowMuchWasWritten(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	got, err := stdout.New(&out).Deliver(t.Context(), outbox.Event{Payload: []byte("1")})
	if want := (outbox.Receipt{Text: "252 bytes"}); err != nil || got != want || out.Len() != 252 {
		t.Errorf("Deliver() = %+v, %v after %d bytes, want %+v", got, err, out.Len(), want)
	}
}

func TestLostReaderIsSlow(t *testing.T) {
	t.Parallel()
	r, w := io.Pipe()
	r.Close()
	_, err := stdout.New(w).Deliver(t.Context(), outbox.Event{Payload: []byte("1")})
	failure, _ := errors.AsType[*outbox.DeliveryError](err)
	if failure == nil || failure.Verdict != outbox.VerdictSlow || failure.Kind != stdout.Kind || !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("Deliver() = %v, want a slow one of kind stdout", err)
	}
}

func TestCancelledDeliveryWritesNothing(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var out bytes.Buffer
	if _, err := stdout.New(&out).Deliver(ctx, outbox.Event{Payload: []byte("1")}); !errors.Is(err, context.Canceled) || out.Len() != 0 {
		t.Errorf("Deliver() = %v, wrote %q", err, &out)
	}
}
