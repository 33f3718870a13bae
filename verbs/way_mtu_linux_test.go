package verbs_test

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
	"github.com/xroce/xroce/verbs"
)

// limitRoute gives the route of an end of a pair to the other end's address an MTU.
func limitRoute(t *testing.T, e *netlab.End, to netip.Addr, mtu int) {
	t.Helper()
	change(t, e, func(device netlink.Link) error {
		return netlink.RouteReplace(&netlink.Route{
			LinkIndex: device.Attrs().Index, MTU: mtu, Scope: netlink.SCOPE_LINK,
			Dst: &net.IPNet{IP: to.AsSlice(), Mask: net.CIDRMask(to.BitLen(), to.BitLen())},
		})
	})
}

// TestRouteMTU: the route to the peer has a smaller MTU than the network device. Where the peer is known in time the
// path MTU follows it, at both ends; a larger one is refused with both numbers, and named where the route came later.
func TestRouteMTU(t *testing.T) {
	p := newPorts(t, netlab.PairOptions{MTU: 3000})
	for _, v6 := range []bool{false, true} {
		far, small, followed := p.pair.B.IPv4(), 1000, verbs.MTU512
		if v6 {
			far, small, followed = p.pair.B.IPv6(), 1280, verbs.MTU1024 // IPv6 has no less (RFC 8200)
		}
		o := verbs.ConnectOptions{GIDIndex: new(gidIndex(t, p.devices[0], v6))}
		limitRoute(t, &p.pair.A, far, small)

		a, b := newEnd(t, p.devices[0], make([]byte, 64<<10), verbs.QPCap{}), newEnd(t, p.devices[1], make([]byte, 64<<10), verbs.QPCap{})
		known := o
		known.Peer = far
		ea, err := a.qp.Endpoint(known)
		require.NoError(t, err)
		require.Equal(t, followed, ea.MTU)
		eb, err := b.qp.Endpoint(o)
		require.NoError(t, err)
		require.Equal(t, verbs.MTU2048, eb.MTU)
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		require.NoError(t, a.qp.Connect(ctx, eb, known))
		require.NoError(t, b.qp.Connect(ctx, ea, o))
		require.Equal(t, followed, a.qp.Query().PathMTU)
		require.Equal(t, followed, b.qp.Query().PathMTU)
		require.Equal(t, verbs.WCSuccess, a.do(t, long(a, b)).Status)
		if v6 {
			continue
		}

		c, d := newEnd(t, p.devices[0], make([]byte, 64<<10), verbs.QPCap{}), newEnd(t, p.devices[1], make([]byte, 64<<10), verbs.QPCap{})
		ed, err := d.qp.Endpoint(o)
		require.NoError(t, err)
		err = c.qp.Connect(ctx, ed, o)
		require.ErrorIs(t, err, verbs.ErrPathMTU)
		require.ErrorContains(t, err, "path MTU 2048 needs MTU 2144 on the way, the route to 10.9.0.2 over veth0 has 1000")

		limitRoute(t, &p.pair.A, far, 0)
		o.Timeout, o.RetryCnt = roce.AckTimeout(10), new(uint8(1)) // 8 ms, for one that is to end
		e, f := p.ends(t, o)
		require.Equal(t, verbs.MTU2048, e.qp.Query().PathMTU)
		limitRoute(t, &p.pair.A, far, small)
		require.NoError(t, f.qp.Modify(t.Context(), verbs.QPAttr{State: verbs.StateError}, verbs.QPStateMask))
		wc := e.do(t, write(e, f, 0))
		require.Equal(t, verbs.WCRetryExcErr, wc.Status)
		require.Contains(t, e.qp.Explain(wc), ": path MTU 2048 needs MTU 2144 on the way, the route to 10.9.0.2 over veth0 has 1000")
	}
}

// newRouted opens devices on both sides of a router, which forwards packets of up to 1000 bytes only towards B.
func newRouted(t *testing.T) (a, b *verbs.Device) {
	t.Helper()
	netlab.RequireRoot(t)
	left, err := netlab.NewPair(netlab.PairOptions{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, left.Close()) })
	n, err := netlab.NewNamespace()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, n.Close()) })
	right, err := netlab.Join(left.B.Namespace, n, netlab.PairOptions{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, right.Close()) })
	change(t, &right.A, func(device netlink.Link) error {
		return errors.Join(netlink.LinkSetMTU(device, 1000), os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0))
	})
	for _, side := range []struct {
		end     *netlab.End
		gateway netip.Addr
	}{{&left.A, left.B.IPv4()}, {&right.B, right.A.IPv4()}} {
		change(t, side.end, func(device netlink.Link) error {
			return netlink.RouteAdd(&netlink.Route{LinkIndex: device.Attrs().Index, Gw: side.gateway.AsSlice()})
		})
	}
	return openDevice(t, &left.A, verbs.Options{}), openDevice(t, &right.B, verbs.Options{})
}

// TestExplainSmallMTUOnTheWay: a link on the way carries less than both ends, and no route says so.
func TestExplainSmallMTUOnTheWay(t *testing.T) {
	da, db := newRouted(t)
	ends := func(m verbs.MTU) (a, b *end) {
		a, b = newEnd(t, da, make([]byte, 64<<10), verbs.QPCap{}), newEnd(t, db, make([]byte, 64<<10), verbs.QPCap{})
		connect(t, a, b, verbs.ConnectOptions{PathMTU: m, RetryCnt: new(uint8(3))})
		return a, b
	}
	const words = "packets with up to 8 bytes of payload passed, those with 1024 did not: a link on the way, or the peer's end, " +
		"may have an MTU below 1120, which path MTU 1024 needs; or else "
	read := func(a, b *end) verbs.SendWR {
		wr := long(a, b)
		wr.Opcode = verbs.WRRDMARead
		return wr
	}
	for _, operation := range []func(a, b *end) verbs.SendWR{
		long, // its last packet is short, and passes
		func(a, b *end) verbs.SendWR { return read(b, a) },
	} {
		a, b := ends(0)
		require.Equal(t, verbs.MTU1024, a.qp.Query().PathMTU)
		wr, by := operation(a, b), a
		if wr.Opcode == verbs.WRRDMARead {
			by = b
		}
		require.Equal(t, verbs.WCSuccess, a.do(t, write(a, b, 0)).Status)
		require.Equal(t, verbs.WCSuccess, b.do(t, write(b, a, 0)).Status)
		wc := by.do(t, wr)
		require.Equal(t, verbs.WCRetryExcErr, wc.Status)
		require.Contains(t, by.qp.Explain(wc), words)
		require.Contains(t, by.qp.Explain(by.qp.Failure()), words)
	}
	a, b := ends(verbs.MTU512)
	require.Equal(t, verbs.WCSuccess, a.do(t, long(a, b)).Status)
	require.NoError(t, b.qp.Modify(t.Context(), verbs.QPAttr{State: verbs.StateError}, verbs.QPStateMask))
	wc := a.do(t, long(a, b))
	require.Equal(t, verbs.WCRetryExcErr, wc.Status)
	require.NotContains(t, a.qp.Explain(wc), "a link on the way", "long packets passed before")
}
