package main_test

import (
	"net"
	"net/url"
	"sync"
	"testing"
)

// way is the way to PostgreSQL, to be opened, shut and blocked. It is shut at first: connecting is
// refused.
type way struct {
	url     string
	address string // of the way
	server  string // at its end

	gate sync.RWMutex // held to write: nothing gets through, in either direction

	mu       sync.Mutex
	listener net.Listener
	conns    map[net.Conn]bool
	wg       sync.WaitGroup
}

func newWay(t *testing.T, to string) *way {
	t.Helper()
	u, err := url.Parse(to)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := &way{address: l.Addr().String(), server: u.Host, conns: map[net.Conn]bool{}}
	l.Close()
	u.Host = w.address
	w.url = u.String()
	t.Cleanup(func() {
		w.shut()
		w.wg.Wait()
	})
	return w
}

func (w *way) block()   { w.gate.Lock() }
func (w *way) unblock() { w.gate.Unlock() }

func (w *way) open(t *testing.T) {
	t.Helper()
	l, err := net.Listen("tcp", w.address)
	if err != nil {
		t.Fatal(err)
	}
	w.mu.Lock()
	w.listener = l
	w.mu.Unlock()
	w.wg.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", w.server)
			if err != nil {
				client.Close()
				continue
			}
			w.wg.Go(func() { w.carry(client, server) })
			w.wg.Go(func() { w.carry(server, client) })
		}
	})
}

// shut ends all connections and refuses new ones.
func (w *way) shut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.listener != nil {
		w.listener.Close()
	}
	for conn := range w.conns {
		conn.Close()
	}
}

// carry takes bytes from one end to the other until one is closed, then closes both.
func (w *way) carry(from, to net.Conn) {
	defer to.Close()
	defer from.Close()
	w.mu.Lock()
	w.conns[from] = true
	w.mu.Unlock()
	buffer := make([]byte, 64<<10)
	for {
		n, err := from.Read(buffer)
		w.gate.RLock()
		w.gate.RUnlock() //lint:ignore SA2001 it waits while the gate is shut
		if err != nil {
			return
		}
		if _, err := to.Write(buffer[:n]); err != nil {
			return
		}
	}
}
