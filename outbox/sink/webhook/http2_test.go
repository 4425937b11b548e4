package webhook_test

import (
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/outboxctl/outboxctl/outbox"
	"github.com/outboxctl/outboxctl/outbox/sink/webhook"
)

// frame is one of HTTP/2 (RFC 9113, 4.1).
type frame struct {
	kind, flags byte
	stream      uint32
	payload     []byte
}

// The frames that the tests speak, and their flags.
const (
	frameData     = 0
	frameHeaders  = 1
	frameReset    = 3
	frameSettings = 4
	framePing     = 6
	frameGoAway   = 7

	flagAck        = 1
	flagEndStream  = 1
	flagEndHeaders = 4
)

func readFrame(r io.Reader) (f frame, err error) {
	var head [9]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return f, err
	}
	f = frame{head[3], head[4], binary.BigEndian.Uint32(head[5:]) & (1<<31 - 1), make([]byte, int(head[0])<<16|int(head[1])<<8|int(head[2]))}
	_, err = io.ReadFull(r, f.payload)
	return f, err
}

func (f frame) writeTo(w io.Writer) error {
	n := len(f.payload)
	head := []byte{byte(n >> 16), byte(n >> 8), byte(n), f.kind, f.flags}
	_, err := w.Write(append(binary.BigEndian.AppendUint32(head, f.stream), f.payload...))
	return err
}

// yes answers a stream with 200, the static table's entry 8 (RFC 7541, A).
func yes(stream uint32) frame {
	return frame{frameHeaders, flagEndHeaders | flagEndStream, stream, []byte{0x88}}
}

// goAway says which stream is the last that the receiver has looked at, and why it goes.
func goAway(last, code uint32) frame {
	payload := binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, last), code)
	return frame{frameGoAway, 0, 0, payload}
}

// h2 serves HTTP/2 by hand: request is called for each request when it has come whole, and may do
// to the connection what it likes; it returns false to end it.
func h2(conf *tls.Config, request func(c net.Conn, stream uint32) bool) func(net.Conn) {
	return func(raw net.Conn) {
		c := tls.Server(raw, conf)
		preface := make([]byte, len("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"))
		if _, err := io.ReadFull(c, preface); err != nil || (frame{kind: frameSettings}).writeTo(c) != nil {
			return
		}
		for {
			f, err := readFrame(c)
			if err != nil {
				return
			}
			switch {
			case f.kind == frameSettings && f.flags&flagAck == 0:
				frame{frameSettings, flagAck, 0, nil}.writeTo(c)
			case f.kind == framePing && f.flags&flagAck == 0:
				frame{framePing, flagAck, 0, f.payload}.writeTo(c)
			case (f.kind == frameData || f.kind == frameHeaders) && f.flags&flagEndStream != 0:
				if !request(c, f.stream) {
					return
				}
			}
		}
	}
}

// listenH2 is listen for [h2], with a sink for it.
func listenH2(t *testing.T, config webhook.Config, request func(c net.Conn, stream uint32) bool) *webhook.Sink {
	t.Helper()
	cert := certificate(t, nil)
	url := listen(t, h2(&tls.Config{Certificates: []tls.Certificate{cert}, NextProtos: []string{"h2"}}, request))
	config.URL, config.CAFile = "https"+strings.TrimPrefix(url, "http"), writePEM(t, cert.Certificate[0])
	return newSink(t, config)
}

// B41: a connection that the receiver takes back costs at most another attempt.
func TestHTTP2ConnectionThatIsTakenBackLosesNothing(t *testing.T) {
	t.Parallel()
	again := answer{Verdict: outbox.VerdictBrief, Kind: "eof"}
	for name, tt := range map[string]struct {
		second func(c net.Conn, stream uint32) bool // what the second request of the first connection gets
		want   answer
	}{
		"the request was not looked at": {func(c net.Conn, stream uint32) bool {
			goAway(stream-2, 0).writeTo(c)
			return true
		}, again},
		"nothing more is wanted, by an error": {func(c net.Conn, stream uint32) bool {
			goAway(stream-2, 11).writeTo(c) // enhance your calm
			return false
		}, again},
		"the request is cut off": {func(c net.Conn, stream uint32) bool {
			goAway(stream, 0).writeTo(c)
			return false
		}, again},
		"the request is answered after all": {func(c net.Conn, stream uint32) bool {
			goAway(stream, 0).writeTo(c)
			yes(stream).writeTo(c)
			return true
		}, delivered("200")},
		"the stream is refused": {func(c net.Conn, stream uint32) bool {
			frame{frameReset, 0, stream, []byte{0, 0, 0, 7}}.writeTo(c)
			return false
		}, answer{Verdict: outbox.VerdictBrief, Kind: "reset"}},
		"the frames are garbage": {func(c net.Conn, _ uint32) bool {
			io.WriteString(c, "HTTP/1.1 200 OK\r\n\r\n")
			return false
		}, answer{Verdict: outbox.VerdictBrief, Kind: "protocol"}},
		"the stream is reset": {func(c net.Conn, stream uint32) bool {
			return frame{frameReset, 0, stream, []byte{0, 0, 0, 2}}.writeTo(c) == nil // internal error
		}, answer{Kind: "reset"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var requests atomic.Int64
			sink := listenH2(t, webhook.Config{}, func(c net.Conn, stream uint32) bool {
				if requests.Add(1) == 2 {
					return tt.second(c, stream)
				}
				return yes(stream).writeTo(c) == nil
			})
			for i, want := range []answer{delivered("200"), tt.want, delivered("200")} {
				got := deliver(t, sink, sampleEvent())
				if i == 2 && got.Verdict == outbox.VerdictBrief { // the connection's end was not noticed yet
					got = deliver(t, sink, sampleEvent())
				}
				if got != want {
					t.Errorf("delivery %d = %+v, want %+v", i+1, got, want)
				}
			}
			if n := requests.Load(); n != 3 {
				t.Errorf("%d requests arrived, want 3", n)
			}
		})
	}
}

func TestHTTP2AnswersThatDoNotEndFreeTheSlot(t *testing.T) {
	t.Parallel()
	const timeout = time.Second
	head := func(stream uint32) frame { return frame{frameHeaders, flagEndHeaders, stream, []byte{0x88}} }
	for name, tt := range map[string]struct {
		request func(c net.Conn, stream uint32) bool
		want    answer
	}{
		"no answer": {func(net.Conn, uint32) bool { return true }, answer{Kind: outbox.KindTimeout}},
		"half of the headers": {func(c net.Conn, stream uint32) bool {
			frame{frameHeaders, 0, stream, []byte{0x88}}.writeTo(c)
			return true
		}, answer{Kind: outbox.KindTimeout}},
		"headers without an end": {func(c net.Conn, stream uint32) bool {
			frame{frameHeaders, 0, stream, []byte{0x88}}.writeTo(c)
			more := append([]byte{0, 1, 'a', 0x7f, 0x81, 0x7f}, make([]byte, 16_000)...) // a: … of 16,256 bytes, and so on
			for (frame{9, 0, stream, more}).writeTo(c) == nil {
			}
			return false
		}, answer{Verdict: outbox.VerdictBrief, Kind: "protocol"}},
		"no body": {func(c net.Conn, stream uint32) bool { head(stream).writeTo(c); return true }, delivered("200")},
		"a body without an end": {func(c net.Conn, stream uint32) bool {
			head(stream).writeTo(c)
			for sent := 0; sent < 64<<10; sent += 8 << 10 { // as much as may be sent unasked
				frame{frameData, 0, stream, make([]byte, 8<<10)}.writeTo(c)
			}
			return true
		}, delivered("200")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sink := listenH2(t, webhook.Config{Timeout: timeout}, tt.request)
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

// tunnel carries connections to a receiver, and can swallow what goes over those that stand.
type tunnel struct {
	addr  string
	mu    sync.Mutex
	ends  []net.Conn
	holes []*atomic.Bool
}

func newTunnel(t *testing.T, to string) *tunnel {
	t.Helper()
	var v tunnel
	v.addr = strings.TrimPrefix(listen(t, func(c net.Conn) {
		up, err := net.Dial("tcp", to)
		if err != nil {
			return
		}
		defer up.Close()
		hole := new(atomic.Bool)
		v.mu.Lock()
		v.ends, v.holes = append(v.ends, up), append(v.holes, hole)
		v.mu.Unlock()
		var wg sync.WaitGroup
		wg.Go(func() { carry(up, c, hole) })
		carry(c, up, hole)
		wg.Wait()
	}), "http://")
	t.Cleanup(func() {
		v.mu.Lock()
		defer v.mu.Unlock()
		for _, up := range v.ends {
			up.Close()
		}
	})
	return &v
}

// carry copies until either end closes; into a hole nothing goes, not even the end.
func carry(to, from net.Conn, hole *atomic.Bool) {
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if hole.Load() {
			if err != nil {
				return
			}
			continue
		}
		if _, writeErr := to.Write(buf[:n]); err != nil || writeErr != nil {
			to.(*net.TCPConn).CloseWrite()
			return
		}
	}
}

// swallow makes every connection that stands a black hole; new ones work.
func (v *tunnel) swallow() {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, hole := range v.holes {
		hole.Store(true)
	}
}

func (v *tunnel) count() int {
	v.mu.Lock()
	defer v.mu.Unlock()
	return len(v.holes)
}

// B41: connections that stand and carry nothing any more are left soon. The long form takes the
// production's own intervals and wants success within 20 s.
func TestDeadConnectionsAreLeft(t *testing.T) {
	t.Parallel()
	timeout, silence, ping, limit := 300*time.Millisecond, 400*time.Millisecond, 200*time.Millisecond, 1500*time.Millisecond
	if os.Getenv("OUTBOXCTL_TEST_LONG") != "" {
		timeout, silence, ping, limit = 5*time.Second, 0, 0, 20*time.Second
	}
	for name, http2 := range map[string]bool{"HTTP/1.1": false, "HTTP/2": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cert := certificate(t, nil)
			to := newTLSReceiver(t, &tls.Config{Certificates: []tls.Certificate{cert}}, http2, accept)
			way := newTunnel(t, to.Listener.Addr().String())
			sink := newSink(t, webhook.Config{URL: "https://" + way.addr, CAFile: writePEM(t, cert.Certificate[0]), Timeout: timeout})
			if silence > 0 {
				sink.PingAfter(silence, ping)
			}
			if got := deliver(t, sink, sampleEvent()); got != delivered("200") {
				t.Fatalf("Deliver() = %+v", got)
			}
			before := way.count()
			way.swallow()
			if took := untilDelivered(t, sink, limit+5*time.Second); took > limit {
				t.Errorf("the first success came after %s, want at most %s", took, limit)
			}
			if got := way.count(); got == before {
				t.Error("the connection came back to life: the test proves nothing")
			}
		})
	}
}

// untilDelivered begins a delivery every 100 ms and returns how long it took until one succeeded.
func untilDelivered(t *testing.T, sink *webhook.Sink, patience time.Duration) time.Duration {
	t.Helper()
	var wg sync.WaitGroup
	defer wg.Wait()
	results := make(chan error, 1000)
	started := time.Now()
	tick, giveUp := time.NewTicker(100*time.Millisecond), time.After(patience)
	defer tick.Stop()
	for {
		wg.Go(func() {
			_, err := sink.Deliver(t.Context(), sampleEvent())
			results <- err
		})
		for waiting := true; waiting; {
			select {
			case err := <-results:
				if err == nil {
					return time.Since(started)
				}
			case <-tick.C:
				waiting = false
			case <-giveUp:
				t.Fatalf("nothing was delivered in %s", patience)
			}
		}
	}
}

// An answer that breaks the connection of many costs each of them an attempt, made again in a moment.
func TestAnswerThatBreaksAnHTTP2ConnectionSparesTheRest(t *testing.T) {
	t.Parallel()
	cert := certificate(t, nil)
	arrived := make(chan struct{}, 10)
	to := newTLSReceiver(t, &tls.Config{Certificates: []tls.Certificate{cert}}, true, func(w http.ResponseWriter, r *http.Request) {
		switch r.Header.Get("X-Outbox-Event-Type") {
		case "bad":
			for i := range 1000 {
				w.Header().Set(fmt.Sprint("X-", i), strings.Repeat("x", 2000))
			}
		case "slow":
			arrived <- struct{}{}
			<-r.Context().Done()
		}
	})
	sink := newSink(t, webhook.Config{URL: to.URL, CAFile: writePEM(t, cert.Certificate[0])})
	deliver(t, sink, sampleEvent())
	var wg sync.WaitGroup
	send := func(eventType string) {
		wg.Go(func() {
			ev := sampleEvent()
			ev.Type = eventType
			if got, want := deliver(t, sink, ev), (answer{Verdict: outbox.VerdictBrief, Kind: "protocol"}); got != want {
				t.Errorf("%s: %+v, want %+v", eventType, got, want)
			}
		})
	}
	for range 4 {
		send("slow")
		<-arrived
	}
	send("bad")
	wg.Wait()
	if got := deliver(t, sink, sampleEvent()); got != delivered("200") {
		t.Errorf("afterwards: %+v", got)
	}
}

// A receiver that takes each connection back after an answer, as it may under load, costs other
// requests on it nothing or an attempt that is made again in a moment.
func TestHTTP2ConnectionsThatEndAllTheTime(t *testing.T) {
	t.Parallel()
	sink := listenH2(t, webhook.Config{}, func(c net.Conn, stream uint32) bool {
		yes(stream).writeTo(c)
		return goAway(stream, 0).writeTo(c) == nil
	})
	var (
		wg   sync.WaitGroup
		done atomic.Int64
	)
	for range 8 {
		wg.Go(func() {
			for range 40 {
				switch got := deliver(t, sink, sampleEvent()); {
				case got == delivered("200"):
					done.Add(1)
				case got.Verdict != outbox.VerdictBrief:
					t.Errorf("Deliver() = %+v, want it delivered or again in a moment", got)
				}
			}
		})
	}
	wg.Wait()
	if n := done.Load(); n < 8*20 {
		t.Errorf("%d of 320 requests were answered", n)
	}
	t.Logf("%d of 320 requests were answered", done.Load())
}
