package outbox_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/outboxctl/outboxctl/outbox"
)

func sampleEvent() outbox.Event {
	return outbox.Event{
		TenantID: "acme", AggregateType: "order", AggregateID: "7", Type: "order.created", SchemaVersion: 2,
		Key:     uuid.MustParse("0198a6d2-5a3c-7c11-9d0e-3f5a6b7c8d9e"),
		Payload: []byte(`{"total": 1.10}`), ID: 42, Attempts: 1,
		CreatedAt: time.Date(2026, 3, 1, 10, 30, 0, 120_000_999, time.FixedZone("", 3600)),
	}
}

func TestEnvelopeIsTheDocumentedOne(t *testing.T) {
	t.Parallel()
	const key = "0198a6d2-5a3c-7c11-9d0e-3f5a6b7c8d9e"
	const head = `{"event_id":"` + key + `","idempotency_key":"` + key + `","sequence":`
	for _, tt := range []struct {
		name   string
		change func(*outbox.Event)
		sentAt time.Time
		want   string
	}{
		{"every field", func(*outbox.Event) {}, time.Time{},
			head + `"42","event_type":"order.created","schema_version":2,"aggregate_type":"order","aggregate_id":"7",` +
				`"tenant_id":"acme","created_at":"2026-03-01T09:30:00.120000Z","payload":{"total": 1.10}}`},
		{"no tenant, no version", func(e *outbox.Event) { e.TenantID, e.SchemaVersion = "", 0 }, time.Time{},
			head + `"42","event_type":"order.created","schema_version":1,"aggregate_type":"order","aggregate_id":"7",` +
				`"created_at":"2026-03-01T09:30:00.120000Z","payload":{"total": 1.10}}`},
		{"a routed copy keeps its original's place", func(e *outbox.Event) { e.SourceID = 9007199254740993 }, time.Time{},
			head + `"9007199254740993","event_type":"order.created","schema_version":2,"aggregate_type":"order",` +
				`"aggregate_id":"7","tenant_id":"acme","created_at":"2026-03-01T09:30:00.120000Z","payload":{"total": 1.10}}`},
		{"bytes go as base64", func(e *outbox.Event) { e.Binary, e.Payload = true, []byte{0, 0xff, '\n'} }, time.Time{},
			head + `"42","event_type":"order.created","schema_version":2,"aggregate_type":"order","aggregate_id":"7",` +
				`"tenant_id":"acme","created_at":"2026-03-01T09:30:00.120000Z","payload_base64":"AP8K"}`},
		{"with the time of sending", func(*outbox.Event) {}, time.Date(2026, 3, 1, 9, 31, 0, 5, time.UTC),
			head + `"42","event_type":"order.created","schema_version":2,"aggregate_type":"order","aggregate_id":"7",` +
				`"tenant_id":"acme","created_at":"2026-03-01T09:30:00.120000Z","sent_at":"2026-03-01T09:31:00.000000005Z",` +
				`"payload":{"total": 1.10}}`},
		{"names are escaped, but not for HTML",
			func(e *outbox.Event) { e.Type, e.AggregateID = "a\"\\\n\x00<&>é\u2028", "\xff" }, time.Time{},
			head + `"42","event_type":"a\"\\\n\u0000<&>é` + "\u2028" + `","schema_version":2,"aggregate_type":"order",` +
				`"aggregate_id":"\ufffd","tenant_id":"acme","created_at":"2026-03-01T09:30:00.120000Z","payload":{"total": 1.10}}`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			ev := sampleEvent()
			tt.change(&ev)
			if got := string(ev.AppendEnvelope(nil, tt.sentAt)); got != tt.want {
				t.Errorf("AppendEnvelope() =\n%s\nwant\n%s", got, tt.want)
			}
		})
	}
}

func TestEnvelopeIsTheSameForEveryAttempt(t *testing.T) {
	t.Parallel()
	first, later := sampleEvent(), sampleEvent()
	later.Attempts, later.Lease, later.Due = 7, "w/2", time.Now()
	if a, b := first.AppendEnvelope(nil, time.Time{}), later.AppendEnvelope(nil, time.Time{}); !bytes.Equal(a, b) {
		t.Errorf("attempt 1 sends %s, attempt 7 sends %s", a, b)
	}
}

func TestLineHasNoBreakButItsLast(t *testing.T) {
	t.Parallel()
	ev := sampleEvent()
	ev.AggregateID, ev.Payload = "a\r\nb", []byte("{\r\n\"a\\n\": 1\n}")
	got := string(ev.AppendLine([]byte("kept\n")))
	if !strings.HasPrefix(got, "kept\n{") || strings.Count(got, "\n") != 2 || strings.Contains(got, "\r") {
		t.Errorf("AppendLine() = %q, want one line after what was there", got)
	}
	if !strings.HasSuffix(got, "\"payload\":{  \"a\\n\": 1 }}\n") {
		t.Errorf("AppendLine() = %q, want the payload's line breaks as blanks", got)
	}
}

// decoded is the envelope as a consumer reads it.
type decoded struct {
	EventID       string          `json:"event_id"`
	Key           string          `json:"idempotency_key"`
	Sequence      string          `json:"sequence"`
	Type          string          `json:"event_type"`
	Version       int             `json:"schema_version"`
	AggregateType string          `json:"aggregate_type"`
	AggregateID   string          `json:"aggregate_id"`
	Tenant        string          `json:"tenant_id"`
	CreatedAt     time.Time       `json:"created_at"`
	Payload       json.RawMessage `json:"payload"`
	Base64        string          `json:"payload_base64"`
}

func FuzzEnvelopeDecodesToWhatWasSent(f *testing.F) {
	f.Add("order.created", "order", "7", "", []byte(`{"n": 9007199254740993, "x": 1.10}`), int64(1), false)
	f.Add("a\"b\\c\n\r\t\x00", "<&>", "строка", "\xff\xfe", []byte(`"<&> \u2028"`), int64(-1), false)
	f.Add("\u2028\u2029", "\x7f", "\xed\xa0\x80", "😀", []byte(`[ ]`), int64(1<<62), true)
	f.Add("", "", "", "", []byte(`null`), int64(0), true)
	f.Fuzz(func(t *testing.T, typ, kind, id, tenant string, payload []byte, seq int64, binary bool) {
		if !binary && !json.Valid(payload) {
			t.Skip("jsonb holds valid JSON only")
		}
		ev := sampleEvent()
		ev.Type, ev.AggregateType, ev.AggregateID, ev.TenantID = typ, kind, id, tenant
		ev.Payload, ev.Binary, ev.ID = payload, binary, seq
		body := ev.AppendEnvelope(nil, time.Time{})

		var got decoded
		if err := json.Unmarshal(body, &got); err != nil {
			t.Fatalf("%q is not JSON: %v", body, err)
		}
		want := decoded{
			EventID: ev.Key.String(), Key: ev.Key.String(), Sequence: strconv.FormatInt(seq, 10), Version: 2,
			Type: string([]rune(typ)), AggregateType: string([]rune(kind)), AggregateID: string([]rune(id)),
			Tenant: string([]rune(tenant)), CreatedAt: ev.CreatedAt.UTC().Truncate(time.Microsecond),
		}
		if binary {
			want.Base64 = base64.StdEncoding.EncodeToString(payload)
		} else if !bytes.Contains(body, append([]byte(`"payload":`), payload...)) {
			t.Errorf("%q does not hold the payload %q as it is", body, payload)
		}
		got.Payload = nil
		if a, b := mustJSON(t, got), mustJSON(t, want); a != b {
			t.Errorf("decoded %s, want %s", a, b)
		}
	})
}

func mustJSON(t *testing.T, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
