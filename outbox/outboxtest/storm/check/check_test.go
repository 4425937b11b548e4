package check_test

import (
	"slices"
	"testing"
	"time"

	"github.com/outboxctl/outboxctl/outbox/outboxtest/storm/check"
	"github.com/outboxctl/outboxctl/outbox/outboxtest/storm/history"
)

// broken are the names of the invariants that a history breaks.
func broken(r check.Report) (names []string) {
	for _, res := range r.Results {
		if res.Total > 0 {
			names = append(names, res.Name)
		}
	}
	return names
}

func TestEachViolationIsFoundByItsInvariantAlone(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		want string
		make func(*tape)
	}{
		{"a committed event is nowhere", "no loss", func(t *tape) {
			e := t.insert(plain, "1", 0)
			t.h.Transitions, t.events[0].gone = nil, true
			_ = e
		}},
		{"an open row is deleted", "no loss", func(t *tape) {
			t.command("op-1", 900, `{"done": 1}`, "purge", "--all", "--older-than", "1ms", "--status", "pending")
			e := t.insert(plain, "1", 0).purged("op-1", 1000)
			e.t.h.Commands[0].Args = []string{"purge"}
			e.t.h.Commands = nil
			e.t.h.Processes = append(e.t.h.Processes, history.Process{Name: "op-1", Role: "operator"})
		}},
		{"an archived event is not in the archive", "no loss", func(t *tape) {
			t.command("op-1", 900, `{"done": 1}`, "purge", "--older-than", "100ms", "--archive")
			t.insert(plain, "1", 0).sent(100).purged("op-1", 1000)
		}},
		{"a route is forgotten", "no loss", func(t *tape) {
			o := t.insert("", "1", 0)
			o.write.To = []string{plain, orders}
			st := *o.st
			st.Dest = plain
			o.to("d1", 100, st).sent(200)
		}},
		{"delivered is written before the request came", "no loss", func(t *tape) {
			e := t.insert(plain, "1", 0).claimed("d1", 100)
			e.names = ""
			e.settled(110, func(st *history.State) { st.Status = "delivered" })
			e.requested(150, 200)
		}},
		{"delivered after a 500", "no loss", func(t *tape) {
			e := t.insert(plain, "1", 0).claimed("d1", 100).requested(110, 500)
			e.settled(140, func(st *history.State) { st.Status = "delivered" })
		}},
		{"a request of a transaction that rolled back", "no phantom", func(t *tape) {
			e := t.insert(plain, "1", 0)
			e.write.Fate = history.RolledBack
			t.h.Transitions, e.gone = nil, true
			e.st.Attempts = 1
			e.requested(100, 200)
		}},
		{"a row of a transaction that rolled back", "no phantom", func(t *tape) {
			t.insert(plain, "1", 0).sent(100).write.Fate = history.RolledBack
		}},
		{"a request of an event that nobody wrote", "no phantom", func(t *tape) {
			t.insert(plain, "1", 0).sent(100)
			t.h.Requests = append(t.h.Requests, history.Request{ID: "x", Dest: plain, Key: "strange", Began: at(5), At: at(6), Done: at(7), Status: 500})
		}},
		{"a copy with a key of its own", "no phantom", func(t *tape) {
			o := t.insert(plain, "1", 0).sent(100)
			c := t.copyOf(o, "audit", 10)
			c.key = "another"
			c.sent(200)
		}},
		{"a request before its commit was asked for", "no phantom", func(t *tape) {
			t.insert(plain, "1", 0).sent(100).write.Asked = at(500)
		}},
		{"a request of a commit that was not done", "no phantom", func(t *tape) {
			e := t.insert(plain, "1", 0)
			e.write.Fate = history.Unknown
			t.h.Transitions, e.gone = nil, true
			e.st.Attempts = 1
			e.requested(100, 200)
		}},
		{"claimed before it is due", "nothing early", func(t *tape) { t.insertDue(plain, "1", 0, 3000).sent(100) }},
		{"claimed before its retry is due", "nothing early", func(t *tape) {
			t.insert(plain, "1", 0).claimed("d1", 100).requested(110, 500).retried(150, 1000, "http", 500).sent(600)
		}},
		{"sent again although it was settled", "attempts", func(t *tape) {
			e := t.insert(plain, "1", 0).claimed("d1", 100).requested(110, 500).requested(160, 500)
			e.retried(200, 1000, "http", 500).sent(1300)
		}},
		{"sent again without any fault", "duplicates explained", func(t *tape) {
			e := t.insert(plain, "1", 0).claimed("d1", 100).requested(110, 200)
			e.retried(200, 1000, "timeout", 0).sent(1300)
		}},
		{"sent again for a fault of another destination", "duplicates explained", func(t *tape) {
			t.fault("wire:reset", "wire orders", 90, 300)
			t.fault("receiver:hang", "receiver audit", 90, 300)
			t.fault("terminate", "sessions of d2", 90, 300)
			e := t.insert(plain, "1", 0).claimed("d1", 100).requested(110, 200)
			e.retried(200, 1000, "timeout", 0).sent(1300)
		}},
		{"lapsed without any fault", "duplicates explained", func(t *tape) {
			t.insert(plain, "1", 0).claimed("d1", 100).requested(110, 200).claimed("d2", 5200).requested(5210, 200).delivered(5300)
		}},
		{"twice in a control run", "duplicates explained", func(t *tape) {
			t.insert(plain, "1", 0).claimed("d1", 100).requestedFor(110, 1000, 200).retried(1150, 1000, "timeout", 0).sent(2300)
			t.h.Setup.Control = true
		}},
		{"a later event overtakes one that waits for its retry", "order", func(t *tape) {
			a := t.insert(orders, "1", 0)
			b := t.insert(orders, "1", 1)
			a.claimed("d1", 4000).requested(4010, 500).retried(4050, 1000, "http", 500)
			b.sent(4200)
			a.sent(5100)
		}},
		{"two of an aggregate are leased at once", "order", func(t *tape) {
			late := t.insert(orders, "1", 5000)
			t.insert(orders, "1", 0).claimed("d1", 4900).requested(4910, 200).delivered(6000)
			late.claimed("d2", 5100).requested(5110, 200).delivered(5150)
		}},
		{"a follower is sent although its head failed", "order", func(t *tape) {
			a, b := t.insert(orders, "1", 0), t.insert(orders, "1", 1)
			t.claim("d1", 4000, a, b)
			a.requested(4010, 500)
			b.requested(4040, 200)
			a.retried(4080, 1000, "http", 500)
			b.delivered(4080)
			a.sent(5100)
		}},
		{"a follower is sent before its head is answered", "order", func(t *tape) {
			a, b := t.insert(orders, "1", 0), t.insert(orders, "1", 1)
			t.claim("d1", 4000, a, b)
			a.requestedFor(4010, 400, 200)
			b.requested(4040, 200)
			a.delivered(4500)
			b.delivered(4500)
		}},
		{"a follower passes a head that failed for good", "order", func(t *tape) {
			a, b := t.insert(strict, "1", 0), t.insert(strict, "1", 1)
			a.claimed("d1", 4000).requested(4010, 400).ended(4050, "dead_letter", "http", 400)
			b.sent(4200)
		}},
		{"a stranger ends a live lease", "fence", func(t *tape) {
			e := t.insert(plain, "1", 0).claimed("d1", 100).requested(110, 200)
			e.app = "d2"
			e.delivered(150)
		}},
		{"a receipt of another attempt", "fence", func(t *tape) {
			e := t.insert(plain, "1", 0).claimed("d1", 100).requestedFor(110, 1000, 200)
			first := e.names
			e.retried(1150, 1000, "timeout", 0).claimed("d1", 2300).requested(2310, 200)
			e.names = first
			e.delivered(2350)
		}},
		{"a receipt that no receiver gave", "fence", func(t *tape) {
			e := t.insert(plain, "1", 0).claimed("d1", 100).requested(110, 200)
			e.names = "nobody"
			e.delivered(150)
		}},
		{"a delivered event is made pending by a dispatcher", "final", func(t *tape) {
			t.insert(plain, "1", 0).sent(100).replayed("d1", 1000).sent(1100)
		}},
		{"an event fails without being claimed", "final", func(t *tape) {
			e := t.insert(plain, "1", 0)
			e.app = "d1"
			e.ended(100, "failed", "http", 500)
		}},
		{"a live lease is taken over", "lease", func(t *tape) {
			t.insert(plain, "1", 0).claimed("d1", 100).requested(110, 500).claimed("d2", 1000).requested(1010, 200).delivered(1050)
		}},
		{"a lease is too long", "lease", func(t *tape) {
			t.h.Setup.Lease = 9 * time.Second
			t.insert(plain, "1", 0).sent(100)
			t.h.Setup.Lease = 5 * time.Second
		}},
		{"sent long after the lease was over", "lease", func(t *tape) {
			t.insert(plain, "1", 0).claimed("d1", 100).requested(6000, 200).delivered(6050)
		}},
		{"a stop sends all that it had", "lease", func(t *tape) {
			t.fault("stop", "d1", 200, 6200)
			for i := range 4 {
				t.insert(plain, "1", 0).claimed("d1", 100).requested(6210+i*30, 200).delivered(6250 + i*30)
			}
		}},
		{"a request without a claim", "attempts", func(t *tape) {
			e := t.insert(plain, "1", 0)
			e.st.Attempts = 1
			e.requested(50, 500)
			e.st.Attempts = 0
			e.claimed("d1", 100).requested(110, 200).delivered(150)
		}},
		{"an attempt is given back although it was sent", "attempts", func(t *tape) {
			t.insert(plain, "1", 0).claimed("d1", 100).requested(110, 500).released(150).sent(200)
		}},
		{"a claim counts nothing", "attempts", func(t *tape) {
			e := t.insert(plain, "1", 0).claimed("d1", 100).requested(110, 500).retried(150, 1000, "http", 500)
			e.claimed("d1", 1300)
			e.st.Attempts = 1
			e.requested(1310, 200).delivered(1350)
		}},
		{"an attempt is counted and not made", "attempts", func(t *tape) {
			t.insert(plain, "1", 0).claimed("d1", 100).retried(150, 1000, "refused", 0).sent(1300)
		}},
		{"a lease lapses and nobody knows why", "attempts", func(t *tape) {
			t.insert(plain, "1", 0).claimed("d1", 100).claimed("d2", 5200).requested(5210, 200).delivered(5300)
		}},
		{"an attempt is lost by the fault of another destination", "attempts", func(t *tape) {
			t.fault("receiver:reset", "receiver orders", 90, 300)
			t.insert(plain, "1", 0).claimed("d1", 100).retried(150, 1000, "refused", 0).sent(1300)
		}},
		{"retried beyond its attempts", "max attempts", func(t *tape) {
			e := t.insert(plain, "1", 0)
			ms := 100
			for i, wait := range []int{1000, 2000, 4000, 8000} {
				e.claimed("d1", ms).requested(ms+10, 500).retried(ms+50, wait, "http", 500)
				ms += wait + 100
				_ = i
			}
			e.discarded("op-1", ms)
			t.command("op-1", ms-100, `{"done": 1}`, "events", "discard", "--status", "pending")
			t.audit("op-1", 1, "discard", ms, e)
			t.answersLater(e)
		}},
		{"failed too soon", "max attempts", func(t *tape) {
			e := t.insert(plain, "1", 0).claimed("d1", 100).requested(110, 500)
			e.ended(150, "failed", "http", 500)
			t.answersLater(e)
		}},
		{"a retry comes too soon", "backoff", func(t *tape) {
			t.insert(plain, "1", 0).claimed("d1", 100).requested(110, 500).retried(150, 200, "http", 500).sent(400)
		}},
		{"a retry comes too late", "backoff", func(t *tape) {
			t.insert(plain, "1", 0).claimed("d1", 100).requested(110, 500).retried(150, 1500, "http", 500).sent(2000)
		}},
		{"a retry comes before Retry-After", "backoff", func(t *tape) {
			e := t.insert(plain, "1", 0).claimed("d1", 100).requested(110, 503)
			t.last().Wait = 3 * time.Second
			e.retried(150, 1000, "http", 503).sent(4000)
		}},
		{"a wrong secret is retried fast", "backoff", func(t *tape) {
			t.insert(plain, "1", 0).claimed("d1", 100).requested(110, 401).retried(150, 1000, "http", 401).sent(2000)
		}},
		{"more are claimed than batch_size", "limits", func(t *tape) {
			var all []*event
			for i := range 7 {
				all = append(all, t.insert(plain, "1", i))
			}
			t.claim("d1", 100, all...)
			for i, e := range all {
				e.requested(200+i*30, 200).delivered(240 + i*30)
			}
		}},
		{"more are sent than parallel", "limits", func(t *tape) {
			for i := range 4 {
				t.insert(plain, "1", i).claimed("d1", 100).requestedFor(200+i, 500, 200).delivered(710 + i)
			}
		}},
		{"more are sent of a tenant than it may have", "limits", func(t *tape) {
			for i := range 3 {
				t.insert(slow, "1", i).claimed("d1", 100).requestedFor(200+i, 500, 200).delivered(710 + i)
			}
		}},
		{"more are sent than the rate", "limits", func(t *tape) {
			for i := range 20 {
				t.insert(slow, "1", i).sent(100 + i*40)
			}
		}},
		{"more are sent of a tenant than its rate", "limits", func(t *tape) {
			t.h.Setup.Destinations[3].TenantRate = 4
			for i := range 8 {
				t.insert(slow, "1", i).sent(100 + i*120)
			}
		}},
		{"an answer that was not given", "answers", func(t *tape) {
			t.insert(plain, "1", 0).claimed("d1", 100).requested(110, 500).retried(150, 1000, "http", 502).sent(1300)
		}},
		{"a bad request is retried", "answers", func(t *tape) {
			t.insert(plain, "1", 0).claimed("d1", 100).requested(110, 400).retried(150, 1000, "http", 400).sent(1300)
		}},
		{"an overload is a dead letter", "answers", func(t *tape) {
			t.insert(plain, "1", 0).claimed("d1", 100).requested(110, 503).ended(150, "dead_letter", "http", 503)
		}},
		{"another body in the second attempt", "bytes", func(t *tape) {
			e := t.insert(plain, "1", 0).claimed("d1", 100).requested(110, 500).retried(150, 1000, "http", 500).claimed("d1", 1300).requested(1310, 200)
			t.last().Body = "other"
			e.delivered(1350)
		}},
		{"another payload than the producer's", "bytes", func(t *tape) {
			t.insert(plain, "1", 0).sent(100)
			t.last().Payload = "other"
		}},
		{"another payload in the table", "bytes", func(t *tape) { t.insert(plain, "1", 0).sent(100).write.Payload = "payload-1 " }},
		{"no valid signature", "bytes", func(t *tape) {
			t.insert(plain, "1", 0).sent(100)
			t.last().Signed = nil
		}},
		{"signed with a secret that is long gone", "bytes", func(t *tape) {
			t.insert(plain, "1", 0).sent(20_000)
			t.h.Secrets = []history.Secret{{Name: "first", Began: began, Gone: at(1000)}, {Name: "second", Began: at(500)}}
		}},
		{"another sequence than the row's", "bytes", func(t *tape) {
			t.insert(plain, "1", 0).sent(100)
			t.last().Sequence = 99
		}},
		{"a replay of what was not selected", "operators", func(t *tape) {
			t.command("op-1", 900, `{"done": 1}`, "replay", "--status=failed")
			e := t.insert(plain, "1", 0).sent(100).replayed("op-1", 1000).sent(1100)
			t.audit("op-1", 1, "replay", 1000, e)
		}},
		{"a replay without a record", "operators", func(t *tape) {
			t.command("op-1", 900, `{"done": 1}`, "replay", "--status=delivered")
			t.insert(plain, "1", 0).sent(100).replayed("op-1", 1000).sent(1100)
		}},
		{"a replay that says more than it did", "operators", func(t *tape) {
			t.command("op-1", 900, `{"done": 2}`, "replay", "--status=delivered")
			e := t.insert(plain, "1", 0).sent(100).replayed("op-1", 1000).sent(1100)
			t.audit("op-1", 1, "replay", 1000, e)
		}},
		{"a purge of what is too young", "operators", func(t *tape) {
			t.command("op-1", 900, `{"done": 1}`, "purge", "--older-than", "5s")
			t.insert(plain, "1", 0).sent(100).purged("op-1", 1000)
		}},
		{"a dry run that changes rows", "operators", func(t *tape) {
			t.command("op-1", 900, `{"dry_run": true, "done": 1}`, "purge", "--older-than", "100ms", "--dry-run")
			t.insert(plain, "1", 0).sent(100).purged("op-1", 1000)
		}},
		{"a record of nobody", "operators", func(t *tape) {
			t.command("op-1", 900, `{"done": 1}`, "replay", "--status=delivered")
			e := t.insert(plain, "1", 0).sent(100).replayed("op-1", 1000).sent(1100)
			t.audit("op-1", 1, "replay", 1000, e)
			t.h.Audits[0].Who = ""
		}},
		{"a command that is not on record", "operators", func(t *tape) {
			t.command("op-1", 900, `{"done": 0, "operation": 8}`, "purge", "--older-than", "5s")
			t.operation(7, "op-2", "purge", 0)
			t.command("op-2", 1900, `{"done": 0, "operation": 7}`, "purge", "--older-than", "5s")
		}},
		{"a record of what nobody ran", "operators", func(t *tape) { t.operation(7, "", "purge", 0) }},
		{"a record of a command as another's", "operators", func(t *tape) {
			t.command("op-1", 900, `{"done": 0, "operation": 7}`, "purge", "--older-than", "5s")
			t.operation(7, "op-2", "purge", 0)
			t.command("op-2", 900, "", "purge", "--older-than", "5s")
		}},
		{"a record of another command", "operators", func(t *tape) {
			t.command("op-1", 900, `{"paused": true, "destination": "plain", "until": "2026-03-01T12:00:01Z", "operation": 7}`, "dispatch", "pause", plain)
			t.operation(7, "op-1", "resume", 1)
		}},
		{"a record without its reason", "operators", func(t *tape) {
			t.command("op-1", 900, `{"paused": true, "destination": "plain", "until": "2026-03-01T12:00:01Z", "operation": 7}`, "dispatch", "pause", plain, "--reason", "they asked")
			t.operation(7, "op-1", "pause", 1)
		}},
		{"a record without an end", "operators", func(t *tape) {
			t.command("op-1", 900, `{"done": 0, "operation": 7}`, "purge", "--older-than", "5s")
			t.operation(7, "op-1", "purge", 0)
			t.h.Operations[0].Ended = false
		}},
		{"a command that was killed did more than is on record", "operators", func(t *tape) {
			t.command("op-1", 900, "", "purge", "--older-than", "100ms")
			t.h.Commands[0].Exit = -1
			t.operation(7, "op-1", "purge", 1)
			for i := range 2 {
				t.insert(plain, "1", i).sent(100+50*i).purged("op-1", 1000)
			}
		}},
		{"a claim of what is paused", "pauses", func(t *tape) {
			t.pause("op-1", 1000, 60_000)
			t.insert(plain, "1", 0).sent(4000)
		}},
		{"a claim of what is paused, beside a fault of another", "pauses", func(t *tape) {
			t.fault("stop", "d2", 2100, 3000)
			t.pause("op-1", 1000, 60_000)
			t.insert(plain, "1", 0).sent(4000)
		}},
		{"an event is open at the end", "recovery", func(t *tape) { t.insert(plain, "1", 0) }},
		{"an event that nobody routes", "recovery", func(t *tape) { t.insert("", "1", 0) }},
		{"an event ends long after the heal", "recovery", func(t *tape) { t.insert(plain, "1", 0).sent(70_000) }},
		{"a follower waits long after its head", "recovery", func(t *tape) {
			t.insert(orders, "1", 0).sent(51_000)
			t.insert(orders, "1", 1).sent(70_000)
		}},
		{"an orderly stop leaves events leased", "stops keep results", func(t *tape) {
			t.fault("term", "d1", 400, 500)
			t.insert(plain, "1", 0).claimed("d1", 100).requested(110, 500).claimed("d2", 5200).requested(5210, 200).delivered(5300)
			t.end("d1", 500, "exit 0")
		}},
		{"an edit sends an event again", "operators", func(t *tape) {
			e := t.insert(plain, "1", 0).claimed("d1", 4000).requested(4010, 400).ended(4050, "dead_letter", "http", 400)
			t.command("op-1", 5000, `{"id": 1, "operation": 1}`, "events", "edit", "1")
			e.replayed("op-1", 5100)
			t.audit("op-1", 1, "edit", 5100, e)
			e.sent(5200)
		}},
		{"goroutines are left behind", "flat", func(t *tape) {
			for i := range 100 {
				t.h.Samples = append(t.h.Samples, history.Sample{Name: "d1", At: at(1000 * i), RSS: 20 << 20, Files: 20, Goroutines: 30 + 5*i})
			}
		}},
		{"memory grows", "flat", func(t *tape) {
			for i := range 100 {
				t.h.Samples = append(t.h.Samples, history.Sample{Name: "d1", At: at(1000 * i), RSS: int64(20+2*i) << 20, Files: 20, Goroutines: 30})
			}
		}},
		{"files are not closed", "flat", func(t *tape) {
			for i := range 100 {
				t.h.Samples = append(t.h.Samples, history.Sample{Name: "d1", At: at(1000 * i), RSS: 20 << 20, Files: 20 + 3*i, Goroutines: 30})
			}
		}},
		{"a session is idle in a transaction", "sessions", func(t *tape) {
			t.h.Sessions = append(t.h.Sessions, history.Session{App: "d1", At: at(5000), Since: 300 * time.Millisecond})
		}},
		{"a session is idle while others wait for a processor", "sessions", func(t *tape) {
			t.h.Waits = append(t.h.Waits,
				history.Wait{Name: "d1", From: at(4750), To: at(4900), Waited: 40 * time.Millisecond},
				history.Wait{Name: "d2", From: at(4750), To: at(4900), Waited: 150 * time.Millisecond})
			t.h.Sessions = append(t.h.Sessions, history.Session{App: "d1", At: at(5000), Since: 300 * time.Millisecond})
		}},
		{"a canary is in a log", "secrets", func(t *tape) { t.h.Searches[0].Found = []string{"database password"} }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			tape := newTape()
			tt.make(tape)
			r := check.Run(tape.history())
			if got := broken(r); !slices.Equal(got, []string{tt.want}) {
				t.Errorf("broken are %q, want %q alone\n%s", got, tt.want, r.String())
			}
		})
	}
}
