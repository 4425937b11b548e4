package storm

import (
	"context"
	_ "embed"
	"errors"

	"github.com/outboxctl/outboxctl/outbox/outboxtest/edit"
	"github.com/outboxctl/outboxctl/outbox/outboxtest/storm/crash"
)

// goroutines is what has a process count them: from outside nobody can.
//
//go:embed goroutines.txt
var goroutines string

// Build makes what a plan runs from this source: outboxctl, and the same with crash points. Both differ from what users
// get by nothing else but that they count their goroutines when a variable tells them to.
func Build(ctx context.Context, binary, armed string) error {
	counts := edit.Edit{Name: "count of goroutines", File: "cmd/outboxctl/goroutines.go", New: goroutines}
	return errors.Join(edit.Build(ctx, binary, counts), crash.Build(ctx, armed, counts))
}
