package crash_test

import (
	"fmt"
	"net/url"
	"path/filepath"
	"strings"
	"testing"

	"github.com/outboxctl/outboxctl/outbox/outboxtest"
	"github.com/outboxctl/outboxctl/outbox/outboxtest/storm/crash"
)

const (
	canary     = "S3cret+/Canary&of=all"
	canaryPart = outboxtest.Secret("S3cret+/Canary")
)

// TestPanicsTellNothing has a dispatcher with secrets wherever it takes them panic while it has an event in hand: the
// dump of all goroutines has no secret, no connection string and no payload, and another goes on: B70.
func TestPanicsTellNothing(t *testing.T) {
	t.Parallel()
	file, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	for _, point := range []string{"after-claim", "before-request", "after-2xx", "before-settle"} {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			db := outboxtest.DB(t)
			execute(t, db, `insert into outbox (aggregate_type, aggregate_id, event_type, payload, headers)
				select 'order', i::text, 'order.created', jsonb_build_object('card', $1::text), jsonb_build_object('authorization', $1::text)
				  from generate_series(1, 6) i`, canary)
			r := outboxtest.NewReceiver(t, nil)
			s := &stage{binary: file, proof: filepath.Join(t.TempDir(), "proof")}
			s.url = strings.Replace(db.Config().ConnString(), "postgres@", "postgres:"+url.QueryEscape(canary)+"@", 1)
			if !strings.Contains(s.url, url.QueryEscape(canary)) {
				t.Fatalf("no password in the connection string")
			}
			secrets := []string{"WEBHOOK_URL=" + strings.Replace(r.URL, "://", "://app:"+url.QueryEscape(canary)+"@", 1), "OUTBOXCTL_SECRET=" + canary + canary + canary}
			args := []string{"dispatch", "--allow-private", "--log-level", "debug", "--poll-interval", poll.String(), "--lease", lease.String(), "--request-timeout", "500ms"}
			victim := s.start(t, append(append(crash.Env(point, 1, s.proof), crash.By+"=panic", "GOTRACEBACK=all"), secrets...), args...)
			victim.wait()
			dump := victim.words.String()
			if code := victim.cmd.ProcessState.ExitCode(); code != 2 || !strings.Contains(dump, fmt.Sprintf("panic: crash point %s", point)) || strings.Count(dump, "goroutine ") < 3 {
				t.Errorf("exit code %d, want 2 and a dump of all goroutines: %s", code, dump)
			}
			if how := canaryPart.In(dump); how != "" {
				t.Errorf("a secret is told, %s, in %s", how, dump)
			}
			healthy := s.start(t, secrets, args...)
			allDelivered(t, db)
			healthy.stop()
		})
	}
}
