package roce

// MaxSegments is the largest number of pieces in which a received frame may lie.
const MaxSegments = 4

// Packet is a received frame, taken apart by [Packet.Parse]. Its slices and header views are parts of
// the frame: they are valid until the owner of the frame uses its memory again. After a Parse that
// returned anything but [DropNone], no field means anything.
//
// A Packet is about 400 bytes and made to be reused: one per receiver suffices. It must not be used
// by two goroutines at once. The zero value is ready to use.
type Packet struct {
	SourceMAC, DestinationMAC MAC

	VLAN     uint16 // VLAN identifier; 0 in a tagged frame means that the tag carries priority only
	Priority uint8  // 802.1p priority of a tagged frame
	Tagged   bool   // the frame had an 802.1Q tag

	Source, Destination GID // IPv4 addresses as IPv4-mapped GIDs

	TrafficClass uint8 // IPv4 ToS or IPv6 traffic class; the ECN bits are the lower two
	HopLimit     uint8
	FlowLabel    uint32 // 0 over IPv4
	SourcePort   uint16
	// ChecksumWrong says that the UDP checksum is neither zero nor right. The packet is as good as its ICRC, which
	// covers more. The kernel of a sender on a virtual link leaves the checksum to a device that never comes
	// (CHECKSUM_PARTIAL, include/linux/skbuff.h): all that is in the packet then is the sum of the pseudo header, and
	// XDP is not told.
	ChecksumWrong bool

	// IP is the IP header as received, 20 bytes of IPv4 or 40 of IPv6: what a UD receiver finds in
	// the GRH part of its buffer.
	IP []byte

	BTH            BTH
	Opcode         Opcode
	Info           *OpcodeInfo // of Opcode, never nil
	DestinationQPN QPN
	PSN            PSN
	PadCount       uint8
	PayloadLength  int // bytes, without pad

	transport    []byte // BTH and extension headers
	payload      [MaxSegments][]byte
	payloadCount int
	ipOffset     int // from the start of the frame to the IP header
	end          int // from the start of the frame to the byte after the ICRC
}

// Payload returns the payload, without pad, in as many pieces as the frame had for it: none for an
// empty payload. The slice is part of the Packet and valid until the next Parse.
func (p *Packet) Payload() [][]byte { return p.payload[:p.payloadCount] }

// Is4 reports whether the packet came over IPv4.
func (p *Packet) Is4() bool { return len(p.IP) == ipv4Length }

// RETH returns the RETH, nil if packets of the opcode have none.
func (p *Packet) RETH() RETH { return p.header(HeaderRETH, RETHLength) }

// AETH returns the AETH, nil if packets of the opcode have none.
func (p *Packet) AETH() AETH { return p.header(HeaderAETH, AETHLength) }

// AtomicETH returns the AtomicETH, nil if packets of the opcode have none.
func (p *Packet) AtomicETH() AtomicETH { return p.header(HeaderAtomicETH, AtomicETHLength) }

// AtomicAckETH returns the AtomicAckETH, nil if packets of the opcode have none.
func (p *Packet) AtomicAckETH() AtomicAckETH {
	return p.header(HeaderAtomicAckETH, AtomicAckETHLength)
}

// ImmDt returns the immediate data, nil if packets of the opcode have none.
func (p *Packet) ImmDt() ImmDt { return p.header(HeaderImmDt, ImmDtLength) }

// IETH returns the IETH, nil if packets of the opcode have none.
func (p *Packet) IETH() IETH { return p.header(HeaderIETH, IETHLength) }

// DETH returns the DETH, nil if packets of the opcode have none.
func (p *Packet) DETH() DETH { return p.header(HeaderDETH, DETHLength) }

// FETH returns the FETH, nil if packets of the opcode have none.
func (p *Packet) FETH() FETH { return p.header(HeaderFETH, FETHLength) }

func (p *Packet) header(header Header, length int) []byte {
	offset := p.Info.Offset(header)
	if offset < 0 {
		return nil
	}
	return p.transport[offset : offset+length]
}
