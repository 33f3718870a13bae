package xdp

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"github.com/xroce/xroce/internal/netlab"
	"github.com/xroce/xroce/roce/link"
)

func TestProbe(t *testing.T) {
	p := newPair(t, netlab.PairOptions{MTU: 4200, Queues: 2})
	o := ProbeOptions{NetNS: p.A.Namespace.Path()}
	port, err := Probe("veth0", o)
	require.NoError(t, err)
	require.Equal(t, Port{
		Name: "veth0", Index: p.A.Index, Driver: "veth", HardwareAddr: macOf(p.A.HardwareAddr), Running: true,
		MTU: 4200, ActiveMTU: 5, Queues: 2,
		Addresses:   []netip.Addr{p.A.IPv4(), p.A.IPv6(), p.A.LinkLocal.Addr()},
		Rungs:       port.Rungs,
		ZeroCopy:    !port.DriverTells,
		DriverTells: port.DriverTells,
	}, port)
	require.Equal(t, "[native+frags native generic+frags generic]", fmt.Sprint(port.Rungs))
	require.False(t, attached(t, p.A))

	o.Attach = true
	port, err = Probe("veth0", o)
	require.NoError(t, err)
	require.NoError(t, port.Obstacle)
	require.Equal(t, &link.Information{
		Name: "veth0", Driver: "veth", Mode: "native+frags", MultiBuffer: true, NotTaken: port.Obtained.NotTaken,
	}, port.Obtained)
	require.False(t, attached(t, p.A))

	_, err = Probe("eth7", o)
	require.ErrorIs(t, err, ErrNoDevice)
	_, err = Probe("veth0", ProbeOptions{NetNS: "/run/netns/absent"})
	require.ErrorIs(t, err, ErrInvalidOptions)
}

func TestList(t *testing.T) {
	p := newPair(t, netlab.PairOptions{})
	second, err := netlab.Join(p.A.Namespace, p.B.Namespace, netlab.PairOptions{})
	require.NoError(t, err)
	defer second.Close()
	inside(t, second.A, func(h *netlink.Handle, device netlink.Link) { require.NoError(t, h.LinkSetDown(device)) })
	ports, err := List(t.Context(), ProbeOptions{NetNS: p.A.Namespace.Path()})
	require.NoError(t, err)
	require.Len(t, ports, 3)
	require.Equal(t, "lo", ports[0].Name)
	require.ErrorIs(t, ports[0].Obstacle, ErrUnsuitable)
	require.Equal(t, []netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.IPv6Loopback()}, ports[0].Addresses)
	require.Equal(t, "veth0", ports[1].Name)
	require.NoError(t, ports[1].Obstacle)
	require.Equal(t, "veth1", ports[2].Name)
	require.ErrorIs(t, ports[2].Obstacle, link.ErrDown)
	require.ErrorContains(t, ports[2].Obstacle, "network device is down: veth1 (ip link set veth1 up)")
	require.False(t, ports[2].Running)
}

// TestListAgain: nothing that a request leaves to chance may change the answer.
func TestListAgain(t *testing.T) {
	p := newPair(t, netlab.PairOptions{})
	o := ProbeOptions{NetNS: p.A.Namespace.Path()}
	first, err := List(t.Context(), o)
	require.NoError(t, err)
	for range 40 {
		again, err := List(t.Context(), o)
		require.NoError(t, err)
		require.Equal(t, first, again)
	}
}

func TestProbeWithoutAddress(t *testing.T) {
	p := newPair(t, netlab.PairOptions{})
	inside(t, p.A, func(h *netlink.Handle, device netlink.Link) {
		addresses, err := h.AddrList(device, netlink.FAMILY_ALL)
		require.NoError(t, err)
		for i := range addresses {
			require.NoError(t, h.AddrDel(device, &addresses[i]))
		}
	})
	port, err := Probe("veth0", ProbeOptions{NetNS: p.A.Namespace.Path()})
	require.NoError(t, err)
	require.ErrorIs(t, port.Obstacle, ErrUnsuitable)
	require.ErrorContains(t, port.Obstacle, "veth0 has no IP address")
}

// What the probe expects of a driver that Open would find.
func TestProbeExpectsMultiBuffer(t *testing.T) {
	const native = netdevActBasic | netdevActRedirect
	old := errors.New("an old kernel")
	for _, c := range []struct {
		features xdpFeatures
		kernel   error
		want     error
	}{
		{xdpFeatures{}, nil, nil},
		{xdpFeatures{}, old, old},
		{xdpFeatures{known: true}, nil, nil}, // generic+frags
		{xdpFeatures{known: true, flags: native | netdevActZeroCopy}, nil, errZeroCopy},
		{xdpFeatures{known: true, flags: native}, nil, nil}, // igb of Linux 6.12: Open gets native+frags there
	} {
		require.Equal(t, c.want, c.features.multiBuffer(func(rung Rung) error {
			if c.kernel != nil {
				return c.kernel
			}
			return multiBufferObstacle(rung)
		}), "%+v", c)
	}
}
