package webhook

import (
	"context"
	"net"
	"net/netip"
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

// Resolve makes every name resolve to one address.
func (s *Sink) Resolve(address string) {
	dial := s.transport.DialContext
	s.transport.DialContext = func(ctx context.Context, network, _ string) (net.Conn, error) {
		return dial(ctx, network, address)
	}
}
