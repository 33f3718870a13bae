//go:build linux

package xsk

import (
	"errors"
	"os"
	"runtime"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// testEtherType is "local experimental 1" of IEEE 802: only these frames go to the
// socket, so that the kernel's own IPv6 chatter does not disturb the counts.
const testEtherType = 0x88b5

func requireRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() == 0 {
		return
	}
	if os.Getenv("CI") == "true" {
		t.Fatal("this test needs root")
	}
	t.Skip("needs root: network namespaces, XDP")
}

// namespace is an unnamed network namespace: it ends with the file descriptor.
type namespace struct{ handle netns.NsHandle }

func newNamespace(t testing.TB) namespace {
	t.Helper()
	requireRoot(t)
	type result struct {
		handle netns.NsHandle
		err    error
	}
	results := make(chan result)
	go func() {
		runtime.LockOSThread() // and never unlock: the thread ends with the goroutine
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			results <- result{err: err}
			return
		}
		handle, err := netns.Get()
		results <- result{handle, err}
	}()
	r := <-results
	require.NoError(t, r.err)
	t.Cleanup(func() { _ = r.handle.Close() })
	return namespace{r.handle}
}

// run calls f on a thread that is in the namespace.
func (n namespace) run(t testing.TB, f func() error) error {
	t.Helper()
	done := make(chan error)
	go func() {
		err := errors.New("the test failed on this thread")
		defer func() { done <- err }() // also when a failing require ends the goroutine
		runtime.LockOSThread()
		if err = netns.Set(n.handle); err == nil {
			err = f()
		}
	}()
	return <-done
}

// end is one end of a veth pair, alone in its namespace.
type end struct {
	namespace
	name    string
	ifindex int
}

// newPair makes a veth pair of the given queues and MTU, both ends up.
func newPair(t testing.TB, queues, mtu int) (a, b end) {
	t.Helper()
	a = end{namespace: newNamespace(t), name: "xa"}
	b = end{namespace: newNamespace(t), name: "xb"}
	handle, err := netlink.NewHandleAt(a.handle)
	require.NoError(t, err)
	defer handle.Close()
	attributes := netlink.NewLinkAttrs()
	attributes.Name, attributes.MTU = a.name, mtu
	attributes.NumTxQueues, attributes.NumRxQueues = queues, queues
	require.NoError(t, handle.LinkAdd(&netlink.Veth{
		LinkAttrs: attributes, PeerName: b.name, PeerMTU: uint32(mtu), PeerNamespace: netlink.NsFd(b.handle),
		PeerNumTxQueues: uint32(queues), PeerNumRxQueues: uint32(queues),
	}))
	a.up(t)
	b.up(t)
	return a, b
}

// withLink does something with the interface by netlink.
func (e *end) withLink(t testing.TB, f func(*netlink.Handle, netlink.Link) error) {
	t.Helper()
	handle, err := netlink.NewHandleAt(e.handle)
	require.NoError(t, err)
	defer handle.Close()
	found, err := handle.LinkByName(e.name)
	require.NoError(t, err)
	require.NoError(t, f(handle, found))
}

func (e *end) up(t testing.TB) {
	t.Helper()
	e.withLink(t, func(handle *netlink.Handle, l netlink.Link) error {
		e.ifindex = l.Attrs().Index
		return handle.LinkSetUp(l)
	})
}

// open opens a socket on the interface.
func (e *end) open(t testing.TB, options Options) (*Socket, error) {
	t.Helper()
	options.Interface = e.ifindex
	var socket *Socket
	err := e.run(t, func() (err error) {
		socket, err = Open(options)
		return err
	})
	return socket, err
}

// mustOpen opens a socket that lives as long as the test.
func (e *end) mustOpen(t testing.TB, options Options) *Socket {
	t.Helper()
	socket, err := e.open(t, options)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, socket.Close()) })
	return socket
}

// redirect attaches a program that sends frames of testEtherType to the sockets of
// the map it returns.
func (e *end) redirect(t testing.TB, generic bool) *ebpf.Map {
	t.Helper()
	sockets, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.XSKMap, KeySize: 4, ValueSize: 4, MaxEntries: 16})
	require.NoError(t, err)
	t.Cleanup(func() { _ = sockets.Close() })
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.XDP, License: "MIT", Flags: unix.BPF_F_XDP_HAS_FRAGS,
		Instructions: asm.Instructions{
			asm.LoadMem(asm.R2, asm.R1, 0, asm.Word), // xdp_md.data
			asm.LoadMem(asm.R3, asm.R1, 4, asm.Word), // xdp_md.data_end
			asm.Mov.Reg(asm.R4, asm.R2),
			asm.Add.Imm(asm.R4, 14),
			asm.JGT.Reg(asm.R4, asm.R3, "pass"),
			asm.LoadMem(asm.R5, asm.R2, 12, asm.Half),
			asm.HostTo(asm.BE, asm.R5, asm.Half),
			asm.JNE.Imm(asm.R5, testEtherType, "pass"),
			asm.LoadMem(asm.R2, asm.R1, 16, asm.Word), // xdp_md.rx_queue_index
			asm.LoadMapPtr(asm.R1, sockets.FD()),
			asm.Mov.Imm(asm.R3, 2), // XDP_PASS where the map has no socket
			asm.FnRedirectMap.Call(),
			asm.Return(),
			asm.Mov.Imm(asm.R0, 2).WithSymbol("pass"),
			asm.Return(),
		},
	})
	require.NoError(t, err)
	t.Cleanup(func() { _ = program.Close() })
	flags := link.XDPDriverMode
	if generic {
		flags = link.XDPGenericMode
	}
	var attached link.Link
	require.NoError(t, e.run(t, func() (err error) {
		attached, err = link.AttachXDP(link.XDPOptions{Program: program, Interface: e.ifindex, Flags: flags})
		return err
	}))
	t.Cleanup(func() { _ = attached.Close() })
	return sockets
}

// receiver opens a socket behind a redirecting program.
func (e *end) receiver(t testing.TB, generic bool, options Options) *Socket {
	t.Helper()
	sockets := e.redirect(t, generic)
	socket := e.mustOpen(t, options)
	require.NoError(t, sockets.Put(uint32(options.Queue), uint32(socket.FD())))
	return socket
}

func modeName(generic bool) string {
	if generic {
		return "generic"
	}
	return "native"
}

// yield lets others run who wait for this CPU; runtime.Gosched alone gives way to
// goroutines only, and with more spinning threads than CPUs a test then takes many
// scheduler slices.
func yield() {
	runtime.Gosched()
	_, _, _ = unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0)
}
