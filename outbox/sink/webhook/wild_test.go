package webhook_test

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/outboxctl/outboxctl/outbox"
	"github.com/outboxctl/outboxctl/outbox/sink/webhook"
)

// misbehaviour is what a receiver does to a connection when it has read a request whole. The
// connection is closed when it returns.
type misbehaviour struct {
	answer func(c net.Conn)
	want   answer
}

// wild lists what receivers were seen to do.
var wild = map[string]misbehaviour{
	"hang":          {sayAndWait(""), answer{Kind: outbox.KindTimeout}},
	"half a status": {sayAndWait("HTTP/1.1 2"), answer{Kind: outbox.KindTimeout}},
	"half a header": {sayAndWait("HTTP/1.1 200 OK\r\nX-A: "), answer{Kind: outbox.KindTimeout}},
	"drip headers":  {dripAfter("HTTP/1.1 200 OK\r\nX: "), answer{Kind: outbox.KindTimeout}},
	"drip a body":   {dripAfter("HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n"), delivered("200")},
	"drip chunks":   {dripAfter("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nfffff\r\n"), delivered("200")},
	"no body":       {sayAndWait("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n"), delivered("200")},
	"endless body":  {flood("HTTP/1.1 200 OK\r\nContent-Length: 20000000000\r\n\r\n", string(make([]byte, 64<<10))), delivered("200")},
	"gzip bomb": {func(c net.Conn) {
		fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n", len(bomb()))
		c.Write(bomb())
	}, delivered("200")},
	"endless error":    {flood("HTTP/1.1 500 No\r\nTransfer-Encoding: chunked\r\n\r\n", "10\r\n0123456789abcdef\r\n"), answer{Kind: "http", Code: 500}},
	"big header":       {say("HTTP/1.1 200 OK\r\nX-Big: " + strings.Repeat("x", 2<<20) + "\r\n\r\n"), answer{Kind: "protocol"}},
	"many headers":     {say("HTTP/1.1 200 OK\r\n" + strings.Repeat("X-Many: 0123456789\r\n", 100_000) + "\r\n"), answer{Kind: "protocol"}},
	"endless headers":  {flood("HTTP/1.1 200 OK\r\n", "X-Many: 0123456789\r\n"), answer{Kind: "protocol"}},
	"endless hints":    {flood("", "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"), answer{Kind: "protocol"}},
	"garbage":          {say("\x00\xff garbage\r\n\r\n"), answer{Kind: "protocol"}},
	"endless garbage":  {flood("", strings.Repeat("garbage", 1000)), answer{Kind: "protocol"}},
	"another protocol": {say("SSH-2.0-OpenSSH_9.2\r\n"), answer{Kind: "protocol"}},
	"close":            {say(""), answer{Kind: "eof"}},
	"half-close": {func(c net.Conn) {
		c.(*net.TCPConn).CloseWrite()
		io.Copy(io.Discard, c)
	}, answer{Kind: "eof"}},
	"reset": {reset, answer{Kind: "reset"}},
	"reset in the headers": {func(c net.Conn) {
		io.WriteString(c, "HTTP/1.1 200 OK\r\nX-A: ")
		time.Sleep(10 * time.Millisecond) // a reset drops what the other side has not read
		reset(c)
	}, answer{Kind: "eof"}},
}

// large is a payload that no buffer on the way takes whole.
var large = []byte(`"` + strings.Repeat("x", 8<<20) + `"`)

// bomb is 10 MB in 10 KB.
var bomb = sync.OnceValue(func() []byte {
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	w.Write(make([]byte, 10<<20))
	w.Close()
	return packed.Bytes()
})

func say(text string) func(net.Conn) {
	return func(c net.Conn) { io.WriteString(c, text) }
}

// sayAndWait does not close: it waits for the other side to.
func sayAndWait(text string) func(net.Conn) {
	return func(c net.Conn) {
		io.WriteString(c, text)
		io.Copy(io.Discard, c)
	}
}

// dripAfter sends a byte every few milliseconds, for ever.
func dripAfter(head string) func(net.Conn) {
	return func(c net.Conn) {
		for _, err := io.WriteString(c, head); err == nil; _, err = io.WriteString(c, "x") {
			time.Sleep(5 * time.Millisecond)
		}
	}
}

// flood sends text as fast as it is taken, for ever.
func flood(head, text string) func(net.Conn) {
	return func(c net.Conn) {
		block := bytes.Repeat([]byte(text), 1+32<<10/len(text))
		for _, err := io.WriteString(c, head); err == nil; _, err = c.Write(block) {
		}
	}
}

// behaving serves requests, each as its event's type says: by a name in [wild], else with 200.
func behaving(request func(*http.Request)) func(net.Conn) {
	bomb() // takes a while
	return func(c net.Conn) {
		for r := bufio.NewReader(c); ; {
			req, err := http.ReadRequest(r)
			if err != nil {
				return
			}
			if _, err := io.Copy(io.Discard, req.Body); err != nil {
				return
			}
			request(req)
			if bad, ok := wild[strings.ReplaceAll(req.Header.Get("X-Outbox-Event-Type"), "%20", " ")]; ok {
				bad.answer(c)
				return
			}
			if _, err := io.WriteString(c, ok); err != nil {
				return
			}
		}
	}
}

// B38
func TestNoMisbehaviourHoldsASlot(t *testing.T) {
	t.Parallel()
	const timeout = 500 * time.Millisecond
	for name, bad := range wild {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var requests atomic.Int64
			url := listen(t, behaving(func(*http.Request) { requests.Add(1) }))
			sink := newSink(t, webhook.Config{URL: url, Timeout: timeout})
			ev := sampleEvent()
			ev.Type = name
			started := time.Now()
			if got := deliver(t, sink, ev); got != bad.want {
				t.Errorf("Deliver() = %+v, want %+v", got, bad.want)
			}
			if took := time.Since(started); took > timeout+500*time.Millisecond {
				t.Errorf("the slot was taken for %s", took)
			}
			if n := requests.Load(); n != 1 {
				t.Errorf("%d requests were sent, want 1", n)
			}
		})
	}
}

// B38 (f): before there is a request to read, a receiver can be as slow as after it.
func TestReceiverThatNeverTakesTheRequestFreesTheSlot(t *testing.T) {
	t.Parallel()
	const timeout = 500 * time.Millisecond
	deaf := func(c net.Conn) { time.Sleep(2 * timeout) }
	cert := certificate(t, nil)
	for _, tt := range []struct {
		name   string
		scheme string
		serve  func(net.Conn)
	}{
		{"nothing is read", "http", deaf},
		{"no TLS handshake", "https", deaf},
		{"a TLS handshake without an end", "https", dripAfter("\x16\x03\x03\x10\x00")},
		{"nothing is read after the TLS handshake", "https", func(c net.Conn) {
			tls.Server(c, &tls.Config{Certificates: []tls.Certificate{cert}}).Handshake()
			deaf(c)
		}},
		{"nothing is read after the HTTP/2 settings", "https", func(c net.Conn) {
			tc := tls.Server(c, &tls.Config{Certificates: []tls.Certificate{cert}, NextProtos: []string{"h2"}})
			frame{kind: frameSettings}.writeTo(tc)
			deaf(c)
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			url := tt.scheme + strings.TrimPrefix(listen(t, tt.serve), "http")
			sink := newSink(t, webhook.Config{URL: url, Timeout: timeout, CAFile: writePEM(t, cert.Certificate[0]), Format: webhook.Payload})
			ev := sampleEvent()
			ev.Payload = large
			var wg sync.WaitGroup
			for range 3 { // on HTTP/2 they share the connection
				wg.Go(func() {
					started := time.Now()
					if got, want := deliver(t, sink, ev), (answer{Kind: outbox.KindTimeout}); got != want {
						t.Errorf("Deliver() = %+v, want %+v", got, want)
					}
					if took := time.Since(started); took > timeout+500*time.Millisecond {
						t.Errorf("the slot was taken for %s", took)
					}
				})
			}
			wg.Wait()
		})
	}
}

// B47: a receiver may refuse a large body before it has read it.
func TestAnswerBeforeTheEndOfALargeBodyCounts(t *testing.T) {
	t.Parallel()
	cert := certificate(t, nil)
	for name, http2 := range map[string]bool{"HTTP/1.1": false, "HTTP/2": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			to := newTLSReceiver(t, &tls.Config{Certificates: []tls.Certificate{cert}}, http2,
				func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusRequestEntityTooLarge) })
			sink := newSink(t, webhook.Config{URL: to.URL, CAFile: writePEM(t, cert.Certificate[0])})
			ev := sampleEvent()
			ev.Payload = large
			want := answer{outbox.VerdictPermanent, "http", 413, ""}
			if got := deliver(t, sink, ev); got != want {
				t.Errorf("Deliver() = %+v, want %+v", got, want)
			}
		})
	}
}
