//go:build linux

package main

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestInvariantCRC: what rdma_rxe and rdma_rxe have sent each other is right to the computation of this package, but for the FLUSH of which
// rdma_rxe is known to get it wrong; and what it covers, and nothing else, matters to it.
func TestInvariantCRC(t *testing.T) {
	files, err := filepath.Glob("../../roce/testdata/rc-*.pcap")
	require.NoError(t, err)
	require.Greater(t, len(files), 20)
	pads := map[int]bool{}
	versions := map[byte]bool{}
	for _, file := range files {
		require.NoError(t, eachFrame(file, func(frame []byte) error {
			d, ok, err := dissect(frame)
			if !ok {
				return nil
			}
			require.NoError(t, err)
			if d.opcode == 0x1c {
				require.NotEqual(t, invariantCRC(d.covered), d.icrc)
				return nil
			}
			require.Equal(t, invariantCRC(d.covered), d.icrc, file)
			if d.pad > 0 {
				require.NotEqual(t, invariantCRC(d.covered[:len(d.covered)-d.pad]), d.icrc)
			}
			pads[d.pad], versions[d.covered[0]>>4] = true, true
			changed := 0
			for i := range d.covered {
				d.covered[i] ^= 0x01
				if invariantCRC(d.covered) != d.icrc {
					changed++
				}
				d.covered[i] ^= 0x01
			}
			// Bytes that may change: of IPv4 four, of IPv6 four and the half of one, of UDP two, of the BTH one.
			variable := map[byte]int{4: 7, 6: 8}[d.covered[0]>>4]
			require.Equal(t, len(d.covered)-variable, changed, file)
			return nil
		}))
	}
	require.Len(t, pads, 4)
	require.Len(t, versions, 2)

	found, err := auditFile("../../roce/testdata/rc-send-ipv4.pcap")
	require.NoError(t, err)
	require.Len(t, found, 2)
	for _, x := range found {
		require.Positive(t, x.packets)
		require.Zero(t, x.wrong)
	}
}

// TestAudit: a packet with a wrong ICRC is its sender's.
func TestAudit(t *testing.T) {
	good := forged{opcode: 0x04, family: 4, qpn: 0x11, psn: 7, payload: []byte("x")}
	bad := good
	bad.psn, bad.withoutPad = 8, true
	other := bad.frame()
	other[11] = macV1
	path := filepath.Join(t.TempDir(), "capture.pcap")
	require.NoError(t, os.WriteFile(path, pcap(good.frame(), bad.frame(), other), 0o600))
	for _, toRxe := range []bool{false, true} {
		for _, f := range families {
			d, ok, err := dissect(forged{toRxe: toRxe, family: f, opcode: 0x04, qpn: 0x11, psn: 7, payload: []byte("x")}.frame())
			require.True(t, ok)
			require.NoError(t, err)
			require.Equal(t, invariantCRC(d.covered), d.icrc)
			addresses := map[int][2]int{4: {15, 19}, 6: {23, 39}}[f]
			require.Equal(t, toRxe, d.covered[addresses[0]] == 2 && d.covered[addresses[1]] == 1)
		}
	}
	found, err := auditFile(path)
	require.NoError(t, err)
	require.Equal(t, 2, found[macForged].packets)
	require.Equal(t, 1, found[macForged].wrong)
	require.True(t, strings.HasPrefix(found[macForged].first, "opcode 0x04, PSN 0x000008, 4 bytes behind the BTH with 3 of pad"), found[macForged].first)
	require.Equal(t, 1, found[macV1].wrong)
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

// TestCheckPads: the messages of padded in packets, and what is seen if one of them is not as it ought to be.
func TestCheckPads(t *testing.T) {
	const mtu = 1024
	messages := func(change func(psn uint32, f *forged)) (packets []dissected) {
		psn := uint32(100)
		for _, size := range padSizes {
			for left := size; left > 0; psn++ {
				f := forged{family: 4, opcode: 0x04, psn: psn, payload: make([]byte, min(left, mtu))}
				switch { // of a SEND: Only, First, Middle, Last
				case size > mtu && left == size:
					f.opcode = 0x00
				case left > mtu:
					f.opcode = 0x01
				case size > mtu:
					f.opcode = 0x02
				}
				left -= len(f.payload)
				change(psn, &f)
				d, ok, err := dissect(f.frame())
				require.True(t, ok)
				require.NoError(t, err)
				packets = append(packets, d)
			}
		}
		return packets
	}
	good := messages(func(uint32, *forged) {})
	require.NoError(t, checkPads(good, macForged, opSend, mtu))
	require.NoError(t, checkPads(append(good[:2:2], good[1:]...), macForged, opSend, mtu), "sent again")
	require.ErrorContains(t, checkPads(good[:len(good)-1], macForged, opSend, mtu), "lacks 1 messages")
	for psn := range uint32(len(good)) {
		longer := messages(func(p uint32, f *forged) {
			if p == 100+psn {
				f.payload = append(f.payload, 0)
			}
		})
		require.ErrorContains(t, checkPads(longer, macForged, opSend, mtu), "pad count")
		more := slices.Clone(good)
		more[psn].pad = (more[psn].pad + 1) & 3
		require.ErrorContains(t, checkPads(more, macForged, opSend, mtu), "pad count")
	}
	answer, _, err := dissect(forged{family: 4, opcode: acknowledge, headers: []byte{0, 0, 0, 0}, payload: []byte{0}}.frame())
	require.NoError(t, err)
	require.ErrorContains(t, checkPads(append(good, answer), macForged, opSend, mtu), "no payload but a pad")
}
