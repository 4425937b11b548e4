package main_test

import (
	"bytes"
	"testing"

	"github.com/outboxctl/outboxctl/outbox/outboxtest"
)

// oddPayloads are what a serialiser on the way would change.
var oddPayloads = []string{
	`{"id": 9007199254740993, "price": 1.10, "big": 1e2}`,
	`{"b": 1, "a": "<&>\u2028", "b ": {"é": ["\ud83d\ude00", "\\u0041", "\"\/"]}}`,
	`"строка"`, `[]`, `null`, `-0`, `12345678901234567890.123456789012345678901234567890`,
}

// TestPayloadArrivesAsItIsInTheRow fails the first attempt of each event and compares what was sent
// with what PostgreSQL says is in the row, byte by byte: B44.
func TestPayloadArrivesAsItIsInTheRow(t *testing.T) {
	t.Parallel()
	for _, format := range []string{"envelope", "payload"} {
		t.Run(format, func(t *testing.T) {
			t.Parallel()
			url, db := database(t)
			for _, payload := range oddPayloads {
				execute(t, db, `insert into outbox (aggregate_type, aggregate_id, event_type, payload) values ('order', '1', 'order.created', $1::text::jsonb)`, payload)
			}
			r := outboxtest.NewReceiver(t, func(_ int, r *outboxtest.Request) outboxtest.Answer {
				if r.Attempt == 1 {
					return outboxtest.Answer{Status: 500}
				}
				return outboxtest.Answer{}
			})
			if code, words := once(t, url, r.URL, "--format", format, "--backoff", "10ms..1s"); code != 0 {
				t.Fatalf("exit code %d, want 0: %s", code, words)
			}
			for key, requests := range r.ByKey() {
				want := query[string](t, db, `select payload::text from outbox where idempotency_key = $1`, key)
				if format == "envelope" {
					want = `,"payload":` + want + `}`
				}
				if len(requests) != 2 || !bytes.Equal(requests[0].Body, requests[1].Body) {
					t.Errorf("event %s: %d requests, want 2 with the same body", key, len(requests))
				}
				if body := requests[0].Body; !bytes.HasSuffix(body, []byte(want)) || format == "payload" && len(body) != len(want) {
					t.Errorf("the body is %s, want %s", body, want)
				}
			}
			if n := len(r.ByKey()); n != len(oddPayloads) {
				t.Errorf("%d events were received, want %d", n, len(oddPayloads))
			}
		})
	}
}
