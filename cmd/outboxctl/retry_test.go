package main_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/outboxctl/outboxctl/outbox/outboxtest"
)

// TestFailuresAreRetriedWithBackoffAndJitterUntilSuccess fails the first two attempts of each event.
func TestFailuresAreRetriedWithBackoffAndJitterUntilSuccess(t *testing.T) {
	t.Parallel()
	const n, base, jitter = 20, 200 * time.Millisecond, 0.5
	url, db := database(t)
	insert(t, db, "order.created", n)
	r := outboxtest.NewReceiver(t, func(_ int, r *outboxtest.Request) outboxtest.Answer {
		if r.Attempt < 3 {
			return outboxtest.Answer{Status: 503}
		}
		return outboxtest.Answer{}
	})
	code, words := once(t, url, r.URL, "--backoff", "200ms..10s", "--jitter", "0.5", "--log-format", "json")
	if code != 0 {
		t.Fatalf("exit code %d, want 0: %s", code, words)
	}
	if r.Count() != 3*n || count(t, db, "delivered") != n {
		t.Errorf("%d requests, %d delivered; want %d and %d", r.Count(), count(t, db, "delivered"), 3*n, n)
	}
	for key, requests := range r.ByKey() {
		for i, request := range requests {
			wait := base << max(i-1, 0) // 200ms, 400ms
			earliest := requests[max(i-1, 0)].At.Add(time.Duration(float64(wait) * (1 - jitter)))
			if request.Attempt != i+1 || i > 0 && request.At.Before(earliest) {
				t.Errorf("event %s: attempt %d came at %s, want %d not before %s", key, request.Attempt, request.At, i+1, earliest)
			}
		}
	}
	waits := retryWaits(t, words)
	if len(waits) < n {
		t.Errorf("the log has %d different waits of %d retries, want them spread", len(waits), 2*n)
	}
	for wait := range waits {
		if wait < time.Duration(float64(base)*(1-jitter)) || wait > time.Duration(float64(2*base)*(1+jitter)) {
			t.Errorf("wait %s is not within 200ms·(1±0.5) or 400ms·(1±0.5)", wait)
		}
	}
}

// retryWaits is the set of waits in a log.
func retryWaits(t *testing.T, log string) map[time.Duration]bool {
	t.Helper()
	waits := map[time.Duration]bool{}
	for line := range strings.Lines(log) {
		var entry struct {
			RetryIn int64 `json:"retry_in_ms"`
		}
		if err := json.Unmarshal([]byte(line), &entry); err != nil {
			t.Fatalf("log line %q: %v", line, err)
		}
		if entry.RetryIn > 0 {
			waits[time.Duration(entry.RetryIn)*time.Millisecond] = true
		}
	}
	return waits
}

// TestRefusedEventIsADeadLetterAndHoldsUpNobody has one order among ten that the receiver rejects.
func TestRefusedEventIsADeadLetterAndHoldsUpNobody(t *testing.T) {
	t.Parallel()
	url, db := database(t)
	insert(t, db, "order.created", 10)
	r := outboxtest.NewReceiver(t, func(_ int, r *outboxtest.Request) outboxtest.Answer {
		if strings.Contains(string(r.Body), `"aggregate_id":"7"`) {
			return outboxtest.Answer{Status: 422}
		}
		return outboxtest.Answer{}
	})
	if code, words := once(t, url, r.URL); code != 3 {
		t.Errorf("exit code %d, want 3: %s", code, words)
	}
	if r.Count() != 10 || count(t, db, "delivered") != 9 {
		t.Errorf("%d requests, %d delivered; want 10 and 9", r.Count(), count(t, db, "delivered"))
	}
	dead := query[string](t, db, `select concat_ws(' ', aggregate_id, attempts, error_kind, error_code) from outbox where status = 'dead_letter'`)
	if dead != "7 1 http 422" {
		t.Errorf("dead letter is %q, want 7 1 http 422", dead)
	}
}

// TestHungEventsDoNotComeBackFirst has eight events that time out before a hundred healthy ones, and
// four senders: B12.
func TestHungEventsDoNotComeBackFirst(t *testing.T) {
	t.Parallel()
	const timeout = time.Second
	url, db := database(t)
	insert(t, db, "hangs", 8)
	insert(t, db, "healthy", 100)
	r := outboxtest.NewReceiver(t, func(_ int, r *outboxtest.Request) outboxtest.Answer {
		return outboxtest.Answer{Hang: strings.Contains(string(r.Body), `"hangs"`)}
	})
	dispatch(t, url, r.URL, "--parallel", "4", "--request-timeout", timeout.String(), "--backoff", "2s..1m", "--jitter", "0")
	r.Wait(t, 1, patience)
	began := r.Requests()[0].At
	r.Wait(t, 8+100, patience)
	if took := r.Requests()[107].At.Sub(began); took > 3*timeout {
		t.Errorf("the healthy events took %s, want less than %s", took, 3*timeout)
	}
	r.Wait(t, 8+100+1, patience) // and the others are tried again
	for _, requests := range r.ByKey() {
		if len(requests) < 2 {
			continue
		}
		// The receiver may note the first request a little late.
		if pause := requests[1].At.Sub(requests[0].At); pause < timeout+2*time.Second-100*time.Millisecond {
			t.Errorf("a timed-out event came back after %s, want the timeout and the backoff", pause)
		}
	}
}

// TestBackoffHoldsForAnyNumberOfAttempts takes numbers at which shifts, casts and intervals have
// overflowed elsewhere: B27.
func TestBackoffHoldsForAnyNumberOfAttempts(t *testing.T) {
	t.Parallel()
	url, db := database(t)
	execute(t, db, `insert into outbox (aggregate_type, aggregate_id, event_type, payload, attempts)
		select 'order', k::text, 'order.created', '{}', k
		  from unnest(array[0, 1, 29, 30, 31, 44, 62, 63, 64, 1000, 32766]) k`)
	r := outboxtest.NewReceiver(t, outboxtest.Always(outboxtest.Answer{Status: 500}))
	code, words := once(t, url, r.URL, "--max-attempts", "100000", "--backoff", "1m..5m", "--jitter", "0.2", "--wait", "0")
	if code != 0 || strings.Contains(words, "PostgreSQL") {
		t.Fatalf("exit code %d, want 0 and no trouble: %s", code, words)
	}
	if r.Count() != 11 {
		t.Errorf("%d requests, want 11", r.Count())
	}
	bad := query[*string](t, db, `select string_agg(to_jsonb(o)::text, e'\n') from outbox o
		where status <> 'pending' or attempts <> aggregate_id::int + 1
		   or next_attempt_at - updated_at not between interval '48 seconds' and interval '6 minutes'`)
	if bad != nil {
		t.Errorf("not due again within the cap: %s", *bad)
	}
}
