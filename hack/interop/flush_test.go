//go:build linux

package main

import (
	"bytes"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestFlushes: what rdma_rxe has sent to rdma_rxe has its headers twice in the ICRC of FLUSH, and nothing else is let pass.
func TestFlushes(t *testing.T) {
	var packets []dissected
	require.NoError(t, eachFrame("../../roce/testdata/rc-flush-atomic-write.pcap", func(frame []byte) error {
		d, ok, err := dissect(bytes.Clone(frame))
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
	require.Len(t, requests[0].body, 20)

	// Of xroce it would be a mistake.
	mine := slices.Clone(packets)
	for i := range mine {
		mine[i].sender = macV1
	}
	_, _, err = g.flushes(mine, true)
	require.ErrorContains(t, err, "xroce sent opcode 0x1c")

	// With the right ICRC it is one for either.
	for i, d := range packets {
		packets[i].icrc, mine[i].icrc = invariantCRC(d.covered), invariantCRC(d.covered)
	}
	same := func(d dissected) bool { return d.opcode == flushOpcode }
	one := slices.IndexFunc(mine, same)
	other := mine[one]
	other.body = append(other.body[:len(other.body):len(other.body)], 1)
	mine = slices.DeleteFunc(mine, func(d dissected) bool { return same(d) && d.psn != other.psn }) // the file has two of them
	for _, byXroce := range []bool{false, true} {
		requests, twice, err = g.flushes(map[bool][]dissected{false: packets, true: mine}[byXroce], byXroce)
		require.NoError(t, err)
		require.Len(t, requests, map[bool]int{false: 2, true: 1}[byXroce])
		require.Zero(t, twice)
	}
	_, _, err = g.flushes(packets, true)
	require.ErrorContains(t, err, "has no FLUSH")
	_, _, err = g.flushes(append(mine[:len(mine):len(mine)], other), true)
	require.ErrorContains(t, err, "and another time to")

	// Another wrong ICRC is one that nothing explains, and so is that of another packet.
	at := slices.IndexFunc(packets, func(d dissected) bool { return d.opcode == flushOpcode })
	for i := range packets {
		wrong := slices.Clone(packets)
		if wrong[i].icrc ^= 1; i != at {
			wrong[i].icrc = wrong[i].headersTwice()
		}
		_, _, err := g.flushes(wrong, false)
		require.Equal(t, packets[i].opcode == flushOpcode && i != at, err == nil, "packet %d", i)
	}
}
