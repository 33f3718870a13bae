package main

import (
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"github.com/xroce/xroce/internal/netlab"
)

// newMacvlan makes a macvlan of a device with an address of IPv4, as README has it: in a network namespace of its own.
func newMacvlan(t *testing.T, parent *netlab.End, address string) netlab.End {
	t.Helper()
	n, err := netlab.NewNamespace()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, n.Close()) })
	e := netlab.End{Namespace: n, Name: "veth0", Addresses: []netip.Prefix{netip.MustParsePrefix(address)}}
	inside(t, parent, func(h *netlink.Handle, device netlink.Link) {
		attributes := netlink.NewLinkAttrs()
		attributes.Name, attributes.ParentIndex, attributes.Namespace = e.Name, device.Attrs().Index, netlink.NsFd(n.FD())
		require.NoError(t, h.LinkAdd(&netlink.Macvlan{LinkAttrs: attributes, Mode: netlink.MACVLAN_MODE_BRIDGE}))
	})
	inside(t, &e, func(h *netlink.Handle, device netlink.Link) {
		loopback, err := h.LinkByName("lo")
		require.NoError(t, err)
		require.NoError(t, h.LinkSetUp(loopback))
		require.NoError(t, h.LinkSetUp(device))
		require.NoError(t, h.AddrAdd(device, &netlink.Addr{IPNet: &net.IPNet{
			IP: e.IPv4().AsSlice(), Mask: net.CIDRMask(e.Addresses[0].Bits(), 32),
		}}))
		e.Index, e.HardwareAddr = device.Attrs().Index, device.Attrs().HardwareAddr
	})
	return e
}

// TestMacvlanForEachProcess: the recipe of README. Processes of one machine that have a macvlan each in a namespace
// each reach each other and the other machines, and one may serve the device itself, to which that holds except for
// the macvlans, if it comes first.
func TestMacvlanForEachProcess(t *testing.T) {
	for _, mode := range []string{"native", "generic"} {
		p := newPair(t, netlab.PairOptions{})
		first, second := newMacvlan(t, &p.A, "10.9.0.11/24"), newMacvlan(t, &p.A, "10.9.0.12/24")
		play := func(client, server *netlab.End) {
			t.Helper()
			a, b := startPingpong(t, &netlab.Pair{A: *client, B: *server}, server.IPv4().String(), []string{"-n", "50"},
				[]string{"-n", "50"})
			require.Equal(t, 0, a.status(t, 20*time.Second), a.stderr.String())
			require.Equal(t, 0, b.status(t, 5*time.Second), b.stderr.String())
		}
		parent := newProgram("pingpong", "-n", "50", "-p", "0", "--mode", mode)
		parent.begin(t, p.A.Namespace)
		port := awaitListening(t, parent)
		play(&first, &second)
		play(&p.B, &second)
		play(&first, &p.B)
		client := newProgram("pingpong", p.A.IPv4().String(), "-p", port, "-n", "50")
		require.Equal(t, 0, client.run(t, p.B.Namespace), client.stderr.String())
		require.Equal(t, 0, parent.status(t, 5*time.Second), parent.stderr.String())
	}
}

// TestParentAfterMacvlan: the wrong order is refused with who is in the way and what to do.
func TestParentAfterMacvlan(t *testing.T) {
	p := newPair(t, netlab.PairOptions{})
	above := newMacvlan(t, &p.A, "10.9.0.11/24")
	holder := newProgram("pingpong", "-p", "0")
	holder.begin(t, above.Namespace)
	awaitListening(t, holder)
	for _, mode := range []string{"auto", "native", "generic"} {
		requireWrongUse(t, p.A.Namespace, []string{"pingpong", "--mode", mode},
			"veth0: a device above it, in another network namespace, has an XDP program (pids of xroce processes: ",
			fmt.Sprint(holder.command.Process.Pid), "open veth0, then start them again")
	}
}
