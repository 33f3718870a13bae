package verbs_test

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/xroce/xroce/internal/opener"
	"github.com/xroce/xroce/internal/support"
	"github.com/xroce/xroce/roce"
	"github.com/xroce/xroce/roce/driver"
	"github.com/xroce/xroce/roce/link/mem"
	"github.com/xroce/xroce/verbs"
)

// nextEvent waits for an event of the device.
func nextEvent(t *testing.T, d *verbs.Device) verbs.AsyncEvent {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	e, err := d.GetAsyncEvent(ctx)
	require.NoError(t, err)
	return e
}

// noEvents says that nothing comes, not even a little later.
func noEvents(t *testing.T, d *verbs.Device) {
	t.Helper()
	time.Sleep(20 * time.Millisecond)
	e, found := d.PollAsyncEvent()
	require.False(t, found, "%v", e)
}

func portState(t *testing.T, d *verbs.Device, state verbs.PortState) {
	t.Helper()
	port, err := d.QueryPort()
	require.NoError(t, err)
	require.Equal(t, state, port.State)
}

// memPorts are two devices with their links, which tests change.
func memPorts(t *testing.T) (devices [2]*verbs.Device, links [2]*mem.Device) {
	n := mem.NewNetwork(mem.Options{})
	for i := range devices {
		l, err := n.NewDevice(mem.DeviceOptions{})
		require.NoError(t, err)
		d, err := opener.Open[verbs.Device](l, driver.Options{})
		require.NoError(t, err)
		t.Cleanup(func() { requireClose(t, d) })
		devices[i], links[i] = d, l
	}
	return devices, links
}

// TestPortEvents: the port tells when it goes down, comes up, and has other addresses; and only then.
func TestPortEvents(t *testing.T) {
	devices, links := memPorts(t)
	d, l := devices[0], links[0]
	noEvents(t, d)
	l.SetDown(true)
	require.Equal(t, verbs.AsyncEvent{Type: verbs.EventPortErr}, nextEvent(t, d))
	portState(t, d, verbs.PortDown)
	l.SetDown(true)
	l.SetMTU(4000)
	noEvents(t, d)
	l.SetDown(false)
	require.Equal(t, verbs.AsyncEvent{Type: verbs.EventPortActive}, nextEvent(t, d))
	noEvents(t, d)
	portState(t, d, verbs.PortActive)

	addresses, err := l.Addresses()
	require.NoError(t, err)
	l.SetAddresses(append(addresses, netip.MustParseAddr("10.0.0.77"))...)
	require.Equal(t, verbs.AsyncEvent{Type: verbs.EventGIDChange}, nextEvent(t, d))
	gid, err := d.QueryGID(2)
	require.NoError(t, err)
	require.Equal(t, "10.0.0.77", gid.Addr().String())
	l.SetMTU(1500)
	require.Equal(t, verbs.AsyncEvent{Type: verbs.EventPortActive}, nextEvent(t, d))
	l.SetMTU(1500)
	noEvents(t, d)
	port, err := d.QueryPort()
	require.NoError(t, err)
	require.Equal(t, verbs.MTU1024, port.ActiveMTU)
	noEvents(t, devices[1])
	for _, row := range []struct {
		e     verbs.EventType
		cause string
	}{
		{verbs.EventPortErr, "network device down"}, {verbs.EventPortActive, "network device up"},
		{verbs.EventGIDChange, "other addresses"},
	} {
		support.Object(t, "Event", row.cause, row.e)
	}
}

// TestPathMTUTooLarge: the MTU of the network device goes below what a queue pair needs, which ends it with a clear
// error; one with a smaller path MTU goes on.
func TestPathMTUTooLarge(t *testing.T) {
	devices, links := memPorts(t)
	large := [2]*end{}
	small := [2]*end{}
	for i, d := range devices {
		large[i] = newEnd(t, d, make([]byte, 64<<10), verbs.QPCap{})
		small[i] = newEnd(t, d, make([]byte, 64<<10), verbs.QPCap{})
	}
	connect(t, large[0], large[1], verbs.ConnectOptions{Timeout: roce.AckTimeout(20)})
	connect(t, small[0], small[1], verbs.ConnectOptions{PathMTU: verbs.MTU1024})
	require.NoError(t, large[0].qp.PostRecv(verbs.RecvWR{WRID: 5, SGList: []verbs.SGE{large[0].mr.SGE(0, 8)}}))
	require.Equal(t, verbs.WCSuccess, large[0].do(t, write(large[0], large[1], 0)).Status)

	// A request that has begun, and never ends.
	links[1].SetDown(true)
	for range 2 {
		require.NoError(t, large[0].qp.PostSend(write(large[0], large[1], 0)))
	}
	links[0].SetMTU(1280)
	require.Equal(t, verbs.AsyncEvent{Type: verbs.EventQPFatal, QP: large[0].qp}, nextEvent(t, devices[0]))
	require.Equal(t, verbs.AsyncEvent{Type: verbs.EventPortActive}, nextEvent(t, devices[0]))
	require.Equal(t, verbs.StateError, large[0].qp.State())
	wc := poll(t, large[0].sends)
	require.Equal(t, verbs.WCLocQPOpErr, wc.Status)
	require.Contains(t, large[0].qp.Explain(wc), "path MTU 4096 needs netdev MTU 4192, mem1 has 1280")
	require.Equal(t, verbs.WCLocQPOpErr, large[0].qp.Failure().Status)
	require.Equal(t, verbs.WCWRFlushErr, poll(t, large[0].sends).Status)
	require.Equal(t, verbs.WCWRFlushErr, poll(t, large[0].recvs).Status)
	support.Object(t, "QP", "MTU of the network device below its path MTU", wc.Status)

	require.Equal(t, verbs.StateRTS, small[0].qp.State())
	links[1].SetDown(false)
	require.Equal(t, verbs.WCSuccess, small[0].do(t, write(small[0], small[1], 0)).Status)
	require.ErrorIs(t, devices[0].CheckPathMTU(verbs.MTU2048), verbs.ErrPathMTU)

	// Back again: new queue pairs have the large one.
	links[0].SetMTU(4200)
	port, err := devices[0].QueryPort()
	require.NoError(t, err)
	require.Equal(t, verbs.MTU4096, port.ActiveMTU)
	require.NoError(t, large[0].qp.Modify(t.Context(), verbs.QPAttr{State: verbs.StateReset}, verbs.QPStateMask))
	require.NoError(t, large[1].qp.Modify(t.Context(), verbs.QPAttr{State: verbs.StateReset}, verbs.QPStateMask))
	connect(t, large[0], large[1], verbs.ConnectOptions{})
	require.Equal(t, verbs.WCSuccess, large[0].do(t, write(large[0], large[1], 0)).Status)
}

// TestPeerMovesHouse: the Ethernet address of either end changes, and what was sent to the old one is sent again to the
// new one.
func TestPeerMovesHouse(t *testing.T) {
	devices, links := memPorts(t)
	a, b := newEnd(t, devices[0], make([]byte, 4096), verbs.QPCap{}), newEnd(t, devices[1], make([]byte, 4096), verbs.QPCap{})
	connect(t, a, b, verbs.ConnectOptions{Timeout: roce.AckTimeout(14)})
	for i := range 4 {
		links[i%2].SetHardwareAddr(roce.MAC{2, 0, 0, 0, 1, byte(i)})
		require.Equal(t, verbs.WCSuccess, a.do(t, write(a, b, 0)).Status, i)
		require.Equal(t, verbs.WCSuccess, b.do(t, write(b, a, 0)).Status, i)
	}
	noEvents(t, devices[0])
}
