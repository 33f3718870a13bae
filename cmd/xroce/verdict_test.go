package main

import (
	"encoding/json"
	"os/exec"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/xroce/xroce/internal/netlab"
	"github.com/xroce/xroce/roce/link/xdp"
	"github.com/xroce/xroce/xsk"
)

// verdictOf returns what devices says about a device, in JSON and for people, which must agree.
func verdictOf(t *testing.T, n *netlab.Namespace, name string, change func(*exec.Cmd)) deviceEntry {
	t.Helper()
	listed := newProgram("devices", "--json")
	change(listed.command)
	require.Equal(t, 0, listed.run(t, n), &listed.stderr)
	var entries []deviceEntry
	require.NoError(t, json.Unmarshal([]byte(listed.stdout.String()), &entries))
	shown := newProgram("devices")
	change(shown.command)
	require.Equal(t, 0, shown.run(t, n), &shown.stderr)
	for _, e := range entries {
		if e.Name != name {
			continue
		}
		line := name + ": can serve\n"
		if !e.CanServe {
			line = name + ": cannot serve: " + e.Obstacle + "\n"
		}
		require.Contains(t, shown.stdout.String(), line)
		require.Equal(t, e.Obstacle == "", e.CanServe)
		return e
	}
	require.Fail(t, "not listed", "%s in %+v", name, entries)
	return deviceEntry{}
}

// TestVerdictIsWhatOpenDoes: devices says "can serve" where a device can be opened, and otherwise what Open says.
func TestVerdictIsWhatOpenDoes(t *testing.T) {
	p := newPair(t, netlab.PairOptions{Queues: 2})
	const profile = "(a container's profile has to allow it)"
	for _, c := range []struct {
		name   string
		change func(*exec.Cmd)
		words  []string
		never  []string
	}{
		{"bpf refused", asFilteredBy("bpf=EPERM"), []string{"load XDP program: ", "the seccomp filter of this process may refuse bpf(2) " + profile},
			[]string{"missing CAP"}},
		{"bpf unknown", asFilteredBy("bpf=ENOSYS"), []string{"load XDP program: not supported: ", "seccomp filter of this process may refuse bpf(2)"}, []string{"or later has it", "lacks"}},
		{"AF_XDP refused", asFilteredBy("socket=EPERM"), []string{"the seccomp filter of this process may refuse socket(AF_XDP) " + profile},
			[]string{"missing"}},
		{"AF_XDP unknown", asFilteredBy("socket=EAFNOSUPPORT"), []string{"seccomp filter of this process may refuse socket(AF_XDP)"},
			[]string{"or later has it", "lacks"}},
		{"AF_XDP without system call", asFilteredBy("socket=ENOSYS"), []string{"seccomp filter of this process may refuse socket(AF_XDP)"},
			[]string{"or later has it", "lacks"}},
		{"user namespace", inUserNamespace, []string{"only in the user namespace of this process, and bpf(2) wants them in the initial one"},
			[]string{"missing CAP", "security module"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := verdictOf(t, p.A.Namespace, "veth0", c.change)
			t.Log(e.Obstacle)
			require.False(t, e.CanServe)
			require.Empty(t, e.Missing, "the capabilities are there")
			use := newProgram("pingpong", "-d", "veth0")
			c.change(use.command)
			use.requireWrongUse(t, p.A.Namespace, "veth0: "+e.Obstacle+"\n")
			for _, w := range c.words {
				require.Contains(t, e.Obstacle, w)
			}
			for _, w := range c.never {
				require.NotContains(t, e.Obstacle, w)
			}
		})
	}
	t.Run("features", func(t *testing.T) { featuresTell(t, p.A.Namespace) })
	t.Run("queue taken", func(t *testing.T) { queueTaken(t, &p.A) })
	t.Run("tap without carrier", func(t *testing.T) { tapWithoutCarrier(t, &p.A) })
	t.Run("nothing in the way", func(t *testing.T) {
		require.True(t, verdictOf(t, p.A.Namespace, "veth0", func(*exec.Cmd) {}).CanServe)
		require.NoError(t, p.A.Namespace.Do(func() error {
			port, err := xdp.Probe("veth0", xdp.ProbeOptions{Attach: true})
			require.NoError(t, err)
			require.NoError(t, port.Obstacle)
			require.Equal(t, port.Rungs[0].String(), port.Obtained.Mode)
			return nil
		}))
	})
	requireFree(t, &p.A)
}

// asFilteredBy runs a program under a seccomp filter.
func asFilteredBy(what string) func(*exec.Cmd) {
	return func(c *exec.Cmd) { c.Env = append(c.Env, asFiltered+"="+what) }
}

// inUserNamespace runs a program as root of a user namespace of its own.
func inUserNamespace(c *exec.Cmd) {
	root := []syscall.SysProcIDMap{{ContainerID: 0, HostID: 0, Size: 1}}
	c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER, UidMappings: root, GidMappings: root}
}

func featuresTell(t *testing.T, namespace *netlab.Namespace) {
	list := newProgram("features")
	inUserNamespace(list.command)
	require.Equal(t, 0, list.run(t, namespace), &list.stderr)
	require.Contains(t, list.stdout.String(),
		"not in the user namespace that owns the network namespace, where socket(AF_XDP) wants them")
	list = newProgram("features")
	asFilteredBy("bpf=ENOSYS")(list.command)
	require.Equal(t, statusEnvironment, list.run(t, namespace))
	require.NotContains(t, list.stderr.String(), "or later has it")
}

func queueTaken(t *testing.T, at *netlab.End) {
	var socket *xsk.Socket
	require.NoError(t, at.Namespace.Do(func() (err error) {
		socket, err = xsk.Open(xsk.Options{Interface: at.Index, Queue: 1})
		return err
	}))
	defer func() { require.NoError(t, socket.Close()) }()
	list := newProgram("devices")
	require.Equal(t, 0, list.run(t, at.Namespace), &list.stderr)
	require.Regexp(t, `veth0: cannot serve: .*queue 1 of .* is taken by another AF_XDP socket`, list.stdout.String())
}

func tapWithoutCarrier(t *testing.T, at *netlab.End) {
	inside(t, at, func(h *netlink.Handle, _ netlink.Link) {
		tap := &netlink.Tuntap{LinkAttrs: netlink.LinkAttrs{Name: "tap0"}, Mode: netlink.TUNTAP_MODE_TAP}
		require.NoError(t, h.LinkAdd(tap))
		address, err := netlink.ParseAddr("10.77.0.1/24")
		require.NoError(t, err)
		require.NoError(t, h.AddrAdd(tap, address))
		require.NoError(t, h.LinkSetUp(tap))
	})
	e := verdictOf(t, at.Namespace, "tap0", func(*exec.Cmd) {})
	require.Equal(t, "network device tap0 is up but has no carrier", e.Obstacle)
	requireWrongUse(t, at.Namespace, []string{"pingpong", "-d", "tap0"}, e.Obstacle)
}
