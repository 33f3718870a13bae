package xdp

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"github.com/xroce/xroce/internal/netlab"
	"github.com/xroce/xroce/roce/link"
)

// atOnce is far less than the 3 s that verbs.QP.Connect waits for a neighbour.
const atOnce = time.Second

// TestResolveOtherProcess: the address of a device that another process serves in the same namespace, which no wire
// leads to.
func TestResolveOtherProcess(t *testing.T) {
	p := newPair(t, netlab.PairOptions{})
	second, err := netlab.Join(p.A.Namespace, p.B.Namespace, netlab.PairOptions{A: netlab.EndOptions{Name: "second", Addresses: []netip.Prefix{
		netip.MustParsePrefix("10.9.0.11/24"), netip.MustParsePrefix("fd00:9::11/64"), // of the subnets of veth0
	}}})
	require.NoError(t, err)
	defer second.Close()
	d := openEnd(t, second.A, Options{})
	resolve := func(source, destination netip.Addr) string {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		begin := time.Now()
		_, err := d.Resolve(ctx, source, destination)
		require.Less(t, time.Since(begin), atOnce, "%v", err)
		require.ErrorIs(t, err, link.ErrNoNeighbour)
		require.NotErrorIs(t, err, context.DeadlineExceeded)
		return err.Error()
	}
	for _, way := range [][2]netip.Addr{{second.A.IPv4(), p.A.IPv4()}, {second.A.IPv6(), p.A.IPv6()}} {
		require.Contains(t, resolve(way[0], way[1]),
			way[1].String()+" is an address of this machine: no process serves veth0: open it in this process, too, or what works is a macvlan")
	}
	cmd, line := startChild(t, p.A.Namespace, nil)
	require.Equal(t, "open", line)
	for _, way := range [][2]netip.Addr{{second.A.IPv4(), p.A.IPv4()}, {second.A.IPv6(), p.A.IPv6()}, {invalid, p.A.IPv4()}} {
		text := resolve(way[0], way[1])
		t.Log(text)
		require.Contains(t, text, fmt.Sprintf("%v is an address of this machine: veth0 serves another xroce process, pid %d: ", way[1], cmd.Process.Pid))
		require.Contains(t, text, macvlanEach)
	}
	require.Contains(t, resolve(second.A.IPv4(), netip.MustParseAddr("127.0.0.1")), "no process serves lo")
	require.Contains(t, resolve(second.A.IPv4(), second.A.IPv4()), "10.9.0.11 is an address of this machine, of second itself")
}

// TestResolveAcceptLocal: a kernel that was told to answer its own questions does, and the address is reached over the
// wire.
func TestResolveAcceptLocal(t *testing.T) {
	p := newPair(t, netlab.PairOptions{})
	var first, second netlab.End
	inside(t, p.A, func(h *netlink.Handle, device netlink.Link) {
		for i, e := range []*netlab.End{&first, &second} {
			attributes := netlink.NewLinkAttrs()
			attributes.Name, attributes.ParentIndex = fmt.Sprintf("m%d", i), device.Attrs().Index
			require.NoError(t, h.LinkAdd(&netlink.Macvlan{LinkAttrs: attributes, Mode: netlink.MACVLAN_MODE_BRIDGE}))
			made, err := h.LinkByName(attributes.Name)
			require.NoError(t, err)
			require.NoError(t, h.LinkSetUp(made))
			require.NoError(t, h.AddrAdd(made, addressOf(t, fmt.Sprintf("10.9.0.1%d/24", i))))
			*e = netlab.End{Namespace: p.A.Namespace, Name: attributes.Name, HardwareAddr: made.Attrs().HardwareAddr}
			require.NoError(t, os.WriteFile("/proc/sys/net/ipv4/conf/"+e.Name+"/accept_local", []byte("1"), 0))
		}
		// Or else the device below answers, too, with its own Ethernet address.
		require.NoError(t, os.WriteFile("/proc/sys/net/ipv4/conf/all/arp_ignore", []byte("1"), 0))
	})
	d := openEnd(t, first, Options{})
	got, err := resolve(t, d, netip.MustParseAddr("10.9.0.10"), netip.MustParseAddr("10.9.0.11"))
	require.NoError(t, err)
	require.Equal(t, macOf(second.HardwareAddr), got.HardwareAddr)
}

// TestOpenBelow: a device is opened after one above it.
func TestOpenBelow(t *testing.T) {
	p := newPair(t, netlab.PairOptions{})
	above := netlab.End{Namespace: p.A.Namespace, Name: "above"}
	inside(t, p.A, func(h *netlink.Handle, device netlink.Link) {
		attributes := netlink.NewLinkAttrs()
		attributes.Name, attributes.ParentIndex = above.Name, device.Attrs().Index
		require.NoError(t, h.LinkAdd(&netlink.Macvlan{LinkAttrs: attributes, Mode: netlink.MACVLAN_MODE_BRIDGE}))
		made, err := h.LinkByName(above.Name)
		require.NoError(t, err)
		require.NoError(t, h.LinkSetUp(made))
	})
	d := openEnd(t, above, Options{})
	requireFails(t, "veth0", Options{NetNS: p.A.Namespace.Path()}, ErrTaken,
		"veth0: above above it serves this process: a device is opened before those on top of it", "open veth0, then start them again")
	require.NoError(t, d.Close())
	openEnd(t, p.A, Options{})
	openEnd(t, above, Options{})
}
