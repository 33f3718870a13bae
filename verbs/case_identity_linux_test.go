package verbs_test

import (
	"errors"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"github.com/xroce/xroce/internal/control"
	"github.com/xroce/xroce/internal/netlab"
	"github.com/xroce/xroce/verbs"
)

// rename gives the network device of an end another name, while it is up (Linux 6.2) or down for a moment.
func rename(t *testing.T, e *netlab.End, name string) {
	t.Helper()
	change(t, e, func(device netlink.Link) error {
		if netlink.LinkSetName(device, name) == nil {
			return nil
		}
		address, err := netlink.ParseAddr(e.IPv6().String() + "/64") // goes with the link
		return errors.Join(err, netlink.LinkSetDown(device), netlink.LinkSetName(device, name), netlink.LinkSetUp(device),
			netlink.AddrReplace(device, address))
	})
	e.Name = name
}

// TestCase_Identity: a device stays the one that was opened. It follows the name of its network device in what it
// tells, and does not go over to a stranger that has the name which it had first or last; the one that it was is served
// again.
func TestCase_Identity(t *testing.T) {
	netlab.RequireRoot(t)
	log := new(records)
	defer slog.SetDefault(slog.Default())
	slog.SetDefault(slog.New(slog.NewTextHandler(log, nil)))
	folder := t.TempDir()
	t.Setenv(control.Environment, folder)
	pair, err := netlab.NewPair(netlab.PairOptions{A: netlab.EndOptions{Name: "va"}, B: netlab.EndOptions{Name: "vb"}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, pair.Close()) })
	p := &ports{pair: pair, devices: [2]*verbs.Device{openDevice(t, &pair.A, verbs.Options{}), openDevice(t, &pair.B, verbs.Options{})}}
	d := p.devices[0]
	a, b := p.ends(t, endurance)
	requireWorks(t, a, b)
	followsName(t, &pair.A, d, folder)
	requireWorks(t, a, b)

	// A stranger with the first name, and then one with the last.
	was := pair.A
	addStranger(t, &was, "va")
	change(t, &pair.A, netlink.LinkDel)
	untilEvent(t, d, verbs.EventPortErr)
	require.Never(t, func() bool { _ = downReason(t, d); return d.Name() != "roce0" }, 100*time.Millisecond, 10*time.Millisecond)
	require.Contains(t, downReason(t, d), "roce0 was deleted or has left its namespace")
	addStranger(t, &was, "roce0")
	const another = "roce0 was deleted or has left its namespace: what has its name now is another network device: its Ethernet address is "
	require.Eventually(t, func() bool {
		reason := downReason(t, d)
		return reason != "" && len(reason) > len(another)
	}, soonEnough, time.Millisecond)
	require.Contains(t, downReason(t, d), another)
	require.Contains(t, downReason(t, d), "and was "+was.HardwareAddr.String())
	change(t, &was, func(device netlink.Link) error {
		xdp := device.Attrs().Xdp
		require.False(t, xdp != nil && xdp.Attached, "the stranger has our program")
		return nil
	})
	portState(t, d, verbs.PortDown)
	require.Equal(t, 1, strings.Count(log.String(), "another network device has the name of the one that went"), log)

	// The one that it was.
	change(t, &was, netlink.LinkDel)
	require.Eventually(t, func() bool { return len(downReason(t, d)) < len(another) }, soonEnough, time.Millisecond)
	remake(t, pair, netlab.PairOptions{})
	untilEvent(t, d, verbs.EventPortActive)
	requireWorks(t, a, b)
}

// followsName renames va into roce0: the device is known by that name everywhere.
func followsName(t *testing.T, end *netlab.End, d *verbs.Device, folder string) {
	speed := func() int {
		port, err := d.QueryPort()
		require.NoError(t, err)
		return port.LinkSpeed
	}
	require.Equal(t, 10_000, speed())
	rename(t, end, "roce0")
	require.Equal(t, 10_000, speed(), "by the new name at once")
	require.Eventually(t, func() bool { return d.Name() == "roce0" }, soonEnough, time.Millisecond)
	require.Equal(t, "roce0", look(t, d).Device.Name)
	names := func() (list []string) {
		sockets, err := control.List(folder)
		require.NoError(t, err)
		for _, s := range sockets {
			list = append(list, s.Device)
		}
		return list
	}
	require.Eventually(t, func() bool { return names()[0] == "roce0" }, soonEnough, time.Millisecond)
	require.Equal(t, []string{"roce0", "vb"}, names())
	var told verbs.Snapshot
	require.NoError(t, control.Get(t.Context(), d.ControlSocket(), verbs.WantCounters, &told))
	require.Equal(t, "roce0", told.Device.Name)
}

// addStranger adds another network device of a name to the namespace of an end.
func addStranger(t *testing.T, end *netlab.End, name string) {
	require.NoError(t, end.Namespace.Do(func() error {
		attributes := netlink.NewLinkAttrs()
		attributes.Name = name
		veth := netlink.NewVeth(attributes)
		veth.PeerName, veth.PeerHardwareAddr = "peer-"+name, net.HardwareAddr{2, 0, 0, 0, 0, byte(len(name))}
		peer := netlink.NewLinkAttrs()
		peer.Name = veth.PeerName
		return errors.Join(netlink.LinkAdd(veth), netlink.LinkSetUp(&netlink.Dummy{LinkAttrs: peer}), netlink.LinkSetUp(veth))
	}))
}

// downReason is why a device is down.
func downReason(t *testing.T, d *verbs.Device) string {
	err := d.CheckPathMTU(verbs.MTU256)
	require.ErrorIs(t, err, verbs.ErrDown)
	return err.Error()
}
