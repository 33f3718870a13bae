//go:build linux

package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/xroce/xroce/roce"
)

// TestStuck: rdma_rxe is to blame only if all is acknowledged, it sent again what was, and it is its turn.
func TestStuck(t *testing.T) {
	client := &stuckError{stockRun: stockRun{program: rcPingPong}}
	server := &stuckError{stockRun: stockRun{program: rcPingPong, server: true}}
	send := func(source byte, psn uint32) packet {
		return packet{source: source, opcode: roce.RCSendOnly, psn: psn, rest: make([]byte, 8)}
	}
	first := packet{source: 1, opcode: roce.RCSendFirst, psn: 0xffffff, rest: make([]byte, 8)}
	last := packet{source: 1, opcode: roce.RCSendLast, psn: 0, rest: make([]byte, 8)}
	ack := func(source byte, psn uint32) packet {
		return packet{source: source, opcode: roce.RCAcknowledge, psn: psn, rest: []byte{0x1f, 0, 0, 1, 0, 0, 0, 0}}
	}
	nak := ack(2, 0)
	nak.rest = []byte{0x60, 0, 0, 1, 0, 0, 0, 0}
	for _, c := range []struct {
		name    string
		game    *stuckError
		packets []packet
		want    string
	}{
		{"its turn", client, []packet{first, last, ack(2, 0), send(2, 7), ack(1, 7), first, last}, fault},
		{"xroce's turn", client, []packet{first, last, ack(2, 0), first, last}, fails},
		{"not acknowledged by xroce", client, []packet{first, last, send(2, 7), ack(1, 7), first, last}, fails},
		{"a NAK", client, []packet{first, last, nak, send(2, 7), ack(1, 7), first, last}, fails},
		{"not acknowledged by rdma_rxe", client, []packet{first, last, ack(2, 0), send(2, 7), first, last}, fails},
		{"nothing again", client, []packet{first, last, ack(2, 0), send(2, 7), ack(1, 7)}, fails},
		{"in the middle of a message", client, []packet{first, ack(2, 0xffffff), send(2, 7), ack(1, 7), first}, fails},
		{"its turn as server", server, []packet{send(2, 7), ack(1, 7), send(1, 1), ack(2, 1), send(2, 8), ack(1, 8), send(1, 1)}, fault},
		{"xroce's turn as client", server, []packet{send(2, 7), ack(1, 7), send(1, 1), ack(2, 1), send(1, 1)}, fails},
		{"no capture", client, nil, fails},
	} {
		require.Equal(t, c.want, outcomeOf(c.game.blame(c.packets)), c.name)
	}
}
