package main_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outboxctl/outboxctl/outbox/outboxtest"
)

// TestBadRowsEndAloneAmongHealthyOnes writes rows that are hard to send among a hundred that are
// not: B46.
func TestBadRowsEndAloneAmongHealthyOnes(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name    string // the row's aggregate_type
		columns string
		values  string
		want    string // its status, attempts and error_kind
		body    string // a part of the body, when it is sent
	}{
		{"invalid UTF-8", "payload_bytes", `decode('ff00fe', 'hex')`, "delivered 1", `"payload_base64":"/wD+"`},
		{"no bytes", "payload_bytes", `''`, "delivered 1", `"payload_base64":""`},
		{"JSON null", "payload", `'null'`, "delivered 1", `"payload":null`},
		{"line break in a header", "payload, headers", `'{}', jsonb_build_object('traceparent', e'00-1\r\nX-Forged: 1')`, "delivered 1", `"payload":{}`},
		{"line break in a header's name", "payload, headers", `'{}', jsonb_build_object(e'traceparent: 1\r\nX-Forged', '1')`, "delivered 1", `"payload":{}`},
		{"line break in the type", "payload, event_type", `'{}', e'order\r\nX-Forged: 1'`, "delivered 1", `"event_type":"order\u000d\nX-Forged: 1"`},
		{"no type", "payload, event_type", `'{}', ''`, "delivered 1", `"event_type":""`},
		{"header that is an object", "payload, headers", `'{}', '{"x": {"y": 1}}'`, "dead_letter 0 invalid", ""},
		{"headers that are a list", "payload, headers", `'{}', '[1]'`, "dead_letter 0 invalid", ""},
		{"headers that are null", "payload, headers", `'{}', 'null'`, "dead_letter 0 invalid", ""},
	}
	url, db := database(t)
	insert(t, db, "healthy", 50)
	for _, tt := range tests {
		if !strings.Contains(tt.columns, "event_type") {
			tt.columns, tt.values = tt.columns+", event_type", tt.values+", 'bad'"
		}
		execute(t, db, `insert into outbox (aggregate_type, aggregate_id, `+tt.columns+`) values ($1, '1', `+tt.values+`)`, tt.name)
	}
	insert(t, db, "healthy", 50)
	r := outboxtest.NewReceiver(t, nil)
	code, words := once(t, url, r.URL, "--batch-size", "20")
	if code != 3 || strings.Count(words, " attempt=0 error_kind=invalid ") != 3 {
		t.Errorf("exit code %d, want 3, and three lines about rows that were not sent: %s", code, words)
	}
	healthy := `select count(*) from outbox where event_type = 'healthy' and status = 'delivered' and attempts = 1`
	if n := query[int](t, db, healthy); n != 100 {
		t.Errorf("%d healthy events are delivered at once, want 100", n)
	}
	for _, tt := range tests {
		got := query[string](t, db, `select concat_ws(' ', status, attempts, error_kind) from outbox where aggregate_type = $1`, tt.name)
		if got != tt.want {
			t.Errorf("%s ends as %s, want %s", tt.name, got, tt.want)
		}
		if body := bodyOf(r, tt.name); !strings.Contains(body, tt.body) || (body == "") != (tt.body == "") {
			t.Errorf("%s was sent as %q, want %q in it", tt.name, body, tt.body)
		}
	}
	for _, request := range r.Requests() {
		if request.Header.Get("X-Forged") != "" {
			t.Errorf("a row has forged a header: %v", request.Header)
		}
	}
}

// bodyOf finds the request for the event of an aggregate type; "" when there was none.
func bodyOf(r *outboxtest.Receiver, aggregateType string) string {
	for _, request := range r.Requests() {
		if strings.Contains(string(request.Body), `"aggregate_type":"`+aggregateType+`"`) {
			return string(request.Body)
		}
	}
	return ""
}

// TestRowsThatNobodyCouldSendAreRefusedAtTheInsert is the producer's side of B46: the mistake is
// seen where it is made.
func TestRowsThatNobodyCouldSendAreRefusedAtTheInsert(t *testing.T) {
	t.Parallel()
	_, db := database(t)
	for _, tt := range []struct {
		name       string
		columns    string
		values     string
		constraint string
	}{
		{"no payload", "aggregate_id, payload", `'1', null`, "outbox_payload"},
		{"two payloads", "aggregate_id, payload, payload_bytes", `'1', '{}', ''`, "outbox_payload"},
		{"aggregate id of 10 KB", "aggregate_id, payload", `repeat('x', 10240), '{}'`, "outbox_key_size"},
		{"no aggregate id", "aggregate_id, payload", `'', '{}'`, "outbox_key_size"},
		{"unknown status", "aggregate_id, payload, status", `'1', '{}', 'sent'`, "outbox_status"},
		{"an escaped NUL", "aggregate_id, payload", `'1', '{"a": "x\u0000y"}'`, ""},
	} {
		_, err := db.Exec(context.Background(), `insert into outbox (aggregate_type, event_type, `+tt.columns+`) values ('order', 'bad', `+tt.values+`)`)
		refused, ok := errors.AsType[*pgconn.PgError](err)
		if !ok || refused.ConstraintName != tt.constraint {
			t.Errorf("%s: %v, want a refusal by %q", tt.name, err, tt.constraint)
		}
	}
}
