package roce

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
)

// FuzzPacketParse looks for frames that make Parse panic, that it sees differently when they lie in
// pieces, or that it passes with views outside the packet. The ICRC, which no fuzzer finds by chance,
// is made right whenever the headers pass.
func FuzzPacketParse(f *testing.F) {
	for _, v := range readVectors(f) {
		f.Add(v.frame(f), uint16(50), uint16(62))
	}
	seen := map[string]bool{}
	for _, c := range readCaptures(f) {
		if kind := c.file + string(c.bytes[:min(43, len(c.bytes))]); len(c.bytes) < 600 && !seen[kind] {
			seen[kind] = true
			f.Add(c.bytes, uint16(len(c.bytes)-2), uint16(60))
		}
	}
	f.Fuzz(func(t *testing.T, frame []byte, cut1, cut2 uint16) {
		var p Packet
		reason := p.ParseHeaders([][]byte{frame})
		if reason == DropNone {
			end := p.end
			require.LessOrEqual(t, end, len(frame))
			udp := frame[p.ipOffset+len(p.IP):]
			require.GreaterOrEqual(t, p.PayloadLength, 0)
			require.Equal(t, end-p.ipOffset, len(p.IP)+udpLength+BTHLength+p.Info.HeaderLength+p.PayloadLength+int(p.PadCount)+ICRCLength)
			require.Len(t, bytes.Join(p.Payload(), nil), p.PayloadLength)
			describe(&p)
			if udp[6]|udp[7] == 0 {
				frame = bytes.Clone(frame)
				putReferenceICRC(frame[:end])
				require.Equal(t, DropNone, p.Parse([][]byte{frame}))
				frame[end-1] ^= 0x80
				require.Equal(t, DropICRC, p.Parse([][]byte{frame}))
				frame[end-1] ^= 0x80
			}
		}

		reason = p.Parse([][]byte{frame})
		first := int(cut1) % (len(frame) + 1)
		second := first + int(cut2)%(len(frame)-first+1)
		var q Packet
		pieces := q.Parse([][]byte{frame[:first:first], frame[first:second:second], nil, frame[second:]})
		if pieces != DropHeaderSplit {
			require.Equal(t, reason, pieces)
		}
		if reason == DropNone && pieces == DropNone {
			require.Equal(t, describe(&p), describe(&q))
			require.Equal(t, bytes.Join(p.Payload(), nil), bytes.Join(q.Payload(), nil))
		}
	})
}

// FuzzHeaders reads every header from any bytes: what is written back reads the same, and differs
// from the bytes only in reserved bits.
func FuzzHeaders(f *testing.F) {
	f.Add(bytes.Repeat([]byte{0}, AtomicETHLength))
	f.Add(bytes.Repeat([]byte{0xFF}, AtomicETHLength))
	for _, v := range readVectors(f) {
		frame := v.frame(f)
		f.Add(frame[len(frame)-AtomicETHLength:])
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < AtomicETHLength {
			return
		}
		check := func(length int, reserved []byte, again func(in, out []byte) bool) {
			out := make([]byte, length)
			require.True(t, again(b[:length], out))
			for i := range length {
				mask := byte(0xFF)
				if i < len(reserved) {
					mask &^= reserved[i]
				}
				require.Equal(t, b[i]&mask, out[i], "byte %d", i)
			}
		}
		check(BTHLength, []byte{1: 0x0F, 4: 0x3F, 8: 0x7F}, func(in, out []byte) bool {
			BTH(in).Fields().Put(out)
			return BTH(in).Fields() == BTH(out).Fields()
		})
		check(RETHLength, nil, func(in, out []byte) bool {
			RETH(in).Fields().Put(out)
			return RETH(in).Fields() == RETH(out).Fields()
		})
		check(AETHLength, nil, func(in, out []byte) bool {
			AETH(in).Fields().Put(out)
			return AETH(in).Fields() == AETH(out).Fields()
		})
		check(AtomicETHLength, nil, func(in, out []byte) bool {
			AtomicETH(in).Fields().Put(out)
			return AtomicETH(in).Fields() == AtomicETH(out).Fields()
		})
		check(AtomicAckETHLength, nil, func(in, out []byte) bool {
			AtomicAckETH(in).Fields().Put(out)
			return AtomicAckETH(in).Fields() == AtomicAckETH(out).Fields()
		})
		check(ImmDtLength, nil, func(in, out []byte) bool {
			ImmDt(in).Fields().Put(out)
			return ImmDt(in).Fields() == ImmDt(out).Fields()
		})
		check(IETHLength, nil, func(in, out []byte) bool {
			IETH(in).Fields().Put(out)
			return IETH(in).Fields() == IETH(out).Fields()
		})
		check(DETHLength, []byte{4: 0xFF}, func(in, out []byte) bool {
			DETH(in).Fields().Put(out)
			return DETH(in).Fields() == DETH(out).Fields()
		})
		check(FETHLength, []byte{0xFF, 0xFF, 0xFF, 0xC0}, func(in, out []byte) bool {
			FETH(in).Fields().Put(out)
			return FETH(in).Fields() == FETH(out).Fields()
		})
	})
}

// FuzzNumbers runs every method of the small types that bytes from the wire become.
func FuzzNumbers(f *testing.F) {
	f.Add(byte(0x15), uint32(0xFFFFFF), uint32(1))
	f.Fuzz(func(t *testing.T, b byte, x, y uint32) {
		require.NotEmpty(t, Opcode(b).String())
		require.NotEmpty(t, Opcode(b).Transport().String())
		require.NotEmpty(t, Syndrome(b).String())
		require.NotEmpty(t, DropReason(b).String())
		require.NotEmpty(t, MTU(b).String())
		require.Positive(t, RNRTimer(b))
		require.GreaterOrEqual(t, AckTimeout(b), AckTimeout(0))
		p, q := PSN(x&PSNMask), PSN(y&PSNMask)
		require.Equal(t, p, q.Add(uint32(p.Diff(q))))
		require.Equal(t, FlowLabel(QPN(x), QPN(y)), FlowLabel(QPN(y), QPN(x)))
		MTUFromBytes(int(int32(x)))
		ActiveMTU(int(int32(y)))
	})
}
