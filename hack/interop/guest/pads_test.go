//go:build linux

package guest

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/xroce/xroce/hack/interop/plan"
	"github.com/xroce/xroce/hack/interop/wire"
)

// TestCheckPads: the messages of padded in packets, and what is seen if one of them is not as it ought to be.
func TestCheckPads(t *testing.T) {
	const mtu = 1024
	messages := func(change func(psn uint32, f *wire.Forged)) (packets []wire.Packet) {
		psn := uint32(100)
		for _, size := range padSizes {
			for left := size; left > 0; psn++ {
				f := wire.Forged{Family: 4, Opcode: wire.SendOnly, PSN: psn, Payload: make([]byte, min(left, mtu))}
				switch { // of a SEND: Only, First, Middle, Last
				case size > mtu && left == size:
					f.Opcode = wire.SendFirst
				case left > mtu:
					f.Opcode = wire.SendMiddle
				case size > mtu:
					f.Opcode = wire.SendLast
				}
				left -= len(f.Payload)
				change(psn, &f)
				d, ok, err := wire.Dissect(f.Frame())
				require.True(t, ok)
				require.NoError(t, err)
				packets = append(packets, d)
			}
		}
		return packets
	}
	good := messages(func(uint32, *wire.Forged) {})
	require.NoError(t, checkPads(good, wire.MACForged, plan.Send, mtu))
	require.NoError(t, checkPads(append(good[:2:2], good[1:]...), wire.MACForged, plan.Send, mtu), "sent again")
	require.ErrorContains(t, checkPads(good[:len(good)-1], wire.MACForged, plan.Send, mtu), "lacks 1 messages")
	for psn := range uint32(len(good)) {
		longer := messages(func(p uint32, f *wire.Forged) {
			if p == 100+psn {
				f.Payload = append(f.Payload, 0)
			}
		})
		require.ErrorContains(t, checkPads(longer, wire.MACForged, plan.Send, mtu), "pad count")
		more := slices.Clone(good)
		more[psn].Pad = (more[psn].Pad + 1) & 3
		require.ErrorContains(t, checkPads(more, wire.MACForged, plan.Send, mtu), "pad count")
	}
	answer, _, err := wire.Dissect(wire.Forged{Family: 4, Opcode: wire.Acknowledge, Headers: []byte{0, 0, 0, 0}, Payload: []byte{0}}.Frame())
	require.NoError(t, err)
	require.ErrorContains(t, checkPads(append(good, answer), wire.MACForged, plan.Send, mtu), "no payload but a pad")
}
