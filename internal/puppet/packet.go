package puppet

import (
	"encoding/binary"
	"net/netip"

	"github.com/xroce/xroce/roce"
)

// Packet is a packet to be sent. Which of the headers go out is decided by the opcode; what is not given is zero.
type Packet struct {
	Opcode     roce.Opcode
	PSN        roce.PSN
	AckRequest bool
	Solicited  bool
	RETH       roce.RETHFields
	AETH       roce.AETHFields
	Immediate  uint32
	Invalidate uint32 // the key in the IETH
	Atomic     roce.AtomicETHFields
	Original   uint64 // in the answer to an atomic
	FETH       roce.FETHFields
	Payload    []byte

	Wrong Wrong
}

// Wrong is what shall be wrong with a packet, or just unusual; the zero value is nothing. Checksums are right for
// whatever is sent, unless it is them that shall be wrong.
type Wrong struct {
	ICRC             bool    // one bit of it is wrong
	NoMigReq         bool    // bit M is 0
	PadCount         *uint8  // what the BTH says
	Pad              *int    // bytes of pad that follow the payload
	TransportVersion uint8   // what the BTH says
	PKey             *uint16 // default 0xFFFF
	QPN              *roce.QPN
	Source           netip.Addr
	Destination      netip.Addr
	IPLength         int // added to the length that the IP header says
	UDPLength        int // added to the length that the UDP header says
	Trailer          int // bytes behind the ICRC, like Ethernet's padding
}

// Frame returns the frame that Send would send, for those who want to spoil it first.
func (p *Puppet) Frame(packet Packet) []byte {
	wrong := packet.Wrong
	path := p.path
	if wrong.Source.IsValid() {
		path.Source = roce.GIDFromAddr(wrong.Source)
	}
	if wrong.Destination.IsValid() {
		path.Destination = roce.GIDFromAddr(wrong.Destination)
	}
	template := roce.NewHeaderTemplate(path)
	fields := roce.BTHFields{
		Opcode: packet.Opcode, Solicited: packet.Solicited, AckRequest: packet.AckRequest, PSN: packet.PSN,
		MigReq: !wrong.NoMigReq, PKey: 0xFFFF, DestinationQPN: p.remote, PadCount: uint8(-len(packet.Payload) & 3),
	}
	pad := int(fields.PadCount)
	override(&pad, wrong.Pad)
	override(&fields.PKey, wrong.PKey)
	override(&fields.DestinationQPN, wrong.QPN)
	override(&fields.PadCount, wrong.PadCount)

	start := template.Length()
	body := start + roce.BTHLength
	info := packet.Opcode.Info()
	if info != nil {
		body += info.HeaderLength
	}
	frame := make([]byte, body+len(packet.Payload)+pad+roce.ICRCLength)
	template.Put(frame)
	bth := frame[start:]
	fields.Put(bth)
	bth[1] |= wrong.TransportVersion & 0x0F
	if info != nil {
		put := func(header roce.Header, write func([]byte)) {
			if at := info.Offset(header); at >= 0 {
				write(bth[at:])
			}
		}
		put(roce.HeaderRETH, packet.RETH.Put)
		put(roce.HeaderAETH, packet.AETH.Put)
		put(roce.HeaderImmDt, roce.ImmDtFields{Value: packet.Immediate}.Put)
		put(roce.HeaderIETH, roce.IETHFields{RKey: packet.Invalidate}.Put)
		put(roce.HeaderAtomicETH, packet.Atomic.Put)
		put(roce.HeaderAtomicAckETH, roce.AtomicAckETHFields{Original: packet.Original}.Put)
		put(roce.HeaderFETH, packet.FETH.Put)
	}
	copy(frame[body:], packet.Payload)
	lengthen(frame, path.Destination.Is4(), wrong.IPLength, wrong.UDPLength)
	template.Seal(frame)
	if wrong.ICRC {
		frame[len(frame)-1] ^= 0x40
	}
	return append(frame, make([]byte, wrong.Trailer)...)
}

func override[T any](field *T, value *T) {
	if value != nil {
		*field = *value
	}
}

// lengthen changes the lengths that IP and UDP header say, and makes the IPv4 checksum fit.
func lengthen(frame []byte, is4 bool, ip, udp int) {
	add := func(b []byte, n int) { binary.BigEndian.PutUint16(b, uint16(int(binary.BigEndian.Uint16(b))+n)) }
	// Lengths of headers, and where the lengths and the checksum stand in them.
	const ethernet, ipv4, ipv6 = 14, 20, 40
	const ipv4Total, ipv4Checksum, ipv6Payload, udpTotal = 2, 10, 4, 4
	if !is4 {
		add(frame[ethernet+ipv6Payload:], ip)
		add(frame[ethernet+ipv6+udpTotal:], udp)
		return
	}
	add(frame[ethernet+ipv4Total:], ip)
	add(frame[ethernet+ipv4+udpTotal:], udp)
	packet := frame[ethernet : ethernet+ipv4]
	packet[ipv4Checksum], packet[ipv4Checksum+1] = 0, 0
	sum := uint32(0)
	for i := 0; i < len(packet); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(packet[i:]))
	}
	sum = sum>>16 + sum&0xFFFF
	binary.BigEndian.PutUint16(packet[ipv4Checksum:], ^uint16(sum+sum>>16))
}
