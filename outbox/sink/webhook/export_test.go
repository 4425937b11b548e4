package webhook

import (
	"context"
	"net"
	"net/http"
	"net/netip"
	"time"
)

// The pure functions, for their tables and fuzz targets.
var (
	Judge      = judge
	Receipt    = receipt
	RetryAfter = retryAfter
)

// CheckAddr judges an address as the dialler does.
func CheckAddr(addr string, allowPrivate bool) error {
	return checkAddr(netip.MustParseAddr(addr), newGuard(allowPrivate))
}

// WrapConns puts wrap between the sink and every connection that it dials from now on.
func (s *Sink) WrapConns(wrap func(net.Conn) net.Conn) {
	dial := s.transport.DialContext
	s.transport.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		nc, err := dial(ctx, network, address)
		if err == nil {
			nc.(*conn).Conn = wrap(nc.(*conn).Conn)
		}
		return nc, err
	}
}

// ResolveBy asks the name server at address instead of the system's.
func (s *Sink) ResolveBy(address string) {
	s.dialer.Resolver = &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "udp", address)
	}}
}

// PingAfter changes the health checks of HTTP/2 connections.
func (s *Sink) PingAfter(silence, timeout time.Duration) {
	s.transport.HTTP2 = &http.HTTP2Config{SendPingTimeout: silence, PingTimeout: timeout}
}
