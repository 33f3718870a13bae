package xdp

import (
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/xroce/xroce/internal/netlab"
	"github.com/xroce/xroce/roce"
	"github.com/xroce/xroce/roce/link"
)

// reaction is how soon a change of the network device must have its effect.
const reaction = 2 * time.Second

func texts(addresses []netip.Addr) (list []string) {
	for _, a := range addresses {
		list = append(list, a.String())
	}
	return list
}

func TestAddressesAreThoseOfTheDevice(t *testing.T) {
	p := newPair(t, netlab.PairOptions{})
	d := openEnd(t, p.A, Options{})
	want := []string{"10.9.0.1", "fd00:9::1", p.A.LinkLocal.Addr().String()}
	check := func() {
		t.Helper()
		got, err := d.Addresses()
		require.NoError(t, err)
		require.Equal(t, want, texts(got))
	}
	check()
	change := func(f func(*netlink.Handle, netlink.Link, *netlink.Addr) error, prefix string) {
		inside(t, p.A, func(h *netlink.Handle, device netlink.Link) {
			require.NoError(t, f(h, device, addressOf(t, prefix)))
		})
	}
	add := func(h *netlink.Handle, device netlink.Link, a *netlink.Addr) error { return h.AddrAdd(device, a) }
	remove := func(h *netlink.Handle, device netlink.Link, a *netlink.Addr) error { return h.AddrDel(device, a) }

	change(add, "10.9.0.200/24")
	want = slices.Insert(want, 1, "10.9.0.200")
	check()
	change(add, "2001:db8::5/64")
	want = slices.Insert(want, 2, "2001:db8::5")
	check()
	change(add, "9.0.0.1/8")
	want = slices.Insert(want, 0, "9.0.0.1")
	check()
	change(remove, "10.9.0.1/24") // takes its secondary address with it
	want = slices.Delete(want, 1, 3)
	check()
	change(remove, "fd00:9::1/64")
	want = slices.Delete(want, 2, 3)
	check()

	got, err := d.Addresses()
	require.NoError(t, err)
	got[0] = netip.Addr{}
	check() // the list belongs to the caller
}

// An address that another machine has is taken out when the kernel finds that out (RFC 4862), and not used.
func TestDuplicateAddressIsLeftOut(t *testing.T) {
	p := newPair(t, netlab.PairOptions{})
	d := openEnd(t, p.A, Options{})
	inside(t, p.A, func(h *netlink.Handle, device netlink.Link) {
		duplicate := addressOf(t, p.B.Addresses[1].String())
		duplicate.Flags = 0
		require.NoError(t, h.AddrAdd(device, duplicate))
	})
	failed := func() (yes bool) {
		inside(t, p.A, func(h *netlink.Handle, device netlink.Link) {
			list, err := h.AddrList(device, netlink.FAMILY_V6)
			require.NoError(t, err)
			require.Len(t, list, 3)
			yes = slices.ContainsFunc(list, func(a netlink.Addr) bool { return a.Flags&unix.IFA_F_DADFAILED != 0 })
		})
		return yes
	}
	require.Eventually(t, failed, 5*time.Second, time.Millisecond)
	followed := func() bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		return !slices.Contains(d.state.addresses, p.B.IPv6())
	}
	require.Eventually(t, followed, reaction, time.Millisecond)
	got, err := d.Addresses()
	require.NoError(t, err)
	require.Len(t, got, 3)
}

// An address of another device of the namespace must not count.
func TestAddressesOfOtherDevices(t *testing.T) {
	p := newPair(t, netlab.PairOptions{})
	second, err := netlab.Join(p.A.Namespace, p.B.Namespace, netlab.PairOptions{})
	require.NoError(t, err)
	one, two := openEnd(t, p.A, Options{}), openEnd(t, second.A, Options{})
	first, err := one.Addresses()
	require.NoError(t, err)
	require.Equal(t, []string{"10.9.0.1", "fd00:9::1", p.A.LinkLocal.Addr().String()}, texts(first))
	other, err := two.Addresses()
	require.NoError(t, err)
	require.Equal(t, []string{"10.9.1.1", "fd00:9:0:1::1", second.A.LinkLocal.Addr().String()}, texts(other))
	require.NoError(t, two.Close())
}

func TestNoIPv6(t *testing.T) {
	none := []netip.Prefix{}
	p := newPair(t, netlab.PairOptions{A: netlab.EndOptions{Addresses: none}})
	inside(t, p.A, func(h *netlink.Handle, device netlink.Link) {
		require.NoError(t, h.AddrDel(device, addressOf(t, p.A.LinkLocal.String())))
	})
	d := openEnd(t, p.A, Options{})
	got, err := d.Addresses()
	require.NoError(t, err)
	require.Empty(t, got)
}

// follower sends frames to a device and says where they end up, without asking the device anything.
type follower struct {
	t        *testing.T
	pair     *netlab.Pair
	from, to *Device
}

func newFollower(t *testing.T) follower {
	p := newPair(t, netlab.PairOptions{})
	f := follower{t: t, pair: p, from: openEnd(t, p.A, Options{}), to: openEnd(t, p.B, Options{})}
	require.NoError(t, steer(f.to, steering))
	return f
}

func (f follower) arrives(mac roce.MAC, address string) bool {
	f.t.Helper()
	source := f.pair.A.IPv4()
	destination := netip.MustParseAddr(address)
	if destination.Is6() {
		source = f.pair.A.IPv6()
	}
	send(f.t, f.from.Queues()[0], frameTo(f.from.HardwareAddr(), mac, source, destination, qpn, 64, 1))
	return receive(f.t, f.to.Queues()[0], 0) != nil
}

func (f follower) within(want bool, mac roce.MAC, address string) {
	f.t.Helper()
	require.Eventually(f.t, func() bool { return f.arrives(mac, address) == want }, reaction, time.Millisecond)
}

func TestSteeringFollowsAddresses(t *testing.T) {
	f := newFollower(t)
	mac := f.to.HardwareAddr()
	for prefix, address := range map[string]string{
		"10.9.0.77/24": "10.9.0.77", "192.0.2.1/32": "192.0.2.1", "fd00:9::77/64": "fd00:9::77",
	} {
		require.False(t, f.arrives(mac, address))
		inside(t, f.pair.B, func(h *netlink.Handle, device netlink.Link) {
			require.NoError(t, h.AddrAdd(device, addressOf(t, prefix)))
		})
		f.within(true, mac, address)
		inside(t, f.pair.B, func(h *netlink.Handle, device netlink.Link) {
			require.NoError(t, h.AddrDel(device, addressOf(t, prefix)))
		})
		f.within(false, mac, address)
	}
	require.True(t, f.arrives(mac, "10.9.0.2"), "the others stay")
}

func TestSteeringFollowsManyAddressesAtOnce(t *testing.T) {
	f := newFollower(t)
	const many = 200
	address := func(i int) netip.Prefix {
		return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 77, 0, byte(i + 1)}), 32)
	}
	inside(t, f.pair.B, func(h *netlink.Handle, device netlink.Link) {
		for i := range many {
			require.NoError(t, h.AddrAdd(device, addressOf(t, address(i).String())))
		}
	})
	f.within(true, f.to.HardwareAddr(), address(many-1).Addr().String())
	require.True(t, f.arrives(f.to.HardwareAddr(), address(0).Addr().String()))
	got, err := f.to.Addresses()
	require.NoError(t, err)
	require.Len(t, got, many+3)
}

// The kernel drops messages for a reader that is too slow, and must not be believed after that.
func TestSteeringSurvivesLostMessages(t *testing.T) {
	f := newFollower(t)
	f.to.mu.Lock() // stops the watcher within the first change
	inside(t, f.pair.B, func(h *netlink.Handle, device netlink.Link) {
		require.NoError(t, h.AddrAdd(device, addressOf(t, "10.9.0.77/24")))
		for range 2000 { // some 3 MB of messages
			require.NoError(t, h.AddrAdd(device, addressOf(t, "10.9.0.78/24")))
			require.NoError(t, h.AddrDel(device, addressOf(t, "10.9.0.78/24")))
		}
		require.NoError(t, h.AddrAdd(device, addressOf(t, "10.9.0.79/24")))
	})
	f.to.mu.Unlock()
	mac := f.to.HardwareAddr()
	require.Eventually(t, func() bool { return f.arrives(mac, "10.9.0.79") }, soon, time.Millisecond)
	require.True(t, f.arrives(mac, "10.9.0.77"))
	require.False(t, f.arrives(mac, "10.9.0.78"))
	inside(t, f.pair.B, func(h *netlink.Handle, device netlink.Link) {
		require.NoError(t, h.AddrDel(device, addressOf(t, "10.9.0.79/24")))
	})
	f.within(false, mac, "10.9.0.79")
}

func TestSteeringFollowsHardwareAddress(t *testing.T) {
	f := newFollower(t)
	before, after := f.to.HardwareAddr(), roce.MAC{2, 0, 0, 0, 0, 0x99}
	require.True(t, f.arrives(before, "10.9.0.2"))
	inside(t, f.pair.B, func(h *netlink.Handle, device netlink.Link) {
		require.NoError(t, h.LinkSetHardwareAddr(device, net.HardwareAddr(after[:])))
	})
	f.within(true, after, "10.9.0.2")
	require.False(t, f.arrives(before, "10.9.0.2"))
	require.Equal(t, after, f.to.HardwareAddr())
	require.NoError(t, steer(f.to, steering), "the address must survive a new steering")
	require.True(t, f.arrives(after, "10.9.0.2"))
}

func TestMTUFollows(t *testing.T) {
	p := newPair(t, netlab.PairOptions{})
	d := openEnd(t, p.A, Options{MultiBuffer: MultiBufferOn})
	for _, mtu := range []int{4200, 9000, 1280} {
		inside(t, p.A, func(h *netlink.Handle, device netlink.Link) { require.NoError(t, h.LinkSetMTU(device, mtu)) })
		require.Eventually(t, func() bool {
			got, err := d.MTU()
			return err == nil && got == mtu
		}, reaction, time.Millisecond)
	}
}

func TestDownAndUp(t *testing.T) {
	f := newFollower(t)
	mac := f.to.HardwareAddr()
	set := func(e netlab.End, up bool) {
		inside(t, e, func(h *netlink.Handle, device netlink.Link) {
			if up {
				require.NoError(t, h.LinkSetUp(device))
			} else {
				require.NoError(t, h.LinkSetDown(device))
			}
		})
	}
	set(f.pair.B, false)
	for d, text := range map[*Device]string{
		f.from: "network device veth0 is up but has no carrier", f.to: "network device is down: veth0 (ip link set veth0 up)",
	} {
		mtu, err := d.MTU()
		require.ErrorIs(t, err, link.ErrDown)
		require.EqualError(t, err, text)
		require.Equal(t, 1500, mtu)
	}
	_, err := f.from.Resolve(t.Context(), f.pair.A.IPv4(), f.pair.B.IPv4())
	require.ErrorIs(t, err, link.ErrDown)
	require.ErrorContains(t, err, "no carrier")
	q := f.to.Queues()[0]
	q.Commit(copy(q.Buffer(), make([]byte, 60)))
	q.Publish()
	err = q.Kick()
	require.ErrorIs(t, err, link.ErrDown)
	_, err = f.to.Resolve(t.Context(), f.pair.B.IPv4(), f.pair.A.IPv4())
	require.ErrorIs(t, err, link.ErrDown)

	set(f.pair.B, true)
	require.Eventually(t, func() bool {
		_, errA := f.from.MTU()
		_, errB := f.to.MTU()
		return errA == nil && errB == nil
	}, soon, time.Millisecond)
	kick(t, q)
	f.within(true, mac, "10.9.0.2")
}

func TestDeletedDevice(t *testing.T) {
	p := newPair(t, netlab.PairOptions{})
	d := openUnchecked(t, p.A, Options{})
	inside(t, p.A, func(h *netlink.Handle, device netlink.Link) { require.NoError(t, h.LinkDel(device)) })
	_, err := d.MTU()
	require.ErrorIs(t, err, link.ErrDown)
	require.ErrorContains(t, err, "veth0 was deleted")
	_, err = d.Addresses()
	require.ErrorIs(t, err, link.ErrDown)
	_, err = d.Resolve(t.Context(), p.A.IPv4(), p.B.IPv4())
	require.ErrorIs(t, err, link.ErrDown)
	q := d.Queues()[0]
	q.Commit(60)
	q.Buffer()
	q.Commit(60)
	q.Publish()
	err = q.Kick()
	require.ErrorIs(t, err, link.ErrDown)
	require.ErrorContains(t, err, "deleted")
}
