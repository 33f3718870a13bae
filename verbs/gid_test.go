package verbs_test

import (
	"context"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/xroce/xroce/internal/opener"
	"github.com/xroce/xroce/roce/driver"
	"github.com/xroce/xroce/roce/link/mem"
	"github.com/xroce/xroce/verbs"
)

// gidDevices are two devices in memory, whose addresses a test changes.
func gidDevices(t *testing.T, a, b []netip.Addr) (devices [2]*verbs.Device, links [2]*mem.Device) {
	t.Helper()
	n := mem.NewNetwork(mem.Options{})
	for i, addresses := range [][]netip.Addr{a, b} {
		l, err := n.NewDevice(mem.DeviceOptions{Addresses: addresses})
		require.NoError(t, err)
		d, err := opener.Open[verbs.Device](l, driver.Options{})
		require.NoError(t, err)
		t.Cleanup(func() { requireClose(t, d) })
		devices[i], links[i] = d, l
	}
	return devices, links
}

// gidOf is the GID that a queue pair sends from.
func gidOf(t *testing.T, e *end) verbs.GID {
	t.Helper()
	gid, err := e.device.QueryGID(e.qp.Query().AH.SGIDIndex)
	require.NoError(t, err)
	return gid
}

func addresses(texts ...string) (list []netip.Addr) {
	for _, text := range texts {
		list = append(list, netip.MustParseAddr(text))
	}
	return list
}

// TestGIDOfALiveQP: the index of a GID that queue pairs use keeps its meaning while they do, also when its address has
// gone: a new address gets another index, and an address vector that is written back names the same source or none.
func TestGIDOfALiveQP(t *testing.T) {
	devices, links := gidDevices(t, addresses("10.0.0.1"), addresses("10.0.0.2"))
	a, b := newEnd(t, devices[0], make([]byte, 64), verbs.QPCap{}), newEnd(t, devices[1], make([]byte, 64), verbs.QPCap{})
	connect(t, a, b, verbs.ConnectOptions{})
	own := a.qp.Query().AH
	require.Zero(t, own.SGIDIndex)

	links[0].SetAddresses(addresses("10.0.0.7")...)
	table, err := devices[0].QueryGIDTable()
	require.NoError(t, err)
	require.Len(t, table, 2)
	require.True(t, table[0].IsZero())
	require.Equal(t, "10.0.0.7", table[1].String())

	require.NoError(t, a.qp.Modify(t.Context(), verbs.QPAttr{State: verbs.StateSQD}, verbs.QPStateMask))
	require.ErrorIs(t, a.qp.Modify(t.Context(), verbs.QPAttr{AH: own}, verbs.QPAV), verbs.ErrNoGID)
	links[0].SetAddresses(addresses("10.0.0.7", "10.0.0.1")...)
	require.NoError(t, a.qp.Modify(t.Context(), verbs.QPAttr{AH: own}, verbs.QPAV))
	require.NoError(t, a.qp.Modify(t.Context(), verbs.QPAttr{State: verbs.StateRTS}, verbs.QPStateMask))
	require.Equal(t, verbs.WCSuccess, a.do(t, write(a, b, 0)).Status)

	// When nobody uses it any more, the next address gets it.
	links[0].SetAddresses(addresses("10.0.0.7")...)
	require.NoError(t, a.qp.Modify(t.Context(), verbs.QPAttr{State: verbs.StateReset}, verbs.QPStateMask))
	links[0].SetAddresses(addresses("10.0.0.7", "10.0.0.9")...)
	table, err = devices[0].QueryGIDTable()
	require.NoError(t, err)
	require.Equal(t, "10.0.0.9", table[0].String())
}

// TestDefaultGID: without an index the address of a connection is one that fits the peer's, whatever is first in the
// table, and the one that Endpoint has told is the one that Connect uses.
func TestDefaultGID(t *testing.T) {
	const local = "fe80::1"
	devices, links := gidDevices(t, addresses(local), addresses("fe80::2"))
	for i, d := range devices {
		// After a flap the link-local address comes first.
		_, err := d.QueryGIDTable()
		require.NoError(t, err)
		links[i].SetAddresses(append(addresses([]string{local, "fe80::2"}[i]), addresses([]string{"10.0.0.1", "10.0.0.2"}[i], []string{"fd00::1", "fd00::2"}[i])...)...)
	}
	for _, c := range []struct{ peer, want string }{
		{"", "10.0.0.1"}, {"10.0.0.2", "10.0.0.1"}, {"::ffff:10.0.0.2", "10.0.0.1"}, {"fd00::2", "fd00::1"}, {"fe80::2", local}, {"fe80::2%eth0", local},
	} {
		a, b := newEnd(t, devices[0], make([]byte, 64), verbs.QPCap{}), newEnd(t, devices[1], make([]byte, 64), verbs.QPCap{})
		oa, ob := verbs.ConnectOptions{}, verbs.ConnectOptions{}
		if c.peer != "" {
			oa.Peer, ob.Peer = netip.MustParseAddr(c.peer), netip.MustParseAddr(c.want)
		}
		ea, err := a.qp.Endpoint(oa)
		require.NoError(t, err)
		require.Equal(t, c.want, ea.Address.String(), "towards %q", c.peer)
		eb, err := b.qp.Endpoint(ob)
		require.NoError(t, err)
		require.NoError(t, a.qp.Connect(context.Background(), eb, verbs.ConnectOptions{}))
		require.NoError(t, b.qp.Connect(context.Background(), ea, verbs.ConnectOptions{}))
		require.Equal(t, verbs.WCSuccess, a.do(t, write(a, b, 0)).Status)
	}
	// A program that told its Endpoint by other means goes by the peer's address.
	a, b := newEnd(t, devices[0], make([]byte, 64), verbs.QPCap{}), newEnd(t, devices[1], make([]byte, 64), verbs.QPCap{})
	eb, err := b.qp.Endpoint(verbs.ConnectOptions{Peer: netip.MustParseAddr("fd00::1")})
	require.NoError(t, err)
	require.NoError(t, a.qp.Connect(context.Background(), eb, verbs.ConnectOptions{}))
	require.Equal(t, 2, a.qp.Query().AH.SGIDIndex)

	a = newEnd(t, devices[0], make([]byte, 64), verbs.QPCap{})
	links[0].SetAddresses(addresses(local)...)
	_, err = a.qp.Endpoint(verbs.ConnectOptions{Peer: netip.MustParseAddr("10.0.0.2")})
	require.ErrorIs(t, err, verbs.ErrNoGID)
	require.ErrorContains(t, err, "no address of the kind of the peer's, 10.0.0.2")
}

// TestToldGID: the address that Endpoint has told stays the one of the connection, whatever becomes of its place in the
// table.
func TestToldGID(t *testing.T) {
	devices, links := gidDevices(t, addresses("10.0.0.1"), addresses("10.0.0.2"))
	a, b := newEnd(t, devices[0], make([]byte, 64), verbs.QPCap{}), newEnd(t, devices[1], make([]byte, 64), verbs.QPCap{})
	ea, err := a.qp.Endpoint(verbs.ConnectOptions{})
	require.NoError(t, err)
	eb, err := b.qp.Endpoint(verbs.ConnectOptions{})
	require.NoError(t, err)
	links[0].SetAddresses(addresses("10.0.0.7")...)
	_, err = devices[0].QueryGIDTable()
	require.NoError(t, err)
	err = a.qp.Connect(t.Context(), eb, verbs.ConnectOptions{})
	require.ErrorIs(t, err, verbs.ErrNoGID)
	require.ErrorContains(t, err, "does not have 10.0.0.1: it has [10.0.0.7]")
	links[0].SetAddresses(addresses("10.0.0.7", "10.0.0.1")...)
	require.NoError(t, a.qp.Connect(t.Context(), eb, verbs.ConnectOptions{}))
	require.NoError(t, b.qp.Connect(t.Context(), ea, verbs.ConnectOptions{}))
	require.Equal(t, "10.0.0.1", gidOf(t, a).String())
	require.Equal(t, verbs.WCSuccess, a.do(t, write(a, b, 0)).Status)
}

// TestGIDByAddress: the options may name the address, also the first of the table.
func TestGIDByAddress(t *testing.T) {
	devices, _ := gidDevices(t, addresses("fe80::1", "10.0.0.1", "10.0.0.5"), addresses("10.0.0.2"))
	a := newEnd(t, devices[0], make([]byte, 64), verbs.QPCap{})
	for _, address := range addresses("10.0.0.5", "fe80::1", "fe80::1%x", "::ffff:10.0.0.5") {
		e, err := a.qp.Endpoint(verbs.ConnectOptions{Address: address})
		require.NoError(t, err)
		require.Equal(t, address.Unmap().WithZone(""), e.Address)
	}
	_, err := a.qp.Endpoint(verbs.ConnectOptions{Address: netip.MustParseAddr("10.0.0.9")})
	require.ErrorIs(t, err, verbs.ErrNoGID)
}
