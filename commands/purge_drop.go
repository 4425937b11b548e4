package commands

import (
	"context"
	"fmt"
	"time"

	"github.com/outboxctl/outboxctl/outbox"
)

const modeDrop = "drop-archive"

// partitionDocument is a month of the archive in outboxctl.purge/v1.
type partitionDocument struct {
	Name      string    `json:"name"`
	From      time.Time `json:"from"`
	To        time.Time `json:"to"`
	Events    int64     `json:"events"`
	Estimated bool      `json:"estimated"`
	Bytes     int64     `json:"bytes"`
}

func (o *purgeOptions) runDrop(ctx context.Context, a *app, store *outbox.Store, before time.Time) error {
	parts, err := store.Partitions(ctx, before)
	if err != nil {
		return err
	}
	return a.operate(ctx, store, operation{
		operateOptions: o.operateOptions,
		verb:           "purge", act: "drop", done: "dropped", noun: "month", what: "of the archive, ended before " + instant(before),
		spec:  outbox.Operation{Filter: purgeRecord{Filter: outbox.Filter{FinishedBefore: before}, Mode: modeDrop}, Alone: true},
		step:  func(r *outbox.Run) outbox.Step { return store.DropArchive(r, before) },
		pace:  outbox.Pace{Pause: time.Duration(o.pause)},
		lines: func(context.Context, outbox.Progress) ([]string, error) { return partitionLines(parts), nil },
		document: func(base operationDocument, p outbox.Progress) any {
			doc := o.newDocument(base, p)
			for _, part := range parts {
				doc.Partitions = append(doc.Partitions, partitionDocument{part.Name, part.From.UTC(), part.To.UTC(), part.Rows, part.About, part.Bytes})
			}
			return doc
		},
	})
}

// partitionLines are aligned: outbox_archive_2025_01   1,234 events   1 MiB.
func partitionLines(parts []outbox.Partition) []string {
	var lines []string
	for _, p := range parts {
		events := counted(p.Rows, "event")
		if p.About {
			events = "about " + events
		}
		lines = append(lines, fmt.Sprintf("%-24s  %22s  %10s", p.Name, events, bytesWords(p.Bytes)))
	}
	return lines
}
