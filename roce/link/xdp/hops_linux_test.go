package xdp

import (
	"encoding/binary"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"github.com/xroce/xroce/internal/netlab"
	"github.com/xroce/xroce/roce"
	"github.com/xroce/xroce/roce/link"
)

// TestHopsAreBounded: however many addresses peers name, the memory for their next hops is bounded, and the latest ones
// are kept.
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

// TestConfirmOfForgottenHop: when a silent peer is asked for, its next hop is one of those that are kept, also if many
// others have pushed it out, so that the answer is noticed.
func TestConfirmOfForgottenHop(t *testing.T) {
	p := newPair(t, netlab.PairOptions{})
	d := openEnd(t, p.A, Options{})
	var ways atomic.Int32
	d.Watch(func(c link.Change) {
		if c&link.ChangedWays != 0 {
			ways.Add(1)
		}
	})
	_, err := resolve(t, d, p.A.IPv4(), p.B.IPv4())
	require.NoError(t, err)
	a := netip.MustParseAddr("fd00:aaaa::1")
	for range mostHops {
		d.netdev.hops.asked(a)
		a = a.Next()
	}
	inside(t, p.B, func(h *netlink.Handle, device netlink.Link) {
		mac := append([]byte(nil), device.Attrs().HardwareAddr...)
		mac[5] ^= 0x55
		require.NoError(t, h.LinkSetHardwareAddr(device, mac))
	})
	time.Sleep(200 * time.Millisecond)
	ways.Store(0)
	_ = d.Confirm(t.Context(), p.A.IPv4(), p.B.IPv4())
	require.Eventually(t, func() bool { return ways.Load() > 0 }, 3*time.Second, 5*time.Millisecond, "no change of the way is told")
}
