package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	ebpflink "github.com/cilium/ebpf/link"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/xroce/xroce/internal/control"
	"github.com/xroce/xroce/internal/netlab"
	"github.com/xroce/xroce/internal/support"
	"github.com/xroce/xroce/roce/link/xdp"
	"github.com/xroce/xroce/xsk"
)

// newPair makes a veth pair of which nothing must be left on end A when the test is over: no program, no socket.
func newPair(t *testing.T, o netlab.PairOptions) *netlab.Pair {
	t.Helper()
	netlab.RequireRoot(t)
	p, err := netlab.NewPair(o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	return p
}

// requireFree checks that nobody uses a device: it can be opened.
func requireFree(t *testing.T, e *netlab.End) {
	t.Helper()
	d, err := xdp.Open(t.Context(), e.Name, xdp.Options{NetNS: e.Namespace.Path(), CheckOwners: true})
	require.NoError(t, err)
	require.NoError(t, d.Close())
}

// inside runs f with a netlink handle and the device of an end.
func inside(t *testing.T, e *netlab.End, f func(h *netlink.Handle, device netlink.Link)) {
	t.Helper()
	require.NoError(t, e.Namespace.Do(func() error {
		h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
		require.NoError(t, err)
		defer h.Close()
		device, err := h.LinkByName(e.Name)
		require.NoError(t, err)
		f(h, device)
		return nil
	}))
}

func TestPingpongWrongDevice(t *testing.T) {
	p := newPair(t, netlab.PairOptions{})
	n := p.A.Namespace
	requireWrongUse(t, n, []string{"pingpong", "-d", "eth7"}, "eth7: no such network device")
	requireWrongUse(t, n, []string{"pingpong", "-d", "lo"}, "lo is a loopback device")
	requireWrongUse(t, n, []string{"pingpong", "127.0.0.1"}, "lo carries the route to 127.0.0.1, but cannot serve")
	requireWrongUse(t, n, []string{"pingpong", "192.0.2.1"}, "192.0.2.1", "unreachable")
	requireWrongUse(t, n, []string{"pingpong", "fe80::1"}, "fe80::1 is a link-local address: add the network device towards it, fe80::1%DEV")
	requireWrongUse(t, n, []string{"pingpong", "-d", "veth0", "fe80::1"}, "add the network device towards it, fe80::1%veth0")
	requireWrongUse(t, n, []string{"pingpong", "-m", "2048"}, "path MTU 2048 needs netdev MTU 2144, veth0 has 1500 (ip link set veth0 mtu 2144)")
	requireWrongUse(t, n, []string{"pingpong", "-m", "4096"}, "path MTU 4096 needs netdev MTU 4192, veth0 has 1500 (ip link set veth0 mtu 4192)")
	requireFree(t, &p.A)

	second, err := netlab.Join(p.A.Namespace, p.B.Namespace, netlab.PairOptions{})
	require.NoError(t, err)
	requireWrongUse(t, n, []string{"pingpong"}, "name one of veth0, veth1 with -d")
	require.NoError(t, second.Close())

	inside(t, &p.B, func(h *netlink.Handle, device netlink.Link) { require.NoError(t, h.LinkSetDown(device)) })
	requireWrongUse(t, n, []string{"pingpong"}, "network device veth0 is up but has no carrier")
	inside(t, &p.A, func(h *netlink.Handle, device netlink.Link) { require.NoError(t, h.LinkSetDown(device)) })
	requireWrongUse(t, n, []string{"pingpong"}, "no network device can serve: ", "lo is a loopback device", "ip link set veth0 up")
}

func TestPingpongNoServer(t *testing.T) {
	p := newPair(t, netlab.PairOptions{})
	run := newProgram("pingpong", p.B.IPv4().String())
	require.Equal(t, statusFailed, run.run(t, p.A.Namespace))
	require.Equal(t, 1, strings.Count(run.stderr.String(), "\n"), run.stderr.String())
	require.Contains(t, run.stderr.String(), "no pingpong waits at 10.9.0.2:18515")
	requireFree(t, &p.A)
}

func TestPingpongQueueTaken(t *testing.T) {
	p := newPair(t, netlab.PairOptions{})
	d, err := xdp.Open(t.Context(), p.A.Name, xdp.Options{NetNS: p.A.Namespace.Path()})
	require.NoError(t, err)
	defer d.Close()
	requireWrongUse(t, p.A.Namespace, []string{"pingpong"}, "veth0", "XDP program", ", id ")
}

func TestPingpongQueueTakenBySocket(t *testing.T) {
	p := newPair(t, netlab.PairOptions{})
	require.NoError(t, p.A.Namespace.Do(func() error {
		socket, err := xsk.Open(xsk.Options{Interface: p.A.Index})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, socket.Close()) })
		return nil
	}))
	requireWrongUse(t, p.A.Namespace, []string{"pingpong"}, "queue 0 of", "is taken by another AF_XDP socket")
}

func TestPingpongForeignProgram(t *testing.T) {
	p := newPair(t, netlab.PairOptions{})
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "foreign", Type: ebpf.XDP, License: "Apache-2.0",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 2), asm.Return()},
	})
	require.NoError(t, err)
	defer program.Close()
	var attached ebpflink.Link
	require.NoError(t, p.A.Namespace.Do(func() (err error) {
		attached, err = ebpflink.AttachXDP(ebpflink.XDPOptions{Program: program, Interface: p.A.Index})
		return err
	}))
	defer attached.Close()
	information, err := program.Info()
	require.NoError(t, err)
	id, ok := information.ID()
	require.True(t, ok)
	word := "foreign, id " + itoa(int(id))
	requireWrongUse(t, p.A.Namespace, []string{"pingpong"}, word)
	requireWrongUse(t, p.A.Namespace, []string{"pingpong", "-d", "veth0"}, word)
}

func TestPingpongModeNotOffered(t *testing.T) {
	p := newPair(t, netlab.PairOptions{})
	made := false
	inside(t, &p.A, func(h *netlink.Handle, _ netlink.Link) {
		attributes := netlink.LinkAttrs{Name: "plain0"}
		for _, l := range []netlink.Link{&netlink.Ifb{LinkAttrs: attributes}, &netlink.Dummy{LinkAttrs: attributes}} {
			if !made && h.LinkAdd(l) == nil {
				require.NoError(t, h.LinkSetUp(l))
				made = true
			}
		}
	})
	if !made {
		skip(t, "this kernel has no device without native XDP to try: neither ifb nor dummy")
	}
	requireWrongUse(t, p.A.Namespace, []string{"pingpong", "-d", "plain0", "--mode", "native"},
		"native XDP in the driver of plain0: not supported")
}

// asNobody copies the test binary to where every user can run it, and makes a run of it as another user with nothing
// but the capabilities.
func asNobody(t *testing.T, capabilities []uintptr, arguments ...string) *program {
	t.Helper()
	directory, err := os.MkdirTemp("", "xroce")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(directory)) })
	require.NoError(t, os.Chmod(directory, 0o755))
	copied := filepath.Join(directory, "xroce.test")
	from, err := os.Open(self)
	require.NoError(t, err)
	defer from.Close()
	to, err := os.OpenFile(copied, os.O_CREATE|os.O_WRONLY, 0o755)
	require.NoError(t, err)
	_, err = io.Copy(to, from)
	require.NoError(t, err)
	require.NoError(t, to.Close())

	p := newProgram(arguments...)
	p.command.Path = copied
	p.command.Dir = "/"
	const nobody = 65534
	p.command.SysProcAttr = &syscall.SysProcAttr{
		Credential: &syscall.Credential{Uid: nobody, Gid: nobody}, AmbientCaps: capabilities,
	}
	return p
}

// TestCase_F10: another user with exactly CAP_NET_ADMIN, CAP_NET_RAW and CAP_BPF can serve at both ends; without one
// of them it cannot, and is told all that are missing at once.
func TestCase_F10(t *testing.T) {
	p := newPair(t, netlab.PairOptions{})
	n := p.A.Namespace
	all := []uintptr{unix.CAP_NET_ADMIN, unix.CAP_NET_RAW, unix.CAP_BPF}
	asNobody(t, nil, "pingpong").requireWrongUse(t, n, "missing CAP_BPF, CAP_NET_ADMIN, CAP_NET_RAW\n")
	for i, words := range []string{"missing CAP_NET_ADMIN\n", "missing CAP_NET_RAW\n", "missing CAP_BPF\n"} {
		asNobody(t, slices.Delete(slices.Clone(all), i, i+1), "pingpong").requireWrongUse(t, n, words)
	}
	file := zeroFile(t)
	require.NoError(t, os.Chmod(filepath.Dir(file), 0o755))
	asNobody(t, nil, "demo", "--file", file).requireWrongUse(t, nil, "needs root (CAP_SYS_ADMIN)")
	requireFree(t, &p.A)

	folder := t.TempDir() // for control sockets
	require.NoError(t, os.Chmod(folder, 0o777))
	require.NoError(t, os.Chmod(filepath.Dir(folder), 0o755))
	start := func(uid uint32, n *netlab.Namespace, arguments ...string) *program {
		run := asNobody(t, all, arguments...)
		run.command.Env = append(run.command.Env, control.Environment+"="+folder)
		// Locked memory is counted per user.
		run.command.SysProcAttr.Credential.Uid = uid
		run.begin(t, n)
		return run
	}
	server := start(65533, p.B.Namespace, "pingpong", "-n", "1000")
	port := awaitListening(t, server)
	status, err := os.ReadFile("/proc/" + itoa(server.command.Process.Pid) + "/status")
	require.NoError(t, err)
	const exactly = 1<<unix.CAP_NET_ADMIN | 1<<unix.CAP_NET_RAW | 1<<unix.CAP_BPF
	for _, set := range []string{"CapPrm", "CapEff"} {
		require.Contains(t, string(status), fmt.Sprintf("%s:\t%016x\n", set, exactly))
	}
	client := start(65532, n, "pingpong", "10.9.0.2", "-p", port, "-n", "1000")
	require.Equal(t, 0, client.status(t, 20*time.Second), "%v %v", &client.stderr, &server.stderr)
	require.Equal(t, 0, server.status(t, 20*time.Second), "%v %v", &client.stderr, &server.stderr)
	require.NotContains(t, client.stderr.String()+server.stderr.String(), "control socket")
	support.Object(t, "Device", "opened with CAP_NET_ADMIN, CAP_NET_RAW and CAP_BPF only", "works; without one of them the error names it")
}
