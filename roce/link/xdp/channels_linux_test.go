package xdp

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/xroce/xroce/internal/netlab"
)

// setChannels changes the numbers of queues in use, like ethtool -L.
func setChannels(t *testing.T, e netlab.End, receive, transmit uint32) error {
	t.Helper()
	return e.SetChannels(int(receive), int(transmit))
}

// TestChannelsChange: what ethtool -L does under an open device. The kernel refuses to take a queue away that has a
// socket (ethtool_set_channels, net/ethtool/ioctl.c). It adds queues; those have no socket, so frames that come in
// there go to the kernel, and those at the others come as before. Native on veth, nothing counts them: the kernel
// forgets to give an added queue the program (veth_enable_range_safe, drivers/net/veth.c) until the device goes down
// and up. Generic on veth, a frame arrives one queue below the one that it was sent on: the number of a transmit queue
// is taken for that of a receive queue, which is kept with 1 added (skb_record_rx_queue, include/linux/skbuff.h).
func TestChannelsChange(t *testing.T) {
	for _, mode := range []Mode{ModeNative, ModeGeneric} {
		t.Run(mode.String(), func(t *testing.T) { channelsChange(t, mode) })
	}
}

func channelsChange(t *testing.T, mode Mode) {
	p := newPair(t, netlab.PairOptions{Queues: 4})
	for _, e := range []netlab.End{p.A, p.B} {
		require.NoError(t, setChannels(t, e, 4, 2))
		require.NoError(t, setChannels(t, e, 2, 2))
	}
	b := openEnd(t, p.B, Options{Mode: mode})
	require.Len(t, b.Queues(), 2)
	require.NoError(t, steer(b, steering))
	require.ErrorIs(t, setChannels(t, p.B, 1, 2), unix.EINVAL)
	require.ErrorIs(t, setChannels(t, p.B, 2, 1), unix.EINVAL)

	require.NoError(t, setChannels(t, p.B, 4, 2), "receive queues first: as many as the peer transmits on")
	require.NoError(t, setChannels(t, p.A, 4, 4))
	require.NoError(t, setChannels(t, p.B, 4, 4))
	require.NoError(t, b.awaitCarrier(t.Context()))
	require.Len(t, b.Queues(), 2, "always the same ones")
	a := openEnd(t, p.A, Options{})
	require.Len(t, a.Queues(), 4)
	kernel := kernelSocket(t, p.B)
	all := func(programs bool) {
		before, want := b.Details()["pass_no_socket"], uint64(0)
		for number, q := range a.Queues() {
			at := number
			if mode == ModeGeneric {
				at = max(0, number-1)
			}
			frame := frameTo(a.HardwareAddr(), b.HardwareAddr(), p.A.IPv4(), p.B.IPv4(), qpn, 64, byte(number))
			send(t, q, frame)
			if at < 2 {
				require.Equal(t, frame, receive(t, b.Queues()[at], soon))
				continue
			}
			require.True(t, kernelGets(t, kernel, soon))
			if programs {
				want++
			}
		}
		require.Equal(t, want, b.Details()["pass_no_socket"]-before)
	}
	all(mode == ModeGeneric)
	inside(t, p.B, func(h *netlink.Handle, device netlink.Link) {
		require.NoError(t, h.LinkSetDown(device))
		require.NoError(t, h.LinkSetUp(device))
	})
	require.NoError(t, b.awaitCarrier(t.Context()))
	require.NoError(t, a.awaitCarrier(t.Context()))
	_, _ = a.Resolve(t.Context(), p.A.IPv4(), p.B.IPv4())
	all(true)

	// And back, down to the queues with sockets but not below them; those of the other end count, too.
	require.ErrorIs(t, setChannels(t, p.A, 3, 4), unix.EINVAL)
	require.NoError(t, a.Close())
	// The sockets of a device that was closed let go of their queues a little later.
	require.Eventually(t, func() bool { return setChannels(t, p.A, 4, 2) == nil }, 5*time.Second, time.Millisecond)
	require.NoError(t, setChannels(t, p.B, 3, 3))
	require.NoError(t, setChannels(t, p.B, 2, 2))
	require.ErrorIs(t, setChannels(t, p.B, 1, 1), unix.EINVAL)
}
