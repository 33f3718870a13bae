package xdp

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/xroce/xroce/roce"
)

// TestHopsAreBounded: however many addresses peers name, the memory for their next hops is bounded, and the latest ones are kept.
func TestHopsAreBounded(t *testing.T) {
	h := newHops()
	address := func(i int) netip.Addr {
		return netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, uint32(i))))
	}
	for i := range 3*mostHops + 5 {
		h.asked(address(i))
		h.answered(address(i), roce.MAC{1})
		h.asked(address(i))
	}
	require.Len(t, h.macs, mostHops)
	require.Len(t, h.order, mostHops)
	require.Contains(t, h.macs, address(3*mostHops+4))
	require.Contains(t, h.macs, address(2*mostHops+5))
	require.NotContains(t, h.macs, address(2*mostHops+4))
}
