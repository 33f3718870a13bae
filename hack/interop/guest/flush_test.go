//go:build linux

package guest

import (
	"bytes"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/xroce/xroce/hack/interop/wire"
)

// TestFlushes: what rdma_rxe has sent to rdma_rxe has its headers twice in the ICRC of FLUSH, and nothing else is let
// pass.
func TestFlushes(t *testing.T) {
	var packets []wire.Packet
	require.NoError(t, wire.EachFrame("../../../roce/testdata/rc-flush-atomic-write.pcap", func(frame []byte) error {
		d, ok, err := wire.Dissect(bytes.Clone(frame))
		if ok {
			packets = append(packets, d)
		}
		return err
	}))
	g := &guest{}
	requests, twice, err := g.flushes(packets, false)
	require.NoError(t, err)
	require.Len(t, requests, 2)
	require.Equal(t, 2, twice)
	require.Len(t, requests[0].Body, 20)

	// Of xroce it would be a mistake.
	mine := slices.Clone(packets)
	for i := range mine {
		mine[i].Sender = wire.MACV1
	}
	_, _, err = g.flushes(mine, true)
	require.ErrorContains(t, err, "xroce sent opcode 0x1c")

	// With the right ICRC it is one for either.
	for i, d := range packets {
		packets[i].ICRC, mine[i].ICRC = wire.InvariantCRC(d.Covered), wire.InvariantCRC(d.Covered)
	}
	same := func(d wire.Packet) bool { return d.Opcode == wire.FlushOpcode }
	one := slices.IndexFunc(mine, same)
	other := mine[one]
	other.Body = append(other.Body[:len(other.Body):len(other.Body)], 1)
	mine = slices.DeleteFunc(mine, func(d wire.Packet) bool { return same(d) && d.PSN != other.PSN }) // the file has two of them
	for _, byXroce := range []bool{false, true} {
		requests, twice, err = g.flushes(map[bool][]wire.Packet{false: packets, true: mine}[byXroce], byXroce)
		require.NoError(t, err)
		require.Len(t, requests, map[bool]int{false: 2, true: 1}[byXroce])
		require.Zero(t, twice)
	}
	_, _, err = g.flushes(packets, true)
	require.ErrorContains(t, err, "has no FLUSH")
	_, _, err = g.flushes(append(mine[:len(mine):len(mine)], other), true)
	require.ErrorContains(t, err, "and another time to")

	// Another wrong ICRC is one that nothing explains, and so is that of another packet.
	at := slices.IndexFunc(packets, func(d wire.Packet) bool { return d.Opcode == wire.FlushOpcode })
	for i := range packets {
		wrong := slices.Clone(packets)
		if wrong[i].ICRC ^= 1; i != at {
			wrong[i].ICRC = wrong[i].HeadersTwice()
		}
		_, _, err := g.flushes(wrong, false)
		require.Equal(t, packets[i].Opcode == wire.FlushOpcode && i != at, err == nil, "packet %d", i)
	}
}
