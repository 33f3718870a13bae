//go:build linux

package wire

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/xroce/xroce/internal/netns"
)

// Forged is a packet from one end's address to the other's that the end has not sent. It is made of bytes, without
// package roce, whose mistakes it is to find.
type Forged struct {
	ToRxe      bool // in the place of xroce; otherwise to xroce
	Family     int
	Opcode     byte
	QPN, PSN   uint32
	AckRequest bool
	Headers    []byte // extension headers
	Payload    []byte
	WithoutPad bool // the ICRC is that of the packet without its pad
}

func (f Forged) Frame() []byte {
	pad := -len(f.Payload) & 3
	udp := binary.BigEndian.AppendUint16(nil, 0xc0de)
	udp = binary.BigEndian.AppendUint16(udp, rocePort)
	udp = binary.BigEndian.AppendUint16(udp, uint16(udpLength+bthLength+len(f.Headers)+len(f.Payload)+pad+4))
	udp = append(udp, 0, 0)                                    // no checksum
	udp = append(udp, f.Opcode, 0x40|byte(pad)<<4, 0xff, 0xff) // MigReq; the default P_Key
	udp = binary.BigEndian.AppendUint32(udp, f.QPN)            // no FECN, no BECN
	udp = binary.BigEndian.AppendUint32(udp, f.PSN&0xffffff)   // see below for AckReq
	udp = append(append(udp, f.Headers...), f.Payload...)
	if f.AckRequest {
		udp[udpLength+8] |= 0x80
	}
	packet := append(ipHeader(f.Family, len(udp)+pad+4), udp...)
	to := byte(MACV1)
	if f.ToRxe {
		to = MACV0
		// The last bytes of the addresses. The sum of both is the same, and so is the checksum.
		at := map[int][2]int{4: {15, 19}, 6: {23, 39}}[f.Family]
		packet[at[0]], packet[at[1]] = packet[at[1]], packet[at[0]]
	}
	right := append(packet[:len(packet):len(packet)], make([]byte, pad)...)
	icrc := InvariantCRC(right)
	if f.WithoutPad {
		icrc = InvariantCRC(packet)
	}
	return Ethernet(f.Family, to, binary.LittleEndian.AppendUint32(right, icrc))
}

// Ethernet is a frame with the packet.
func Ethernet(family int, to byte, packet []byte) []byte {
	frame := []byte{2, 0, 0, 0, 0, to, 2, 0, 0, 0, 0, MACForged, 0x08, 0x00}
	if family == 6 {
		frame[12], frame[13] = 0x86, 0xdd
	}
	return append(frame, packet...)
}

// ipHeader is that of a UDP datagram of that length from v0 to v1, see setup.sh.
func ipHeader(family, length int) []byte {
	if family == 6 {
		h := []byte{0x60, 0, 0, 0, byte(length >> 8), byte(length), 17, 64}
		h = append(h, netip.MustParseAddr("fd00::1").AsSlice()...)
		return append(h, netip.MustParseAddr("fd00::2").AsSlice()...)
	}
	length += 20
	h := []byte{0x45, 0, byte(length >> 8), byte(length), 0x12, 0x34, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2}
	sum := uint32(0)
	for i := 0; i < len(h); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(h[i:]))
	}
	sum = sum&0xffff + sum>>16
	binary.BigEndian.PutUint16(h[10:], ^uint16(sum+sum>>16))
	return h
}

var marks int

// marker is a frame for nobody that a capture shows, and the text in it, which no other one has.
func marker() (text, frame []byte) {
	marks++
	text = fmt.Appendf(nil, "end of capture %08d", marks)
	udp := binary.BigEndian.AppendUint16(nil, 0xc0de)
	udp = binary.BigEndian.AppendUint16(udp, 9) // discard
	udp = binary.BigEndian.AppendUint16(udp, uint16(udpLength+len(text)))
	udp = append(append(udp, 0, 0), text...)
	return text, Ethernet(4, 0xff, append(ipHeader(4, len(udp)), udp...))
}

// Send sends the packet: from v0 to xroce, or from v1 in its namespace.
func (f Forged) Send() error {
	if !f.ToRxe {
		return SendFrame("v0", f.Frame())
	}
	n1, err := netns.Open("/run/netns/n1")
	if err != nil {
		return err
	}
	defer n1.Close()
	return n1.Do(func() error { return SendFrame("v1", f.Frame()) })
}

// SendFrame sends the frame at the device.
func SendFrame(name string, frame []byte) error {
	device, err := net.InterfaceByName(name)
	if err != nil {
		return err
	}
	s, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("packet socket: %w", err)
	}
	defer unix.Close(s)
	if err := unix.Sendto(s, frame, 0, &unix.SockaddrLinklayer{Ifindex: device.Index}); err != nil {
		return fmt.Errorf("packet socket: send: %w", err)
	}
	return nil
}
