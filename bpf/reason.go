package bpf

import (
	"fmt"

	"github.com/xroce/xroce/internal/enum"
)

// Reason says why the program redirected a frame or passed it to the kernel.
// The values are those of enum reason in xdp_roce.c.
type Reason uint32

// One reason decides each frame. All but [Redirected] mean that the kernel gets it.
const (
	// Redirected frames went to the socket of their receive queue. The socket
	// may still lose them: see its rx_dropped and rx_ring_full statistics.
	Redirected = Reason(roceReasonREASON_REDIRECTED)
	// PassTruncated frames end within the Ethernet, IP or UDP header.
	PassTruncated = Reason(roceReasonREASON_PASS_TRUNCATED)
	// PassVLAN frames carry an 802.1Q or 802.1ad tag.
	PassVLAN = Reason(roceReasonREASON_PASS_VLAN)
	// PassNotIP frames are neither IPv4 nor IPv6.
	PassNotIP = Reason(roceReasonREASON_PASS_NOT_IP)
	// PassNotUDP packets carry another protocol.
	PassNotUDP = Reason(roceReasonREASON_PASS_NOT_UDP)
	// PassIPv4LaterFragment packets are fragments other than the first: they
	// do not show a port.
	PassIPv4LaterFragment = Reason(roceReasonREASON_PASS_IPV4LATER_FRAGMENT)
	// PassIPv6Extension packets have extension headers, fragments among them.
	// Whether UDP to port 4791 follows is not looked for.
	PassIPv6Extension = Reason(roceReasonREASON_PASS_IPV6EXTENSION)
	// PassOtherPort datagrams are not for UDP port 4791.
	PassOtherPort = Reason(roceReasonREASON_PASS_OTHER_PORT)
	// PassIPv4Options datagrams are for port 4791, after an IPv4 header with options.
	PassIPv4Options = Reason(roceReasonREASON_PASS_IPV4OPTIONS)
	// PassIPv4Fragment datagrams are for port 4791 and first fragments.
	PassIPv4Fragment = Reason(roceReasonREASON_PASS_IPV4FRAGMENT)
	// PassShortBTH datagrams are for port 4791, and too short for a base
	// transport header of 12 bytes.
	PassShortBTH = Reason(roceReasonREASON_PASS_SHORT_BTH)
	// PassForeignMAC frames are for port 4791 at another MAC address.
	PassForeignMAC = Reason(roceReasonREASON_PASS_FOREIGN_MAC)
	// PassForeignAddress datagrams are for port 4791 at an IP address that is
	// not in the list of addresses.
	PassForeignAddress = Reason(roceReasonREASON_PASS_FOREIGN_ADDRESS)
	// PassForeignMulticast datagrams are for port 4791 in a group that was not joined.
	PassForeignMulticast = Reason(roceReasonREASON_PASS_FOREIGN_MULTICAST)
	// PassForeignQPN packets are for a QPN outside of the range, for QP1 if it
	// is not owned, or in a joined group for another QPN than 0xFFFFFF.
	PassForeignQPN = Reason(roceReasonREASON_PASS_FOREIGN_QPN)
	// PassNoSocket packets belong to this process, but no socket is registered
	// for the receive queue they came in on.
	PassNoSocket = Reason(roceReasonREASON_PASS_NO_SOCKET)

	reasonCount = Reason(roceReasonREASON_COUNT)
)

// A test holds the names against the BTF of the program.
var reasonNames = [reasonCount]string{
	Redirected:            "redirected",
	PassTruncated:         "pass_truncated",
	PassVLAN:              "pass_vlan",
	PassNotIP:             "pass_not_ip",
	PassNotUDP:            "pass_not_udp",
	PassIPv4LaterFragment: "pass_ipv4_later_fragment",
	PassIPv6Extension:     "pass_ipv6_extension",
	PassOtherPort:         "pass_other_port",
	PassIPv4Options:       "pass_ipv4_options",
	PassIPv4Fragment:      "pass_ipv4_fragment",
	PassShortBTH:          "pass_short_bth",
	PassForeignMAC:        "pass_foreign_mac",
	PassForeignAddress:    "pass_foreign_address",
	PassForeignMulticast:  "pass_foreign_multicast",
	PassForeignQPN:        "pass_foreign_qpn",
	PassNoSocket:          "pass_no_socket",
}

// Reasons returns every reason, in ascending order.
func Reasons() []Reason {
	reasons := make([]Reason, reasonCount)
	for i := range reasons {
		reasons[i] = Reason(i)
	}
	return reasons
}

// String returns the name of the reason in lower case, such as "pass_foreign_qpn".
func (r Reason) String() string {
	if r < reasonCount {
		return reasonNames[r]
	}
	return fmt.Sprintf("reason(%d)", uint32(r))
}

// MarshalText returns the text of String, for logs and JSON.
func (r Reason) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// UnmarshalText takes what MarshalText returns.
func (r *Reason) UnmarshalText(text []byte) error { return enum.Parse(r, text) }

// TakesFrame reports whether the frame goes to a socket, and never to the kernel.
func (r Reason) TakesFrame() bool { return r == Redirected }

// ReachesKernelOnRoCEPort reports whether frames with this reason are known to
// be for UDP port 4791 and go to the kernel, which answers them with ICMP port
// unreachable unless another program listens there. Of later fragments, of IPv6
// packets with extension headers and of tagged frames the port is not known:
// they are not reported.
func (r Reason) ReachesKernelOnRoCEPort() bool {
	return r >= PassIPv4Options && r < reasonCount
}
