// Package stdout delivers events to a stream, one JSON object a line (NDJSON).
package stdout

import (
	"context"
	"fmt"
	"io"
	"sync"

	"github.com/outboxctl/outboxctl/outbox"
)

// Kind is the error_kind of a stream that cannot be written.
const Kind = "stdout"

// Sink delivers events to one stream. An event counts as delivered when the stream took its line.
type Sink struct {
	mu sync.Mutex // one line at a time
	w  io.Writer
}

var _ outbox.Sink = (*Sink)(nil)

// New makes a sink that writes to w.
func New(w io.Writer) *Sink { return &Sink{w: w} }

// Deliver writes ev's envelope as one line, in one write. A stream that fails has lost its reader,
// which hits every event: the delivery is slow.
func (s *Sink) Deliver(ctx context.Context, ev outbox.Event) (outbox.Receipt, error) {
	line := ev.AppendLine(nil)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return outbox.Receipt{}, err
	}
	if _, err := s.w.Write(line); err != nil {
		return outbox.Receipt{}, &outbox.DeliveryError{Verdict: outbox.VerdictSlow, Kind: Kind,
			Err: fmt.Errorf("write to the stream: %w", err)}
	}
	return outbox.Receipt{Text: fmt.Sprintf("%d bytes", len(line))}, nil
}
