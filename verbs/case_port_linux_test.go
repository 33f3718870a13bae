package verbs_test

import (
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
	"github.com/xroce/xroce/verbs"
)

// ports are a veth pair with a device at each end.
type ports struct {
	pair    *netlab.Pair
	devices [2]*verbs.Device
}

func newPorts(t *testing.T, o netlab.PairOptions) *ports {
	t.Helper()
	netlab.RequireRoot(t)
	pair, err := netlab.NewPair(o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, pair.Close()) })
	p := &ports{pair: pair}
	for i, e := range []*netlab.End{&pair.A, &pair.B} {
		p.devices[i] = openDevice(t, e, verbs.Options{})
	}
	return p
}

// ends makes a queue pair on each device, connected over IPv4 unless the options say otherwise.
func (p *ports) ends(t *testing.T, o verbs.ConnectOptions) (a, b *end) {
	t.Helper()
	a, b = newEnd(t, p.devices[0], make([]byte, 64<<10), verbs.QPCap{}), newEnd(t, p.devices[1], make([]byte, 64<<10), verbs.QPCap{})
	connect(t, a, b, o)
	return a, b
}

// change changes the network device of an end.
func change(t *testing.T, e *netlab.End, f func(netlink.Link) error) {
	t.Helper()
	require.NoError(t, e.Namespace.Do(func() error {
		device, err := netlink.LinkByName(e.Name)
		if err != nil {
			return err
		}
		return f(device)
	}))
}

// untilEvent drops events until one of a type comes, and says how long that took.
func untilEvent(t *testing.T, d *verbs.Device, want verbs.EventType) time.Duration {
	t.Helper()
	begin := time.Now()
	for nextEvent(t, d).Type != want {
	}
	return time.Since(begin)
}

// soonEnough is what the events of a port may take, 100 ms, and what a busy machine adds.
const soonEnough = time.Second

// TestCase_A11: the MTU of a network device changes under queue pairs at work.
func TestCase_A11(t *testing.T) {
	p := newPorts(t, netlab.PairOptions{MTU: 3000})
	large, largePeer := p.ends(t, verbs.ConnectOptions{Timeout: roce.AckTimeout(12), RetryCnt: new(uint8(3))})
	small, smallPeer := p.ends(t, verbs.ConnectOptions{PathMTU: verbs.MTU1024})
	long := func(a, b *end) verbs.SendWR {
		wr := write(a, b, 0)
		wr.SGList, wr.RemoteAddr = []verbs.SGE{a.mr.SGE(0, 60_000)}, b.mr.Addr()
		return wr
	}
	require.Equal(t, verbs.MTU2048, large.qp.Query().PathMTU)
	for range 8 {
		require.NoError(t, large.qp.PostSend(long(large, largePeer)))
	}
	setMTU := func(mtu int) {
		change(t, &p.pair.A, func(device netlink.Link) error { return netlink.LinkSetMTU(device, mtu) })
	}
	setMTU(1280)
	require.Less(t, untilEvent(t, p.devices[0], verbs.EventQPFatal), soonEnough)
	require.Equal(t, verbs.StateError, large.qp.State())
	require.Equal(t, verbs.WCLocQPOpErr, large.qp.Failure().Status)
	require.Contains(t, large.qp.Explain(large.qp.Failure()), "path MTU 2048 needs netdev MTU 2144, veth0 has 1280")
	require.Eventually(t, func() bool { return large.qp.Outstanding() == 0 }, 5*time.Second, time.Millisecond)
	// The peer's network device has kept its MTU; it learns by not being answered.
	wc := largePeer.do(t, long(largePeer, large))
	require.Equal(t, verbs.WCRetryExcErr, wc.Status)
	// What still fits goes on.
	require.Equal(t, verbs.WCSuccess, small.do(t, long(small, smallPeer)).Status)

	for _, step := range []struct {
		netdev int
		active verbs.MTU
	}{{1280, verbs.MTU1024}, {800, verbs.MTU512}, {3000, verbs.MTU2048}} {
		setMTU(step.netdev)
		port, err := p.devices[0].QueryPort()
		require.NoError(t, err)
		require.Equal(t, step.active, port.ActiveMTU)
		if step.active < verbs.MTU1024 {
			require.Eventually(t, func() bool { return small.qp.State() == verbs.StateError }, 5*time.Second, time.Millisecond)
		}
		a, b := p.ends(t, verbs.ConnectOptions{})
		require.Equal(t, step.active, a.qp.Query().PathMTU)
		require.Equal(t, verbs.WCSuccess, a.do(t, long(a, b)).Status)
	}
}

// TestMTUEvent: another MTU is told where there is no queue pair that it ends, too, and the same one is not.
func TestMTUEvent(t *testing.T) {
	p := newPorts(t, netlab.PairOptions{MTU: 3000})
	for _, mtu := range []int{1400, 1500} {
		change(t, &p.pair.A, func(device netlink.Link) error { return netlink.LinkSetMTU(device, mtu) })
		require.Less(t, untilEvent(t, p.devices[0], verbs.EventPortActive), soonEnough)
		port, err := p.devices[0].QueryPort()
		require.NoError(t, err)
		require.Equal(t, mtu, port.NetdevMTU)
		require.Equal(t, verbs.PortActive, port.State)
	}
	change(t, &p.pair.A, func(device netlink.Link) error { return netlink.LinkSetMTU(device, 1500) })
	noEvents(t, p.devices[0])
}

// TestEthernetAddressChanges: the peer gets another Ethernet address. The queue pairs do not notice.
func TestEthernetAddressChanges(t *testing.T) {
	p := newPorts(t, netlab.PairOptions{})
	for _, v6 := range []bool{false, true} {
		for _, e := range []*netlab.End{&p.pair.A, &p.pair.B} {
			// The kernel's own search names one address of the searcher's. The others are told when they are asked to
			// be.
			change(t, e, func(netlink.Link) error {
				return os.WriteFile("/proc/sys/net/ipv6/conf/"+e.Name+"/ndisc_notify", []byte("1"), 0o600)
			})
		}
		o := verbs.ConnectOptions{Timeout: roce.AckTimeout(16), GIDIndex: new(gidIndex(t, p.devices[0], v6))}
		a, b := p.ends(t, o)
		for i, e := range []*netlab.End{&p.pair.A, &p.pair.B, &p.pair.A} {
			mac := net.HardwareAddr{2, 0, 0, 0, 7, byte(i)}
			if v6 {
				mac[4]++
			}
			change(t, e, func(device netlink.Link) error { return netlink.LinkSetHardwareAddr(device, mac) })
			require.Equal(t, verbs.WCSuccess, a.do(t, write(a, b, 0)).Status, "%v %d", v6, i)
			require.Equal(t, verbs.WCSuccess, b.do(t, write(b, a, 0)).Status, "%v %d", v6, i)
		}
	}
}

// TestGatewayChanges: the peer is behind a gateway, and the route gets another one.
func TestGatewayChanges(t *testing.T) {
	far := netip.MustParsePrefix("192.0.2.2/32")
	near := netip.MustParsePrefix("10.9.0.1/24")
	p := newPorts(t, netlab.PairOptions{
		A: netlab.EndOptions{Addresses: []netip.Prefix{near}},
		B: netlab.EndOptions{Addresses: []netip.Prefix{far}},
	})
	// Both gateways are the peer itself, by neighbour entries that are never asked for: the first one leads nowhere.
	mac := p.pair.B.HardwareAddr
	route := func(replace bool, gateway string) {
		change(t, &p.pair.A, func(device netlink.Link) error {
			r := &netlink.Route{
				LinkIndex: device.Attrs().Index, Gw: net.ParseIP(gateway),
				Dst: &net.IPNet{IP: net.IP(far.Addr().AsSlice()), Mask: net.CIDRMask(32, 32)},
			}
			if replace {
				return netlink.RouteReplace(r)
			}
			neighbour := func(address string, mac net.HardwareAddr) error {
				return netlink.NeighSet(&netlink.Neigh{
					LinkIndex: device.Attrs().Index, State: netlink.NUD_PERMANENT, IP: net.ParseIP(address), HardwareAddr: mac,
				})
			}
			return errors.Join(neighbour("10.9.0.50", net.HardwareAddr{2, 1, 1, 1, 1, 1}), neighbour("10.9.0.51", mac),
				netlink.RouteAdd(r))
		})
	}
	route(false, "10.9.0.51")
	change(t, &p.pair.B, func(device netlink.Link) error {
		return netlink.RouteAdd(&netlink.Route{LinkIndex: device.Attrs().Index, Dst: &net.IPNet{IP: net.IPv4(10, 9, 0, 0), Mask: net.CIDRMask(24, 32)}})
	})
	a, b := p.ends(t, verbs.ConnectOptions{Timeout: roce.AckTimeout(16), RetryCnt: new(uint8(7)), GIDIndex: new(gidIndex(t, p.devices[0], false))})
	require.Equal(t, verbs.WCSuccess, a.do(t, write(a, b, 0)).Status)
	route(true, "10.9.0.50")
	require.Eventually(t, func() bool {
		require.NoError(t, a.qp.PostSend(write(a, b, verbs.SendSignaled)))
		time.Sleep(50 * time.Millisecond)
		var wc [1]verbs.WC
		n, err := a.sends.Poll(wc[:])
		require.NoError(t, err)
		return n == 0
	}, 2*time.Second, time.Millisecond, "the way to the gateway that leads nowhere was not taken")
	route(true, "10.9.0.51")
	require.Equal(t, verbs.WCSuccess, poll(t, a.sends).Status)
}
