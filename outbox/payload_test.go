package outbox_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

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
