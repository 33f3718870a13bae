//go:build linux

package bpf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

// Verdicts of a program (include/uapi/linux/bpf.h: enum xdp_action).
const (
	xdpPass     = 2
	xdpRedirect = 4
)

// What the process under test owns.
const (
	ownQPNBase = 0x123450 // deliberately no multiple of the size
	ownQPNBits = 8
)

var (
	ownMAC     = [6]byte{0x02, 0x11, 0x22, 0x33, 0x44, 0x55}
	ownOptions = Options{MAC: ownMAC, QPNBase: ownQPNBase, QPNBits: ownQPNBits, OwnGSI: true}

	own4     = netip.MustParseAddr("192.0.2.1")
	own6     = netip.MustParseAddr("2001:db8::1")
	foreign4 = netip.MustParseAddr("192.0.2.2")
	foreign6 = netip.MustParseAddr("2001:db8::2")

	group4    = netip.MustParseAddr("239.129.2.3")
	group6    = netip.MustParseAddr("ff0e::1234:5678")
	group4MAC = [6]byte{0x01, 0x00, 0x5E, 0x01, 0x02, 0x03}
	group6MAC = [6]byte{0x33, 0x33, 0x12, 0x34, 0x56, 0x78}
	unjoined4 = netip.MustParseAddr("239.129.2.4")
	unjoined6 = netip.MustParseAddr("ff0e::1234:5679")
)

// ownProgram loads a program that owns all of the above.
func ownProgram(t testing.TB, options Options) *Program {
	t.Helper()
	requireRoot(t)
	p := load(t, options)
	require.NoError(t, p.SetAddresses([]netip.Addr{own4, own6}))
	require.NoError(t, p.JoinGroup(group4))
	require.NoError(t, p.JoinGroup(group6))
	return p
}

// variants returns the forms in which the program is loaded.
func (p *Program) variants() map[string]*ebpf.Program {
	return map[string]*ebpf.Program{"plain": p.plain, "frags": p.frags}
}

// testRun runs a frame through a program without a device. It requires that the
// frame comes back as it was, and that one counter moved, by this one frame.
func testRun(t require.TestingT, p *Program, program *ebpf.Program, frame []byte) (verdict uint32, reason Reason) {
	before, err := p.Counters()
	require.NoError(t, err)
	options := ebpf.RunOptions{Data: frame, DataOut: make([]byte, len(frame)+64)}
	verdict, err = program.Run(&options)
	require.NoError(t, err)
	require.Equal(t, frame, options.DataOut)
	after, err := p.Counters()
	require.NoError(t, err)

	reason = reasonCount
	for i := range after {
		if before[i] == after[i] {
			continue
		}
		require.Equal(t, reasonCount, reason, "two counters moved")
		reason = Reason(i)
		require.Equal(t, before[i].Packets+1, after[i].Packets)
		require.Equal(t, before[i].Bytes+uint64(len(frame)), after[i].Bytes)
	}
	require.Less(t, reason, reasonCount, "no counter moved")
	return verdict, reason
}

// Frames that reach each reason. Without sockets those of the process end as PassNoSocket.
var verdictTests = []struct {
	name  string
	frame testFrame
	want  Reason
}{
	{"IPv4", testFrame{mac: ownMAC, destination: own4, qpn: ownQPNBase + 7}, PassNoSocket},
	{"IPv6", testFrame{mac: ownMAC, destination: own6, qpn: ownQPNBase + 7}, PassNoSocket},
	{"first QPN", testFrame{mac: ownMAC, destination: own4, qpn: ownQPNBase}, PassNoSocket},
	{"last QPN", testFrame{mac: ownMAC, destination: own4, qpn: ownQPNBase + 1<<ownQPNBits - 1}, PassNoSocket},
	{"GSI", testFrame{mac: ownMAC, destination: own6, qpn: 1}, PassNoSocket},
	{"large", testFrame{mac: ownMAC, destination: own4, qpn: ownQPNBase, payload: 2048}, PassNoSocket},
	{"padded", testFrame{mac: ownMAC, destination: own4, qpn: ownQPNBase, payload: 40, udpLength: 24}, PassNoSocket},
	{"IPv4 group", testFrame{mac: group4MAC, destination: group4, qpn: 0xFFFFFF}, PassNoSocket},
	{"IPv6 group", testFrame{mac: group6MAC, destination: group6, qpn: 0xFFFFFF}, PassNoSocket},

	{"ARP", testFrame{mac: ownMAC, destination: own4, etherType: 0x0806}, PassNotIP},
	{"RoCEv1", testFrame{mac: ownMAC, destination: own6, etherType: 0x8915, qpn: ownQPNBase}, PassNotIP},
	{"length instead of EtherType", testFrame{mac: ownMAC, destination: own4, etherType: 46}, PassNotIP},
	{"IPv4 says version 6", testFrame{mac: ownMAC, destination: own4, version: 6, qpn: ownQPNBase}, PassNotIP},
	{"IPv6 says version 4", testFrame{mac: ownMAC, destination: own6, version: 4, qpn: ownQPNBase}, PassNotIP},
	{"IHL 4", testFrame{mac: ownMAC, destination: own4, ihl: 4, qpn: ownQPNBase}, PassNotIP},
	{"802.1Q", testFrame{mac: ownMAC, tags: []uint16{0x8100}, destination: own4, qpn: ownQPNBase}, PassVLAN},
	{"802.1ad", testFrame{mac: ownMAC, tags: []uint16{0x88A8, 0x8100}, destination: own6, qpn: ownQPNBase}, PassVLAN},
	{"ICMP", testFrame{mac: ownMAC, destination: own4, protocol: 1}, PassNotUDP},
	{"TCP with options and fragments", testFrame{mac: ownMAC, destination: own4, protocol: 6, options: 2, fragment: 0x2000}, PassNotUDP},
	{"TCP over IPv6", testFrame{mac: ownMAC, destination: own6, protocol: 6}, PassNotUDP},
	{"IPv6 without next header", testFrame{mac: ownMAC, destination: own6, protocol: 59}, PassNotUDP},
	{"last fragment", testFrame{mac: ownMAC, destination: own4, fragment: 185, qpn: ownQPNBase}, PassIPv4LaterFragment},
	{"middle fragment", testFrame{mac: ownMAC, destination: own4, fragment: 0x2000 | 1, qpn: ownQPNBase}, PassIPv4LaterFragment},
	{"first fragment", testFrame{mac: ownMAC, destination: own4, fragment: 0x2000, qpn: ownQPNBase}, PassIPv4Fragment},
	{"first fragment with options", testFrame{mac: ownMAC, destination: own4, fragment: 0x2000, options: 1, qpn: ownQPNBase}, PassIPv4Fragment},
	{"first fragment, other port", testFrame{mac: ownMAC, destination: own4, fragment: 0x2000, port: 53}, PassOtherPort},
	{"do not fragment", testFrame{mac: ownMAC, destination: own4, fragment: 0x4000, qpn: ownQPNBase}, PassNoSocket},
	{"options", testFrame{mac: ownMAC, destination: own4, options: 1, qpn: ownQPNBase}, PassIPv4Options},
	{"all options", testFrame{mac: ownMAC, destination: own4, options: 10, qpn: ownQPNBase}, PassIPv4Options},
	{"options, other port", testFrame{mac: ownMAC, destination: own4, options: 10, port: 53}, PassOtherPort},
	{"IPv6 experiment", testFrame{mac: ownMAC, destination: own6, protocol: 0xFD, qpn: ownQPNBase}, PassNotUDP},
	{"IPv6 routing", testFrame{mac: ownMAC, destination: own6, protocol: 43, qpn: ownQPNBase}, PassIPv6Extension},
	{"IPv6 fragment", testFrame{mac: ownMAC, destination: own6, protocol: 44, qpn: ownQPNBase}, PassIPv6Extension},
	{"IPv6 authentication", testFrame{mac: ownMAC, destination: own6, protocol: 51, qpn: ownQPNBase}, PassIPv6Extension},
	{"IPv6 destination options", testFrame{mac: ownMAC, destination: own6, protocol: 60, qpn: ownQPNBase}, PassIPv6Extension},
	{"IPv6 mobility", testFrame{mac: ownMAC, destination: own6, protocol: 135, qpn: ownQPNBase}, PassIPv6Extension},
	{"VXLAN", testFrame{mac: ownMAC, destination: own4, port: 4789, qpn: ownQPNBase}, PassOtherPort},
	{"port in little endian", testFrame{mac: ownMAC, destination: own4, port: 0xB712, qpn: ownQPNBase}, PassOtherPort},
	{"UDP length 19", testFrame{mac: ownMAC, destination: own4, qpn: ownQPNBase, udpLength: 19}, PassShortBTH},
	{"foreign MAC", testFrame{mac: [6]byte{0x02, 0x11, 0x22, 0x33, 0x44, 0x56}, destination: own4, qpn: ownQPNBase}, PassForeignMAC},
	{"foreign MAC, first octet", testFrame{mac: [6]byte{0x06, 0x11, 0x22, 0x33, 0x44, 0x55}, destination: own4, qpn: ownQPNBase}, PassForeignMAC},
	{"foreign MAC, third octet", testFrame{mac: [6]byte{0x02, 0x11, 0x23, 0x33, 0x44, 0x55}, destination: own6, qpn: ownQPNBase}, PassForeignMAC},
	{"broadcast MAC", testFrame{mac: [6]byte{255, 255, 255, 255, 255, 255}, destination: own4, qpn: ownQPNBase}, PassForeignMAC},
	{"foreign IPv4", testFrame{mac: ownMAC, destination: foreign4, qpn: ownQPNBase}, PassForeignAddress},
	{"foreign IPv6", testFrame{mac: ownMAC, destination: foreign6, qpn: ownQPNBase}, PassForeignAddress},
	{"IPv4 in IPv6 form without prefix", testFrame{mac: ownMAC, destination: netip.MustParseAddr("::192.0.2.1"), qpn: ownQPNBase}, PassForeignAddress},
	{"group that was not joined", testFrame{mac: group4MAC, destination: unjoined4, qpn: 0xFFFFFF}, PassForeignMulticast},
	{"IPv6 group that was not joined", testFrame{mac: group6MAC, destination: unjoined6, qpn: 0xFFFFFF}, PassForeignMulticast},
	{"group at our own MAC", testFrame{mac: ownMAC, destination: group4, qpn: 0xFFFFFF}, PassForeignMAC},
	{"group at the MAC of another", testFrame{mac: group6MAC, destination: group4, qpn: 0xFFFFFF}, PassForeignMAC},
	{"unicast at the MAC of a group", testFrame{mac: group4MAC, destination: own4, qpn: ownQPNBase}, PassForeignMAC},
	{"our QPN in a group", testFrame{mac: group4MAC, destination: group4, qpn: ownQPNBase}, PassForeignQPN},
	{"multicast QPN at our address", testFrame{mac: ownMAC, destination: own4, qpn: 0xFFFFFF}, PassForeignQPN},
	{"QPN 0", testFrame{mac: ownMAC, destination: own4, qpn: 0}, PassForeignQPN},
	{"QPN before", testFrame{mac: ownMAC, destination: own4, qpn: ownQPNBase - 1}, PassForeignQPN},
	{"QPN after", testFrame{mac: ownMAC, destination: own6, qpn: ownQPNBase + 1<<ownQPNBits}, PassForeignQPN},
}

func TestVerdict(t *testing.T) {
	p := ownProgram(t, ownOptions)
	for _, test := range verdictTests {
		for form, program := range p.variants() {
			t.Run(test.name+"/"+form, func(t *testing.T) {
				verdict, reason := testRun(t, p, program, test.frame.bytes())
				require.EqualValues(t, xdpPass, verdict)
				require.Equal(t, test.want, reason)
			})
		}
	}
	reached := map[Reason]bool{Redirected: true, PassTruncated: true} // in the tests below
	for _, test := range verdictTests {
		reached[test.want] = true
	}
	for _, reason := range Reasons() {
		require.True(t, reached[reason], "no test reaches %v", reason)
	}
}

// A frame that ends anywhere is passed until its BTH is there, and counted for
// the first header that is missing.
func TestVerdictTruncated(t *testing.T) {
	p := ownProgram(t, ownOptions)
	for _, test := range []struct {
		frame    testFrame
		udp, bth int // first byte after the header
	}{
		{testFrame{mac: ownMAC, destination: own4, qpn: ownQPNBase, payload: 4}, 42, 54},
		{testFrame{mac: ownMAC, destination: own6, qpn: ownQPNBase, payload: 4}, 62, 74},
		{testFrame{mac: group4MAC, destination: group4, qpn: 0xFFFFFF, payload: 4}, 42, 54},
	} {
		frame := test.frame.bytes()
		require.Len(t, frame, test.bth+4)
		for length := 14; length <= len(frame); length++ { // a test run wants an Ethernet header
			want := PassNoSocket
			if length < test.udp {
				want = PassTruncated
			} else if length < test.bth {
				want = PassShortBTH
			}
			for form, program := range p.variants() {
				verdict, reason := testRun(t, p, program, frame[:length])
				require.EqualValues(t, xdpPass, verdict)
				require.Equal(t, want, reason, "%v, %s, %d bytes", test.frame.destination, form, length)
			}
		}
	}
	// A header may begin beyond the end: options that are not there.
	frame := testFrame{mac: ownMAC, destination: own4, ihl: 15, qpn: ownQPNBase}.bytes()
	_, reason := testRun(t, p, p.frags, frame)
	require.Equal(t, PassTruncated, reason)
}

// Next header 0, hop-by-hop options, is not the absence of a value.
func TestVerdictHopByHop(t *testing.T) {
	p := ownProgram(t, ownOptions)
	frame := testFrame{mac: ownMAC, destination: own6, qpn: ownQPNBase}.bytes()
	frame[ipv6NextAt] = 0
	_, reason := testRun(t, p, p.plain, frame)
	require.Equal(t, PassIPv6Extension, reason)
}

// Without OwnGSI packets to QP1 are the kernel's, with the zero Options all are.
func TestVerdictByOptions(t *testing.T) {
	gsi := testFrame{mac: ownMAC, destination: own4, qpn: 1}.bytes()
	for _, test := range []struct {
		options Options
		qpn     uint32
		want    Reason
	}{
		{Options{MAC: ownMAC, QPNBase: 2, QPNBits: 4}, 2, PassNoSocket},
		{Options{MAC: ownMAC, QPNBase: 2, QPNBits: 4}, 17, PassNoSocket},
		{Options{MAC: ownMAC, QPNBase: 2, QPNBits: 4}, 18, PassForeignQPN},
		{Options{MAC: ownMAC, QPNBase: 0xFFFFFE}, 0xFFFFFE, PassNoSocket},
		{Options{MAC: ownMAC, QPNBase: 0xFFFFFE}, 0xFFFFFF, PassForeignQPN},
		{Options{MAC: ownMAC, QPNBase: 0xFFFFFE}, 0xFFFFFD, PassForeignQPN},
		{Options{MAC: ownMAC, QPNBase: 2, QPNBits: 23}, 0x800001, PassNoSocket},
		{Options{MAC: ownMAC, QPNBase: 2, QPNBits: 23}, 0x800002, PassForeignQPN},
		{Options{MAC: ownMAC}, 0, PassForeignQPN},
		{Options{}, 0, PassForeignMAC},
	} {
		p := ownProgram(t, test.options)
		_, reason := testRun(t, p, p.plain, testFrame{mac: ownMAC, destination: own4, qpn: test.qpn}.bytes())
		require.Equal(t, test.want, reason, "%+v", test)
		if test.options.MAC == ownMAC {
			_, reason = testRun(t, p, p.plain, gsi)
			require.Equal(t, PassForeignQPN, reason)
		}
	}
}

// Frames in several buffers are judged by the headers in the first one, and
// counted whole.
func TestVerdictSeveralBuffers(t *testing.T) {
	p := ownProgram(t, ownOptions)
	for _, payload := range []int{4000, 9000, 60000} {
		for _, qpn := range []uint32{ownQPNBase, 5} {
			frame := testFrame{mac: ownMAC, destination: own6, qpn: qpn, payload: payload}.bytes()
			want := PassNoSocket
			if qpn == 5 {
				want = PassForeignQPN
			}
			verdict, reason := testRun(t, p, p.frags, frame)
			require.EqualValues(t, xdpPass, verdict)
			require.Equal(t, want, reason)
		}
	}
}

// Headers that reach into the second buffer, which no driver does, count as
// truncated: nothing is read from there.
func TestVerdictHeadersInSecondBuffer(t *testing.T) {
	p := ownProgram(t, ownOptions)
	frame := testFrame{mac: ownMAC, destination: own4, qpn: ownQPNBase, payload: 1000}.bytes()
	for _, test := range []struct {
		first int // bytes in the first buffer
		want  Reason
	}{{14, PassTruncated}, {33, PassTruncated}, {41, PassTruncated}, {42, PassShortBTH}, {53, PassShortBTH}, {54, PassNoSocket}} {
		before := counters(t, p)
		var context [6]uint32 // struct xdp_md; the second field is data_end
		context[1] = uint32(test.first)
		verdict, err := p.frags.Run(&ebpf.RunOptions{Data: frame, Context: context})
		if errors.Is(err, unix.EINVAL) {
			skip(t, "this kernel (before Linux 6.18) makes test frames of full buffers only")
		}
		require.NoError(t, err)
		require.EqualValues(t, xdpPass, verdict)
		after := counters(t, p)
		require.Equal(t, before[test.want].Packets+1, after[test.want].Packets, "%+v", test)
		require.Equal(t, before[test.want].Bytes+uint64(len(frame)), after[test.want].Bytes)
	}
}

// Places of bytes in a frame without a VLAN tag (RFC 791, RFC 8200, RFC 768, IBTA section 9.2), and lengths of headers.
const (
	etherTypeAt       = 12
	ipAt              = 14
	ipv4FragmentAt    = ipAt + 6
	ipv4ProtocolAt    = ipAt + 9
	ipv4DestinationAt = ipAt + 16
	ipv6NextAt        = ipAt + 6
	ipv6DestinationAt = ipAt + 24
	ipv4Length        = 20
	ipv6Length        = 40
	udpLength         = 8
	udpPortAt         = 2 // destination, in the UDP header
	udpLengthAt       = 4
	bthLength         = 12
	bthQPNAt          = 5
)

// model says what must become of a frame, from the rules and not from the program.
func model(b []byte) Reason {
	field := func(offset int) uint16 { return binary.BigEndian.Uint16(b[offset:]) }
	var destination netip.Addr
	var udp int
	unusual := Redirected
	switch etherType := field(etherTypeAt); {
	case etherType == 0x8100 || etherType == 0x88A8:
		return PassVLAN
	case etherType == etherTypeIPv4:
		if len(b) < ipAt+ipv4Length {
			return PassTruncated
		}
		if b[ipAt]>>4 != 4 || b[ipAt]&15 < 5 {
			return PassNotIP
		}
		if b[ipv4ProtocolAt] != unix.IPPROTO_UDP {
			return PassNotUDP
		}
		if field(ipv4FragmentAt)&0x1FFF != 0 {
			return PassIPv4LaterFragment
		}
		if field(ipv4FragmentAt)&0x2000 != 0 {
			unusual = PassIPv4Fragment
		} else if b[ipAt]&15 > 5 {
			unusual = PassIPv4Options
		}
		destination, udp = netip.AddrFrom4([4]byte(b[ipv4DestinationAt:])), ipAt+4*int(b[ipAt]&15)
	case etherType == etherTypeIPv6:
		if len(b) < ipAt+ipv6Length {
			return PassTruncated
		}
		if b[ipAt]>>4 != 6 {
			return PassNotIP
		}
		switch b[ipv6NextAt] {
		case 0, 43, 44, 51, 60, 135:
			return PassIPv6Extension
		case unix.IPPROTO_UDP:
		default:
			return PassNotUDP
		}
		destination, udp = netip.AddrFrom16([16]byte(b[ipv6DestinationAt:])), ipAt+ipv6Length
	default:
		return PassNotIP
	}
	switch {
	case len(b) < udp+udpLength:
		return PassTruncated
	case field(udp+udpPortAt) != roceUDPPort:
		return PassOtherPort
	case unusual != Redirected:
		return unusual
	case field(udp+udpLengthAt) < udpLength+bthLength || len(b) < udp+udpLength+bthLength:
		return PassShortBTH
	}
	mac, qpn := [6]byte(b), uint32(b[udp+udpLength+bthQPNAt])<<16|uint32(field(udp+udpLength+bthQPNAt+1))
	if destination.Is6() && destination.Is4In6() {
		destination = destination.Unmap() // the same GID over the other protocol
	} else if destination.IsMulticast() {
		groupMAC, joined := map[netip.Addr][6]byte{group4: group4MAC, group6: group6MAC}[destination]
		switch {
		case !joined:
			return PassForeignMulticast
		case mac != groupMAC:
			return PassForeignMAC
		case qpn != 0xFFFFFF:
			return PassForeignQPN
		}
		return PassNoSocket
	}
	switch {
	case mac != ownMAC:
		return PassForeignMAC
	case destination != own4 && destination != own6:
		return PassForeignAddress
	case qpn != 1 && (qpn < ownQPNBase || qpn >= ownQPNBase+1<<ownQPNBits):
		return PassForeignQPN
	}
	return PassNoSocket
}

// Frames with random damage get the verdict of the model.
func TestVerdictModel(t *testing.T) {
	p := ownProgram(t, ownOptions)
	rapid.Check(t, func(t *rapid.T) {
		frame := rapid.SampledFrom(verdictTests).Draw(t, "base").frame.bytes()
		headers := min(len(frame), 74)
		for range rapid.IntRange(0, 3).Draw(t, "changes") {
			offset := rapid.IntRange(0, headers-1).Draw(t, "offset")
			frame[offset] ^= 1 << rapid.IntRange(0, 7).Draw(t, "bit")
		}
		frame = frame[:rapid.IntRange(14, len(frame)).Draw(t, "length")]
		program := p.plain
		if rapid.Bool().Draw(t, "frags") {
			program = p.frags
		}
		verdict, reason := testRun(t, p, program, frame)
		require.EqualValues(t, xdpPass, verdict)
		require.Equal(t, model(frame), reason, "%x", frame)
	})
}

// Noise in place of a frame does no harm.
func TestVerdictNoise(t *testing.T) {
	p := ownProgram(t, ownOptions)
	random := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		frame := make([]byte, 14+random.IntN(200))
		for i := range frame {
			frame[i] = byte(random.Uint32())
		}
		binary.BigEndian.PutUint16(frame[12:], []uint16{etherTypeIPv4, etherTypeIPv6}[random.IntN(2)])
		verdict, reason := testRun(t, p, p.plain, frame)
		require.EqualValues(t, xdpPass, verdict)
		require.Equal(t, model(frame), reason, "%x", frame)
	}
}

func BenchmarkVerdict(b *testing.B) {
	p := ownProgram(b, ownOptions)
	for _, destination := range []netip.Addr{own4, own6, foreign4} {
		for form, program := range p.variants() {
			b.Run(fmt.Sprintf("%v/%s", destination, form), func(b *testing.B) {
				frame := testFrame{mac: ownMAC, destination: destination, qpn: ownQPNBase, payload: 1024}.bytes()
				_, duration, err := program.Benchmark(frame, max(b.N, 1), b.ResetTimer)
				require.NoError(b, err)
				b.ReportMetric(float64(duration.Nanoseconds()), "ns/frame")
			})
		}
	}
}
