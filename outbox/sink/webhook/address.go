package webhook

import (
	"fmt"
	"net/netip"
	"slices"
	"syscall"

	"code.dny.dev/ssrf"
)

var (
	nat64   = ssrf.IPv6NAT64Prefix
	sixTo4  = netip.MustParsePrefix("2002::/16")
	private = []netip.Prefix{ // what [Config].AllowPrivate opens
		netip.MustParsePrefix("127.0.0.0/8"),
		netip.MustParsePrefix("10.0.0.0/8"),
		netip.MustParsePrefix("172.16.0.0/12"),
		netip.MustParsePrefix("192.168.0.0/16"),
		netip.MustParsePrefix("100.64.0.0/10"), // CGNAT
		netip.MustParsePrefix("::1/128"),
		netip.MustParsePrefix("fc00::/7"), // unique local
	}
	metadata = []netip.Addr{ // cloud metadata outside link-local, shut for ever
		netip.MustParseAddr("fd00:ec2::254"),   // AWS
		netip.MustParseAddr("fd20:ce::254"),    // Google Cloud
		netip.MustParseAddr("fd00:42::42"),     // Scaleway
		netip.MustParseAddr("100.100.100.200"), // Alibaba
		netip.MustParseAddr("168.63.129.16"),   // Azure
	}
)

// blockedError is an address that must not be dialled.
type blockedError struct {
	addr netip.Addr
	why  string
}

func (e *blockedError) Error() string { return fmt.Sprintf("%s is %s", e.addr, e.why) }

// newGuard makes the table of forbidden networks: the special-purpose registries of IANA, and for
// IPv6 everything that is not global unicast. Link-local is in it and in no exception.
func newGuard(allowPrivate bool) *ssrf.Guardian {
	if !allowPrivate {
		return ssrf.New(ssrf.WithAnyPort())
	}
	var v4, v6 []netip.Prefix
	for _, p := range private {
		if p.Addr().Is4() {
			v4 = append(v4, p)
		} else {
			v6 = append(v6, p)
		}
	}
	return ssrf.New(ssrf.WithAnyPort(), ssrf.WithAllowedV4Prefixes(v4...), ssrf.WithAllowedV6Prefixes(v6...))
}

// control is a [net.Dialer]'s: it sees the address that is really dialled, after the name was
// resolved, so that a name cannot change between a check and its use.
func control(guard *ssrf.Guardian) func(network, address string, c syscall.RawConn) error {
	return func(_, address string, _ syscall.RawConn) error {
		ap, err := netip.ParseAddrPort(address)
		if err != nil {
			return err
		}
		return checkAddr(ap.Addr(), guard)
	}
}

// checkAddr judges addr, or the IPv4 address inside it.
func checkAddr(addr netip.Addr, guard *ssrf.Guardian) error {
	inner := embedded(addr)
	switch {
	case slices.Contains(metadata, inner):
		return &blockedError{addr, "a metadata service"}
	case guard.SafeAddr(inner) == nil:
		return nil
	case opens(inner):
		return &blockedError{addr, "not public; allow_private opens it"}
	}
	return &blockedError{addr, "not public"}
}

// opens reports whether [Config].AllowPrivate opens addr.
func opens(addr netip.Addr) bool {
	return slices.ContainsFunc(private, func(p netip.Prefix) bool { return p.Contains(addr) })
}

// embedded is the IPv4 address that a gateway or the kernel makes of addr (mapped, NAT64, 6to4), or
// addr itself without its zone.
func embedded(addr netip.Addr) netip.Addr {
	addr = addr.Unmap().WithZone("")
	b := addr.As16()
	switch {
	case nat64.Contains(addr):
		return netip.AddrFrom4([4]byte(b[12:16]))
	case sixTo4.Contains(addr):
		return netip.AddrFrom4([4]byte(b[2:6]))
	}
	return addr
}
