package file_test

import (
	"errors"
	"syscall"
	"testing"

	"github.com/outboxctl/outboxctl/outbox"
	"github.com/outboxctl/outboxctl/outbox/sink/file"
)

func TestFullDiskIsRetriedAndNotDelivered(t *testing.T) {
	t.Parallel()
	_, err := open(t, "/dev/full").Deliver(t.Context(), event("1"))
	failure, _ := errors.AsType[*outbox.DeliveryError](err)
	if failure == nil || failure.Verdict != outbox.VerdictRetry || failure.Kind != file.Kind || !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("Deliver() = %v, want a retry of kind file", err)
	}
}
