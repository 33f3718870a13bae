package main

import (
	"encoding/json"
	"errors"
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/xroce/xroce/internal/netlab"
	"github.com/xroce/xroce/verbs"
)

func TestDevices(t *testing.T) {
	p := newPair(t, netlab.PairOptions{MTU: 3000})
	for _, c := range []struct {
		arguments []string
		inside    *netlab.Namespace
	}{
		{[]string{"devices", "--json"}, p.A.Namespace},
		{[]string{"devices", "--json", "--netns", "/proc/" + itoa(sleeper(t, p.A.Namespace)) + "/ns/net"}, nil},
	} {
		run := newProgram(c.arguments...)
		require.Equal(t, 0, run.run(t, c.inside), run.stderr.String())
		var entries []deviceEntry
		require.NoError(t, json.Unmarshal([]byte(run.stdout.String()), &entries))
		require.Len(t, entries, 2)
		require.Equal(t, "lo", entries[0].Name)
		require.False(t, entries[0].CanServe)
		require.Contains(t, entries[0].Obstacle, "loopback")
		veth := entries[1]
		require.Equal(t, deviceEntry{
			Name: "veth0", CanServe: true, Driver: "veth", MAC: p.A.HardwareAddr.String(), Running: true, NetdevMTU: 3000,
			ActiveMTU: 2048, Queues: 1,
			GIDs:     []netip.Addr{p.A.IPv4(), p.A.IPv6(), p.A.LinkLocal.Addr()},
			Missing:  []string{},
			XDPModes: veth.XDPModes, DriverTells: veth.DriverTells, ZeroCopy: veth.ZeroCopy, MultiBuffer: true,
		}, veth)
		require.Equal(t, "native+frags", veth.XDPModes[0])
	}
	run := newProgram("devices")
	require.Equal(t, 0, run.run(t, p.A.Namespace))
	require.Contains(t, run.stdout.String(), "lo: cannot serve: ")
	require.Contains(t, run.stdout.String(), "veth0: can serve\n    driver veth, ")
	require.Contains(t, run.stdout.String(), "    GID 0  10.9.0.1\n")
	require.Regexp(t, "    XDP native\\+frags .*, multi-buffer\n", run.stdout.String())
	requireFree(t, &p.A)

	for _, c := range []struct {
		capabilities []uintptr
		missing      string
	}{
		{nil, "CAP_BPF, CAP_NET_ADMIN, CAP_NET_RAW"},
		{[]uintptr{unix.CAP_NET_ADMIN, unix.CAP_BPF}, "CAP_NET_RAW"},
		{[]uintptr{unix.CAP_SYS_ADMIN, unix.CAP_NET_RAW}, "CAP_NET_ADMIN"},
	} {
		run := asNobody(t, c.capabilities, "devices")
		require.Equal(t, 0, run.run(t, p.A.Namespace), run.stderr.String())
		require.Contains(t, run.stdout.String(), "veth0: cannot serve: this user may not open it: missing "+c.missing+"\n")
	}

	inside(t, &p.A, func(h *netlink.Handle, device netlink.Link) {
		addresses, err := h.AddrList(device, netlink.FAMILY_ALL)
		require.NoError(t, err)
		for i := range addresses {
			require.NoError(t, h.AddrDel(device, &addresses[i]))
		}
	})
	run = newProgram("devices")
	require.Equal(t, 0, run.run(t, p.A.Namespace))
	require.Contains(t, run.stdout.String(), "veth0: cannot serve: unsuitable network device: veth0 has no IP address\n")
}

func TestNamespacePath(t *testing.T) {
	for name, path := range map[string]string{
		"": "", "blue": "/run/netns/blue", "/proc/1/ns/net": "/proc/1/ns/net", "./blue": "./blue",
	} {
		require.Equal(t, path, namespacePath(name))
	}
}

// sleeper is a process in a namespace, whose number is returned.
func sleeper(t *testing.T, n *netlab.Namespace) int {
	t.Helper()
	sleep := exec.Command("sleep", "60")
	require.NoError(t, n.Start(sleep))
	t.Cleanup(func() {
		require.NoError(t, sleep.Process.Kill())
		_ = sleep.Wait()
	})
	return sleep.Process.Pid
}

// A device that path MTU 4096 is not to be had on says why.
func TestDevicesWithoutMultiBuffer(t *testing.T) {
	device := verbs.DeviceDescription{
		Name: "eth9", MTU: 9000, ActiveMTU: verbs.MTU2048, XDPModes: []string{"native", "generic"},
		ZeroCopy: true, DriverTells: true, SingleBuffer: errors.New("the driver\ngives zero copy"),
	}
	e := newDeviceEntry(&device)
	require.Equal(t, 2048, e.ActiveMTU)
	require.False(t, e.MultiBuffer)
	require.Equal(t, "the driver; gives zero copy", e.SingleBuffer)
	var out strings.Builder
	require.NoError(t, e.print(&out))
	require.Contains(t, out.String(), "    XDP native (native, generic), zero copy offered, one buffer a frame\n"+
		"    no multi-buffer, so no path MTU 4096: the driver; gives zero copy\n")

	device = verbs.DeviceDescription{Name: "lo", Obstacle: errors.New("loopback")}
	e = newDeviceEntry(&device)
	require.False(t, e.MultiBuffer, "a device that cannot serve")
	require.Empty(t, e.SingleBuffer)
}
