package outboxtest_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/outboxctl/outboxctl/outbox/outboxtest"
)

// post sends a request as an event's delivery and returns the answer's status and body.
func post(ctx context.Context, url, key, attempt, body string) (int, string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/hook?a=1", strings.NewReader(body))
	if err != nil {
		return 0, "", err
	}
	req.GetBody = nil
	req.Header.Set("X-Idempotency-Key", key)
	req.Header.Set("X-Outbox-Attempt", attempt)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(text), err
}

func TestReceiverRecordsAndFollowsItsScript(t *testing.T) {
	t.Parallel()
	v := outboxtest.NewReceiver(t, outboxtest.Script(
		outboxtest.Answer{Status: 503, Header: http.Header{"Retry-After": {"1"}}, Body: "later"},
		outboxtest.Answer{Status: 201},
	))
	for i, want := range []int{503, 201, 201} {
		got, _, err := post(t.Context(), v.URL, "k1", string('1'+rune(i)), `{"n":1}`)
		if err != nil || got != want {
			t.Errorf("request %d: %d, %v, want %d", i+1, got, err, want)
		}
	}
	v.WaitFor(t, time.Second, func(all []outboxtest.Request) bool { return !all[2].Done.IsZero() })
	if v.Count() != 3 {
		t.Fatalf("Count() = %d, want 3", v.Count())
	}
	r := v.ByKey()["k1"][1]
	if r.N != 2 || r.Attempt != 2 || r.Method != "POST" || r.Path != "/hook?a=1" || string(r.Body) != `{"n":1}` || r.Answer.Status != 201 || r.Done.Before(r.At) {
		t.Errorf("second request = %+v", r)
	}
}

func TestReceiverHangsUntilTheClientLeaves(t *testing.T) {
	t.Parallel()
	for name, a := range map[string]outboxtest.Answer{
		"hang":  {Hang: true},
		"delay": {Delay: time.Hour},
		"stall": {Stall: true, Body: "a"},
		"half":  {HalfClose: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v := outboxtest.NewReceiver(t, outboxtest.Always(a))
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			if _, _, err := post(ctx, v.URL, "k", "1", "{}"); err == nil {
				t.Error("the request got an answer")
			}
			v.WaitFor(t, 5*time.Second, func(all []outboxtest.Request) bool {
				return len(all) == 1 && !all[0].Done.IsZero()
			})
		})
	}
}

func TestReceiverBreaksConnections(t *testing.T) {
	t.Parallel()
	v := outboxtest.NewReceiver(t, outboxtest.Script(
		outboxtest.Answer{Reset: true},
		outboxtest.Answer{HalfClose: true},
		outboxtest.Answer{Raw: "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf"},
	))
	for _, want := range []error{syscall.ECONNRESET, io.EOF, io.ErrUnexpectedEOF} {
		if _, _, err := post(t.Context(), v.URL, "k", "1", "{}"); !errors.Is(err, want) {
			t.Errorf("post = %v, want %v", err, want)
		}
	}
}

func TestReceiverClosesWhileRequestsHang(t *testing.T) {
	t.Parallel()
	v := outboxtest.NewReceiver(t, outboxtest.Always(outboxtest.Answer{Hang: true}))
	var wg sync.WaitGroup
	for range 5 {
		wg.Go(func() { post(t.Context(), v.URL, "k", "1", "{}") })
	}
	v.Wait(t, 5, 5*time.Second)
	v.Close()
	wg.Wait()
}
