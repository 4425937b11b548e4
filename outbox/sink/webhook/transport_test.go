package webhook_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/outboxctl/outboxctl/outbox"
	"github.com/outboxctl/outboxctl/outbox/sink/webhook"
)

const ok = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"

func TestEveryClassOfConnectionFailureHasItsOutcome(t *testing.T) {
	t.Parallel()
	const timeout = 300 * time.Millisecond
	for _, tt := range []struct {
		name  string
		serve func(c net.Conn)
		want  answer
	}{
		{"reset before the answer", func(c net.Conn) { readRequest(bufio.NewReader(c)); reset(c) }, answer{Kind: "reset"}},
		{"closed before the answer", func(c net.Conn) { readRequest(bufio.NewReader(c)) }, answer{Kind: "eof"}},
		{"garbage instead of a status line", reply("PRIVATE garbage\r\n\r\n"), answer{Kind: "protocol"}},
		{"status line cut off", reply("HTTP/1.1 20"), answer{Kind: "protocol"}},
		{"status line without its end", reply("HTTP/1.1 200 OK"), answer{Kind: "eof"}},
		{"header block cut off", reply("HTTP/1.1 200 OK\r\nX-A: b\r\n"), answer{Kind: "eof"}},
		{"103 then 200", reply("HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" + ok), delivered("200")},
		{"103 and no more", reply("HTTP/1.1 103 Early Hints\r\n\r\n"), answer{Kind: "eof"}},
		{"longer content-length than sent", reply("HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nshort"), delivered("200")},
		{"body reset", func(c net.Conn) {
			readRequest(bufio.NewReader(c))
			fmt.Fprint(c, "HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nshort")
			reset(c)
		}, delivered("200")},
		{"broken chunks", reply("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzzz"), delivered("200")},
		{"200 on half of the request", func(c net.Conn) {
			bufio.NewReaderSize(c, 16).ReadByte()
			fmt.Fprint(c, ok)
			io.Copy(io.Discard, c)
		}, delivered("200")},
		{"200 and the connection is closed", reply("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"), delivered("200")},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			sink := newSink(t, webhook.Config{URL: listen(t, tt.serve), Timeout: timeout})
			started := time.Now()
			if got := deliver(t, sink, sampleEvent()); got != tt.want {
				t.Errorf("Deliver() = %+v, want %+v", got, tt.want)
			}
			if took := time.Since(started); took > timeout+500*time.Millisecond {
				t.Errorf("the slot was taken for %s", took)
			}
		})
	}
}

// reply reads a request, answers with text and closes.
func reply(text string) func(net.Conn) {
	return func(c net.Conn) {
		readRequest(bufio.NewReader(c))
		io.WriteString(c, text)
	}
}

// drip reads a request and answers with head and then a byte every few milliseconds for ever.
func drip(head string) func(net.Conn) {
	return func(c net.Conn) {
		readRequest(bufio.NewReader(c))
		dripAfter(head)(c)
	}
}

func TestSmallAnswersKeepTheConnection(t *testing.T) {
	t.Parallel()
	var conns atomic.Int64
	url := listen(t, func(c net.Conn) {
		conns.Add(1)
		for r := bufio.NewReader(c); readRequest(r); {
			fmt.Fprint(c, "HTTP/1.1 500 no\r\nContent-Length: 5\r\n\r\nhello")
		}
	})
	sink := newSink(t, webhook.Config{URL: url})
	for range 20 {
		deliver(t, sink, sampleEvent())
	}
	if n := conns.Load(); n != 1 {
		t.Errorf("20 requests took %d connections, want 1", n)
	}
}

func TestRedirectIsNotFollowedAndNotDelivered(t *testing.T) {
	t.Parallel()
	for _, code := range []int{300, 301, 302, 303, 304, 307, 308} {
		t.Run(fmt.Sprint(code), func(t *testing.T) {
			t.Parallel()
			to := newReceiver(t, func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/a" {
					w.Header().Set("Location", "/b")
					w.WriteHeader(code)
				}
			})
			want := answer{outbox.VerdictSlow, "redirect", code, ""}
			if got := deliver(t, newSink(t, webhook.Config{URL: to.URL + "/a"}), sampleEvent()); got != want {
				t.Errorf("Deliver() = %+v, want %+v", got, want)
			}
			if got := to.only(t); got.Path != "/a" {
				t.Errorf("the request went to %s, want /a alone", got.Path)
			}
		})
	}
}

func TestRefusedAndUnknownHostsAreRetried(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	sink := newSink(t, webhook.Config{URL: "http://" + l.Addr().String()})
	if got, want := deliver(t, sink, sampleEvent()), (answer{Kind: "refused"}); got != want {
		t.Errorf("a closed port: %+v, want %+v", got, want)
	}
	sink = newSink(t, webhook.Config{URL: "http://no-such-host.invalid/x"})
	if got, want := deliver(t, sink, sampleEvent()), (answer{Kind: "dns"}); got != want {
		t.Errorf("an unknown host: %+v, want %+v", got, want)
	}
}

func TestRequestIsNeverSentAgainBehindTheCaller(t *testing.T) {
	t.Parallel()
	for name, payload := range map[string]string{"a body": "x", "an empty body": ""} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var requests atomic.Int64
			url := listen(t, func(c net.Conn) {
				r := bufio.NewReader(c)
				readRequest(r)
				fmt.Fprint(c, ok)
				if readRequest(r) {
					requests.Add(1)
				}
				reset(c)
			})
			sink := newSink(t, webhook.Config{URL: url, Format: webhook.Payload})
			ev := sampleEvent()
			ev.Payload, ev.Binary = []byte(payload), true
			deliver(t, sink, ev)
			want := answer{Verdict: outbox.VerdictBrief, Kind: "reset"}
			if got := deliver(t, sink, ev); got != want {
				t.Errorf("a used connection that was reset: %+v, want %+v", got, want)
			}
			if n := requests.Load(); n != 1 {
				t.Errorf("%d requests arrived, want 1", n)
			}
		})
	}
}

// B39
func TestReceiverThatClosesSoonAfterItsAnswerGetsEverything(t *testing.T) {
	t.Parallel()
	url := listen(t, func(c net.Conn) {
		if readRequest(bufio.NewReader(c)) {
			io.WriteString(c, ok)
			time.Sleep(5 * time.Millisecond)
		}
	})
	sink := newSink(t, webhook.Config{URL: url})
	const events = 400
	var (
		attempts atomic.Int64
		wg       sync.WaitGroup
	)
	for range events {
		time.Sleep(5 * time.Millisecond)
		wg.Go(func() {
			for try := 1; ; try++ {
				attempts.Add(1)
				_, err := sink.Deliver(t.Context(), sampleEvent())
				if err == nil {
					return
				}
				failure, _ := errors.AsType[*outbox.DeliveryError](err)
				if try == 3 || failure == nil || failure.Verdict != outbox.VerdictBrief {
					t.Errorf("attempt %d: %v", try, err)
					return
				}
				time.Sleep(100 * time.Millisecond)
			}
		})
	}
	wg.Wait()
	if got := attempts.Load(); got > events+events/100 {
		t.Errorf("%d attempts for %d events, want at most 1 %% more", got, events)
	}
}

func TestCallerThatGivesUpIsNotATimeout(t *testing.T) {
	t.Parallel()
	arrived := make(chan struct{})
	url := listen(t, func(c net.Conn) { readRequest(bufio.NewReader(c)); close(arrived); io.Copy(io.Discard, c) })
	sink := newSink(t, webhook.Config{URL: url})
	ctx, cancel := context.WithCancelCause(t.Context())
	go func() { <-arrived; cancel(errors.New("stop")) }()
	_, err := sink.Deliver(ctx, sampleEvent())
	failure, _ := errors.AsType[*outbox.DeliveryError](err)
	if failure == nil || failure.Kind != "canceled" || !errors.Is(err, context.Canceled) {
		t.Errorf("Deliver() = %v, want kind canceled and context.Canceled", err)
	}
}

func TestProxyTakesAllRequests(t *testing.T) {
	t.Parallel()
	var asked []string
	var mu sync.Mutex
	proxy := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		asked = append(asked, r.Method+" "+r.RequestURI+" "+r.Header.Get("Proxy-Authorization"))
	}))
	defer proxy.Close()
	through := strings.Replace(proxy.URL, "://", "://user:secret@", 1) // at a private address, as proxies are
	s, err := webhook.New(webhook.Config{URL: "http://receiver.example.com/hooks", Proxy: through})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Deliver(t.Context(), outbox.Event{Payload: []byte(`{}`)}); err != nil {
		t.Fatal(err)
	}
	if want := []string{"POST http://receiver.example.com/hooks Basic dXNlcjpzZWNyZXQ="}; !slices.Equal(asked, want) {
		t.Errorf("the proxy was asked for %q, want %q", asked, want)
	}

	for _, bad := range []string{"proxy.example.com:3128", "ftp://proxy.example.com", "http://", "http://user:hunter2@[::1"} {
		_, err := webhook.New(webhook.Config{URL: "http://receiver.example.com/hooks", Proxy: bad})
		if err == nil || !strings.HasPrefix(err.Error(), "proxy: want a URL") || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("New() with the proxy %q: %v", bad, err)
		}
	}
	_, err = webhook.New(webhook.Config{URL: "http://10.0.0.1/", Proxy: through})
	if err == nil {
		t.Error("a proxy opens private addresses to a destination")
	}
}
