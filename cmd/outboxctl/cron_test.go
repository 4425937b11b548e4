package main_test

import (
	"syscall"
	"testing"
	"time"

	"github.com/outboxctl/outboxctl/outbox/outboxtest"
)

// TestOverlappingRunsOfCronSendEveryEventOnce has runs that take longer than the pause between them.
func TestOverlappingRunsOfCronSendEveryEventOnce(t *testing.T) {
	t.Parallel()
	const n, runs = 300, 3
	url, db := database(t)
	insert(t, db, "order.created", n)
	running := make(chan struct{})
	r := outboxtest.NewReceiver(t, func(int, *outboxtest.Request) outboxtest.Answer {
		<-running
		return outboxtest.Answer{Delay: 10 * time.Millisecond}
	})
	var all []*process
	for range runs {
		all = append(all, dispatch(t, url, r.URL, "--once", "--batch-size", "20", "--request-timeout", "50s", "--lease", "60s"))
	}
	eventually(t, "all of them are sending", func() bool {
		return query[int](t, db, `select count(distinct split_part(lease, '/', 1)) from outbox`) == runs
	})
	close(running)
	for _, p := range all {
		if code := p.wait(patience); code != 0 {
			t.Errorf("exit code %d, want 0", code)
		}
	}
	if r.Count() != n || len(r.ByKey()) != n || count(t, db, "delivered") != n {
		t.Errorf("%d requests for %d events, %d delivered; want %d of each", r.Count(), len(r.ByKey()), count(t, db, "delivered"), n)
	}
}

// TestHangupWithoutASecretFileChangesNothing sends the signal that a log rotation might.
func TestHangupWithoutASecretFileChangesNothing(t *testing.T) {
	t.Parallel()
	url, db := database(t)
	r := outboxtest.NewReceiver(t, nil)
	d := dispatch(t, url, r.URL)
	insert(t, db, "order.created", 1)
	r.Wait(t, 1, patience)
	for range 20 {
		d.signal(syscall.SIGHUP)
	}
	d.says(`level=INFO msg="nothing to read again: there is no --secret-file"`)
	insert(t, db, "order.created", 1)
	r.Wait(t, 2, patience)
	allDelivered(t, db, 2)
	d.stop()
}
