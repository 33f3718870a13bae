package verbs_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/xroce/xroce/internal/netlab"
	"github.com/xroce/xroce/internal/opener"
	"github.com/xroce/xroce/roce/driver"
	"github.com/xroce/xroce/roce/link/mem"
	"github.com/xroce/xroce/verbs"
)

const allAccess = verbs.AccessLocalWrite | verbs.AccessRemoteRead | verbs.AccessRemoteWrite

// end is a device with a queue pair and a registered buffer: half of a connection.
type end struct {
	device *verbs.Device
	pd     *verbs.PD
	sends  *verbs.CQ
	recvs  *verbs.CQ
	qp     *verbs.QP
	mr     *verbs.MR
}

// newEnd makes an end on a device; everything is destroyed, in the right order, with the test.
func newEnd(t *testing.T, d *verbs.Device, buffer []byte, capacity verbs.QPCap) *end {
	t.Helper()
	e := &end{device: d}
	var err error
	e.pd, err = d.AllocPD()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, e.pd.Dealloc()) })
	e.mr, err = e.pd.RegMR(buffer, allAccess)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, e.mr.Dereg()) })
	e.sends = newCQ(t, d, 1024)
	e.recvs = newCQ(t, d, 1024)
	e.qp, err = e.pd.CreateQP(verbs.QPInitAttr{SendCQ: e.sends, RecvCQ: e.recvs, Cap: capacity})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, e.qp.Destroy()) })
	return e
}

func newCQ(t *testing.T, d *verbs.Device, cqe int) *verbs.CQ {
	t.Helper()
	cq, err := d.CreateCQ(verbs.CQInitAttr{CQE: cqe})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, cq.Destroy()) })
	return cq
}

// connect connects two ends with the same options.
func connect(t *testing.T, a, b *end, o verbs.ConnectOptions) {
	t.Helper()
	ea, err := a.qp.Endpoint(o)
	require.NoError(t, err)
	eb, err := b.qp.Endpoint(o)
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	require.NoError(t, a.qp.Connect(ctx, eb, o))
	require.NoError(t, b.qp.Connect(ctx, ea, o))
}

// memDevices opens two devices on a live network in memory.
func memDevices(t *testing.T, o mem.Options, d mem.DeviceOptions) (a, b *verbs.Device) {
	t.Helper()
	n := mem.NewNetwork(o)
	open := func() *verbs.Device {
		l, err := n.NewDevice(d)
		require.NoError(t, err)
		device, err := opener.Open[verbs.Device](l, driver.Options{})
		require.NoError(t, err)
		t.Cleanup(func() { requireClose(t, device) })
		return device
	}
	return open(), open()
}

// vethDevices opens the two ends of a veth pair between two namespaces.
func vethDevices(t *testing.T, p netlab.PairOptions, o verbs.Options) (a, b *verbs.Device) {
	t.Helper()
	netlab.RequireRoot(t)
	pair, err := netlab.NewPair(p)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, pair.Close()) })
	return openDevice(t, &pair.A, o), openDevice(t, &pair.B, o)
}

// openDevice opens the device at an end of a pair until the end of the test. By then each of its buffers must have had
// one owner at a time, and the kernel must have accepted every descriptor.
func openDevice(t *testing.T, e *netlab.End, o verbs.Options) *verbs.Device {
	t.Helper()
	o.NetNS = e.Namespace.Path()
	d, err := verbs.OpenDevice(t.Context(), e.Name, opener.CheckOwners(o))
	require.NoError(t, err)
	t.Cleanup(func() { closeDevice(t, d) })
	return d
}

// requireClose closes a device on which nothing is left: Close would destroy what a test forgot.
func requireClose(t testing.TB, d *verbs.Device) {
	t.Helper()
	require.NoError(t, opener.InUse(d))
	require.NoError(t, d.Close())
}

// closeDevice closes a device on a socket, and checks that nothing was wrong with the use of that.
func closeDevice(t *testing.T, d *verbs.Device) {
	t.Helper()
	requireClose(t, d)
	require.Zero(t, opener.Counters(d).Link.InvalidDescriptors)
}

// poll waits for the next completion by polling.
func poll(t *testing.T, cq *verbs.CQ) verbs.WC {
	t.Helper()
	var wc [1]verbs.WC
	for start := time.Now(); time.Since(start) < 20*time.Second; {
		n, err := cq.Poll(wc[:])
		require.NoError(t, err)
		if n == 1 {
			return wc[0]
		}
	}
	require.Fail(t, "no completion within 20 seconds")
	return verbs.WC{}
}

// gidIndex finds a GID that is not link-local, of IPv4 or IPv6.
func gidIndex(t *testing.T, d *verbs.Device, v6 bool) int {
	t.Helper()
	gids, err := d.QueryGIDTable()
	require.NoError(t, err)
	for i, g := range gids {
		if g.Is4() != v6 && !g.Addr().IsLinkLocalUnicast() {
			return i
		}
	}
	require.Fail(t, "no such GID", "%v", gids)
	return -1
}
