package roce

import (
	"encoding/binary"
	"net/netip"

	"pgregory.net/rapid"
)

// testPacket is a packet as tests want it, right or wrong.
type testPacket struct {
	path    Path // zero: between 10.9.0.1 and 10.9.0.2
	bth     BTHFields
	opcode  Opcode
	length  int // of the payload
	payload []byte
}

func testPath(is6 bool) Path {
	path := Path{
		SourceMAC: MAC{2, 0, 0, 0, 0, 1}, DestinationMAC: MAC{2, 0, 0, 0, 0, 2},
		Source: GIDFromAddr(netip.MustParseAddr("10.9.0.1")), Destination: GIDFromAddr(netip.MustParseAddr("10.9.0.2")),
		SourcePort: 0xC123,
	}
	if is6 {
		path.Source = GIDFromAddr(netip.MustParseAddr("fd00:9::1"))
		path.Destination = GIDFromAddr(netip.MustParseAddr("fd00:9::2"))
	}
	return path
}

// build returns the right frame for the packet; extension headers hold counting bytes, reserved ones
// zero.
func (c testPacket) build() []byte {
	path, bth := c.path, c.bth
	if path == (Path{}) {
		path = testPath(false)
	}
	payload := c.payload
	if payload == nil {
		payload = make([]byte, c.length)
		for j := range payload {
			payload[j] = byte(7*j + j/256)
		}
	}
	if bth == (BTHFields{}) {
		bth = BTHFields{MigReq: true, PKey: 0xFFFF, DestinationQPN: 0x11, PSN: 0xABCDEF}
	}
	bth.Opcode, bth.PadCount = c.opcode, uint8(-len(payload)&3)
	extension := opcodeLength(c.opcode)
	template := NewHeaderTemplate(path)
	frame := make([]byte, template.Length()+BTHLength+extension+len(payload)+int(bth.PadCount)+ICRCLength)
	template.Put(frame)
	b := frame[template.Length():]
	bth.Put(b)
	for i := range extension {
		b[BTHLength+i] = byte(i + 1)
	}
	switch c.opcode {
	case UDSendOnly, UDSendOnlyImmediate:
		b[BTHLength+4] = 0
	case RCFlush:
		clear(b[BTHLength : BTHLength+3])
	}
	copy(b[BTHLength+extension:], payload)
	template.Seal(frame)
	return frame
}

// opcodeLength returns the bytes of extension headers by the table of the tests, 0 if undefined.
func opcodeLength(opcode Opcode) int {
	for _, row := range opcodeRows {
		if row.opcode == byte(opcode) {
			return row.length
		}
	}
	return 0
}

// putReferenceICRC seals a frame without the code under test.
func putReferenceICRC(frame []byte) {
	icrc := referenceICRC(frame[:len(frame)-ICRCLength])
	copy(frame[len(frame)-ICRCLength:], icrc[:])
}

// putIPv4Checksum writes the header checksum of an untagged IPv4 frame, word by word.
func putIPv4Checksum(frame []byte) {
	var sum uint32
	for i := ipAt; i < udp4At; i += 2 {
		if i != ipv4ChecksumAt {
			sum += uint32(binary.BigEndian.Uint16(frame[i:]))
		}
	}
	for sum > 0xFFFF {
		sum = sum>>16 + sum&0xFFFF
	}
	binary.BigEndian.PutUint16(frame[ipv4ChecksumAt:], ^uint16(sum))
}

// putUDPChecksum writes the UDP checksum of an untagged frame, word by word.
func putUDPChecksum(frame []byte) {
	udp, addresses := frame[udp4At:], frame[ipv4SourceAt:udp4At]
	if frame[etherTypeAt] == 0x86 {
		udp, addresses = frame[udp6At:], frame[ipv6SourceAt:udp6At]
	}
	udp[udpChecksumAt], udp[udpChecksumAt+1] = 0, 0
	sum := uint32(17) + uint32(len(udp))
	for _, part := range [][]byte{addresses, udp} {
		for i, b := range part {
			sum += uint32(b) << (8 * (1 - i&1))
		}
	}
	for sum > 0xFFFF {
		sum = sum>>16 + sum&0xFFFF
	}
	checksum := ^uint16(sum)
	if checksum == 0 {
		checksum = 0xFFFF
	}
	binary.BigEndian.PutUint16(udp[udpChecksumAt:], checksum)
}

// drawSegments cuts a frame into one to four pieces, empty ones among them, of which the first has
// at least headers bytes.
func drawSegments(t *rapid.T, frame []byte, headers int) [][]byte {
	var segments [][]byte
	rest, least := frame, headers
	for range rapid.IntRange(0, MaxSegments-1).Draw(t, "cuts") {
		at := rapid.IntRange(least, len(rest)).Draw(t, "cut")
		segments = append(segments, rest[:at:at])
		rest, least = rest[at:], 0
	}
	return append(segments, rest)
}

func drawGID(t *rapid.T, is4 bool, name string) GID {
	g := GID(rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, name))
	if is4 {
		copy(g[:], mappedPrefix[:])
	} else if g.Is4() {
		g[0] = 0xFD
	}
	return g
}

func drawPath(t *rapid.T) Path {
	is4 := rapid.Bool().Draw(t, "IPv4")
	path := Path{
		SourceMAC:      MAC(rapid.SliceOfN(rapid.Byte(), 6, 6).Draw(t, "source MAC")),
		DestinationMAC: MAC(rapid.SliceOfN(rapid.Byte(), 6, 6).Draw(t, "destination MAC")),
		Source:         drawGID(t, is4, "source"),
		Destination:    drawGID(t, is4, "destination"),
		TrafficClass:   rapid.Byte().Draw(t, "traffic class"),
		HopLimit:       rapid.ByteRange(1, 255).Draw(t, "hop limit"),
		SourcePort:     rapid.Uint16().Draw(t, "source port"),
		Tagged:         rapid.Bool().Draw(t, "tagged"),
	}
	if path.Tagged {
		path.VLAN = rapid.Uint16Range(0, 0xFFF).Draw(t, "VLAN")
		path.Priority = rapid.ByteRange(0, 7).Draw(t, "priority")
	}
	if !is4 {
		path.FlowLabel = rapid.Uint32Range(0, flowLabelMask).Draw(t, "flow label")
	}
	return path
}

func drawBTH(t *rapid.T) BTHFields {
	return BTHFields{
		Opcode:         Opcode(rapid.SampledFrom(opcodeRows).Draw(t, "opcode").opcode),
		Solicited:      rapid.Bool().Draw(t, "solicited"),
		MigReq:         rapid.Bool().Draw(t, "MigReq"),
		PadCount:       rapid.ByteRange(0, 3).Draw(t, "pad count"),
		PKey:           rapid.Uint16().Draw(t, "P_Key"),
		FECN:           rapid.Bool().Draw(t, "FECN"),
		BECN:           rapid.Bool().Draw(t, "BECN"),
		DestinationQPN: QPN(rapid.Uint32Range(1, QPNMask).Draw(t, "QPN")),
		AckRequest:     rapid.Bool().Draw(t, "AckReq"),
		PSN:            PSN(rapid.Uint32Range(0, PSNMask).Draw(t, "PSN")),
	}
}
