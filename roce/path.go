package roce

import "encoding/binary"

// The send side. A path is turned into a [HeaderTemplate] when a queue pair or an address handle gets
// its addresses. For each packet the transport then takes a frame, lets Put write the outer headers
// into it, writes BTH and extension headers behind them, copies payload and zero pad, and lets Seal
// write the ICRC while the bytes are still in the cache.

const (
	ethernetLength = 14
	vlanLength     = 4
	ipv4Length     = 20
	ipv6Length     = 40
	udpLength      = 8

	etherTypeIPv4 = 0x0800
	etherTypeIPv6 = 0x86DD
	etherTypeVLAN = 0x8100
	protocolUDP   = 17

	defaultHopLimit = 64
)

// UDPPort is the UDP destination port of every RoCEv2 packet.
const UDPPort = 4791

// MaxHeaderLength is the largest [HeaderTemplate.Length]: Ethernet with a VLAN tag, IPv6 and UDP.
const MaxHeaderLength = ethernetLength + vlanLength + ipv6Length + udpLength

// Path is all that stands before the BTH of a packet. Both GIDs must be of the same family; packets
// are IPv4 if the destination is IPv4-mapped, else IPv6.
type Path struct {
	SourceMAC, DestinationMAC MAC

	VLAN     uint16 // 12 bits, used if Tagged
	Priority uint8  // 802.1p, 3 bits, used if Tagged
	Tagged   bool   // frames carry an 802.1Q tag

	Source, Destination GID

	TrafficClass uint8  // IPv4 ToS or IPv6 traffic class: DSCP in bits 7:2, ECN in bits 1:0
	HopLimit     uint8  // 0 means 64
	FlowLabel    uint32 // IPv6 only, 20 bits
	SourcePort   uint16 // see UDPSourcePort
}

// HeaderTemplate is the ready-made Ethernet, IP and UDP headers of a [Path]. It is a plain value
// without pointers; its methods do not change it, so several goroutines may use one at a time. The
// zero value is of no use.
type HeaderTemplate struct {
	bytes    [MaxHeaderLength]byte
	length   uint8
	ipOffset uint8
	is4      bool
	checksum uint16 // sum of the IPv4 header's words but for total length and checksum
}

// NewHeaderTemplate prepares the headers of a path. IPv4 packets have DF set and identification 0
// (RFC 6864 allows it for packets that are never fragmented), and the UDP checksum is 0, as Linux rxe
// and hardware send it: the ICRC does its work.
func NewHeaderTemplate(path Path) HeaderTemplate {
	var t HeaderTemplate
	copy(t.bytes[0:6], path.DestinationMAC[:])
	copy(t.bytes[6:12], path.SourceMAC[:])
	offset := 12
	if path.Tagged {
		binary.BigEndian.PutUint16(t.bytes[offset:], etherTypeVLAN)
		binary.BigEndian.PutUint16(t.bytes[offset+2:], uint16(path.Priority)<<13|path.VLAN&0xFFF)
		offset += vlanLength
	}
	hopLimit := path.HopLimit
	if hopLimit == 0 {
		hopLimit = defaultHopLimit
	}
	ip := t.bytes[offset+2:]
	t.ipOffset = uint8(offset + 2)
	t.is4 = path.Destination.Is4()
	ipLength := ipv6Length
	if t.is4 {
		ipLength = ipv4Length
		binary.BigEndian.PutUint16(t.bytes[offset:], etherTypeIPv4)
		ip[0] = 0x45
		ip[1] = path.TrafficClass
		ip[6] = 0x40 // DF
		ip[8] = hopLimit
		ip[9] = protocolUDP
		copy(ip[12:16], path.Source[12:])
		copy(ip[16:20], path.Destination[12:])
		t.checksum = fold(ipv4Sum(ip))
	} else {
		binary.BigEndian.PutUint16(t.bytes[offset:], etherTypeIPv6)
		binary.BigEndian.PutUint32(ip[0:], 6<<28|uint32(path.TrafficClass)<<20|path.FlowLabel&flowLabelMask)
		ip[6] = protocolUDP
		ip[7] = hopLimit
		copy(ip[8:24], path.Source[:])
		copy(ip[24:40], path.Destination[:])
	}
	udp := ip[ipLength:]
	binary.BigEndian.PutUint16(udp[0:], path.SourcePort)
	binary.BigEndian.PutUint16(udp[2:], UDPPort)
	t.length = t.ipOffset + uint8(ipLength+udpLength)
	return t
}

// Length returns the bytes of the headers, which is where the BTH starts: 42 to 66.
func (t *HeaderTemplate) Length() int { return int(t.length) }

// Put writes the headers to the start of frame. frame is the whole frame, Ethernet to ICRC, and its
// length, at least Length()+16 and at most 65535, determines the length fields. A frame that is
// shorter than the headers makes it panic.
func (t *HeaderTemplate) Put(frame []byte) { t.PutHeaders(frame, len(frame)) }

// PutHeaders is [HeaderTemplate.Put] for a frame of frameLength bytes that lies in several pieces,
// the first of which begins with headers.
func (t *HeaderTemplate) PutHeaders(headers []byte, frameLength int) {
	ip := headers[t.ipOffset:t.length]
	copy(headers[:t.length], t.bytes[:t.length])
	ipPacket := frameLength - int(t.ipOffset)
	udpPacket := uint16(frameLength - int(t.length) + udpLength)
	if t.is4 {
		binary.BigEndian.PutUint16(ip[2:4], uint16(ipPacket))
		binary.BigEndian.PutUint16(ip[10:12], ^fold(uint64(t.checksum)+uint64(uint16(ipPacket))))
		binary.BigEndian.PutUint16(ip[ipv4Length+4:ipv4Length+6], udpPacket)
		return
	}
	binary.BigEndian.PutUint16(ip[4:6], udpPacket)
	binary.BigEndian.PutUint16(ip[ipv6Length+4:ipv6Length+6], udpPacket)
}

// Seal computes the ICRC of frame, Ethernet to ICRC, whose other bytes are all written, and stores it
// in the last four. A frame without room for BTH and ICRC makes it panic.
func (t *HeaderTemplate) Seal(frame []byte) {
	packet := frame[t.ipOffset : len(frame)-ICRCLength]
	crc, hashed := icrcHeaders(packet, t.is4)
	crc = icrcUpdate(crc, packet[hashed:])
	binary.LittleEndian.PutUint32(frame[len(frame)-ICRCLength:], ^crc)
}

// SealSegments is [HeaderTemplate.Seal] for a frame that lies in several pieces. The first one holds
// at least the headers up to and including the BTH; the ICRC may straddle pieces.
func (t *HeaderTemplate) SealSegments(segments [][]byte) {
	end := -ICRCLength
	for _, segment := range segments {
		end += len(segment)
	}
	crc, hashed := icrcHeaders(segments[0][t.ipOffset:], t.is4)
	crc = ^icrcSegments(crc, segments, int(t.ipOffset)+hashed, end)
	missing := ICRCLength
	for i := len(segments) - 1; missing > 0; i-- {
		segment := segments[i]
		for j := len(segment) - 1; j >= 0 && missing > 0; j-- {
			missing--
			segment[j] = byte(crc >> (8 * missing))
		}
	}
}
