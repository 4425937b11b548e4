package outbox_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/outboxctl/outboxctl/outbox"
	"github.com/outboxctl/outboxctl/outbox/outboxtest"
)

func TestLargePayloadsAreReadOneByOneBeforeTheyAreSent(t *testing.T) {
	t.Parallel()
	db := outboxtest.DB(t)
	text := strings.Repeat("é<&>", 100_000)
	document, err := json.Marshal(map[string]string{"text": text})
	if err != nil {
		t.Fatal(err)
	}
	raw := bytes.Repeat([]byte{0, 0xff, 'x'}, 100_000)
	exec(t, db, `insert into outbox (aggregate_type, aggregate_id, event_type, payload) values ('file', 'json', 'file.added', $1::text::jsonb)`, string(document))
	exec(t, db, `insert into outbox (aggregate_type, aggregate_id, event_type, payload_bytes) values ('file', 'bytes', 'file.added', $1)`, raw)
	exec(t, db, `insert into outbox (aggregate_type, aggregate_id, event_type, payload) values ('file', 'small', 'file.added', '{"n": 1.10}')`)

	sink := &recorder{}
	run(t, newDispatcher(db, sink))
	got := map[string]outbox.Event{}
	for _, ev := range sink.events {
		got[ev.AggregateID] = ev
	}
	var decoded map[string]string
	if err := json.Unmarshal(got["json"].Payload, &decoded); err != nil || decoded["text"] != text {
		t.Errorf("the large document arrived with %d bytes (%v), want its own", len(got["json"].Payload), err)
	}
	if !bytes.Equal(got["bytes"].Payload, raw) || !got["bytes"].Binary {
		t.Errorf("the large bytes arrived with %d bytes, want %d", len(got["bytes"].Payload), len(raw))
	}
	if string(got["small"].Payload) != `{"n": 1.10}` {
		t.Errorf("payload = %s, want its own bytes", got["small"].Payload)
	}
}

func TestAClaimLeavesLargePayloadsBehind(t *testing.T) {
	t.Parallel()
	db := outboxtest.DB(t)
	exec(t, db, `insert into outbox (aggregate_type, aggregate_id, event_type, payload_bytes) values ('file', '1', 'file.added', decode(repeat('00', 70000), 'hex'))`)
	d := newDispatcher(db, nil)
	q := queueFor(db, d)
	done, err := q.Exchange(t.Context(), nil, outbox.Want{N: 1, Fresh: true})
	if err != nil || len(done.Events) != 1 {
		t.Fatalf("Exchange() = %d events, %v; want 1", len(done.Events), err)
	}
	ev := done.Events[0]
	if !ev.Deferred || ev.Payload != nil || ev.Size != 70000 {
		t.Errorf("deferred %v, %d bytes claimed, size %d; want true, 0, 70000", ev.Deferred, len(ev.Payload), ev.Size)
	}
	exec(t, db, `update outbox set lease = 'somebody else'`)
	if _, err := q.Payload(t.Context(), &ev); err != outbox.ErrLeaseLost {
		t.Errorf("Payload() of a lost event = %v, want ErrLeaseLost", err)
	}
}

// unread is a source whose large payloads cannot be had.
type unread struct {
	outbox.Source
	err func(ctx context.Context) error
}

func (u unread) Payload(ctx context.Context, _ *outbox.Event) ([]byte, error) { return nil, u.err(ctx) }

func TestPayloadThatIsNotReadIsNotAnAttempt(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		err  func(ctx context.Context) error
		want string // status, attempts, kind, error and the minutes until the next attempt
	}{
		{"unreadable", func(context.Context) error { return fmt.Errorf("%w: too long", outbox.ErrUnreadable) },
			"dead_letter 0 invalid the payload cannot be read: too long"},
		{"too slow", func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }, "pending 0 5"},
		{"the database is away", func(context.Context) error { return errors.New("connection refused") }, "pending 0 0"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			db := outboxtest.DB(t)
			insert(t, db, 3)
			exec(t, db, `insert into outbox (aggregate_type, aggregate_id, event_type, payload_bytes)
				values ('file', 'large', 'file.added', decode(repeat('00', 70000), 'hex'))`)
			sink := &recorder{}
			d := newDispatcher(db, sink)
			d.Wait, d.RequestTimeout = 0, 100*time.Millisecond
			d.Source = unread{d.Source, tt.err}
			run(t, d)
			if len(sink.events) != 3 {
				t.Errorf("%d events were sent, want the 3 others", len(sink.events))
			}
			if got := query[string](t, db, `select concat_ws(' ', status, attempts, error_kind, error,
				round(extract(epoch from next_attempt_at - now()) / 60)) from outbox where aggregate_id = 'large'`); got != tt.want {
				t.Errorf("the row = %q, want %q", got, tt.want)
			}
		})
	}
}

func TestPolicyEndsLargePayloadsUnsent(t *testing.T) {
	t.Parallel()
	db := outboxtest.DB(t)
	exec(t, db, `insert into outbox (aggregate_type, aggregate_id, event_type, payload)
		select 'file', n::text, 'file.added', to_jsonb(repeat('x', n - 2)) from unnest(array[1000, 1001, 100000, 3000000]) n`)
	exec(t, db, `insert into outbox (aggregate_type, aggregate_id, event_type, payload_bytes)
		select 'file', n::text, 'file.added', decode(repeat('00', n), 'hex') from unnest(array[1000, 1001, 100000]) n`)
	sink := &recorder{}
	d := newDispatcher(db, sink)
	d.Policy.MaxPayload = 1000
	summary := run(t, d)
	if summary.Delivered != 2 || summary.Dead != 5 || len(sink.events) != 2 {
		t.Errorf("delivered %d, dead %d in %d calls; want 2, 5, 2", summary.Delivered, summary.Dead, len(sink.events))
	}
	if n := query[int](t, db, `select count(*) from outbox where status = 'dead_letter' and error_kind = 'oversize' and attempts = 0
		and error = 'the payload has ' || aggregate_id || ' bytes; max_payload is 1000'`); n != 5 {
		t.Errorf("%d rows say that they are too large and were not sent, want 5", n)
	}
}
