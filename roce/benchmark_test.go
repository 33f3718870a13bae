package roce

import (
	"fmt"
	"testing"
)

func benchmarkFrames(b *testing.B, run func(b *testing.B, path Path, frame []byte)) {
	for _, is6 := range []bool{false, true} {
		family := map[bool]string{false: "IPv4", true: "IPv6"}[is6]
		for _, payload := range []int{0, 1024, 2048, 4096} {
			packet := testPacket{path: testPath(is6), opcode: RCSendMiddle, length: payload}
			if payload == 0 {
				packet.opcode = RCAcknowledge
			}
			b.Run(fmt.Sprintf("%s/%d", family, payload), func(b *testing.B) {
				frame := packet.build()
				b.ReportAllocs()
				b.SetBytes(int64(len(frame)))
				run(b, packet.path, frame)
			})
		}
	}
}

func BenchmarkParse(b *testing.B) {
	benchmarkFrames(b, func(b *testing.B, _ Path, frame []byte) {
		var p Packet
		segments := [][]byte{frame}
		for b.Loop() {
			if reason := p.Parse(segments); reason != DropNone {
				b.Fatal(reason)
			}
		}
	})
}

func BenchmarkParseHeaders(b *testing.B) {
	benchmarkFrames(b, func(b *testing.B, _ Path, frame []byte) {
		var p Packet
		segments := [][]byte{frame}
		for b.Loop() {
			if reason := p.ParseHeaders(segments); reason != DropNone {
				b.Fatal(reason)
			}
		}
	})
}

func BenchmarkPut(b *testing.B) {
	benchmarkFrames(b, func(b *testing.B, path Path, frame []byte) {
		template := NewHeaderTemplate(path)
		fields := BTHFields{Opcode: RCSendMiddle, PKey: 0xFFFF, DestinationQPN: 5}
		for b.Loop() {
			template.Put(frame)
			fields.PSN = fields.PSN.Add(1)
			fields.Put(frame[template.Length():])
		}
	})
}

func BenchmarkSeal(b *testing.B) {
	benchmarkFrames(b, func(b *testing.B, path Path, frame []byte) {
		template := NewHeaderTemplate(path)
		for b.Loop() {
			template.Seal(frame)
		}
	})
}
