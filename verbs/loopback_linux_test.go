package verbs_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"github.com/xroce/xroce/internal/netlab"
	"github.com/xroce/xroce/internal/opener"
	"github.com/xroce/xroce/internal/support"
	"github.com/xroce/xroce/verbs"
)

// house is one namespace with two network devices, whose other ends are in another one.
type house struct {
	pairs   [2]*netlab.Pair
	devices [2]*verbs.Device
}

func newHouse(t *testing.T, queues int) *house {
	t.Helper()
	netlab.RequireRoot(t)
	h := new(house)
	var err error
	h.pairs[0], err = netlab.NewPair(netlab.PairOptions{Queues: queues})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, h.pairs[0].Close()) })
	h.pairs[1], err = netlab.Join(h.pairs[0].A.Namespace, h.pairs[0].B.Namespace, netlab.PairOptions{Queues: queues})
	require.NoError(t, err)
	for i, p := range h.pairs {
		h.devices[i] = openDevice(t, &p.A, verbs.Options{})
	}
	return h
}

// setDown brings an end of a pair down.
func setDown(t *testing.T, e *netlab.End) {
	t.Helper()
	require.NoError(t, e.Namespace.Do(func() error {
		device, err := netlink.LinkByName(e.Name)
		return errors.Join(err, netlink.LinkSetDown(device))
	}))
}

// requireSilentWires checks that the devices have neither sent nor received anything.
func (h *house) requireSilentWires(t *testing.T) {
	t.Helper()
	for _, d := range h.devices {
		require.Equal(t, opener.EngineCounters{}.Link, opener.Counters(d).Link)
		steering, err := d.SteeringCounters()
		require.NoError(t, err)
		require.Zero(t, steering.Redirected)
		require.Zero(t, steering.Kernel)
	}
}

// TestLoopbackOnDevices: two network devices of one namespace reach themselves and each other without their wires, with
// and without a carrier, and over IPv4 also when they are down.
func TestLoopbackOnDevices(t *testing.T) {
	for name, c := range map[string]struct {
		other  int
		queues int
		labels [2]uint32
	}{
		"one device":               {queues: 1},
		"one device, two shards":   {queues: 2, labels: [2]uint32{2, 3}},
		"two devices":              {other: 1, queues: 1},
		"two devices, four shards": {other: 1, queues: 2, labels: [2]uint32{2, 3}},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHouse(t, c.queues)
			da, db := h.devices[0], h.devices[c.other]
			run := func(v6 bool) {
				t.Helper()
				bufferA, bufferB := loopbackBuffer(1), loopbackBuffer(2)
				a, b := newEnd(t, da, bufferA, verbs.QPCap{}), newEnd(t, db, bufferB, verbs.QPCap{})
				mtu := verbs.MTU1024
				oa := verbs.ConnectOptions{GIDIndex: new(gidIndex(t, da, v6)), FlowLabel: c.labels[0], Timeout: noTimeout, PathMTU: mtu}
				ob := verbs.ConnectOptions{GIDIndex: new(gidIndex(t, db, v6)), FlowLabel: c.labels[1], Timeout: noTimeout, PathMTU: mtu}
				meet(t, a, b, oa, ob)
				var both sync.WaitGroup
				both.Go(func() { exchange(t, a, b, bufferA, bufferB) })
				both.Go(func() { exchange(t, b, a, bufferB, bufferA) })
				both.Wait()
				h.requireSilentWires(t)
				for _, d := range h.devices {
					counters := opener.Counters(d)
					require.Empty(t, counters.DropReasons())
					require.Zero(t, counters.Transport.Retransmitted)
				}
			}
			run(false)
			run(true)
			for _, p := range h.pairs {
				setDown(t, &p.B)
			}
			requireState(t, da, verbs.PortDown)
			support.Object(t, "Loopback", "network devices: "+name, "right bytes, nothing on the wire, nothing lost")
			run(false)
			run(true)
			for _, p := range h.pairs {
				setDown(t, &p.A)
			}
			run(false)
			gids, err := da.QueryGIDTable()
			require.NoError(t, err)
			for _, g := range gids {
				require.True(t, g.IsZero() || g.Is4(), "IPv6 addresses go with a device that is brought down: %v", g)
			}
		})
	}
	support.Object(t, "Loopback", "network devices without carrier", "goes on")
	support.Object(t, "Loopback", "network devices that are down, IPv4", "goes on")
}

func requireState(t *testing.T, d *verbs.Device, state verbs.PortState) {
	t.Helper()
	require.Eventually(t, func() bool {
		port, err := d.QueryPort()
		return err == nil && port.State == state
	}, 5*time.Second, time.Millisecond)
}

// TestLoopbackIsPerNamespace: a device of this process in another namespace is reached over the wire.
func TestLoopbackIsPerNamespace(t *testing.T) {
	a, b := vethDevices(t, netlab.PairOptions{}, verbs.Options{})
	ea, eb := newEnd(t, a, make([]byte, 64), verbs.QPCap{}), newEnd(t, b, make([]byte, 64), verbs.QPCap{})
	connect(t, ea, eb, verbs.ConnectOptions{})
	require.NoError(t, ea.qp.PostSend(write(ea, eb, verbs.SendSignaled)))
	require.Equal(t, verbs.WCSuccess, poll(t, ea.sends).Status)
	require.NotZero(t, opener.Counters(a).Link.Transmitted)
	require.NotZero(t, opener.Counters(b).Link.Received)
	support.Object(t, "Loopback", "to a device of the process in another namespace", "goes over the wire instead")
}

// TestLoopbackAndDeletedDevice: loopback goes on between queue pairs whose network device is deleted, but no new one
// finds it.
func TestLoopbackAndDeletedDevice(t *testing.T) {
	h := newHouse(t, 1)
	d := h.devices[1]
	a, b := newEnd(t, d, make([]byte, 64), verbs.QPCap{}), newEnd(t, d, make([]byte, 64), verbs.QPCap{})
	connect(t, a, b, verbs.ConnectOptions{Timeout: noTimeout})
	endpoint, err := b.qp.Endpoint(verbs.ConnectOptions{})
	require.NoError(t, err)
	require.NoError(t, h.pairs[1].Close())
	require.NoError(t, a.qp.PostSend(write(a, b, verbs.SendSignaled)))
	require.Equal(t, verbs.WCSuccess, poll(t, a.sends).Status)
	c := newEnd(t, h.devices[0], make([]byte, 64), verbs.QPCap{})
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	require.Error(t, c.qp.Connect(ctx, endpoint, verbs.ConnectOptions{}))
	support.Object(t, "Loopback", "of a network device that was deleted", "goes on, without new connections")
}
