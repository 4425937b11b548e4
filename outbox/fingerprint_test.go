package outbox_test

import (
	"strings"
	"testing"

	"github.com/outboxctl/outboxctl/outbox"
)

func TestFingerprint(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ text, want string }{
		{"", ""},
		{"answered 503 Service Unavailable", "answered <n> Service Unavailable"},
		{"dial tcp 10.0.0.7:43112: connection refused", "dial tcp <address>: connection refused"},
		{"dial tcp [2001:db8::1]:443: i/o timeout", "dial tcp <address>: i/o timeout"},
		{"lookup crm.example.com: no such host", "lookup crm.example.com: no such host"},
		{"read tcp crm.example.com:8443: reset", "read tcp crm.example.com:<port>: reset"},
		{`order "4711" of 'Anna Schmidt' is closed`, "order <text> of <text> is closed"},
		{"it's closed, isn't it", "it's closed, isn't it"},
		{"request 6ba7b810-9dad-11d1-80b4-00c04fd430c8 failed", "request <id> failed"},
		{"request_id=req_9f8a7b6c failed", "request_id=<id> failed"},
		{"sha 9f86d081884c7d659a2feaa0c55ad015 of ord-4711", "sha <id> of <id>"},
		{"anna.schmidt+x@example.org is unknown", "<email> is unknown"},
		{"see https://example.com/a/1?token=s3cret now", "see <url> now"},
		{"at 2026-11-30T18:10:09.482Z after 1.5s, 3 MB", "at <time> after <n>, <n> MB"},
		{"больше 17 заказов клиента «Анна»", "больше <n> заказов клиента <text>"},
		{"no answer  for order 17\n(request 9e107d9d372bb6826bd81d3542a419d6)", "no answer for order <n> (request <id>)"},
	} {
		if got := outbox.Fingerprint(tt.text); got != tt.want {
			t.Errorf("fingerprint(%q) = %q, want %q", tt.text, got, tt.want)
		}
	}
}

func FuzzFingerprint(f *testing.F) {
	f.Add(`order "17" \" 10.0.0.1:80 <id> 2026-01-01`)
	f.Fuzz(func(t *testing.T, text string) {
		once := outbox.Fingerprint(text)
		if strings.ContainsAny(once, "\n\t") || len(once) > 20*len(text)+20 {
			t.Errorf("fingerprint(%q) = %q", text, once)
		}
	})
}

func TestAlike(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ a, b, want string }{
		{"customer Anna is unknown", "customer Bob is unknown", "customer <…> is unknown"},
		{"customer <…> is unknown", "customer Carl is unknown", "customer <…> is unknown"},
		{"the card is expired", "the cart is empty", ""},
		{"timeout", "refused", ""},
		{"a b c", "a b", ""},
		{"", "", ""},
	} {
		got, ok := outbox.Alike(strings.Fields(tt.a), strings.Fields(tt.b))
		if want := tt.want; ok != (want != "") || ok && strings.Join(got, " ") != want {
			t.Errorf("alike(%q, %q) = %q, %v, want %q", tt.a, tt.b, got, ok, want)
		}
	}
}
