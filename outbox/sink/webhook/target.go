package webhook

import (
	"encoding/base64"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"code.dny.dev/ssrf"
)

// target is where requests go, and what of it may be shown.
type target struct {
	url   *url.URL // without user:password and fragment
	basic string   // the value of Authorization; "" = none
}

// parseTarget reads a URL. It repeats nothing of what it refuses: a password may stand anywhere in
// a URL that does not parse, and so may be quoted by the parser's own error.
func parseTarget(raw string, guard *ssrf.Guardian) (target, error) {
	u, err := url.Parse(raw)
	if err != nil {
		return target{}, errors.New("url: not a URL; look at its port, brackets and percent signs")
	}
	switch port, err := strconv.ParseUint(u.Port(), 10, 16); {
	case u.Scheme != "http" && u.Scheme != "https":
		return target{}, errors.New("url: must begin with http:// or https://")
	case u.Hostname() == "":
		return target{}, errors.New("url: has no host")
	case u.Port() != "" && (err != nil || port == 0):
		return target{}, errors.New("url: the port is not in 1..65535")
	}
	if err := checkLiteral(u.Hostname(), guard); err != nil {
		return target{}, fmt.Errorf("url: %w", err)
	}
	basic := basicAuth(u.User)
	u.User, u.Fragment, u.RawFragment = nil, "", ""
	return target{url: u, basic: basic}, nil
}

func basicAuth(user *url.Userinfo) string {
	if user == nil {
		return ""
	}
	password, _ := user.Password()
	return "Basic " + base64.StdEncoding.EncodeToString([]byte(user.Username()+":"+password))
}

// checkLiteral refuses an address that stands in the URL itself. Names are judged when they are
// dialled, except localhost, which resolves to loopback by definition (RFC 6761).
func checkLiteral(host string, guard *ssrf.Guardian) error {
	if isLocalhost(host) {
		host = "127.0.0.1"
	}
	addr, err := netip.ParseAddr(host)
	switch {
	case err == nil:
		return checkAddr(addr, guard)
	case endsInNumber(host):
		return errors.New("the host ends in a number: write an IPv4 address as four decimal numbers, such as 192.0.2.1")
	}
	return nil
}

// endsInNumber reports whether host can be an IPv4 address in one of its old spellings (2130706433,
// 0x7f.1, 0177.0.0.1), which some resolvers take for one and others do not. No name ends in a number
// (WHATWG URL, "ends in a number checker").
func endsInNumber(host string) bool {
	host = strings.TrimSuffix(host, ".")
	last := strings.ToLower(host[strings.LastIndexByte(host, '.')+1:])
	if hex, ok := strings.CutPrefix(last, "0x"); ok {
		return strings.Trim(hex, "0123456789abcdef") == ""
	}
	return last != "" && strings.Trim(last, "0123456789") == ""
}

func isLocalhost(host string) bool {
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	return host == "localhost" || strings.HasSuffix(host, ".localhost")
}

// String shows the target without password, query and fragment.
func (t target) String() string { return t.url.Scheme + "://" + t.url.Host + t.url.EscapedPath() }

// exposed reports whether requests cross the internet in the clear, as far as the URL tells.
func (t target) exposed() bool {
	if t.url.Scheme != "http" {
		return false
	}
	host := strings.ToLower(strings.TrimSuffix(t.url.Hostname(), "."))
	if addr, err := netip.ParseAddr(host); err == nil {
		return !opens(embedded(addr))
	}
	dot := strings.LastIndexByte(host, '.')
	return dot >= 0 && !slices.Contains([]string{"localhost", "local", "internal"}, host[dot+1:])
}
