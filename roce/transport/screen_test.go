package transport

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/xroce/xroce/roce"
)

// TestScreen: without a connection nothing is for a queue pair, with one what comes from its peer to its own address,
// whatever the packet is, until RESET.
func TestScreen(t *testing.T) {
	for _, state := range []State{StateReset, StateInit} {
		require.Equal(t, roce.DropQPState, in(t, state).Screen(new(roce.Packet)))
	}
	d := newDrainer(t)
	own, peer, stranger := roce.GID{15: 1}, roce.GID{15: 2}, roce.GID{15: 3}
	screen := func(from, to roce.GID) roce.DropReason {
		return d.qp.Screen(&roce.Packet{Source: from, Destination: to})
	}
	require.Equal(t, roce.DropNone, screen(peer, own))
	require.Equal(t, roce.DropAddressMismatch, screen(stranger, own))
	require.Equal(t, roce.DropAddressMismatch, screen(peer, stranger))
	d.to(StateError, false)
	require.Equal(t, roce.DropNone, screen(peer, own), "its home drops it")
	d.to(StateReset, false)
	require.Equal(t, roce.DropQPState, screen(peer, own))
	require.True(t, d.qp.Mobile())
}
