package main_test

import (
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/outboxctl/outboxctl/outbox/outboxtest"
)

// TestEachAnswerLeavesItsRow has one event for each thing that a receiver can do and looks at the
// rows afterwards; the webhook's own tests have more of them: B32, B36.
func TestEachAnswerLeavesItsRow(t *testing.T) {
	t.Parallel()
	const soon, slow = time.Minute, time.Hour // --backoff soon..slow
	const some = -1                           // soon, or at once when a connection was in use before
	location := http.Header{"Location": {"/elsewhere"}}
	tests := []struct {
		name   string
		answer outboxtest.Answer
		want   string        // status, error_kind and error_code
		after  time.Duration // until the next attempt; 0 = none
	}{
		{"200", outboxtest.Answer{}, "delivered", 0},
		{"201", outboxtest.Answer{Status: 201}, "delivered", 0},
		{"204", outboxtest.Answer{Status: 204}, "delivered", 0},
		{"200 and no end of the body", outboxtest.Answer{Body: "so far", Stall: true}, "delivered", 0},
		{"200 and less than it says", outboxtest.Answer{Raw: "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nless"}, "delivered", 0},
		{"103, then 200", outboxtest.Answer{Raw: "HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"}, "delivered", 0},
		{"301", outboxtest.Answer{Status: 301, Header: location}, "pending redirect 301", slow},
		{"302", outboxtest.Answer{Status: 302, Header: location}, "pending redirect 302", slow},
		{"307", outboxtest.Answer{Status: 307, Header: location}, "pending redirect 307", slow},
		{"401", outboxtest.Answer{Status: 401}, "pending http 401", slow},
		{"404", outboxtest.Answer{Status: 404}, "pending http 404", slow},
		{"408", outboxtest.Answer{Status: 408}, "pending http 408", soon},
		{"409", outboxtest.Answer{Status: 409}, "pending http 409", soon},
		{"425", outboxtest.Answer{Status: 425}, "pending http 425", soon},
		{"429", outboxtest.Answer{Status: 429}, "pending http 429", soon},
		{"429 in 600 s", outboxtest.Answer{Status: 429, Header: http.Header{"Retry-After": {"600"}}}, "pending http 429", 10 * time.Minute},
		{"500", outboxtest.Answer{Status: 500}, "pending http 500", soon},
		{"503", outboxtest.Answer{Status: 503}, "pending http 503", soon},
		{"400", outboxtest.Answer{Status: 400}, "dead_letter http 400", 0},
		{"410", outboxtest.Answer{Status: 410}, "dead_letter http 410", 0},
		{"413", outboxtest.Answer{Status: 413}, "dead_letter http 413", 0},
		{"422", outboxtest.Answer{Status: 422}, "dead_letter http 422", 0},
		{"no answer", outboxtest.Answer{Hang: true}, "pending timeout", soon},
		{"reset", outboxtest.Answer{Reset: true}, "pending reset", some},
		{"half-closed", outboxtest.Answer{HalfClose: true}, "pending eof", some},
		{"no HTTP", outboxtest.Answer{Raw: "220 mail.example.com ESMTP\r\n"}, "pending protocol", soon},
		{"half a header", outboxtest.Answer{Raw: "HTTP/1.1 200 OK\r\nContent-Le"}, "pending protocol", soon},
	}
	url, db := database(t)
	insert(t, db, "order.created", len(tests))
	r := outboxtest.NewReceiver(t, func(_ int, r *outboxtest.Request) outboxtest.Answer {
		i, err := strconv.Atoi(envelope(t, r.Body).AggregateID)
		if err != nil {
			return outboxtest.Answer{Status: 400}
		}
		return tests[i-1].answer
	})
	// Some answers pause the destination; a person resumes it.
	for left := len(tests); left > 0; left = query[int](t, db, `select count(*) from outbox where attempts = 0`) {
		execute(t, db, `update outbox_destinations set paused_until = null`)
		code, words := once(t, url, r.URL+"/hooks", "--backoff", soon.String()+".."+slow.String(), "--jitter", "0", "--wait", "0", "--request-timeout", "1s")
		if code != 0 && code != 3 || strings.Contains(words, "PostgreSQL") {
			t.Fatalf("exit code %d, want 0 or 3: %s", code, words)
		}
	}
	for i, tt := range tests {
		row := `select concat_ws(' ', status, error_kind, error_code), coalesce(extract(epoch from case when finished_at is null then next_attempt_at - updated_at end), 0)::float8 from outbox where aggregate_id = $1`
		var got string
		var seconds float64
		if err := db.QueryRow(t.Context(), row, strconv.Itoa(i+1)).Scan(&got, &seconds); err != nil {
			t.Fatal(err)
		}
		after := time.Duration(seconds * float64(time.Second)).Round(time.Second)
		if got != tt.want || tt.after != some && after != tt.after {
			t.Errorf("%s ends as %s, next in %s; want %s, next in %s", tt.name, got, after, tt.want, tt.after)
		}
	}
	for _, request := range r.Requests() {
		if request.Path != "/hooks" || request.Method != http.MethodPost {
			t.Errorf("%s %s was requested: a redirect was followed", request.Method, request.Path)
		}
	}
}
