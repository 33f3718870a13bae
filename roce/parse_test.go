package roce

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// For every opcode: every length of the UDP payload from nothing to eight bytes more than the
// headers, every pad count, and IP lengths that are right, shorter and longer than the frame. The
// expected reason is computed from the literal opcode table.
func TestCase_A4_LengthsAndPad(t *testing.T) {
	for _, row := range opcodeRows {
		for _, is6 := range []bool{false, true} {
			for udpPayload := 0; udpPayload <= BTHLength+row.length+8; udpPayload++ {
				for pad := range uint8(4) {
					checkLengths(t, row, is6, udpPayload, pad)
				}
			}
		}
	}
}

func checkLengths(t *testing.T, row opcodeRow, is6 bool, udpPayload int, pad uint8) {
	// The packet is cut out of a longer one, so that what lies behind it looks like more of it.
	template := NewHeaderTemplate(testPath(is6))
	long := make([]byte, template.Length()+96)
	for i := range long {
		long[i] = 0xA5
	}
	headers := template.Length()
	template.Put(long[:headers+udpPayload])
	bth := make([]byte, BTHLength)
	BTHFields{Opcode: Opcode(row.opcode), PadCount: pad, DestinationQPN: 5}.Put(bth)
	copy(long[headers:headers+udpPayload], bth)
	if udpPayload >= BTHLength+ICRCLength {
		putReferenceICRC(long[:headers+udpPayload])
	}
	frame := long[:headers+udpPayload]

	want := DropNone
	payload := udpPayload - BTHLength - row.length - int(pad) - ICRCLength
	answered := row.role == "request" && row.opcode < 0x20
	switch {
	case payload < 0:
		want = DropTooShort
	case !answered && (int(pad) != (4-payload%4)%4 || !payloadAllowed(row.payload, payload)):
		want = DropPayloadLength
	}
	name := fmt.Sprintf("%s IPv6 %v, UDP payload %d, pad %d", row.name, is6, udpPayload, pad)
	parse := func(frame []byte) (reason DropReason) {
		var p Packet
		require.NotPanics(t, func() { reason = p.Parse([][]byte{frame}) }, name)
		if reason == DropNone {
			require.Equal(t, payload, p.PayloadLength, name)
			require.Equal(t, pad, p.PadCount, name)
			require.Equal(t, string(frame[headers+BTHLength+row.length:][:payload]), string(bytes.Join(p.Payload(), nil)), name)
		}
		return reason
	}
	require.Equal(t, want, parse(frame), name)
	// Ethernet padding behind the packet changes nothing.
	for _, padding := range []int{1, 2, 18, 40} {
		require.Equal(t, want, parse(long[:len(frame)+padding]), "%s, Ethernet padding %d", name, padding)
	}
	// IP length beyond the end of the frame.
	for _, missing := range []int{1, 2, 3, 4, 5, 8} {
		if missing <= udpPayload {
			require.Equal(t, DropTooShort, parse(frame[:len(frame)-missing]), "%s, %d bytes missing", name, missing)
		}
	}
	// IP length below what UDP says.
	for _, less := range []int{1, 4, udpPayload + 1, udpPayload + 8} {
		damaged := bytes.Clone(frame)
		setIPLength(damaged, is6, udpLength+udpPayload-less)
		require.Equal(t, DropUDPLength, parse(damaged), "%s, IP length %d less", name, less)
	}
	// IP length above what UDP says, and a frame to go with it: UDP is what counts.
	longer := bytes.Clone(long[:len(frame)+12])
	setIPLength(longer, is6, udpLength+udpPayload+12)
	if want == DropNone {
		putReferenceICRC(longer[:len(frame)])
	}
	require.Equal(t, want, parse(longer), "%s, IP length more than UDP length", name)
}

// setIPLength writes the bytes that follow the IP header into it.
func setIPLength(frame []byte, is6 bool, payload int) {
	if is6 {
		binary.BigEndian.PutUint16(frame[ipv6LengthAt:], uint16(payload))
		return
	}
	binary.BigEndian.PutUint16(frame[ipv4LengthAt:], uint16(20+payload))
	putIPv4Checksum(frame)
}

// payloadAllowed is the payload column of the opcode table for a path MTU that is not known.
func payloadAllowed(rule string, length int) bool {
	switch rule {
	case "none":
		return length == 0
	case "mtu":
		return length == 256 || length == 512 || length == 1024 || length == 2048 || length == 4096
	case "1..mtu":
		return length >= 1 && length <= 4096
	case "0..mtu":
		return length <= 4096
	case "8":
		return length == 8
	case "16":
		return length == 16
	}
	panic(rule)
}

func TestParseUnknownOpcodes(t *testing.T) {
	known := map[byte]bool{}
	for _, row := range opcodeRows {
		known[row.opcode] = true
	}
	for n := 0; n < 256; n++ {
		if known[byte(n)] {
			continue
		}
		frame := testPacket{opcode: Opcode(n), length: 64}.build()
		require.Equal(t, DropUnknownOpcode, new(Packet).Parse([][]byte{frame}), "%#02x", n)
		frame[len(frame)-1] ^= 1
		require.Equal(t, DropUnknownOpcode, new(Packet).Parse([][]byte{frame}), "%#02x", n)
	}
}

// Lengths of the frames that the faults below are made in: a SEND ONLY of 30 bytes with its pad and ICRC; and a byte of
// its payload.
const (
	sendOnly4 = bth4At + BTHLength + 32 + ICRCLength
	sendOnly6 = bth6At + BTHLength + 32 + ICRCLength
	payload4  = bth4At + BTHLength + 16
)

type change func(frame []byte) []byte

func set(offset int, values ...byte) change {
	return func(frame []byte) []byte { copy(frame[offset:], values); return frame }
}

// ipv4 sets bytes of the header and makes its checksum right.
func ipv4(offset int, values ...byte) change {
	return func(frame []byte) []byte {
		copy(frame[offset:], values)
		putIPv4Checksum(frame)
		return frame
	}
}

func to(length int) change { return func(frame []byte) []byte { return frame[:length] } }

// parseFault is one fault in a frame, and what it is dropped for.
type parseFault struct {
	name   string
	is6    bool
	change change
	want   DropReason
}

// linkAndIPFaults are faults of lengths and of the headers in front of UDP.
var linkAndIPFaults = []parseFault{
	{"untouched", false, to(sendOnly4), DropNone},
	{"untouched", true, to(sendOnly6), DropNone},
	{"empty", false, to(0), DropTooShort},
	{"half an Ethernet header", false, to(ipAt - 1), DropTooShort},
	{"Ethernet header only", false, to(ipAt), DropTooShort},
	{"half an IPv4 header", false, to(udp4At - 1), DropTooShort},
	{"half a UDP header", false, to(bth4At - 1), DropTooShort},
	{"half a BTH", false, to(bth4At + 8), DropTooShort},
	{"without its last byte", false, to(sendOnly4 - 1), DropTooShort},
	{"half an IPv6 header", true, to(udp6At - 1), DropTooShort},
	{"without its last byte", true, to(sendOnly6 - 1), DropTooShort},
	{"tag without anything behind", false, func(f []byte) []byte { return set(etherTypeAt, 0x81, 0)(f)[:ipAt+3] }, DropTooShort},
	{"ARP", false, set(etherTypeAt, 0x08, 0x06), DropNotRoCE},
	{"RoCE version 1", false, set(etherTypeAt, 0x89, 0x15), DropNotRoCE},
	{"service tag", false, set(etherTypeAt, 0x88, 0xA8), DropNotRoCE},
	{"two tags", false, set(etherTypeAt, 0x81, 0, 0, 5, 0x81, 0), DropNotRoCE},
	{"version 6 in IPv4", false, ipv4(ipAt, 0x65), DropMalformedIP},
	{"IPv4 options", false, ipv4(ipAt, 0x46), DropMalformedIP},
	{"IHL 4", false, ipv4(ipAt, 0x44), DropMalformedIP},
	{"IPv4 length below its header", false, ipv4(ipv4LengthAt, 0, 19), DropMalformedIP},
	{"IPv4 length without UDP header", false, ipv4(ipv4LengthAt, 0, 27), DropUDPLength},
	{"IPv4 length without UDP header, and another port behind", false, func(f []byte) []byte { f[udp4At+udpPortAt+1] = 0; return ipv4(ipv4LengthAt, 0, 27)(f) }, DropUDPLength},
	{"more fragments", false, ipv4(ipv4FragmentAt, 0x20, 0), DropFragment},
	{"second fragment", false, ipv4(ipv4FragmentAt, 0, 1), DropFragment},
	{"last offset", false, ipv4(ipv4FragmentAt, 0x1F, 0xFF), DropFragment},
	{"may be fragmented but is not", false, ipv4(ipv4FragmentAt, 0, 0), DropICRC}, // DF is covered
	{"IPv4 checksum", false, set(ipv4ChecksumAt, 0, 0), DropIPChecksum},
	{"TTL without checksum", false, set(ipv4TTLAt, 1), DropIPChecksum},
	{"TTL", false, ipv4(ipv4TTLAt, 1), DropNone},
	{"ToS", false, ipv4(ipv4ClassAt, 0xFF), DropNone},
	{"TCP", false, ipv4(ipv4ProtocolAt, 6), DropNotRoCE},
	{"version 4 in IPv6", true, set(ipAt, 0x45), DropMalformedIP},
	{"hop-by-hop options", true, set(ipv6NextAt, 0), DropNotRoCE},
	{"IPv6 fragment", true, set(ipv6NextAt, 44), DropNotRoCE},
	{"TCP", true, set(ipv6NextAt, 6), DropNotRoCE},
	{"flow label and class", true, set(ipAt, 0x6F, 0xFF, 0xFF, 0xFF), DropNone},
	{"hop limit", true, set(ipv6HopLimitAt, 1), DropNone},
	{"IPv6 length without UDP header", true, set(ipv6LengthAt, 0, 7), DropUDPLength},
	{"jumbogram", true, set(ipv6LengthAt, 0, 0), DropUDPLength},
	{"IPv6 length beyond the frame", true, set(ipv6LengthAt+1, 57), DropTooShort},
}

// udpAndBTHFaults are faults of UDP and of what is behind it.
var udpAndBTHFaults = []parseFault{
	{"other port", false, set(udp4At+udpPortAt, 0x12, 0xB8), DropNotRoCE},
	{"other port", true, set(udp6At+udpPortAt, 0x12, 0xB8), DropNotRoCE},
	{"UDP length 7", false, set(udp4At+udpLengthAt, 0, 7), DropUDPLength},
	{"UDP length 0", true, set(udp6At+udpLengthAt, 0, 0), DropUDPLength},
	{"UDP length beyond IP", false, set(udp4At+udpLengthAt, 0, 57), DropUDPLength},
	{"UDP length too small for a BTH", false, set(udp4At+udpLengthAt, 0, 19), DropTooShort},
	{"UDP checksum", false, set(udp4At+udpChecksumAt, 0, 1), DropNone},
	{"UDP checksum", true, set(udp6At+udpChecksumAt, 0, 1), DropNone},
	{"UDP checksum and payload", false, func(f []byte) []byte { f[payload4] ^= 1; return set(udp4At+udpChecksumAt, 0, 1)(f) }, DropICRC},
	{"right UDP checksum", false, func(f []byte) []byte { putUDPChecksum(f); return f }, DropNone},
	{"right UDP checksum", true, func(f []byte) []byte { putUDPChecksum(f); return f }, DropNone},
	{"opcode", false, set(bth4At, 0x15), DropUnknownOpcode},
	{"opcode of RD", false, set(bth4At, 0x44), DropUnknownOpcode},
	{"transport version", false, set(bth4At+bthFlagsAt, 0x81), DropTransportVersion},
	{"QPN 0", false, set(bth4At+bthQPNAt, 0, 0, 0), DropQPN0},
	{"FECN, BECN and reserved bits", false, set(bth4At+bthReservedAt, 0xFF), DropNone},
	{"reserved bits beside AckReq", false, func(f []byte) []byte { f[bth4At+bthAckAt] |= 0x7F; putReferenceICRC(f); return f }, DropNone},
	{"payload", false, set(payload4, 0xFF), DropICRC},
	{"pad", false, set(sendOnly4-ICRCLength-1, 1), DropICRC},
	{"ICRC", false, set(sendOnly4-1, 0xFF), DropICRC},
	{"ICRC", true, set(sendOnly6-1, 0xFF), DropICRC},
}

// One fault at a time, and for each the reason.
func TestParseReasons(t *testing.T) {
	for _, c := range slices.Concat(linkAndIPFaults, udpAndBTHFaults) {
		name := fmt.Sprintf("%s, IPv6 %v", c.name, c.is6)
		frame := testPacket{path: testPath(c.is6), opcode: RCSendOnly, length: 30}.build()
		require.Equal(t, DropNone, new(Packet).Parse([][]byte{frame}), name)
		frame = c.change(frame)
		require.Equal(t, c.want, new(Packet).Parse([][]byte{frame[:len(frame):len(frame)]}), name)
		// Cut behind the headers, with no capacity behind the cut that could hide a read too far.
		if headers := map[bool]int{false: bth4At + BTHLength, true: bth6At + BTHLength}[c.is6]; len(frame) >= headers {
			require.Equal(t, c.want, new(Packet).Parse([][]byte{frame[:headers:headers], frame[headers:]}), name)
		}
	}
	require.Equal(t, DropTooShort, new(Packet).Parse(nil))
	require.Equal(t, DropTooShort, new(Packet).Parse([][]byte{nil, nil, nil, nil}))
	require.Equal(t, DropTooManySegments, new(Packet).Parse(make([][]byte, MaxSegments+1)))
}

// A wrong payload of an RC request is left to the transport, which answers it; others are dropped.
func TestParsePayloadRule(t *testing.T) {
	for _, c := range []struct {
		opcode Opcode
		length int
		want   DropReason
	}{
		{RCSendFirst, 1020, DropNone},
		{RCSendLast, 0, DropNone},
		{RCReadRequest, 4, DropNone},
		{RCAtomicWrite, 12, DropNone},
		{RCSendOnly, 5000, DropNone},
		{UCSendFirst, 1024, DropNone},
		{UCSendFirst, 1020, DropPayloadLength},
		{UCSendLast, 0, DropPayloadLength},
		{UDSendOnly, 4096, DropNone},
		{UDSendOnly, 4100, DropPayloadLength},
		{RCReadResponseFirst, 2048, DropNone},
		{RCReadResponseFirst, 100, DropPayloadLength},
		{RCReadResponseLast, 0, DropPayloadLength},
		{RCReadResponseOnly, 0, DropNone},
		{RCAcknowledge, 4, DropPayloadLength},
		{RCAtomicAcknowledge, 1, DropPayloadLength},
		{CNP, 16, DropNone},
		{CNP, 12, DropPayloadLength},
	} {
		frame := testPacket{opcode: c.opcode, length: c.length}.build()
		require.Equal(t, c.want, new(Packet).Parse([][]byte{frame}), "%s %d", c.opcode, c.length)
	}
	// Payload and pad that are together no multiple of four.
	for opcode, want := range map[Opcode]DropReason{RCSendOnly: DropNone, UCSendOnly: DropPayloadLength, UDSendOnly: DropPayloadLength, RCReadResponseOnly: DropPayloadLength} {
		frame := testPacket{opcode: opcode, length: 64}.build()
		frame = frame[:len(frame)-1]
		template := NewHeaderTemplate(testPath(false))
		template.Put(frame)
		putReferenceICRC(frame)
		require.Equal(t, want, new(Packet).Parse([][]byte{frame}), "%s", opcode)
	}
}

// Headers must lie in the first segment, wherever else the frame is cut.
func TestParseHeaderSplit(t *testing.T) {
	for _, is6 := range []bool{false, true} {
		for _, tagged := range []bool{false, true} {
			for _, row := range opcodeRows {
				path := testPath(is6)
				path.Tagged, path.VLAN = tagged, 7
				frame := testPacket{path: path, opcode: Opcode(row.opcode), length: 256}.build()
				if row.payload == "none" || row.payload == "8" || row.payload == "16" {
					frame = testPacket{path: path, opcode: Opcode(row.opcode), length: map[string]int{"8": 8, "16": 16}[row.payload]}.build()
				}
				template := NewHeaderTemplate(path)
				headers := template.Length() + BTHLength + row.length
				for at := 0; at <= len(frame); at++ {
					var p Packet
					reason := p.Parse([][]byte{frame[:at:at], frame[at:]})
					if at < headers {
						require.Equal(t, DropHeaderSplit, reason, "%s cut at %d", row.name, at)
					} else {
						require.Equal(t, DropNone, reason, "%s cut at %d", row.name, at)
					}
				}
			}
		}
	}
}

// What Parse finds does not depend on where the frame is cut.
func TestParseSegments(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		row := rapid.SampledFrom(opcodeRows).Draw(t, "opcode")
		path := drawPath(t)
		frame := testPacket{path: path, opcode: Opcode(row.opcode), payload: rapid.SliceOfN(rapid.Byte(), 0, 80).Draw(t, "payload")}.build()
		if !path.Tagged && rapid.Bool().Draw(t, "UDP checksum") {
			putUDPChecksum(frame)
		}
		if rapid.Bool().Draw(t, "damaged") {
			frame[rapid.IntRange(0, len(frame)-1).Draw(t, "byte")] ^= 1 << rapid.IntRange(0, 7).Draw(t, "bit")
		}
		frame = append(frame, make([]byte, rapid.IntRange(0, 20).Draw(t, "Ethernet padding"))...)
		template := NewHeaderTemplate(path)
		segments := drawSegments(t, frame, min(template.Length()+BTHLength+28, len(frame)))

		var whole, cut Packet
		reason := whole.Parse([][]byte{frame})
		require.Equal(t, reason, cut.Parse(segments))
		if reason == DropNone {
			require.Equal(t, describe(&whole), describe(&cut))
			require.Equal(t, whole.IP, cut.IP)
			require.Equal(t, bytes.Join(whole.Payload(), nil), bytes.Join(cut.Payload(), nil))
			for _, piece := range cut.Payload() {
				require.NotEmpty(t, piece)
			}
		}
	})
}

// The UDP checksum goes by pairs of bytes, wherever a frame is cut.
func TestParseUDPChecksumSegments(t *testing.T) {
	for _, is6 := range []bool{false, true} {
		frame := testPacket{path: testPath(is6), opcode: RCSendOnly, length: 19}.build()
		putUDPChecksum(frame)
		template := NewHeaderTemplate(testPath(is6))
		for first := template.Length() + BTHLength; first <= len(frame); first++ {
			for second := first; second <= len(frame); second++ {
				for third := second; third <= len(frame); third++ {
					segments := [][]byte{frame[:first:first], frame[first:second:second], frame[second:third:third], frame[third:]}
					var p Packet
					for _, wrong := range []bool{false, true} { // the opcode and so the ICRC, too
						if wrong {
							frame[template.Length()] ^= 1
						}
						_ = p.ParseHeaders(segments)
						require.Equal(t, wrong, p.ChecksumWrong, "cut at %d, %d and %d", first, second, third)
					}
					frame[template.Length()] ^= 1
					require.Equal(t, DropNone, p.Parse(segments), "cut at %d, %d and %d", first, second, third)
				}
			}
		}
	}
}

// A Packet may be used again for a different frame and remembers nothing of the one before.
func TestParseReuse(t *testing.T) {
	var used Packet
	for _, v := range readVectors(t) {
		frame := v.frame(t)
		var fresh Packet
		require.Equal(t, fresh.Parse([][]byte{frame}), used.Parse([][]byte{frame}))
		require.Equal(t, describe(&fresh), describe(&used))
		require.Equal(t, fresh.Payload(), used.Payload())
		used.Parse([][]byte{frame[:20]})
	}
	frame := testPacket{path: testPath(false), opcode: RCSendOnly, length: 4}.build()
	for _, checksum := range []byte{1, 0} { // 0 is none
		frame[udp4At+udpChecksumAt+1] = checksum
		require.Equal(t, DropNone, used.Parse([][]byte{frame}))
		require.Equal(t, checksum != 0, used.ChecksumWrong)
	}
}

func TestDoesNotAllocate(t *testing.T) {
	for _, is6 := range []bool{false, true} {
		path := testPath(is6)
		template := NewHeaderTemplate(path)
		frame := testPacket{path: path, opcode: RCWriteOnlyImmediate, length: 1021}.build()
		checksummed := bytes.Clone(frame)
		putUDPChecksum(checksummed)
		for name, segments := range map[string][][]byte{
			"one segment":  {frame},
			"segments":     {frame[:200], frame[200:500], frame[500 : len(frame)-2], frame[len(frame)-2:]},
			"UDP checksum": {checksummed[:201], checksummed[201:]},
		} {
			var p Packet
			var sum int
			require.Zero(t, testing.AllocsPerRun(100, func() {
				if p.Parse(segments) != DropNone || p.RETH().Length() == 0 || p.ImmDt().Fields().Value == 0 {
					panic("not parsed")
				}
				for _, piece := range p.Payload() {
					sum += len(piece)
				}
			}), name)
			require.NotZero(t, sum)
		}
		segments := [][]byte{frame[:200], frame[200 : len(frame)-1], frame[len(frame)-1:]}
		require.Zero(t, testing.AllocsPerRun(100, func() {
			template.Put(frame)
			BTHFields{Opcode: RCWriteOnlyImmediate, PKey: 0xFFFF}.Put(frame[template.Length():])
			template.Seal(frame)
			template.SealSegments(segments)
		}))
	}
}
