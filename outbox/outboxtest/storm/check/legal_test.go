package check_test

import (
	"testing"
	"time"

	"github.com/outboxctl/outboxctl/outbox/outboxtest/storm/check"
	"github.com/outboxctl/outboxctl/outbox/outboxtest/storm/history"
)

func TestWhatOnlyLooksLikeAViolationIsNone(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		make func(*tape)
	}{
		{"an ordinary life", func(t *tape) { t.insert(plain, "1", 0).sent(100) }},
		{"a retry", func(t *tape) {
			t.insert(plain, "1", 0).claimed("d1", 100).requested(110, 500).retried(150, 1000, "http", 500).sent(1300)
		}},
		{"sent again after a kill", func(t *tape) {
			t.insert(plain, "1", 0).claimed("d1", 100).requested(110, 200).claimed("d2", 5200).requested(5210, 200).delivered(5300)
			t.kill("d1", 115)
		}},
		{"killed before it sent anything", func(t *tape) {
			t.insert(plain, "1", 0).claimed("d1", 100).claimed("d2", 5200).requested(5210, 200).delivered(5300)
			t.kill("d1", 105)
		}},
		{"a lower id that commits late", func(t *tape) {
			late := t.insert(orders, "1", 4300)
			t.insert(orders, "1", 0).sent(4000)
			late.sent(4400)
		}},
		{"a lower id that commits while a later one is claimed", func(t *tape) {
			late := t.insert(orders, "1", 3950)
			late.write.Known = at(4030)
			t.insert(orders, "1", 0).sent(4000)
			late.sent(4400)
		}},
		{"an unknown commit that was done", func(t *tape) {
			e := t.insert(plain, "1", 0).sent(100)
			e.write.Fate, e.write.Known = history.Unknown, time.Time{}
		}},
		{"an unknown commit that was not done", func(t *tape) {
			e := t.insert(plain, "1", 0)
			e.write.Fate, e.write.Known, e.gone = history.Unknown, time.Time{}, true
			t.h.Transitions = nil
		}},
		{"a roll back", func(t *tape) {
			e := t.insert(plain, "1", 0)
			e.write.Fate, e.gone = history.RolledBack, true
			t.h.Transitions = nil
		}},
		{"an answer that was lost on the wire", func(t *tape) {
			t.insert(plain, "1", 0).claimed("d1", 100).requested(110, 200)
			e := t.events[0].retried(1150, 1000, "timeout", 0)
			t.fault("wire:reset", "wire plain", 90, 300)
			e.sent(2300)
		}},
		{"an answer that came too late", func(t *tape) {
			e := t.insert(plain, "1", 0).claimed("d1", 100).requestedFor(110, 1100, 200)
			t.last().Left = true
			e.retried(1150, 1000, "timeout", 0).sent(2300)
		}},
		{"a replay of what was delivered, with permission", func(t *tape) {
			e := t.insert(plain, "1", 0).sent(100)
			t.command("op-1", 900, `{"done": 1, "operation": 7}`, "replay", "--status=delivered", "--include-delivered", "--reason", "asked for")
			e.replayed("op-1", 1000).sent(1100)
			t.audit("op-1", 7, "replay", 1000, e)
			t.h.Audits[0].Reason = "asked for"
		}},
		{"a replay of what had failed, in its order", func(t *tape) {
			e := t.insert(orders, "1", 0)
			for i, ms := range []int{3600, 5000, 7500, 12_000} {
				e.claimed("d1", ms).requested(ms+10, 500)
				if i < 3 {
					e.retried(ms+50, []int{1000, 2000, 4000}[i], "http", 500)
				}
			}
			e.ended(12_050, "failed", "http", 500)
			t.insert(orders, "1", 1).sent(13_000)
			t.command("op-1", 14_000, `{"done": 1}`, "replay", "--destination", orders)
			e.replayed("op-1", 14_500).sent(15_000)
			t.audit("op-1", 1, "replay", 14_500, e)
		}},
		{"an unsent event is given back and sent as the same attempt", func(t *tape) {
			t.insert(plain, "1", 0).claimed("d1", 100).released(150).sent(200)
		}},
		{"a lease that lapses while its process is stopped, and whose settle is refused", func(t *tape) {
			t.fault("stop", "d1", 120, 6200)
			t.insert(plain, "1", 0).claimed("d1", 100).requested(110, 200).claimed("d2", 5200).requested(5210, 200).delivered(5300)
		}},
		{"a process that sends what it had looked at before it was stopped", func(t *tape) {
			t.fault("stop", "d1", 120, 6200)
			e := t.insert(plain, "1", 0).claimed("d1", 100)
			e.claimed("d2", 5200).requested(5210, 200).delivered(5300)
			late := *t.last()
			late.ID, late.Attempt, late.Began, late.At, late.Done = "late", 1, at(6205), at(6206), at(6210)
			t.h.Requests = append(t.h.Requests, late)
		}},
		{"a request that the wire holds up beyond its lease", func(t *tape) {
			t.fault("wire:blackhole", "wire plain", 90, 6000)
			e := t.insert(plain, "1", 0).claimed("d1", 100).retried(1150, 1000, "timeout", 0).claimed("d1", 6100).requested(6110, 200).delivered(6150)
			late := *t.last()
			late.ID, late.Attempt, late.Began, late.At, late.Done = "late", 1, at(6130), at(6131), at(6140)
			t.h.Requests = append(t.h.Requests, late)
			_ = e
		}},
		{"a settle after the lease, while nobody else has the row", func(t *tape) {
			t.insert(plain, "1", 0).claimed("d1", 100).requested(110, 200).delivered(5500)
		}},
		{"cut off by a shutdown beyond max_attempts", func(t *tape) {
			e := t.insert(plain, "1", 0)
			ms := 100
			for _, wait := range []int{1000, 2000, 4000} {
				e.claimed("d1", ms).requested(ms+10, 500).retried(ms+50, wait, "http", 500)
				ms += wait + 100
			}
			t.fault("term", "d1", ms+20, ms+600)
			e.claimed("d1", ms).requestedFor(ms+10, 590, 0)
			t.last().Behaviour, t.last().Left = "hang", true
			e.settled(ms+500, func(st *history.State) {
				next := at(ms + 500)
				st.Status, st.Kind, st.Code, st.Next = "pending", "shutdown", 0, &next
			})
			t.end("d1", ms+600, "exit 0")
			e.claimed("d2", ms+700).requested(ms+710, 200).delivered(ms + 750)
		}},
		{"a copy by the router", func(t *tape) {
			o := t.insert("", "1", 0)
			o.write.To = []string{plain, orders}
			c := t.copyOf(o, orders, 100)
			st := *o.st
			st.Dest = plain
			o.to("d1", 100, st).sent(200)
			c.sent(4000)
		}},
		{"a row that was purged", func(t *tape) {
			t.command("op-1", 900, `{"done": 1}`, "purge", "--older-than", "500ms")
			t.insert(plain, "1", 0).sent(100).purged("op-1", 1000)
		}},
		{"a row that was archived", func(t *tape) {
			t.command("op-1", 900, `{"done": 1}`, "purge", "--older-than", "500ms", "--archive")
			t.insert(plain, "1", 0).sent(100).purged("op-1", 1000).archive = true
		}},
		{"a dead letter's copy that begins anew", func(t *tape) {
			o := t.insert(orders, "1", 0)
			c := t.copyOf(o, plain, 4000).sent(4100)
			o.claimed("d1", 5000).requested(5010, 400).ended(5050, "dead_letter", "http", 400)
			c.replayed("d1", 5050)
			t.h.Transitions[len(t.h.Transitions)-1].Xid = t.h.Transitions[len(t.h.Transitions)-2].Xid
			c.sent(5100)
		}},
		{"an attempt that the wire lost", func(t *tape) {
			t.fault("wire:blackhole", "wire plain", 90, 1300)
			t.insert(plain, "1", 0).claimed("d1", 100).retried(1150, 1000, "timeout", 0).sent(2300)
		}},
		{"a command that was killed, and what is on record of it", func(t *tape) {
			t.command("op-1", 900, "", "purge", "--older-than", "100ms")
			t.h.Commands[0].Exit = -1
			t.operation(7, "op-1", "purge", 1)
			t.h.Operations[0].Ended = false
			t.insert(plain, "1", 0).sent(100).purged("op-1", 1000)
		}},
		{"a claim of what was paused a moment ago", func(t *tape) {
			t.pause("op-1", 1000, 60_000)
			t.insert(plain, "1", 0).sent(3000)
		}},
		{"a claim of what was resumed before its time", func(t *tape) {
			t.pause("op-1", 1000, 60_000)
			t.command("op-2", 4000, `{"paused": false, "destination": "plain"}`, "dispatch", "resume", plain)
			t.insert(plain, "1", 0).sent(4500)
		}},
		{"a claim of what two commands paused and resumed at once", func(t *tape) {
			t.pause("op-1", 1000, 60_000)
			t.command("op-2", 1500, `{"paused": false, "destination": "plain"}`, "dispatch", "resume", plain)
			t.insert(plain, "1", 0).sent(4500)
		}},
		{"a claim of another destination than the paused one", func(t *tape) {
			t.pause("op-1", 1000, 60_000)
			t.insert(orders, "1", 0).sent(4500)
		}},
		{"a claim by who could not learn of the pause", func(t *tape) {
			t.fault("wire:blackhole", "wire d1", 1500, 4200)
			t.pause("op-1", 1000, 60_000)
			t.insert(plain, "1", 0).sent(4000)
		}},
		{"two secrets in a rotation", func(t *tape) {
			t.insert(plain, "1", 0).sent(1000)
			t.last().Signed = []string{"second", "first"}
			t.last().Hmac = "second"
			t.h.Secrets = []history.Secret{{Name: "first", Began: began, Gone: at(2000)}, {Name: "second", Began: at(500)}}
		}},
		{"a run of an aggregate", func(t *tape) {
			a, b := t.insert(orders, "1", 0), t.insert(orders, "1", 1)
			t.claim("d1", 4000, a, b)
			a.requested(4010, 200)
			b.requested(4031, 200)
			a.delivered(4060)
			b.delivered(4060)
		}},
		{"a run that goes on behind a dead letter", func(t *tape) {
			a, b := t.insert(orders, "1", 0), t.insert(orders, "1", 1)
			t.claim("d1", 4000, a, b)
			a.requested(4010, 400)
			b.requested(4031, 200)
			a.ended(4060, "dead_letter", "http", 400)
			b.delivered(4060)
		}},
		{"a head that a person has given up", func(t *tape) {
			a, b := t.insert(strict, "1", 0), t.insert(strict, "1", 1)
			a.claimed("d1", 4000).requested(4010, 400).ended(4050, "dead_letter", "http", 400)
			t.command("op-1", 5000, `{"done": 1}`, "events", "discard", "--reason", "no use")
			a.discarded("op-1", 5100)
			t.audit("op-1", 1, "discard", 5100, a)
			b.sent(5200)
		}},
		{"a dead letter that a person edits", func(t *tape) {
			e := t.insert(plain, "1", 0).claimed("d1", 4000).requested(4010, 400).ended(4050, "dead_letter", "http", 400)
			t.command("op-1", 5000, `{"id": 1, "operation": 1}`, "events", "edit", "1")
			e.to("op-1", 5100, *e.st)
			t.audit("op-1", 1, "edit", 5100, e)
		}},
		{"an answer that a sender without a processor read too late", func(t *tape) {
			e := t.insert(plain, "1", 0).claimed("d1", 100).requested(1000, 200)
			for ms := 100; ms < 1100; ms += 100 {
				t.h.Waits = append(t.h.Waits, history.Wait{Name: "d1", From: at(ms), To: at(ms + 100), Waited: 70 * time.Millisecond})
			}
			e.retried(1150, 1000, "timeout", 0).sent(2300)
		}},
		{"those behind a head that failed for good wait for a person", func(t *tape) {
			t.insert(strict, "1", 0).claimed("d1", 4000).requested(4010, 400).ended(4050, "dead_letter", "http", 400)
			t.insert(strict, "1", 1)
		}},
		{"a claim whose answer was lost beside others", func(t *tape) {
			t.fault("wire:cut", "wire d1", 95, 105)
			var lost, all []*event
			for i := range 6 {
				lost = append(lost, t.insert(plain, "1", i))
				all = append(all, t.insert(plain, "1", i))
			}
			t.claim("d1", 100, lost...)
			t.claim("d1", 200, all...)
			for i, e := range all {
				e.requested(210+30*i, 200).delivered(500)
			}
			t.claim("d1", 5200, lost...)
			for i, e := range lost {
				e.requested(5210+30*i, 200).delivered(5500)
			}
		}},
		{"an event that is due long after the heal", func(t *tape) { t.insertDue(plain, "1", 0, 150_000).sent(150_500) }},
		{"a session of a stopped process", func(t *tape) {
			t.fault("stop", "d1", 1000, 5000)
			t.h.Sessions = append(t.h.Sessions, history.Session{App: "d1", At: at(4000), Since: 2 * time.Second})
		}},
		{"a session while another process starts", func(t *tape) {
			t.kill("d2", 3900)
			t.h.Sessions = append(t.h.Sessions, history.Session{App: "d1", At: at(4000), Since: 300 * time.Millisecond})
		}},
		{"a session on a machine that stood still", func(t *tape) {
			t.h.Stalls = append(t.h.Stalls, history.Stall{From: at(3800), To: at(3950)})
			t.h.Sessions = append(t.h.Sessions, history.Session{App: "d1", At: at(4000), Since: 240 * time.Millisecond})
		}},
		{"a session of a process that waited for a processor", func(t *tape) {
			t.h.Waits = append(t.h.Waits, history.Wait{Name: "d1", From: at(3750), To: at(3900), Waited: 120 * time.Millisecond})
			t.h.Sessions = append(t.h.Sessions, history.Session{App: "d1", At: at(4000), Since: 300 * time.Millisecond})
		}},
		{"a session of a producer", func(t *tape) {
			t.h.Processes = append(t.h.Processes, history.Process{Name: "producer", Role: "producer", Began: began})
			t.h.Sessions = append(t.h.Sessions, history.Session{App: "producer", At: at(4000), Since: 2 * time.Second})
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			tape := newTape()
			tt.make(tape)
			r := check.Run(tape.history())
			if got := broken(r); len(got) > 0 {
				t.Errorf("broken are %q, want none\n%s", got, r.String())
			}
		})
	}
}

func TestRunThatProvesNothingIsVoid(t *testing.T) {
	t.Parallel()
	whole := func() *tape {
		t := newTape()
		t.insert(plain, "1", 0).sent(51_000)
		return t
	}
	for _, tt := range []struct {
		name string
		make func(*tape)
		void bool
	}{
		{"whole", func(*tape) {}, false},
		{"no proof of a fault", func(t *tape) {
			t.fault("kill", "d2", 10, 10)
			t.h.Faults[0].Proof = ""
		}, true},
		{"never healed", func(t *tape) { t.h.Healed = time.Time{} }, true},
		{"nobody has looked for secrets", func(t *tape) { t.h.Searches = nil }, true},
		{"only empty places were searched", func(t *tape) { t.h.Searches[0].Bytes = 0 }, true},
		{"nobody has looked at sessions", func(t *tape) { t.h.Looks = 0 }, true},
		{"nothing was written", func(t *tape) { t.h.Transitions, t.h.Requests, t.events = nil, nil, nil }, true},
		{"a control run on a machine that stood still", func(t *tape) {
			t.h.Setup.Control = true
			e := t.insert(plain, "1", 0).claimed("d1", 100).requested(110, 200).retried(1150, 1000, "timeout", 0)
			e.sent(2300)
			t.h.Stalls = append(t.h.Stalls, history.Stall{From: at(200), To: at(900)})
		}, true},
		{"a control run with a fault", func(t *tape) {
			t.h.Setup.Control = true
			t.fault("kill", "d2", 10, 10)
		}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			tape := whole()
			tt.make(tape)
			r := check.Run(tape.history())
			if got := len(r.Void) > 0; got != tt.void || r.OK() == tt.void {
				t.Errorf("Void = %q, OK() = %v; want a void run: %v\n%s", r.Void, r.OK(), tt.void, r.String())
			}
		})
	}
}
