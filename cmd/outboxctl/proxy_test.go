package main_test

import (
	"io"
	"net"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
)

// proxy stands before a server and counts who comes. While the server is away it takes connections
// and ends them, as load balancers do.
type proxy struct {
	upstream string
	listener net.Listener
	attempts atomic.Int64
	wg       sync.WaitGroup
}

// newProxy starts one before the server of a URL, and returns the URL through it. What the URL says
// of TLS is dropped, so that a client tries as it does by default.
func newProxy(t *testing.T, server string) (p *proxy, through string) {
	t.Helper()
	u, err := url.Parse(server)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p = &proxy{upstream: u.Host, listener: l}
	p.wg.Go(p.serve)
	t.Cleanup(func() {
		l.Close()
		p.wg.Wait()
	})
	u.Host, u.RawQuery = l.Addr().String(), ""
	return p, u.String()
}

func (p *proxy) serve() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.attempts.Add(1)
		p.wg.Go(func() { p.pass(client) })
	}
}

// pass copies both ways until one side ends.
func (p *proxy) pass(client net.Conn) {
	defer client.Close()
	server, err := net.Dial("tcp", p.upstream)
	if err != nil {
		return
	}
	var both sync.WaitGroup
	for _, way := range [][2]net.Conn{{server, client}, {client, server}} {
		both.Go(func() {
			io.Copy(way[0], way[1])
			server.Close()
			client.Close()
		})
	}
	both.Wait()
}
