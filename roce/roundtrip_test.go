package roce

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// Any fields, written and read again, are the same fields, and nothing beside them is written.
func TestHeaderRoundTrips(t *testing.T) {
	type header interface{ Put([]byte) }
	check := func(t *rapid.T, length int, fields header, read func([]byte) header) {
		const guard = 0xC3
		b := bytes.Repeat([]byte{guard}, length+8)
		fields.Put(b[4:])
		require.Equal(t, bytes.Repeat([]byte{guard}, 4), b[:4])
		require.Equal(t, bytes.Repeat([]byte{guard}, 4), b[4+length:])
		require.Equal(t, fields, read(b[4:4+length]))
	}
	rapid.Check(t, func(t *rapid.T) {
		u64, u32 := rapid.Uint64(), rapid.Uint32()
		check(t, 12, drawBTH(t), func(b []byte) header { return BTH(b).Fields() })
		check(t, 16, RETHFields{u64.Draw(t, "VA"), u32.Draw(t, "R_Key"), u32.Draw(t, "length")}, func(b []byte) header { return RETH(b).Fields() })
		check(t, 4, AETHFields{Syndrome(rapid.Byte().Draw(t, "syndrome")), u32.Draw(t, "MSN") & 0xFFFFFF}, func(b []byte) header { return AETH(b).Fields() })
		check(t, 28, AtomicETHFields{u64.Draw(t, "VA"), u32.Draw(t, "R_Key"), u64.Draw(t, "swap"), u64.Draw(t, "compare")}, func(b []byte) header { return AtomicETH(b).Fields() })
		check(t, 8, AtomicAckETHFields{u64.Draw(t, "original")}, func(b []byte) header { return AtomicAckETH(b).Fields() })
		check(t, 4, ImmDtFields{u32.Draw(t, "immediate")}, func(b []byte) header { return ImmDt(b).Fields() })
		check(t, 4, IETHFields{u32.Draw(t, "key")}, func(b []byte) header { return IETH(b).Fields() })
		check(t, 8, DETHFields{u32.Draw(t, "Q_Key"), QPN(u32.Draw(t, "QPN") & QPNMask)}, func(b []byte) header { return DETH(b).Fields() })
		check(t, 4, FETHFields{rapid.ByteRange(0, 3).Draw(t, "selectivity"), rapid.ByteRange(0, 15).Draw(t, "placement")}, func(b []byte) header { return FETH(b).Fields() })
	})
}

// Bits that a field does not have never reach its neighbours.
func TestHeaderFieldsAreMasked(t *testing.T) {
	var b [12]byte
	BTHFields{PadCount: 0xFF, DestinationQPN: 0xFFFFFFFF, PSN: 0xFFFFFFFF}.Put(b[:])
	require.Equal(t, [12]byte{0, 0x30, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0, 0xFF, 0xFF, 0xFF}, b)
	AETHFields{Syndrome: 0x60, MSN: 0xFFFFFFFF}.Put(b[:])
	require.Equal(t, []byte{0x60, 0xFF, 0xFF, 0xFF}, b[:4])
	DETHFields{SourceQPN: 0xFFFFFFFF}.Put(b[:])
	require.Equal(t, []byte{0, 0, 0, 0, 0, 0xFF, 0xFF, 0xFF}, b[:8])
	FETHFields{Selectivity: 0xFF, Placement: 0xFF}.Put(b[:])
	require.Equal(t, []byte{0, 0, 0, 0x3F}, b[:4])
}

// Any path, headers and payload, written into a frame and parsed, come back.
func TestFrameRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		path, bth := drawPath(t), drawBTH(t)
		payload := rapid.SliceOfN(rapid.Byte(), 0, 70).Draw(t, "payload")
		switch info := bth.Opcode.Info(); {
		case info.Payload == PayloadNone:
			payload = nil
		case info.Payload == PayloadSixteen:
			payload = make([]byte, 16)
		case info.Payload == PayloadFull:
			payload = append(payload, make([]byte, 256-len(payload))...)
		case info.Payload == PayloadSome:
			payload = append(payload, 1)
		}
		frame := testPacket{path: path, opcode: bth.Opcode, bth: bth, payload: append([]byte{}, payload...)}.build()
		bth.PadCount = uint8(-len(payload) & 3)

		var p Packet
		require.Equal(t, DropNone, p.Parse([][]byte{frame}))
		require.Equal(t, path, pathOf(&p))
		require.Equal(t, bth, p.BTH.Fields())
		require.Equal(t, string(payload), string(bytes.Join(p.Payload(), nil)))
		require.Equal(t, len(payload), p.PayloadLength)
		require.Equal(t, bth.PadCount, p.PadCount)
		require.Equal(t, bth.PSN, p.PSN)
		require.Equal(t, bth.DestinationQPN, p.DestinationQPN)
		require.Equal(t, path.Source.Is4(), p.Is4())
		require.Equal(t, frame, rebuild(&p, frame))

		// The same frame, written into pieces.
		template := NewHeaderTemplate(path)
		pieces := bytes.Clone(frame)
		clear(pieces[:template.Length()])
		clear(pieces[len(pieces)-ICRCLength:])
		segments := drawSegments(t, pieces, template.Length()+BTHLength)
		template.PutHeaders(segments[0], len(pieces))
		template.SealSegments(segments)
		require.Equal(t, frame, pieces)
	})
}

func TestHeaderTemplate(t *testing.T) {
	path := testPath(false)
	path.TrafficClass = 0x6A
	frame := testPacket{path: path, opcode: RCSendOnly, length: 4}.build()
	require.Equal(t, []byte{
		2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x08, 0x00,
		0x45, 0x6A, 0, 48, 0, 0, 0x40, 0, 64, 17, 0x26, 0x3F, 10, 9, 0, 1, 10, 9, 0, 2,
		0xC1, 0x23, 0x12, 0xB7, 0, 28, 0, 0,
	}, frame[:42])

	path = testPath(true)
	path.Tagged, path.VLAN, path.Priority = true, 0xF064, 11 // bits beyond the fields are dropped
	path.FlowLabel, path.TrafficClass, path.HopLimit = 0xFFF12345, 0x02, 9
	template := NewHeaderTemplate(path)
	require.Equal(t, 66, template.Length())
	require.Equal(t, MaxHeaderLength, template.Length())
	frame = testPacket{path: path, opcode: RCSendOnly, length: 4}.build()
	require.Equal(t, []byte{
		2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x81, 0x00, 0x60, 0x64, 0x86, 0xDD,
		0x60, 0x21, 0x23, 0x45, 0, 28, 17, 9,
		0xFD, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1,
		0xFD, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2,
		0xC1, 0x23, 0x12, 0xB7, 0, 28, 0, 0,
	}, frame[:66])
}
