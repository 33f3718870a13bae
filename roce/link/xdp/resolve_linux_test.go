package xdp

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"github.com/xroce/xroce/internal/netlab"
	"github.com/xroce/xroce/roce"
	"github.com/xroce/xroce/roce/link"
)

var invalid netip.Addr

// resolve waits no longer than a neighbour that is there needs.
func resolve(t *testing.T, d *Device, source, destination netip.Addr) (link.Neighbour, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	return d.Resolve(ctx, source, destination)
}

func TestResolve(t *testing.T) {
	p := newPair(t, netlab.PairOptions{})
	a := openEnd(t, p.A, Options{})
	want := link.Neighbour{HardwareAddr: macOf(p.B.HardwareAddr), HopLimit: 64}
	local, remote := p.A.LinkLocal.Addr(), p.B.LinkLocal.Addr()
	for name, way := range map[string]way{
		"IPv4":                      {p.A.IPv4(), p.B.IPv4()},
		"IPv4 in IPv6 form":         {netip.AddrFrom16(p.A.IPv4().As16()), netip.AddrFrom16(p.B.IPv4().As16())},
		"IPv4 without source":       {invalid, p.B.IPv4()},
		"IPv6":                      {p.A.IPv6(), p.B.IPv6()},
		"link-local without zone":   {local, remote},
		"link-local with its zone":  {local.WithZone("veth0"), remote.WithZone("veth0")},
		"link-local by index":       {local, remote.WithZone("2")},
		"link-local without source": {invalid, remote},
	} {
		t.Run(name, func(t *testing.T) {
			for range 2 {
				got, err := resolve(t, a, way.source, way.destination)
				require.NoError(t, err)
				if !way.source.IsValid() {
					require.Equal(t, way.chosen(p), got.Source)
				}
				got.Source = invalid
				require.Equal(t, want, got)
			}
		})
	}
}

// way is from where to where packets go.
type way struct{ source, destination netip.Addr }

// chosen is the source that the route chooses for the destination.
func (w way) chosen(p *netlab.Pair) netip.Addr {
	switch destination := w.destination.Unmap(); {
	case destination.Is4():
		return p.A.IPv4()
	case destination.IsLinkLocalUnicast():
		return p.A.LinkLocal.Addr()
	}
	return p.A.IPv6()
}

// The kernel must find the neighbour by itself, on an empty table, and soon.
func TestResolveTriggersAndIsQuick(t *testing.T) {
	p := newPair(t, netlab.PairOptions{})
	a := openEnd(t, p.A, Options{})
	inside(t, p.A, func(h *netlink.Handle, device netlink.Link) {
		entries, err := h.NeighList(device.Attrs().Index, netlink.FAMILY_V4)
		require.NoError(t, err)
		require.Empty(t, entries)
	})
	start := time.Now()
	_, err := resolve(t, a, p.A.IPv4(), p.B.IPv4())
	require.NoError(t, err)
	require.Less(t, time.Since(start), 100*time.Millisecond)
}

func TestResolveUnknown(t *testing.T) {
	p := newPair(t, netlab.PairOptions{})
	a := openEnd(t, p.A, Options{})
	for _, way := range [][2]netip.Addr{
		{p.A.IPv4(), netip.MustParseAddr("10.9.0.7")},
		{p.A.IPv6(), netip.MustParseAddr("fd00:9::7")},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		start := time.Now()
		_, err := a.Resolve(ctx, way[0], way[1])
		cancel()
		require.ErrorIs(t, err, link.ErrNoNeighbour)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorContains(t, err, "no answer from "+way[1].String()+" on veth0")
		require.True(t, IsEnvironment(err))
		require.Less(t, time.Since(start), soon)
	}
}

// A neighbour that appears while Resolve waits is found, also after the kernel has given up once.
func TestResolveAwaitsLateNeighbour(t *testing.T) {
	p := newPair(t, netlab.PairOptions{})
	a := openEnd(t, p.A, Options{})
	late := netip.MustParseAddr("10.9.0.7")
	require.NoError(t, p.A.Namespace.Do(func() error { // the kernel gives up after one question and 10 ms
		const folder = "/proc/sys/net/ipv4/neigh/veth0/"
		return errors.Join(os.WriteFile(folder+"mcast_solicit", []byte("1"), 0),
			os.WriteFile(folder+"retrans_time_ms", []byte("10"), 0))
	}))
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	found := make(chan error, 1)
	go func() {
		_, err := a.Resolve(ctx, p.A.IPv4(), late)
		found <- err
	}()
	time.Sleep(100 * time.Millisecond)
	inside(t, p.B, func(h *netlink.Handle, device netlink.Link) {
		require.NoError(t, h.AddrAdd(device, addressOf(t, "10.9.0.7/24")))
	})
	require.NoError(t, <-found)
}

// An entry that is stale is used at once, and has the kernel ask again.
func TestResolveRefreshesStaleNeighbour(t *testing.T) {
	p := newPair(t, netlab.PairOptions{})
	a := openEnd(t, p.A, Options{})
	entry := &netlink.Neigh{
		LinkIndex: p.A.Index, IP: p.B.IPv4().AsSlice(), State: netlink.NUD_STALE,
		HardwareAddr: p.B.HardwareAddr,
	}
	inside(t, p.A, func(h *netlink.Handle, _ netlink.Link) { require.NoError(t, h.NeighSet(entry)) })
	got, err := resolve(t, a, p.A.IPv4(), p.B.IPv4())
	require.NoError(t, err)
	require.Equal(t, macOf(p.B.HardwareAddr), got.HardwareAddr)
	present, err := a.netdev.neighbour(p.B.IPv4())
	require.NoError(t, err)
	require.NotZero(t, present.State&(netlink.NUD_DELAY|netlink.NUD_PROBE|netlink.NUD_REACHABLE), "state %#x", present.State)
}

func TestResolvePermanentNeighbour(t *testing.T) {
	p := newPair(t, netlab.PairOptions{})
	a := openEnd(t, p.A, Options{})
	mac := net.HardwareAddr{2, 0, 0, 0, 0, 0x42}
	inside(t, p.A, func(h *netlink.Handle, _ netlink.Link) {
		require.NoError(t, h.NeighSet(&netlink.Neigh{
			LinkIndex: p.A.Index, IP: net.IPv4(10, 9, 0, 42), State: netlink.NUD_PERMANENT, HardwareAddr: mac,
		}))
	})
	got, err := resolve(t, a, p.A.IPv4(), netip.MustParseAddr("10.9.0.42"))
	require.NoError(t, err)
	require.Equal(t, macOf(mac), got.HardwareAddr)
}

func TestResolveThroughGateway(t *testing.T) {
	p := newPair(t, netlab.PairOptions{})
	a := openEnd(t, p.A, Options{})
	addRoute := func(destination, gateway string, hopLimit int) {
		inside(t, p.A, func(h *netlink.Handle, device netlink.Link) {
			_, network, err := net.ParseCIDR(destination)
			require.NoError(t, err)
			require.NoError(t, h.RouteAdd(&netlink.Route{
				LinkIndex: device.Attrs().Index, Dst: network, Gw: net.ParseIP(gateway), Hoplimit: hopLimit,
			}))
		})
	}
	addRoute("192.0.2.0/24", "10.9.0.2", 0)
	addRoute("198.51.100.0/24", "10.9.0.2", 7)
	addRoute("2001:db8::/32", p.B.LinkLocal.Addr().String(), 9)
	addRoute("203.0.113.0/24", "10.9.0.9", 0)
	for destination, hopLimit := range map[string]uint8{"192.0.2.1": 64, "198.51.100.1": 7, "2001:db8::1": 9} {
		to := netip.MustParseAddr(destination)
		from := p.A.IPv4()
		if to.Is6() {
			from = p.A.IPv6()
		}
		got, err := resolve(t, a, from, to)
		require.NoError(t, err)
		got.Source = invalid
		require.Equal(t, link.Neighbour{HardwareAddr: macOf(p.B.HardwareAddr), HopLimit: hopLimit}, got)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, err := a.Resolve(ctx, p.A.IPv4(), netip.MustParseAddr("203.0.113.1"))
	require.ErrorContains(t, err, "no answer from 10.9.0.9, the gateway to 203.0.113.1, on veth0")
}

func TestResolveMulticast(t *testing.T) {
	p := newPair(t, netlab.PairOptions{})
	a := openEnd(t, p.A, Options{})
	for group, mac := range map[string]roce.MAC{
		"239.129.2.3": {0x01, 0x00, 0x5E, 0x01, 0x02, 0x03}, "ff0e::1:2": {0x33, 0x33, 0, 1, 0, 2},
	} {
		got, err := resolve(t, a, invalid, netip.MustParseAddr(group))
		require.NoError(t, err)
		got.Source = invalid
		require.Equal(t, link.Neighbour{HardwareAddr: mac, HopLimit: 64}, got)
	}
}

func TestResolveErrors(t *testing.T) {
	p := newPair(t, netlab.PairOptions{})
	second, err := netlab.Join(p.A.Namespace, p.B.Namespace, netlab.PairOptions{A: netlab.EndOptions{Name: "other"}})
	require.NoError(t, err)
	defer second.Close()
	inside(t, second.A, func(h *netlink.Handle, device netlink.Link) {
		require.NoError(t, h.AddrAdd(device, addressOf(t, "172.16.0.1/24")))
		require.NoError(t, h.AddrAdd(device, addressOf(t, "fd01::1/64")))
	})
	a := openEnd(t, p.A, Options{})
	for _, c := range []struct{ source, destination, want string }{
		{"10.9.0.1", "172.16.0.2", "leaves through other, not veth0"},
		{"fd00:9::1", "fd01::2", "leaves through other, not veth0"},
		{"10.9.0.1", "192.0.2.1", "no route from 10.9.0.1 to 192.0.2.1 on veth0: network is unreachable"},
		{"fd00:9::1", "2001:db8::1", "no route from fd00:9::1 to 2001:db8::1 on veth0: network is unreachable"},
		{"10.9.0.3", "10.9.0.2", "source address 10.9.0.3 is not on veth0"},
		{"172.16.0.1", "10.9.0.2", "source address 172.16.0.1 is not on veth0"},
		{"fd00:9::3", "fd00:9::2", "source address fd00:9::3 is not on veth0"},
		{"10.9.0.1", "10.9.0.1", "10.9.0.1 is an address of this machine"},
		{"fd00:9::1", "fd00:9::1", "fd00:9::1 is an address of this machine"},
		{"10.9.0.1", "172.16.0.1", "172.16.0.1 is an address of this machine"},
		{"10.9.0.1", "fd00:9::2", "different families"},
		{"10.9.0.1", "0.0.0.0", "no destination"},
		{"fe80::1", "fe80::2%other", "zone of another device than veth0"},
		{"10.9.0.1", "10.9.0.255", "not unicast"},
		{"10.9.0.1", "255.255.255.255", "veth0"},
	} {
		_, err := resolve(t, a, netip.MustParseAddr(c.source), netip.MustParseAddr(c.destination))
		require.ErrorIs(t, err, link.ErrNoNeighbour, "%s to %s", c.source, c.destination)
		require.ErrorContains(t, err, c.want)
	}
	_, err = resolve(t, a, invalid, invalid)
	require.ErrorIs(t, err, link.ErrNoNeighbour)
}

// Two devices in one subnet: the packet must go over the device that was opened, whichever the table prefers.
func TestResolveOverSecondDeviceOfASubnet(t *testing.T) {
	p := newPair(t, netlab.PairOptions{})
	second, err := netlab.Join(p.A.Namespace, p.B.Namespace, netlab.PairOptions{
		A: netlab.EndOptions{Addresses: []netip.Prefix{netip.MustParsePrefix("10.9.0.11/24")}},
		B: netlab.EndOptions{Addresses: []netip.Prefix{netip.MustParsePrefix("10.9.0.12/24")}},
	})
	require.NoError(t, err)
	defer second.Close()
	d := openEnd(t, second.A, Options{})
	got, err := resolve(t, d, second.A.IPv4(), second.B.IPv4())
	require.NoError(t, err)
	require.NoError(t, d.Close())
	// Linux answers ARP for any of its addresses on any device, so either MAC would do for another machine.
	require.Equal(t, macOf(second.B.HardwareAddr), got.HardwareAddr)
}

func TestCloseEndsResolve(t *testing.T) {
	p := newPair(t, netlab.PairOptions{})
	a := openEnd(t, p.A, Options{})
	ended := make(chan error, 1)
	go func() {
		_, err := a.Resolve(context.Background(), p.A.IPv4(), netip.MustParseAddr("10.9.0.7"))
		ended <- err
	}()
	time.Sleep(20 * time.Millisecond)
	require.NoError(t, a.Close())
	select {
	case err := <-ended:
		require.ErrorIs(t, err, link.ErrClosed)
	case <-time.After(soon):
		t.Fatal("Resolve outlives the device")
	}
}
