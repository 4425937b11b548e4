package main_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxctl/outboxctl/outbox"
	"github.com/outboxctl/outboxctl/outbox/outboxtest"
)

// producersPage is docs/producers.md.
func producersPage(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../../docs/producers.md")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// blocks returns the fenced blocks of a language, in order.
func blocks(page, language string) (all []string) {
	for _, m := range regexp.MustCompile("(?s)```"+language+"\n(.*?)```").FindAllStringSubmatch(page, -1) {
		all = append(all, m[1])
	}
	return all
}

// TestProducersPageRuns runs the page's SQL from its top to its end, delivers what it has written,
// and then writes under the rights that the page gives.
func TestProducersPageRuns(t *testing.T) {
	t.Parallel()
	dsn, db := database(t)
	role := makeRole(t, db)
	for _, block := range blocks(producersPage(t), "sql") {
		block = strings.ReplaceAll(block, " shop;", " "+role+";")
		script(t, db, block)
		if strings.Contains(block, "idempotency_key") { // a repeat is written once
			script(t, db, block)
		}
	}
	const wantEvents = "cancelled created invoiced paid reminded reminder_due shipped"
	got := query[string](t, db, `select string_agg(substr(event_type, 7), ' ' order by event_type) from outbox where aggregate_id = '42'`)
	if got != wantEvents {
		t.Errorf("the page writes %q, want %q", got, wantEvents)
	}
	r := outboxtest.NewReceiver(t, nil)
	if code, words := once(t, dsn, r.URL); code != 0 || r.Count() != 6 {
		t.Errorf("exit code %d after %d requests, want 0 after 6: %s", code, r.Count(), words)
	}
	if later := query[string](t, db, `select event_type from outbox where status = 'pending'`); later != "order.reminder_due" {
		t.Errorf("%s waits, want order.reminder_due", later)
	}
	writeAs(t, db, role)
}

// script runs statements as psql does.
func script(t *testing.T, db *pgxpool.Pool, sql string) {
	t.Helper()
	conn, err := db.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	if _, err := conn.Conn().PgConn().Exec(t.Context(), sql).ReadAll(); err != nil {
		t.Errorf("%s: %v", sql, err)
	}
}

// makeRole creates a role of its own, which ends with the test.
func makeRole(t *testing.T, db *pgxpool.Pool) string {
	t.Helper()
	role := fmt.Sprintf("outboxtest_%08x", rand.Uint32())
	execute(t, db, "create role "+role)
	t.Cleanup(func() { execute(t, db, "drop owned by "+role+"; drop role "+role) })
	return role
}

// writeAs writes an event in every way that the page knows.
func writeAs(t *testing.T, db *pgxpool.Pool, role string) {
	t.Helper()
	tx := begin(t, db)
	ctx := t.Context()
	for _, sql := range []string{
		"set local role " + role,
		`insert into outbox (aggregate_type, aggregate_id, event_type, payload) values ('order', '43', 'order.created', '{}')`,
		`select outbox_emit('order', '43', 'order.created', '{}', idempotency_key => md5('43')::uuid)`,
	} {
		if _, err := tx.Exec(ctx, sql); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	if err := outbox.Append(ctx, tx, outbox.Event{AggregateType: "order", AggregateID: "43", Type: "order.created", Payload: []byte("{}")}); err != nil {
		t.Fatal(err)
	}
	commit(t, tx)
	if n := query[int](t, db, `select count(*) from outbox where aggregate_id = '43'`); n != 3 {
		t.Errorf("%d events, want one for each of three ways", n)
	}
}

// TestProducersPageHasTheGoThatIsTested compares the page with outbox/example_test.go, which runs.
func TestProducersPageHasTheGoThatIsTested(t *testing.T) {
	t.Parallel()
	source, err := os.ReadFile("../../outbox/example_test.go")
	if err != nil {
		t.Fatal(err)
	}
	got := blocks(producersPage(t), "go")
	if len(got) != 3 {
		t.Fatalf("the page has %d blocks of Go, want 3", len(got))
	}
	for _, block := range got {
		if !strings.Contains(string(source), "\n"+block) {
			t.Errorf("not in outbox/example_test.go:\n%s", block)
		}
	}
}

// TestProducersPageNamesEveryConstraint compares the page with the table.
func TestProducersPageNamesEveryConstraint(t *testing.T) {
	t.Parallel()
	_, db := database(t)
	_, refused, _ := strings.Cut(producersPage(t), "\n## What is refused\n")
	refused, _, _ = strings.Cut(refused, "\n## ")
	got := regexp.MustCompile(`\boutbox_[a-z_]+`).FindAllString(refused, -1)
	slices.Sort(got)
	want := query[[]string](t, db, `
select array_agg(name order by name collate "C")
  from (select conname from pg_constraint where conrelid = 'outbox'::regclass and contype = 'c'
         union all
        select 'outbox_key') c(name)`)
	if !slices.Equal(got, want) {
		t.Errorf("the page names %v, the table has %v", got, want)
	}
}

// oddTexts are what a producer may take for a key, a type or a tenant.
var oddTexts = map[string]string{
	"quotes":       `o'brien "x" \ $1 %s {} '' "" \\' -- ; drop table outbox`,
	"line breaks":  "a\r\nX-Forged: 1\r\n\r\n{}\n",
	"controls":     "\t\x01\x0b\x1b[31m\x7f\u0085\u2028",
	"emoji":        "🧾 ✂️ 👨‍👩‍👧 заказ é e\u0301 \u202e\ufeff",
	"percent":      "100%0d%0aX-Forged:%201",
	"blanks":       "  ",
	"HTML":         "<b>&amp;</b>",
	"JSON":         `"},"payload":{"x":1},{"`,
	"2,001 bytes":  noise(2001),
	"10 KB":        noise(10 << 10),
	"emoji, 1 KB":  strings.Repeat("🧾", 250),
	"900 bytes":    noise(900),
	"1,001 bytes":  noise(1001),
	"1,950 bytes":  noise(1950),
	"just a comma": ",",
}

// noise is n bytes that cannot be compressed, so that an index feels all of them.
func noise(n int) string {
	const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/+"
	text := make([]byte, n)
	for i := range text {
		text[i] = letters[rand.N(len(letters))]
	}
	return string(text)
}

// oddColumns are where such a text can stand, and how it arrives.
var oddColumns = map[string]func(b oddBody, h map[string][]string) string{
	"tenant_id":      func(b oddBody, _ map[string][]string) string { return b.Tenant },
	"aggregate_type": func(b oddBody, _ map[string][]string) string { return b.AggregateType },
	"aggregate_id":   func(b oddBody, _ map[string][]string) string { return b.AggregateID },
	"event_type": func(b oddBody, h map[string][]string) string {
		if text, err := url.PathUnescape(h["X-Outbox-Event-Type"][0]); err != nil || text != b.EventType {
			return "another text in its header: " + text
		}
		return b.EventType
	},
}

type oddBody struct {
	Tenant        string `json:"tenant_id"`
	AggregateType string `json:"aggregate_type"`
	AggregateID   string `json:"aggregate_id"`
	EventType     string `json:"event_type"`
}

// TestAnyTextIsDeliveredOrRefusedByName writes every odd text into every column that takes text,
// among events that are not odd. What the table takes arrives unchanged, at the first attempt, and
// forges nothing; what it refuses it refuses by the constraint that the page names.
func TestAnyTextIsDeliveredOrRefusedByName(t *testing.T) {
	t.Parallel()
	dsn, db := database(t)
	keys := map[string]func(oddBody, map[string][]string) string{}
	texts := map[string]string{}
	for column, arrived := range oddColumns {
		for name, text := range oddTexts {
			key, taken := writeOdd(t, db, column, text)
			if limit := map[bool]int{true: 1000, false: 1980}[column == "event_type"]; taken != (len(text) <= limit) {
				t.Errorf("%s in %s: taken is %v", name, column, taken)
			}
			if taken {
				keys[key], texts[key] = arrived, text
			}
		}
		insert(t, db, "healthy", 10)
	}
	r := outboxtest.NewReceiver(t, nil)
	if code, words := once(t, dsn, r.URL, "--batch-size", "20"); code != 0 {
		t.Errorf("exit code %d: %s", code, words)
	}
	allDelivered(t, db, len(keys)+40)
	for _, request := range r.Requests() {
		if request.Attempt != 1 || request.Header.Get("X-Forged") != "" {
			t.Errorf("attempt %d, headers %v", request.Attempt, request.Header)
		}
		var body oddBody
		if err := json.Unmarshal(request.Body, &body); err != nil {
			t.Errorf("a body is no JSON: %v: %.300s", err, request.Body)
		}
		if arrived, odd := keys[request.Key]; odd && arrived(body, request.Header) != texts[request.Key] {
			t.Errorf("%.100q arrives as %.100q", texts[request.Key], arrived(body, request.Header))
		}
	}
	if code, _, words := run(t, dsn, "stats"); code != 0 {
		t.Errorf("stats: exit code %d: %s", code, words)
	}
}

// writeOdd inserts an event with a text in one column, and the same text in its headers. It returns
// the event's key, and whether the table took it.
func writeOdd(t *testing.T, db *pgxpool.Pool, column, text string) (key string, taken bool) {
	t.Helper()
	values := map[string]string{"tenant_id": "", "aggregate_type": "order", "aggregate_id": "1", "event_type": "odd"}
	values[column] = text
	headers, err := json.Marshal(map[string]string{"traceparent": text, text: "1"})
	if err != nil {
		t.Fatal(err)
	}
	err = db.QueryRow(context.Background(), `
insert into outbox (tenant_id, aggregate_type, aggregate_id, event_type, headers, payload)
values (@tenant_id, @aggregate_type, @aggregate_id, @event_type, @headers, '{}')
returning idempotency_key::text`, pgx.NamedArgs{
		"tenant_id": values["tenant_id"], "aggregate_type": values["aggregate_type"],
		"aggregate_id": values["aggregate_id"], "event_type": values["event_type"], "headers": string(headers),
	}).Scan(&key)
	if refused, ok := errors.AsType[*pgconn.PgError](err); ok && refused.ConstraintName == "outbox_key_size" {
		return "", false
	}
	if err != nil {
		t.Errorf("%s = %.100q: %v, want it taken or refused by outbox_key_size", column, text, err)
	}
	return key, err == nil
}
