package webhook_test

import (
	"strings"
	"testing"

	"github.com/outboxctl/outboxctl/outbox/sink/webhook"
)

func TestAddressesThatAreDialled(t *testing.T) {
	t.Parallel()
	const (
		public  = "public"  // always
		private = "private" // with allow_private
		shut    = "shut"    // never
	)
	for addr, want := range map[string]string{
		"93.184.215.14": public, "8.8.8.8": public, "2606:2800:21f:cb07::1": public, "::ffff:8.8.8.8": public,
		"64:ff9b::808:808": public, "2002:808:808::1": public, "172.32.0.1": public, "100.128.0.1": public, "11.0.0.1": public,

		"127.0.0.1": private, "127.9.9.9": private, "10.1.2.3": private, "172.16.0.1": private, "172.31.255.255": private,
		"192.168.1.1": private, "100.64.0.1": private, "100.127.255.255": private, "::1": private, "fc00::1": private,
		"fdab::1": private, "::ffff:127.0.0.1": private, "::ffff:10.0.0.1": private, "64:ff9b::7f00:1": private,
		"64:ff9b::a00:1": private, "2002:a00:1::": private, "2002:7f00:1::1": private, "::ffff:100.64.0.1": private,

		"169.254.169.254": shut, "169.254.0.1": shut, "fe80::1": shut, "fe80::1%eth0": shut, "fd00:ec2::254": shut,
		"fd20:ce::254": shut, "100.100.100.200": shut, "192.0.0.192": shut, "168.63.129.16": shut, "::ffff:169.254.169.254": shut,
		"64:ff9b::a9fe:a9fe": shut, "2002:a9fe:a9fe::": shut, "::ffff:100.100.100.200": shut, "0.0.0.0": shut, "::": shut,
		"198.18.0.1": shut, "198.19.255.255": shut, "192.0.0.8": shut, "240.0.0.1": shut, "255.255.255.255": shut,
		"224.0.0.1": shut, "ff02::1": shut, "2001:db8::1": shut, "192.0.2.1": shut, "::7f00:1": shut, "64:ff9b:1::7f00:1": shut,
		"fec0::1": shut, "2001::1": shut, "0.1.2.3": shut, "192.0.0.1": shut, "198.51.100.1": shut, "203.0.113.1": shut,
		"239.255.255.255": shut, "::ffff:0:127.0.0.1": shut, "::ffff:198.18.0.1": shut, "64:ff9b::c612:1": shut,
		"2002:f000:1::": shut, "64:ff9b::6464:64c8": shut, "2002:c000:c0::": shut, "3fff::1": shut, "5f00::1": shut, "100::1": shut,
	} {
		t.Run(addr, func(t *testing.T) {
			t.Parallel()
			byDefault, allowed := webhook.CheckAddr(addr, false), webhook.CheckAddr(addr, true)
			if got := byDefault == nil; got != (want == public) {
				t.Errorf("by default: %v, want it %s", byDefault, want)
			}
			if got := allowed == nil; got != (want != shut) {
				t.Errorf("with allow_private: %v, want it %s", allowed, want)
			}
			if want == private && !strings.Contains(byDefault.Error(), "allow_private") {
				t.Errorf("error = %v, want the setting that opens it", byDefault)
			}
		})
	}
}
