//go:build linux

package main

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/xroce/xroce/internal/netns"
)

// forged is a packet from one end's address to the other's that the end has not sent. It is made of bytes, without package roce, whose
// mistakes it is to find.
type forged struct {
	toRxe      bool // in the place of xroce; otherwise to xroce
	family     int
	opcode     byte
	qpn, psn   uint32
	ackRequest bool
	headers    []byte // extension headers
	payload    []byte
	withoutPad bool // the ICRC is that of the packet without its pad
}

func (f forged) frame() []byte {
	pad := -len(f.payload) & 3
	udp := binary.BigEndian.AppendUint16(nil, 0xc0de)
	udp = binary.BigEndian.AppendUint16(udp, rocePort)
	udp = binary.BigEndian.AppendUint16(udp, uint16(udpLength+bthLength+len(f.headers)+len(f.payload)+pad+4))
	udp = append(udp, 0, 0)                                    // no checksum
	udp = append(udp, f.opcode, 0x40|byte(pad)<<4, 0xff, 0xff) // MigReq; the default P_Key
	udp = binary.BigEndian.AppendUint32(udp, f.qpn)            // no FECN, no BECN
	udp = binary.BigEndian.AppendUint32(udp, f.psn&0xffffff)   // see below for AckReq
	udp = append(append(udp, f.headers...), f.payload...)
	if f.ackRequest {
		udp[udpLength+8] |= 0x80
	}
	packet := append(ipHeader(f.family, len(udp)+pad+4), udp...)
	to := byte(macV1)
	if f.toRxe {
		to = macV0
		// The last bytes of the addresses. The sum of both is the same, and so is the checksum.
		at := map[int][2]int{4: {15, 19}, 6: {23, 39}}[f.family]
		packet[at[0]], packet[at[1]] = packet[at[1]], packet[at[0]]
	}
	right := append(packet[:len(packet):len(packet)], make([]byte, pad)...)
	icrc := invariantCRC(right)
	if f.withoutPad {
		icrc = invariantCRC(packet)
	}
	return ethernet(f.family, to, binary.LittleEndian.AppendUint32(right, icrc))
}

// ethernet is a frame with the packet.
func ethernet(family int, to byte, packet []byte) []byte {
	frame := []byte{2, 0, 0, 0, 0, to, 2, 0, 0, 0, 0, macForged, 0x08, 0x00}
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
	return text, ethernet(4, 0xff, append(ipHeader(4, len(udp)), udp...))
}

// send sends the packet: from v0 to xroce, or from v1 in its namespace.
func (f forged) send() error {
	if !f.toRxe {
		return sendFrame("v0", f.frame())
	}
	n1, err := netns.Open("/run/netns/n1")
	if err != nil {
		return err
	}
	defer n1.Close()
	return n1.Do(func() error { return sendFrame("v1", f.frame()) })
}

// sendFrame sends the frame at the device.
func sendFrame(name string, frame []byte) error {
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
