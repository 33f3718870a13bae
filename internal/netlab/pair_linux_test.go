package netlab

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"go.uber.org/goleak"

	"github.com/xroce/xroce/internal/netns"
)

func TestMain(m *testing.M) {
	if os.Getenv("NETLAB_TEST_HOLDER") != "" {
		holdPair()
		return
	}
	goleak.VerifyTestMain(m)
}

func newPair(t *testing.T, o PairOptions) *Pair {
	t.Helper()
	RequireRoot(t)
	p, err := NewPair(o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	return p
}

func TestExchangeAtOnce(t *testing.T) {
	// Fresh pairs each time: an address that is not usable at once fails the first exchange only.
	for range 5 {
		p := newPair(t, PairOptions{})
		require.Equal(t, "10.9.0.1", p.A.IPv4().String())
		require.Equal(t, "fd00:9::2", p.B.IPv6().String())
		requireExchange(t, p.A.Namespace, p.B.Namespace, p.A.IPv4(), p.B.IPv4())
		requireExchange(t, p.A.Namespace, p.B.Namespace, p.A.IPv6(), p.B.IPv6())
		requireExchange(t, p.A.Namespace, p.B.Namespace,
			p.A.LinkLocal.Addr().WithZone(p.A.Name), p.B.LinkLocal.Addr().WithZone(p.B.Name))
		loopback := netip.MustParseAddr("127.0.0.1")
		requireExchange(t, p.A.Namespace, p.A.Namespace, loopback, loopback)
	}
}

// requireExchange sends a datagram from one namespace to the other and back.
func requireExchange(t *testing.T, from, to *Namespace, source, destination netip.Addr) {
	t.Helper()
	server := listen(t, to, destination)
	defer server.Close()
	client := listen(t, from, source)
	defer client.Close()
	deadline := time.Now().Add(2 * time.Second)
	require.NoError(t, server.SetDeadline(deadline))
	require.NoError(t, client.SetDeadline(deadline))

	// The zone of the receiving end means nothing at the sending end.
	target := netip.AddrPortFrom(destination.WithZone(source.Zone()), server.LocalAddr().(*net.UDPAddr).AddrPort().Port())
	_, err := client.WriteToUDPAddrPort([]byte("ping"), target)
	require.NoError(t, err)
	buffer := make([]byte, 16)
	n, peer, err := server.ReadFromUDPAddrPort(buffer)
	require.NoError(t, err, "%v to %v", source, destination)
	require.Equal(t, "ping", string(buffer[:n]))
	require.Equal(t, source.WithZone(""), peer.Addr().Unmap().WithZone(""))
	_, err = server.WriteToUDPAddrPort([]byte("pong"), peer)
	require.NoError(t, err)
	n, _, err = client.ReadFromUDPAddrPort(buffer)
	require.NoError(t, err)
	require.Equal(t, "pong", string(buffer[:n]))
}

func listen(t *testing.T, n *Namespace, at netip.Addr) (connection *net.UDPConn) {
	t.Helper()
	require.NoError(t, n.Do(func() (err error) {
		connection, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(at, 0)))
		return err
	}))
	return connection
}

func attributes(t *testing.T, e End) *netlink.LinkAttrs {
	t.Helper()
	h, err := open(e.Namespace)
	require.NoError(t, err)
	defer h.Close()
	link, err := h.LinkByName(e.Name)
	require.NoError(t, err)
	require.Equal(t, "veth", link.Type())
	return link.Attrs()
}

func TestAsAsked(t *testing.T) {
	mac := net.HardwareAddr{2, 0, 0, 0, 0, 0xaa}
	p := newPair(t, PairOptions{
		MTU:    4200,
		Queues: 3,
		A:      EndOptions{Name: "left", HardwareAddr: mac, Addresses: []netip.Prefix{netip.MustParsePrefix("192.0.2.1/31")}},
		B:      EndOptions{Name: "right", Addresses: []netip.Prefix{}},
	})
	a, b := attributes(t, p.A), attributes(t, p.B)
	for _, got := range []*netlink.LinkAttrs{a, b} {
		require.Equal(t, 4200, got.MTU)
		require.Equal(t, 3, got.NumRxQueues)
		require.Equal(t, 3, got.NumTxQueues)
	}
	require.Equal(t, mac, a.HardwareAddr)
	require.Equal(t, p.B.HardwareAddr, b.HardwareAddr)
	require.NotEqual(t, mac, b.HardwareAddr)
	require.Equal(t, p.A.Index, a.Index)
	require.Equal(t, p.B.Index, b.Index)
	require.Equal(t, []string{"192.0.2.1/31", "fe80::ff:fe00:aa/64"}, addresses(t, p.A))
	require.Equal(t, []string{p.B.LinkLocal.String()}, addresses(t, p.B))
	require.False(t, p.B.IPv4().IsValid())
}

func addresses(t *testing.T, e End) (found []string) {
	t.Helper()
	require.NoError(t, e.Namespace.Do(func() error {
		device, err := net.InterfaceByName(e.Name)
		if err != nil {
			return err
		}
		list, err := device.Addrs()
		for _, a := range list {
			found = append(found, a.String())
		}
		return err
	}))
	return found
}

func TestDefaults(t *testing.T) {
	p := newPair(t, PairOptions{})
	require.Equal(t, 1500, p.MTU)
	for _, e := range []End{p.A, p.B} {
		got := attributes(t, e)
		require.Equal(t, "veth0", got.Name)
		require.Equal(t, 1500, got.MTU)
		require.Equal(t, 1, got.NumRxQueues)
		require.Equal(t, 1, got.NumTxQueues)
	}
	require.Equal(t, []string{"10.9.0.2/24", "fd00:9::2/64", p.B.LinkLocal.String()}, addresses(t, p.B))
}

func TestSecondPairBetweenTheSameNamespaces(t *testing.T) {
	first := newPair(t, PairOptions{})
	second, err := Join(first.A.Namespace, first.B.Namespace, PairOptions{MTU: 9000})
	require.NoError(t, err)
	require.Equal(t, "veth1", second.A.Name)
	require.Equal(t, "veth1", second.B.Name)
	require.Equal(t, "10.9.1.1", second.A.IPv4().String())
	require.Equal(t, "fd00:9:0:1::2", second.B.IPv6().String())
	requireExchange(t, first.A.Namespace, first.B.Namespace, second.A.IPv4(), second.B.IPv4())
	requireExchange(t, first.A.Namespace, first.B.Namespace, first.A.IPv4(), first.B.IPv4())

	require.NoError(t, second.Close())
	require.NoError(t, second.Close(), "closing twice")
	requireExchange(t, first.A.Namespace, first.B.Namespace, first.A.IPv4(), first.B.IPv4())
	third, err := Join(first.A.Namespace, first.B.Namespace, PairOptions{})
	require.NoError(t, err)
	require.Equal(t, "veth1", third.A.Name)
	require.NoError(t, third.Close())

	_, err = Join(first.A.Namespace, first.B.Namespace, PairOptions{A: EndOptions{Name: "veth0"}})
	require.ErrorContains(t, err, "veth0")
}

func TestWrongOptions(t *testing.T) {
	for want, o := range map[string]PairOptions{
		"MTU 67":            {MTU: 67},
		"MTU -1":            {MTU: -1},
		"queues -1":         {Queues: -1},
		"sixteen-letters-":  {B: EndOptions{Name: "sixteen-letters-"}},
		"01:00:5e:00:00:01": {A: EndOptions{HardwareAddr: net.HardwareAddr{1, 0, 0x5e, 0, 0, 1}}},
		"invalid Prefix":    {A: EndOptions{Addresses: []netip.Prefix{{}}}},
	} {
		_, err := NewPair(o)
		require.ErrorContains(t, err, want)
	}
}

func TestFailureLeavesNothing(t *testing.T) {
	RequireRoot(t)
	a, err := NewNamespace()
	require.NoError(t, err)
	defer a.Close()
	b, err := NewNamespace()
	require.NoError(t, err)
	defer b.Close()
	twice := netip.MustParsePrefix("192.0.2.1/24")
	_, err = Join(a, b, PairOptions{B: EndOptions{Addresses: []netip.Prefix{twice, twice}}})
	require.ErrorContains(t, err, "192.0.2.1/24")
	require.ErrorIs(t, err, os.ErrExist)
	for _, n := range []*Namespace{a, b} {
		require.NoError(t, n.Do(func() error {
			devices, err := net.Interfaces()
			require.Len(t, devices, 1)
			return err
		}))
	}
}

// holdPair joins the namespace of the process to one of its own and waits to be killed.
func holdPair() {
	outer, err := netns.Open("/proc/self/ns/net")
	if err != nil {
		panic(err)
	}
	inner, err := NewNamespace()
	if err != nil {
		panic(err)
	}
	if _, err := Join(outer, inner, PairOptions{A: EndOptions{Name: "witness"}}); err != nil {
		panic(err)
	}
	fmt.Println("ready")
	_, _ = io.Copy(io.Discard, os.Stdin)
}

// A device whose peer lies in the child's namespace is the witness: it goes when that namespace does.
func TestKillLeavesNothing(t *testing.T) {
	RequireRoot(t)
	outer, err := NewNamespace()
	require.NoError(t, err)
	defer outer.Close()
	child := exec.Command(os.Args[0])
	child.Env = append(os.Environ(), "NETLAB_TEST_HOLDER=1")
	in, err := child.StdinPipe()
	require.NoError(t, err)
	defer in.Close()
	out, err := child.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, outer.Start(child))
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "ready\n", line)
	require.Equal(t, 2, devices(t, outer))

	require.NoError(t, child.Process.Kill())
	_ = child.Wait()
	require.Eventually(t, func() bool { return devices(t, outer) == 1 }, 5*time.Second, 5*time.Millisecond)
}

func devices(t *testing.T, n *Namespace) (number int) {
	t.Helper()
	require.NoError(t, n.Do(func() error {
		list, err := net.Interfaces()
		number = len(list)
		return err
	}))
	return number
}

func TestManyPairsQuicklyWithoutLeak(t *testing.T) {
	RequireRoot(t)
	descriptors := func() int {
		entries, err := os.ReadDir("/proc/self/fd")
		require.NoError(t, err)
		return len(entries)
	}
	before := descriptors()
	start := time.Now()
	for range 50 {
		p, err := NewPair(PairOptions{})
		require.NoError(t, err)
		require.NoError(t, p.Close())
	}
	took := time.Since(start)
	t.Logf("50 pairs in %v", took)
	require.Less(t, took, 5*time.Second)
	require.Equal(t, before, descriptors())
	goleak.VerifyNone(t)
}
