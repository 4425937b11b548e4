package webhook_test

import (
	"encoding/binary"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"github.com/outboxctl/outboxctl/outbox"
	"github.com/outboxctl/outboxctl/outbox/sink/webhook"
)

// nameServer answers every question with the addresses it is given next, and with the last ones
// for ever.
type nameServer struct {
	mu      sync.Mutex
	answers [][]netip.Addr
	asked   int
}

// newNameServer serves DNS over UDP at addr. Each answer is a list of addresses, separated by
// blanks.
func newNameServer(t *testing.T, answers ...string) (addr string, s *nameServer) {
	t.Helper()
	s = &nameServer{}
	for _, list := range answers {
		var addrs []netip.Addr
		for _, text := range strings.Fields(list) {
			addrs = append(addrs, netip.MustParseAddr(text))
		}
		s.answers = append(s.answers, addrs)
	}
	pc, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() { s.serve(pc) })
	t.Cleanup(func() { pc.Close(); wg.Wait() })
	return pc.LocalAddr().String(), s
}

func (s *nameServer) serve(pc net.PacketConn) {
	buf := make([]byte, 1500)
	for {
		n, from, err := pc.ReadFrom(buf)
		if err != nil {
			return
		}
		pc.WriteTo(s.answer(buf[:n]), from)
	}
}

// The types of a question that ask for addresses.
const (
	typeA    = 1
	typeAAAA = 28
)

// answer builds the message (RFC 1035, 4.1) for a message with one question.
func (s *nameServer) answer(query []byte) []byte {
	end := 12
	for query[end] != 0 { // labels, each behind its length
		end += int(query[end]) + 1
	}
	end += 5 // the root, type and class
	kind := binary.BigEndian.Uint16(query[end-4:])
	msg := append([]byte(nil), query[:end]...)
	msg[2], msg[3] = 0x84, 0 // an answer, by authority
	addrs := s.next(kind)
	binary.BigEndian.PutUint16(msg[6:], uint16(len(addrs)))
	binary.BigEndian.PutUint32(msg[8:], 0)
	for _, addr := range addrs {
		msg = append(msg, 0xc0, 12) // the question's name
		msg = binary.BigEndian.AppendUint16(msg, kind)
		msg = append(msg, 0, 1, 0, 0, 0, 0) // class, no time to live
		msg = binary.BigEndian.AppendUint16(msg, uint16(addr.BitLen()/8))
		msg = append(msg, addr.AsSlice()...)
	}
	return msg
}

// next returns the addresses of that type. A look-up asks for A and AAAA, in any order, and gets
// both from the same list.
func (s *nameServer) next(kind uint16) []netip.Addr {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := s.answers[min(s.asked/2, len(s.answers)-1)]
	s.asked++
	var addrs []netip.Addr
	for _, addr := range list {
		if kind == typeA && addr.Is4() || kind == typeAAAA && addr.Is6() {
			addrs = append(addrs, addr)
		}
	}
	return addrs
}

func (s *nameServer) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked
}

// A name is judged by the addresses that it has when it is dialled, each time.
func TestNamesAreJudgedByTheAddressThatIsDialled(t *testing.T) {
	t.Parallel()
	blocked := answer{Verdict: outbox.VerdictSlow, Kind: "blocked"}
	for _, tt := range []struct {
		name    string
		answers []string // one for each delivery
		private bool
		want    []answer
	}{
		{"a name of this machine", []string{"127.0.0.1"}, false, []answer{blocked}},
		{"a name of this machine, allowed", []string{"127.0.0.1"}, true, []answer{delivered("200")}},
		{"a name of the metadata service", []string{"169.254.169.254"}, true, []answer{blocked}},
		{"a name of its IPv6 address", []string{"fd00:ec2::254"}, true, []answer{blocked}},
		{"a name of a mapped address", []string{"::ffff:169.254.169.254"}, true, []answer{blocked}},
		{"a name of a NAT64 address", []string{"64:ff9b::a9fe:a9fe"}, true, []answer{blocked}},
		{"a name of a 6to4 address", []string{"2002:a9fe:a9fe::"}, true, []answer{blocked}},
		{"a name of a CGNAT address", []string{"100.64.0.1"}, false, []answer{blocked}},
		{"a name of no host", []string{"0.0.0.0"}, true, []answer{blocked}},
		{"blocked addresses of both families", []string{"10.0.0.1 fc00::1 192.168.0.1"}, false, []answer{blocked}},
		{"a blocked address and a good one", []string{"169.254.169.254 127.0.0.1"}, true, []answer{delivered("200")}},
		{"a name that becomes the metadata service", []string{"127.0.0.1", "169.254.169.254"}, true, []answer{delivered("200"), blocked}},
		{"and back", []string{"169.254.169.254", "127.0.0.1"}, true, []answer{blocked, delivered("200")}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			to := newReceiver(t, nil)
			to.Config.SetKeepAlivesEnabled(false) // every delivery dials
			_, port, _ := strings.Cut(strings.TrimPrefix(to.URL, "http://"), ":")
			sink, err := webhook.New(webhook.Config{URL: "http://receiver.example:" + port + "/", AllowPrivate: tt.private})
			if err != nil {
				t.Fatal(err)
			}
			defer sink.Close()
			names, server := newNameServer(t, tt.answers...)
			sink.ResolveBy(names)
			arrived := 0
			for i, want := range tt.want {
				if got := deliver(t, sink, sampleEvent()); got != want {
					t.Errorf("delivery %d = %+v, want %+v", i+1, got, want)
				}
				if want == delivered("200") {
					arrived++
				}
			}
			if n := len(to.requests()); n != arrived {
				t.Errorf("%d requests arrived, want %d", n, arrived)
			}
			if n := server.count(); n != 2*len(tt.want) {
				t.Errorf("the name was asked for %d times, want A and AAAA for each delivery", n)
			}
		})
	}
}

// Spellings that only some resolvers take for an address are no way around the check: whatever they
// become is judged when it is dialled.
func TestSpellingsThatBecomeAnAddressAreJudgedWhenDialled(t *testing.T) {
	t.Parallel()
	for _, host := range []string{"１２７.0.0.1", "127。0。0。1", "①②⑦.0.0.1", "ｌocalhost"} {
		sink, err := webhook.New(webhook.Config{URL: "http://" + host + ":1/"})
		if err != nil {
			continue // refused before anything is dialled
		}
		defer sink.Close()
		if got := deliver(t, sink, sampleEvent()); got.Kind != "blocked" {
			t.Errorf("%s: %+v, want it blocked", host, got)
		}
	}
}
