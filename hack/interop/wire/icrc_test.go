//go:build linux

package wire

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestInvariantCRC: what rdma_rxe and rdma_rxe have sent each other is right to the computation of this package, but
// for the FLUSH of which rdma_rxe is known to get it wrong; and what it covers, and nothing else, matters to it.
func TestInvariantCRC(t *testing.T) {
	files, err := filepath.Glob("../../../roce/testdata/rc-*.pcap")
	require.NoError(t, err)
	require.Greater(t, len(files), 20)
	pads := map[int]bool{}
	versions := map[byte]bool{}
	for _, file := range files {
		require.NoError(t, EachFrame(file, func(frame []byte) error {
			d, ok, err := Dissect(frame)
			if !ok {
				return nil
			}
			require.NoError(t, err)
			if d.Opcode == FlushOpcode {
				require.NotEqual(t, InvariantCRC(d.Covered), d.ICRC)
				return nil
			}
			require.Equal(t, InvariantCRC(d.Covered), d.ICRC, file)
			if d.Pad > 0 {
				require.NotEqual(t, InvariantCRC(d.Covered[:len(d.Covered)-d.Pad]), d.ICRC)
			}
			pads[d.Pad], versions[d.Covered[0]>>4] = true, true
			changed := 0
			for i := range d.Covered {
				d.Covered[i] ^= 0x01
				if InvariantCRC(d.Covered) != d.ICRC {
					changed++
				}
				d.Covered[i] ^= 0x01
			}
			// Bytes that may change: of IPv4 four, of IPv6 four and the half of one, of UDP two, of the BTH one.
			variable := map[byte]int{4: 7, 6: 8}[d.Covered[0]>>4]
			require.Equal(t, len(d.Covered)-variable, changed, file)
			return nil
		}))
	}
	require.Len(t, pads, 4)
	require.Len(t, versions, 2)

	found, err := Audit("../../../roce/testdata/rc-send-ipv4.pcap")
	require.NoError(t, err)
	require.Len(t, found, 2)
	for _, x := range found {
		require.Positive(t, x.Packets)
		require.Zero(t, x.Wrong)
	}
}

// TestAudit: a packet with a wrong ICRC is its sender's.
func TestAudit(t *testing.T) {
	good := Forged{Opcode: SendOnly, Family: 4, QPN: 0x11, PSN: 7, Payload: []byte("x")}
	bad := good
	bad.PSN, bad.WithoutPad = 8, true
	other := bad.Frame()
	other[11] = MACV1
	path := filepath.Join(t.TempDir(), "capture.pcap")
	require.NoError(t, os.WriteFile(path, pcap(good.Frame(), bad.Frame(), other), 0o600))
	for _, toRxe := range []bool{false, true} {
		for _, f := range []int{4, 6} {
			d, ok, err := Dissect(Forged{ToRxe: toRxe, Family: f, Opcode: SendOnly, QPN: 0x11, PSN: 7, Payload: []byte("x")}.Frame())
			require.True(t, ok)
			require.NoError(t, err)
			require.Equal(t, InvariantCRC(d.Covered), d.ICRC)
			addresses := map[int][2]int{4: {15, 19}, 6: {23, 39}}[f]
			require.Equal(t, toRxe, d.Covered[addresses[0]] == 2 && d.Covered[addresses[1]] == 1)
		}
	}
	found, err := Audit(path)
	require.NoError(t, err)
	require.Equal(t, 2, found[MACForged].Packets)
	require.Equal(t, 1, found[MACForged].Wrong)
	require.True(t, strings.HasPrefix(found[MACForged].First, "opcode 0x04, PSN 0x000008, 4 bytes behind the BTH with 3 of pad"), found[MACForged].First)
	require.Equal(t, 1, found[MACV1].Wrong)
}

// pcap is a capture with the frames.
func pcap(frames ...[]byte) []byte {
	file := binary.LittleEndian.AppendUint32(nil, 0xa1b2c3d4)
	file = binary.LittleEndian.AppendUint32(file, 2|4<<16) // version
	file = append(file, make([]byte, 8)...)
	file = binary.LittleEndian.AppendUint32(file, 1<<16)
	file = binary.LittleEndian.AppendUint32(file, 1) // Ethernet
	for _, frame := range frames {
		file = append(file, make([]byte, 8)...)
		file = binary.LittleEndian.AppendUint32(file, uint32(len(frame)))
		file = binary.LittleEndian.AppendUint32(file, uint32(len(frame)))
		file = append(file, frame...)
	}
	return file
}
