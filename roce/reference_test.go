package roce

import (
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// What the tests measure the codec against: the golden frames, and a second implementation of the
// ICRC that shares no code and no byte order with the first.

// referenceICRC computes the ICRC of a frame, Ethernet to the byte before the ICRC, bit by bit, and
// returns its bytes in their order on the wire.
func referenceICRC(frame []byte) [4]byte {
	ip := behindTag(frame)
	masked := append([]byte{0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF}, frame[ip:]...)
	header := masked[8:]
	udp := 20
	if header[0]>>4 == 4 {
		for _, at := range []int{ipv4ClassAt, ipv4TTLAt, ipv4ChecksumAt, ipv4ChecksumAt + 1} {
			header[at-ipAt] = 0xFF
		}
	} else {
		udp = 40
		header[0] |= 0x0F
		header[1], header[2], header[3], header[7] = 0xFF, 0xFF, 0xFF, 0xFF
	}
	header[udp+udpChecksumAt], header[udp+udpChecksumAt+1] = 0xFF, 0xFF
	header[udp+8+bthReservedAt] = 0xFF

	var register uint64 = 0xFFFFFFFF
	for _, b := range masked {
		for bit := 0; bit < 8; bit++ {
			feedback := (register ^ uint64(b)>>bit) & 1
			register >>= 1
			if feedback == 1 {
				register ^= 0xEDB88320
			}
		}
	}
	var wire [4]byte
	for i := range wire {
		for bit := 0; bit < 8; bit++ {
			if register>>(8*i+bit)&1 == 0 { // final inversion
				wire[i] |= 1 << bit
			}
		}
	}
	return wire
}

type vector struct {
	Name     string `json:"name"`
	FrameHex string `json:"frame_hex"`
}

func (v vector) frame(t testing.TB) []byte {
	frame, err := hex.DecodeString(v.FrameHex)
	require.NoError(t, err)
	return frame
}

func readVectors(t testing.TB) []vector {
	text, err := os.ReadFile("testdata/icrc-vectors.json")
	require.NoError(t, err)
	var vectors []vector
	require.NoError(t, json.Unmarshal(text, &vectors))
	require.Len(t, vectors, 35)
	return vectors
}

// capturedFrame is one frame of a capture; Number counts from 1, as in packet analysers.
type capturedFrame struct {
	file   string
	number int
	bytes  []byte
}

// readCaptures returns every frame of every capture, those that are not RoCE included.
func readCaptures(t testing.TB) []capturedFrame {
	files, err := filepath.Glob("testdata/*.pcap")
	require.NoError(t, err)
	require.Len(t, files, 35)
	var frames []capturedFrame
	for _, file := range files {
		data, err := os.ReadFile(file)
		require.NoError(t, err)
		require.Equal(t, uint32(0xA1B2C3D4), binary.LittleEndian.Uint32(data), file)
		require.Equal(t, uint32(1), binary.LittleEndian.Uint32(data[20:]), "link type of %s", file)
		name := strings.TrimSuffix(filepath.Base(file), ".pcap")
		number := 0
		for data = data[24:]; len(data) > 0; {
			captured, original := binary.LittleEndian.Uint32(data[8:]), binary.LittleEndian.Uint32(data[12:])
			require.Equal(t, original, captured, "frame of %s is cut", file)
			number++
			frames = append(frames, capturedFrame{name, number, data[16 : 16+captured]})
			data = data[16+captured:]
		}
	}
	return frames
}

// behindTag is where the IP header begins.
func behindTag(frame []byte) int {
	if frame[etherTypeAt] == 0x81 && frame[etherTypeAt+1] == 0x00 {
		return ipAt + 4
	}
	return ipAt
}

// isRoCE looks for UDP port 4791 the simple way.
func isRoCE(frame []byte) bool {
	ip := behindTag(frame)
	switch {
	case frame[ip-2] == 0x08 && frame[ip-1] == 0x00:
		return frame[ip-ipAt+ipv4ProtocolAt] == 17 && binary.BigEndian.Uint16(frame[ip-ipAt+udp4At+udpPortAt:]) == 4791
	case frame[ip-2] == 0x86 && frame[ip-1] == 0xDD:
		return frame[ip-ipAt+ipv6NextAt] == 17 && binary.BigEndian.Uint16(frame[ip-ipAt+udp6At+udpPortAt:]) == 4791
	}
	return false
}
