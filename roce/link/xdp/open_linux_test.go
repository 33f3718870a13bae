package xdp

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	ebpflink "github.com/cilium/ebpf/link"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/xroce/xroce/internal/netlab"
	"github.com/xroce/xroce/internal/netns"
	"github.com/xroce/xroce/roce/link"
	"github.com/xroce/xroce/xsk"
)

// requireFails opens a device that cannot be opened and compares the error, and that nothing is left.
func requireFails(t *testing.T, name string, o Options, kind error, words ...string) {
	t.Helper()
	before := descriptors(t)
	_, err := Open(t.Context(), name, o)
	require.ErrorIs(t, err, kind)
	for _, w := range words {
		require.ErrorContains(t, err, w)
	}
	require.True(t, IsEnvironment(err))
	require.NotContains(t, err.Error(), "\n", "one line")
	require.Equal(t, before, descriptors(t))
	t.Log(err)
}

func TestOpenErrors(t *testing.T) {
	p := newPair(t, netlab.PairOptions{Queues: 2})
	path := p.A.Namespace.Path()
	requireFails(t, "eth7", Options{NetNS: path}, ErrNoDevice, "open eth7: no such network device")
	requireFails(t, "a-name-longer-than-any-device", Options{NetNS: path}, ErrNoDevice)
	requireFails(t, "", Options{NetNS: path}, ErrNoDevice)
	requireFails(t, "lo", Options{NetNS: path}, ErrUnsuitable, "lo is a loopback device")
	requireFails(t, "veth0", Options{NetNS: path, Queues: 3}, ErrInvalidOptions,
		"3 queues asked for, but veth0 has 2 receive and 2 transmit queues")
	requireFails(t, "veth0", Options{NetNS: path, Copy: ZeroCopy}, ErrNotSupported, "zero copy")
	requireFails(t, "veth0", Options{NetNS: "/run/netns/absent"}, ErrInvalidOptions, "/run/netns/absent")
	requireFails(t, "veth0", Options{NetNS: "/proc/self/ns/uts"}, ErrInvalidOptions, "/proc/self/ns/uts")
	for _, o := range []Options{
		{Mode: 9}, {Copy: 9}, {Queues: -1}, {ReceiveFrames: -1}, {TransmitFrames: -1}, {ReceiveFrames: 1<<20 + 1},
		{TransmitFrames: 3, MultiBuffer: MultiBufferOn},
		{TransmitFrames: 3},
		{MultiBuffer: MultiBufferOff + 1},
	} {
		requireFails(t, "veth0", o, ErrInvalidOptions)
	}

	inside(t, p.A, func(h *netlink.Handle, device netlink.Link) { require.NoError(t, h.LinkSetMTU(device, 351)) })
	requireFails(t, "veth0", Options{NetNS: path}, ErrUnsuitable, "MTU 351 of veth0 is too small", "352")
	inside(t, p.A, func(h *netlink.Handle, device netlink.Link) { require.NoError(t, h.LinkSetDown(device)) })
	requireFails(t, "veth0", Options{NetNS: path}, link.ErrDown, "ip link set veth0 up")
}

func TestOpenNotEthernet(t *testing.T) {
	if _, err := os.Stat("/dev/net/tun"); err != nil && os.Getenv("CI") != "true" {
		t.Skip("no tun devices here: ", err)
	}
	p := newPair(t, netlab.PairOptions{})
	inside(t, p.A, func(h *netlink.Handle, _ netlink.Link) {
		tun := &netlink.Tuntap{LinkAttrs: netlink.LinkAttrs{Name: "tun0"}, Mode: netlink.TUNTAP_MODE_TUN}
		require.NoError(t, h.LinkAdd(tun))
		require.NoError(t, h.LinkSetUp(tun))
	})
	requireFails(t, "tun0", Options{NetNS: p.A.Namespace.Path()}, ErrUnsuitable, "tun0 is no Ethernet device")
}

// A native program without frags serves on veth only up to a peer MTU of 3506 (drivers/net/veth.c, veth_xdp_set); the
// rung with frags must be found, and carry the longest frame.
func TestEveryMTU(t *testing.T) {
	for _, mtu := range []int{352, 1500, 3506, 3507, 4192, 9000} {
		p := newPair(t, netlab.PairOptions{MTU: mtu})
		for _, mode := range []Mode{ModeAuto, ModeGeneric} {
			o := Options{Mode: mode, MultiBuffer: MultiBufferOn}
			a, b := openEnd(t, p.A, o), openEnd(t, p.B, o)
			require.NoError(t, steer(b, steering))
			longest := min(mtu+14, 7680)
			require.Equal(t, 7680, a.MaximumFrame())
			frame := frameTo(a.HardwareAddr(), b.HardwareAddr(), p.A.IPv4(), p.B.IPv4(), qpn, longest-14-20-8-12-4, 1)
			send(t, a.Queues()[0], frame)
			require.Equal(t, frame, receive(t, b.Queues()[0], soon), "MTU %d %v", mtu, mode)
			require.NoError(t, a.Close())
			require.NoError(t, b.Close())
		}
	}
}

// Devices of one name and one address in many namespaces at once do not get into each other's way.
func TestManyNamespacesAtOnce(t *testing.T) {
	netlab.RequireRoot(t)
	var pairs sync.WaitGroup
	for number := range 10 {
		pairs.Go(func() {
			p, err := netlab.NewPair(netlab.PairOptions{})
			if !assertNil(t, err) {
				return
			}
			defer p.Close()
			o := Options{ReceiveFrames: 64, TransmitFrames: 64}
			o.NetNS = p.A.Namespace.Path()
			a, err := Open(t.Context(), "veth0", o)
			if !assertNil(t, err) {
				return
			}
			defer a.Close()
			o.NetNS = p.B.Namespace.Path()
			b, err := Open(t.Context(), "veth0", o)
			if !assertNil(t, err) {
				return
			}
			defer b.Close()
			neighbour, err := a.Resolve(t.Context(), p.A.IPv4(), p.B.IPv4())
			if !assertNil(t, err) || !assertNil(t, steer(b, steering)) {
				return
			}
			from, to := a.Queues()[0], b.Queues()[0]
			frame := frameTo(a.HardwareAddr(), neighbour.HardwareAddr, p.A.IPv4(), p.B.IPv4(), qpn, 64, byte(number))
			from.Commit(copy(from.Buffer(), frame))
			from.Publish()
			err = from.Kick()
			var frames [4]link.Frame
			if !assertNil(t, err) || to.Receive(frames[:]) != 1 || !bytes.Equal(frames[0].Segments[0], frame) {
				t.Errorf("pair %d: frame did not arrive as sent", number)
			}
		})
	}
	pairs.Wait()
}

// assertNil is for goroutines of a test, which may not end it.
func assertNil(t *testing.T, err error) bool {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
	return err == nil
}

func TestOpenMoreTransmitQueuesAtThePeer(t *testing.T) {
	p := newPair(t, netlab.PairOptions{Queues: 2})
	inside(t, p.A, func(h *netlink.Handle, device netlink.Link) { require.Equal(t, 2, device.Attrs().NumRxQueues) })
	require.NoError(t, setChannels(t, p.A, 1, 2))
	requireFails(t, "veth0", Options{NetNS: p.A.Namespace.Path(), Mode: ModeNative}, ErrUnsuitable, "queues")
	d := openEnd(t, p.A, Options{})
	require.Equal(t, "generic+frags", d.Information().Mode, "generic mode does not mind")
	require.NoError(t, d.Close())

	require.NoError(t, setChannels(t, p.A, 2, 1))
	requireFails(t, "veth0", Options{NetNS: p.A.Namespace.Path()}, ErrUnsuitable,
		"veth0 has 2 receive and 1 transmit queues in use")
}

// attachForeign attaches an XDP program of somebody else.
func attachForeign(t *testing.T, e netlab.End) (detach func()) {
	t.Helper()
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "somebody_else", Type: ebpf.XDP, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 2 /* XDP_PASS */), asm.Return()},
	})
	require.NoError(t, err)
	var attached ebpflink.Link
	require.NoError(t, e.Namespace.Do(func() (err error) {
		attached, err = ebpflink.AttachXDP(ebpflink.XDPOptions{Program: program, Interface: e.Index})
		return err
	}))
	return func() {
		require.NoError(t, attached.Close())
		require.NoError(t, program.Close())
	}
}

func TestForeignProgram(t *testing.T) {
	p := newPair(t, netlab.PairOptions{})
	detach := attachForeign(t, p.A)
	start := time.Now()
	requireFails(t, "veth0", Options{NetNS: p.A.Namespace.Path()}, ErrTaken, "somebody_else", "id ", "veth0")
	require.Less(t, time.Since(start), time.Second, "no waiting")
	port, err := Probe("veth0", ProbeOptions{NetNS: p.A.Namespace.Path(), Attach: true})
	require.NoError(t, err)
	require.ErrorIs(t, port.Obstacle, ErrTaken)
	require.ErrorContains(t, port.Obstacle, "somebody_else, id ")
	require.Nil(t, port.Obtained)
	detach()
	openEnd(t, p.A, Options{})
}

func TestOpenTwice(t *testing.T) {
	p := newPair(t, netlab.PairOptions{})
	openEnd(t, p.A, Options{})
	const own = "veth0 serves this process already (XDP program xdp_roce, id "
	requireFails(t, "veth0", Options{NetNS: p.A.Namespace.Path()}, ErrTaken, own, "open a device once")
	port, err := Probe("veth0", ProbeOptions{NetNS: p.A.Namespace.Path()})
	require.NoError(t, err)
	require.ErrorIs(t, port.Obstacle, ErrTaken)
	require.ErrorContains(t, port.Obstacle, own)
	require.Zero(t, programOwner(0))
}

func TestQueueTaken(t *testing.T) {
	p := newPair(t, netlab.PairOptions{Queues: 2})
	var socket *xsk.Socket
	require.NoError(t, p.A.Namespace.Do(func() (err error) {
		socket, err = xsk.Open(xsk.Options{Interface: p.A.Index, Queue: 1})
		return err
	}))
	defer socket.Close()
	requireFails(t, "veth0", Options{NetNS: p.A.Namespace.Path()}, ErrTaken, "queue 1", "taken",
		fmt.Sprintf("%d (this process)", os.Getpid()))
	require.False(t, attached(t, p.A), "nothing is left attached")
	d := openEnd(t, p.A, Options{Queues: 1})
	require.Len(t, d.Queues(), 1)
}

func attached(t *testing.T, e netlab.End) (yes bool) {
	t.Helper()
	inside(t, e, func(_ *netlink.Handle, device netlink.Link) { yes = hasProgram(device.Attrs()) })
	return yes
}

func TestReopenManyTimesWithoutLeak(t *testing.T) {
	p := newPair(t, netlab.PairOptions{})
	path := p.A.Namespace.Path()
	before := descriptors(t)
	start := time.Now()
	for i := range 30 {
		d, err := Open(t.Context(), "veth0", Options{NetNS: path, Mode: Mode(i % 3)})
		require.NoError(t, err)
		require.True(t, attached(t, p.A))
		require.NoError(t, steer(d, steering))
		require.NoError(t, d.Close())
		require.NoError(t, d.Close())
		require.False(t, attached(t, p.A))
	}
	t.Logf("30 times in %v", time.Since(start))
	require.Equal(t, before, descriptors(t))
	goleak.VerifyNone(t)
}

func TestEverythingAfterClose(t *testing.T) {
	p := newPair(t, netlab.PairOptions{})
	d := openEnd(t, p.A, Options{})
	require.NoError(t, d.Close())
	_, err := d.MTU()
	require.ErrorIs(t, err, link.ErrClosed)
	_, err = d.Addresses()
	require.ErrorIs(t, err, link.ErrClosed)
	_, err = d.Resolve(t.Context(), p.A.IPv4(), p.B.IPv4())
	require.ErrorIs(t, err, link.ErrClosed)
	require.ErrorIs(t, steer(d, steering), link.ErrClosed)
	_, err = d.SteeringCounters()
	require.ErrorIs(t, err, link.ErrClosed)
	q := d.Queues()[0]
	require.Zero(t, q.Receive(make([]link.Frame, 1)))
	q.Release()
	require.Nil(t, q.Buffer())
	q.Commit(60)
	q.Publish()
	require.False(t, q.Pending())
	err = q.Kick()
	require.ErrorIs(t, err, link.ErrClosed)
	require.Equal(t, -1, q.FD())
	require.Zero(t, q.Counters().InvalidDescriptors)
}

// Everything but the data path may be called while the device is being closed.
func TestCloseWhileInUse(t *testing.T) {
	p := newPair(t, netlab.PairOptions{})
	for range 5 {
		d := openEnd(t, p.A, Options{})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		calls := []func(){
			func() { _, _ = d.MTU() },
			func() { _, _ = d.Addresses() },
			func() { _, _ = d.Resolve(ctx, p.A.IPv4(), p.B.IPv4()) },
			func() { _ = steer(d, steering) },
			func() { _, _ = d.HardwareAddr(), d.MaximumFrame() },
			func() { _ = d.Information() },
			func() { q := d.Queues()[0]; _ = q.Kick(); _ = q.Pending(); _ = q.Counters() },
		}
		for _, call := range calls {
			go func() {
				for ctx.Err() == nil {
					call()
				}
				ended <- struct{}{}
			}()
		}
		time.Sleep(5 * time.Millisecond)
		require.NoError(t, d.Close())
		cancel()
		for range calls {
			<-ended
		}
	}
}

// child is what the test binary does when a test has started it: open the device veth0 of its namespace, say
// "open" or what went wrong, and wait to be killed.
func child(role string) {
	d, err := Open(context.Background(), "veth0", Options{})
	if err != nil {
		fmt.Printf("environment=%v: %v\n", IsEnvironment(err), err)
		return
	}
	if role == "hold" {
		if err := steer(d, steering); err != nil {
			panic(err)
		}
	}
	fmt.Println("open")
	_, _ = io.Copy(io.Discard, os.Stdin)
}

// startChild starts the test binary inside a namespace and returns the line that it says.
func startChild(t *testing.T, n *netns.Namespace, attributes *syscall.SysProcAttr) (*exec.Cmd, string) {
	t.Helper()
	// By this name everybody may run the test binary, whoever may reach the directory that it lies in.
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), "XDP_TEST_CHILD=hold")
	cmd.SysProcAttr = attributes
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	t.Cleanup(func() { in.Close() })
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, n.Start(cmd))
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	return cmd, strings.TrimSpace(line)
}

func TestKillLeavesNothing(t *testing.T) {
	p := newPair(t, netlab.PairOptions{})
	for range 3 {
		cmd, line := startChild(t, p.A.Namespace, nil)
		require.Equal(t, "open", line)
		require.True(t, attached(t, p.A))
		requireFails(t, "veth0", Options{NetNS: p.A.Namespace.Path()}, ErrTaken,
			fmt.Sprintf("serves another xroce process, pid %d (", cmd.Process.Pid))
		require.NoError(t, cmd.Process.Kill())
		var exit *exec.ExitError
		require.ErrorAs(t, cmd.Wait(), &exit)
		require.Eventually(t, func() bool { return !attached(t, p.A) }, soon, time.Millisecond)
		d, err := Open(t.Context(), "veth0", Options{NetNS: p.A.Namespace.Path()})
		require.NoError(t, err, "the device can be opened at once")
		require.NoError(t, d.Close())
	}
}

func TestWithoutPrivileges(t *testing.T) {
	p := newPair(t, netlab.PairOptions{})
	nobody := &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	_, line := startChild(t, p.A.Namespace, nobody)
	require.Contains(t, line, "environment=true: open veth0: ")
	require.Contains(t, line, "CAP_BPF")
	require.Contains(t, line, "CAP_NET_ADMIN")
	t.Log(line)
}

// TestMemoryLocked: of what Open needs only the three capabilities and 6 MiB of locked memory for each queue are left.
// They suffice, and with another queue the error says what there is to do.
func TestMemoryLocked(t *testing.T) {
	const limit = 8 << 20
	var old unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_MEMLOCK, &old))
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: limit, Max: old.Max}))
	defer func() { require.NoError(t, unix.Setrlimit(unix.RLIMIT_MEMLOCK, &old)) }()
	open := func(queues int) string { // as a user of whom nobody else has locked anything
		cmd, line := startChild(t, newPair(t, netlab.PairOptions{Queues: queues}).A.Namespace, &syscall.SysProcAttr{
			Credential:  &syscall.Credential{Uid: 64021, Gid: 64021},
			AmbientCaps: []uintptr{unix.CAP_NET_ADMIN, unix.CAP_NET_RAW, unix.CAP_BPF},
		})
		require.NoError(t, cmd.Process.Kill())
		_ = cmd.Wait()
		return line
	}
	require.Equal(t, "open", open(1))
	text := open(2)
	for _, part := range []string{
		"environment=true: open veth0: ", "the UMEM of 6291456 bytes and what this user has locked already exceed RLIMIT_MEMLOCK, 8388608 bytes",
		"(raise it with ulimit -l, or give CAP_IPC_LOCK)", "each of the 2 queues needs as much, and Options.Queues uses fewer",
	} {
		require.Contains(t, text, part)
	}
}

func TestIsEnvironment(t *testing.T) {
	require.False(t, IsEnvironment(nil))
	require.False(t, IsEnvironment(errors.New("a defect")))
	require.False(t, IsEnvironment(link.ErrClosed))
	require.True(t, IsEnvironment(fmt.Errorf("open veth0: %w", classify(&xsk.Error{Kind: xsk.ErrQueueBusy}))))
}
