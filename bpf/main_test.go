//go:build linux

package bpf

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// childVariable names the part that this test binary plays as a child process.
const childVariable = "BPF_TEST_CHILD"

func TestMain(m *testing.M) {
	if part := os.Getenv(childVariable); part != "" {
		runtime.LockOSThread() // capabilities are dropped for one thread
		if err := children[part](os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// childCommand returns a command that runs a part in a child process, in the
// network namespace of the calling thread.
func childCommand(part string, arguments ...string) *exec.Cmd {
	command := exec.Command(os.Args[0], arguments...)
	// The race detector would sleep for a second at exit.
	command.Env = append(os.Environ(), childVariable+"="+part, "GORACE=atexit_sleep_ms=0")
	return command
}

// runChild runs a part to its end and returns what it said.
func runChild(t *testing.T, part string, files []*os.File, arguments ...string) string {
	t.Helper()
	command := childCommand(part, arguments...)
	command.ExtraFiles = files
	output, err := command.CombinedOutput()
	require.NoError(t, err, "child %s: %s", part, output)
	return string(output)
}

func requireRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() == 0 {
		return
	}
	if os.Getenv("CI") == "true" {
		require.FailNow(t, "needs root, and CI must run it")
	}
	t.Skip("needs root to load XDP programs and to make network namespaces")
}

// enterNamespace moves the test into a network namespace of its own without a
// name: it is gone with the thread, and the thread with the test.
func enterNamespace(t testing.TB) {
	t.Helper()
	requireRoot(t)
	runtime.LockOSThread()
	require.NoError(t, unix.Unshare(unix.CLONE_NEWNET))
	// Otherwise neighbour and router discovery would be counted too.
	for _, name := range []string{"all", "default"} {
		path := "/proc/sys/net/ipv6/conf/" + name + "/disable_ipv6"
		if err := os.WriteFile(path, []byte("1"), 0o644); err != nil {
			require.ErrorIs(t, err, os.ErrNotExist)
		}
	}
}

// vethOptions describe a pair: the program goes on the device, frames come in
// through the peer.
type vethOptions struct {
	mtu          int // 0: 1500
	queues       int // of the device, 0: 1
	peerTxQueues int // 0: as many as the device has
}

type veth struct{ device, peer *net.Interface }

// newVeth makes a pair of devices and waits until they carry frames.
func newVeth(t testing.TB, options vethOptions) veth {
	t.Helper()
	enterNamespace(t)
	if options.mtu == 0 {
		options.mtu = 1500
	}
	if options.queues == 0 {
		options.queues = 1
	}
	if options.peerTxQueues == 0 {
		options.peerTxQueues = options.queues
	}
	attributes := netlink.NewLinkAttrs()
	attributes.Name, attributes.MTU = "device", options.mtu
	attributes.NumRxQueues, attributes.NumTxQueues = options.queues, options.queues
	require.NoError(t, netlink.LinkAdd(&netlink.Veth{
		LinkAttrs:       attributes,
		PeerName:        "peer",
		PeerMTU:         uint32(options.mtu),
		PeerNumTxQueues: uint32(options.peerTxQueues),
		PeerNumRxQueues: uint32(options.queues),
	}))
	for _, name := range []string{"device", "peer"} {
		link, err := netlink.LinkByName(name)
		require.NoError(t, err)
		require.NoError(t, netlink.LinkSetUp(link))
	}
	device, err := net.InterfaceByName("device")
	require.NoError(t, err)
	peer, err := net.InterfaceByName("peer")
	require.NoError(t, err)
	eventually(t, "devices are up", func() bool {
		link, err := netlink.LinkByIndex(device.Index)
		return err == nil && link.Attrs().OperState == netlink.OperUp
	})
	return veth{device: device, peer: peer}
}

func (v veth) mac() [6]byte { return [6]byte(v.device.HardwareAddr) }

// programOf asks the netlink package which program is on a device: an oracle that
// does not share code with attachedProgram.
func programOf(t testing.TB, device *net.Interface) *netlink.LinkXdp {
	t.Helper()
	link, err := netlink.LinkByIndex(device.Index)
	require.NoError(t, err)
	if xdp := link.Attrs().Xdp; xdp != nil && xdp.Attached {
		return xdp
	}
	return nil
}

func eventually(t testing.TB, what string, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(3 * time.Second); ; time.Sleep(time.Millisecond) {
		if condition() {
			return
		}
		require.True(t, time.Now().Before(deadline), "never came true: %s", what)
	}
}

func load(t testing.TB, options Options) *Program {
	t.Helper()
	p, err := Load(options)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	return p
}

func counters(t testing.TB, p *Program) []Counter {
	t.Helper()
	counters, err := p.Counters()
	require.NoError(t, err)
	return counters
}

// requireContains requires that the text holds each of the parts.
func requireContains(t testing.TB, text string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		require.True(t, strings.Contains(text, part), "%q lacks %q", text, part)
	}
}
