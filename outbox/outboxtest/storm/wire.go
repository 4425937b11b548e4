package storm

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
	"time"
)

// What a wire does to the bytes on it.
const (
	wireLatency   = "latency"   // all come late
	wireBlackHole = "blackhole" // nothing passes; what was held passes afterwards, or its connection is gone
	wireReset     = "reset"     // each connection is reset at its next byte
	wireCut       = "cut"       // each connection is reset in the middle of what comes next
	wireBandwidth = "bandwidth" // few bytes a second
	wireCommit    = "commit"    // the answer to COMMIT is swallowed, then the connection is reset
)

// mood is what a wire does for a while.
type mood struct {
	kind  string
	delay time.Duration // of each chunk
	rate  int           // bytes/s
	lose  bool          // connections that a black hole has held are reset at its end
	tally *tally
	over  chan struct{} // closed at its end
}

// wire is a proxy before a server, on a port of its own.
type wire struct {
	name     string
	upstream string
	listener net.Listener
	wg       sync.WaitGroup

	mu    sync.Mutex
	mood  *mood // nil = it passes everything
	links map[*link]struct{}
}

// link is one connection through a wire.
type link struct {
	client, server *net.TCPConn
}

func newWire(name, upstream string) (*wire, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	w := &wire{name: name, upstream: upstream, listener: l, links: map[*link]struct{}{}}
	w.wg.Go(w.serve)
	return w, nil
}

func (w *wire) addr() string { return w.listener.Addr().String() }

// close ends all that goes through.
func (w *wire) close() {
	w.listener.Close()
	w.calm()
	w.mu.Lock()
	for l := range w.links {
		l.reset()
	}
	w.mu.Unlock()
	w.wg.Wait()
}

// suffer begins a mood. It lasts until calm.
func (w *wire) suffer(m *mood) {
	m.over = make(chan struct{})
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mood = m
}

func (w *wire) calm() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.mood != nil {
		close(w.mood.over)
		w.mood = nil
	}
}

func (w *wire) current() *mood {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.mood
}

func (w *wire) serve() {
	for {
		client, err := w.listener.Accept()
		if err != nil {
			return
		}
		w.wg.Go(func() { w.pass(client.(*net.TCPConn)) })
	}
}

// pass copies both ways until one side ends.
func (w *wire) pass(client *net.TCPConn) {
	defer client.Close()
	up, err := net.DialTimeout("tcp", w.upstream, time.Second)
	if err != nil {
		client.SetLinger(0)
		return
	}
	l := &link{client: client, server: up.(*net.TCPConn)}
	defer l.server.Close()
	w.keep(l, true)
	defer w.keep(l, false)
	var both sync.WaitGroup
	both.Go(func() { w.pump(l, l.server, l.client, nil) })
	both.Go(func() { w.pump(l, l.client, l.server, new(frames)) })
	both.Wait()
}

func (w *wire) keep(l *link, alive bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if alive {
		w.links[l] = struct{}{}
	} else {
		delete(w.links, l)
	}
}

// pump copies one way. Of what a server says it follows the frames.
func (w *wire) pump(l *link, to, from *net.TCPConn, f *frames) {
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if n > 0 {
			committed := f.commit(buf[:n])
			if !w.forward(l, to, buf[:n], committed) {
				return
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			to.CloseWrite() // the other way may go on
			return
		case err != nil:
			l.reset()
			return
		}
	}
}

// forward passes on what has come, or does to it what the wire's mood is. It reports whether the link goes on.
func (w *wire) forward(l *link, to *net.TCPConn, p []byte, committed int) bool {
	m := w.current()
	if m == nil {
		_, err := to.Write(p)
		return err == nil
	}
	whose := l.client.RemoteAddr().String()
	switch m.kind {
	case wireLatency:
		m.tally.count(whose, len(p))
		wait(m.over, m.delay)
	case wireBandwidth:
		m.tally.count(whose, len(p))
		wait(m.over, time.Duration(len(p))*time.Second/time.Duration(m.rate))
	case wireBlackHole:
		m.tally.count(whose, len(p))
		<-m.over
		if m.lose {
			l.reset()
			return false
		}
	case wireReset:
		m.tally.count(whose, len(p))
		l.reset()
		return false
	case wireCut:
		m.tally.count(whose, len(p)-len(p)/2)
		to.Write(p[:len(p)/2])
		time.Sleep(5 * time.Millisecond) // a reset overtakes what has just been written
		l.reset()
		return false
	case wireCommit:
		if committed >= 0 {
			m.tally.count(whose, len(p)-committed)
			to.Write(p[:committed])
			l.reset()
			return false
		}
	}
	_, err := to.Write(p)
	return err == nil
}

// reset ends both sides at once, without a farewell.
func (l *link) reset() {
	for _, c := range []*net.TCPConn{l.client, l.server} {
		c.SetLinger(0)
		c.Close()
	}
}

// wait returns after d, or at once when over is closed.
func wait(over <-chan struct{}, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-over:
	case <-t.C:
	}
}

// frames follows the messages of a PostgreSQL server: a byte that says what, four that say how long, the rest.
// Of other servers it makes nonsense, which harms nobody.
type frames struct {
	skip int    // of the message that is under way
	head []byte // of the next one, as far as it has come
}

const commitTag = "COMMIT\x00"

// commit returns where in p an answer to COMMIT begins; -1 is nowhere. One whose head was cut in two by chance is not found.
func (f *frames) commit(p []byte) int {
	found := -1
	for at := 0; f != nil && at < len(p); {
		if f.skip > 0 {
			n := min(f.skip, len(p)-at)
			f.skip -= n
			at += n
			continue
		}
		n := min(5-len(f.head), len(p)-at)
		whole := len(f.head) == 0
		f.head = append(f.head, p[at:at+n]...)
		at += n
		if len(f.head) < 5 {
			break
		}
		f.skip = max(0, int(binary.BigEndian.Uint32(f.head[1:]))-4)
		rest := p[at:]
		if whole && found < 0 && f.head[0] == 'C' && f.skip == len(commitTag) && len(rest) >= len(commitTag) &&
			string(rest[:len(commitTag)]) == commitTag {
			found = at - 5
		}
		f.head = f.head[:0]
	}
	return found
}
