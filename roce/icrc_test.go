package roce

import (
	"bytes"
	"encoding/hex"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// The last four bytes of the vectors, in their order on the wire.
var frozenICRC = map[string]string{
	"ext-scapy-uc-send-only-ipv4-pad2": "78f353f3", "ext-cx4lx-cnp-ipv4": "82fd002a", "ext-scapy-uc-send-only-ipv6-pad2": "3e5b743b",
	"rc-ack-ipv4": "1cba999d", "rc-ack-ipv4-ce-ttl63": "1cba999d", "rc-ack-ipv4-udpck": "1cba999d",
	"rc-nak-psn-seq-ipv4": "a8f5f267", "rc-rnr-nak-ipv4": "fd6890f1", "rc-send-only-ipv4-len0": "ec7cf34b",
	"rc-send-only-ipv4-len1": "b3dcb8ec", "rc-send-only-ipv4-len2": "946869e1", "rc-send-only-ipv4-len3": "3afc3697",
	"rc-send-only-ipv4-len4": "340aa095", "rc-send-last-imm-ipv4": "ba81f7ce", "rc-send-only-inv-ipv4": "9227154b",
	"rc-write-first-ipv4-mtu256": "0dd99753", "rc-write-only-vlan-ipv4-pad3": "519b7173", "rc-write-only-imm-ipv6": "458a6d59",
	"rc-read-request-ipv4": "aa65a61c", "rc-read-resp-first-ipv4-mtu256": "91fe9903", "rc-read-resp-middle-ipv4-mtu256": "43596589",
	"rc-read-resp-only-ipv6-pad3": "8674ea7c", "rc-cmp-swap-ipv6": "71ef0933", "rc-fetch-add-ipv4": "bfc8edbe",
	"rc-atomic-ack-ipv6": "3ba94418", "rc-flush-ipv4": "0d9e03cb", "rc-atomic-write-ipv4": "63e005f6", "ud-send-only-ipv4": "5d5dff0b",
	"ud-send-only-imm-mcast-ipv6": "571ce49b", "cnp-ipv6": "93a7a87b", "rc-send-middle-resv8a-set-ipv4": "b61648cb",
	"cm-req-ipv4": "a01a2c21", "cm-rep-ipv4": "3d09d598", "cm-rtu-ipv4": "37e131c2", "cm-rej-ipv4": "defcf862",
}

// The order of the ICRC's bytes does not depend on the host: each byte of it is compared with a
// frozen literal and with a CRC that is computed bit by bit and laid out by shifts.
func TestCase_A2_ICRCByteOrder(t *testing.T) {
	compared := 0
	var p Packet
	compare := func(name string, frame []byte, frozen []byte) {
		require.Equal(t, DropNone, p.Parse([][]byte{frame}), name)
		packet := frame[:p.end]
		reference := referenceICRC(packet[:len(packet)-ICRCLength])
		require.Equal(t, frozen, reference[:], name)

		sealed := bytes.Clone(packet)
		clear(sealed[len(sealed)-ICRCLength:])
		template := NewHeaderTemplate(pathOf(&p))
		template.Seal(sealed)
		for i := range ICRCLength {
			require.Equal(t, frozen[i], sealed[len(sealed)-ICRCLength+i], "%s byte %d", name, i)
		}
		// The other orders are not taken for the right one.
		swapped := sealed[len(sealed)-ICRCLength:]
		swapped[0], swapped[1], swapped[2], swapped[3] = swapped[3], swapped[2], swapped[1], swapped[0]
		require.Equal(t, DropICRC, p.CheckICRC([][]byte{sealed}), name)
		compared++
	}
	for _, v := range readVectors(t) {
		frozen, err := hex.DecodeString(frozenICRC[v.Name])
		require.NoError(t, err)
		compare(v.Name, v.frame(t), frozen)
	}
	require.Equal(t, len(frozenICRC), compared)

	for _, c := range readCaptures(t) {
		if p.Parse([][]byte{c.bytes}) == DropNone {
			compare(c.file, c.bytes, c.bytes[len(c.bytes)-ICRCLength:])
		}
	}
	require.Equal(t, 35+644, compared)
}

// The fields that routers change are not covered, all others are: every bit of every vector is
// turned once.
func TestICRCCoverage(t *testing.T) {
	masked := func(frame []byte, i int, bit byte) bool {
		ip := 14
		if frame[12] == 0x81 {
			ip = 18
		}
		udp := ip + 20
		if frame[ip]>>4 == 6 {
			udp = ip + 40
		}
		switch {
		case i < ip: // Ethernet and the VLAN tag
			return true
		case i == udp+6 || i == udp+7 || i == udp+8+4:
			return true
		case udp == ip+20:
			return i == ip+1 || i == ip+8 || i == ip+10 || i == ip+11
		default:
			return i == ip && bit < 0x10 || i >= ip+1 && i <= ip+3 || i == ip+7
		}
	}
	for _, v := range readVectors(t) {
		frame := v.frame(t)
		var p Packet
		require.Equal(t, DropNone, p.ParseHeaders([][]byte{frame}))
		for i := range frame[:p.end] {
			for bit := byte(1); bit != 0; bit <<= 1 {
				want := DropICRC
				if masked(frame, i, bit) {
					want = DropNone
				}
				frame[i] ^= bit
				require.Equal(t, want, p.CheckICRC([][]byte{frame}), "%s byte %d bit %#x", v.Name, i, bit)
				frame[i] ^= bit
			}
		}
	}
}

// Sender and receiver that both leave out the pad agree with each other and with nobody else.
func TestICRCCoversPad(t *testing.T) {
	for _, length := range []int{1, 2, 3, 5, 6, 7, 33, 1023, 1025, 4095} {
		for _, opcode := range []Opcode{RCSendOnly, RCWriteOnly} {
			packet := testPacket{opcode: opcode, length: length}
			frame, pad := packet.build(), -length&3
			require.Equal(t, DropNone, new(Packet).Parse([][]byte{frame}))
			short := referenceICRC(frame[:len(frame)-ICRCLength-pad])
			copy(frame[len(frame)-ICRCLength:], short[:])
			require.Equal(t, DropICRC, new(Packet).Parse([][]byte{frame}), "%s %d", opcode, length)
		}
	}
}

// The hash of the headers is a second code path; it is compared with the bitwise CRC on random bytes.
func TestICRCAgainstReference(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		is4 := rapid.Bool().Draw(t, "IPv4")
		least, ethernet := 53, []byte{12: 0x86, 13: 0xDD}
		version := byte(0x60)
		if is4 {
			least, ethernet, version = 33, []byte{12: 0x08, 13: 0x00}, 0x40
		}
		body := rapid.SliceOfN(rapid.Byte(), least+7, least+200).Draw(t, "packet")
		body[0] = body[0]&0x0F | version
		frame := append(ethernet, append(body, 0, 0, 0, 0)...)
		want := referenceICRC(frame[:len(frame)-ICRCLength])

		template := NewHeaderTemplate(Path{Destination: GID{}})
		if is4 {
			template = NewHeaderTemplate(Path{Destination: GID{10: 0xFF, 11: 0xFF}})
		}
		before := bytes.Clone(frame)
		template.Seal(frame)
		require.Equal(t, want[:], frame[len(frame)-ICRCLength:])
		require.Equal(t, before[:len(frame)-ICRCLength], frame[:len(frame)-ICRCLength], "Seal changed the frame")
	})
}
