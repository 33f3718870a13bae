package verbs_test

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/xroce/xroce/internal/netlab"
	"github.com/xroce/xroce/internal/opener"
	"github.com/xroce/xroce/internal/support"
	"github.com/xroce/xroce/roce"
	"github.com/xroce/xroce/verbs"
)

// endurance are options of queue pairs that give up after 8 times 0.54 s without an answer.
var endurance = verbs.ConnectOptions{Timeout: roce.AckTimeout(17), RetryCnt: new(uint8(7))}

const enduranceEnds = 8 * (4096 << 17) * time.Nanosecond

// long is a signaled WRITE of many packets.
func long(a, b *end) verbs.SendWR {
	wr := write(a, b, verbs.SendSignaled)
	wr.SGList, wr.RemoteAddr = []verbs.SGE{a.mr.SGE(0, 60_000)}, b.mr.Addr()
	return wr
}

// requireWorks moves data both ways.
func requireWorks(t *testing.T, a, b *end) {
	t.Helper()
	require.Equal(t, verbs.WCSuccess, a.do(t, long(a, b)).Status)
	require.Equal(t, verbs.WCSuccess, b.do(t, long(b, a)).Status)
}

// TestCase_E3_LinkDown: a link goes down and comes back. Both ends say so; what has time enough waits, and what has not
// ends when its resends are used up, and says so.
func TestCase_E3_LinkDown(t *testing.T) {
	p := newPorts(t, netlab.PairOptions{})
	patient, patientPeer := p.ends(t, endurance)
	var told []time.Duration
	set := func(event verbs.EventType, state verbs.PortState, f func(netlink.Link) error) {
		change(t, &p.pair.B, f)
		for _, d := range p.devices {
			told = append(told, untilEvent(t, d, event))
			portState(t, d, state)
		}
	}
	down := func() { set(verbs.EventPortErr, verbs.PortDown, netlink.LinkSetDown) }
	up := func() { set(verbs.EventPortActive, verbs.PortActive, netlink.LinkSetUp) }

	down()
	require.NoError(t, patient.qp.PostSend(long(patient, patientPeer)))
	time.Sleep(time.Second)
	up()
	require.Equal(t, verbs.WCSuccess, poll(t, patient.sends).Status)
	requireWorks(t, patient, patientPeer)

	o, ends := verbs.ConnectOptions{Timeout: roce.AckTimeout(14), RetryCnt: new(uint8(7))}, 8*(4096<<14)*time.Nanosecond
	if *fullSize {
		o, ends = endurance, enduranceEnds
	}
	hasty, hastyPeer := p.ends(t, o)
	idle, idlePeer := p.ends(t, o)
	down()
	begin := time.Now()
	wc := hasty.do(t, long(hasty, hastyPeer))
	took := time.Since(begin)
	require.Equal(t, verbs.WCRetryExcErr, wc.Status)
	require.Contains(t, hasty.qp.Explain(wc), "no answer so far, 7 resends of 7")
	require.Contains(t, hasty.qp.Explain(wc), ": the port of "+hasty.device.Name()+" is down")
	require.GreaterOrEqual(t, took, ends)
	require.Less(t, took, ends+soonEnough)
	time.Sleep(time.Until(begin.Add(time.Duration(size(1, 5)) * time.Second)))
	up()
	requireWorks(t, idle, idlePeer)
	requireWorks(t, patientPeer, patient)
	require.Equal(t, verbs.StateError, hasty.qp.State())

	slices.Sort(told)
	t.Logf("events came after %v", told)
	require.Less(t, told[len(told)/2], 100*time.Millisecond)
	support.Object(t, "QP", "network device down for longer than its resends last", wc.Status)
}

// setUp brings a device up with its IPv4 address.
func setUp(t *testing.T, e *netlab.End) {
	t.Helper()
	change(t, e, func(device netlink.Link) error {
		address, err := netlink.ParseAddr(e.Addresses[0].String())
		return errors.Join(err, netlink.AddrAdd(device, address), netlink.LinkSetUp(device))
	})
}

// remake makes a pair again that was deleted, with its IPv4 and Ethernet addresses.
func remake(t *testing.T, p *netlab.Pair, o netlab.PairOptions) {
	t.Helper()
	require.NoError(t, p.A.Namespace.Do(func() error {
		attributes := netlink.NewLinkAttrs()
		attributes.Name, attributes.NumRxQueues, attributes.NumTxQueues = p.A.Name, o.Queues, o.Queues
		attributes.MTU, attributes.HardwareAddr = o.MTU, p.A.HardwareAddr
		veth := netlink.NewVeth(attributes)
		veth.PeerName, veth.PeerNamespace, veth.PeerMTU = p.B.Name, netlink.NsFd(p.B.Namespace.FD()), uint32(o.MTU)
		veth.PeerHardwareAddr = p.B.HardwareAddr
		return netlink.LinkAdd(veth)
	}))
	setUp(t, &p.B)
	setUp(t, &p.A)
}

// move takes the device of an end to another namespace.
func move(t *testing.T, e *netlab.End, to *netlab.Namespace) {
	t.Helper()
	change(t, e, func(device netlink.Link) error { return netlink.LinkSetNsFd(device, to.FD()) })
	e.Namespace = to
}

// TestCase_E3_Remade: the network device at one end is deleted, and with it that at the other, and both are made again.
// Or it is taken to another namespace, where it serves the kernel alone, and back. The queue pairs survive.
func TestCase_E3_Remade(t *testing.T) {
	for _, how := range []string{"deleted", "moved"} {
		t.Run(how, func(t *testing.T) {
			p := newPorts(t, netlab.PairOptions{Queues: 2})
			a, b := p.ends(t, endurance)
			hasty, hastyPeer := p.ends(t, verbs.ConnectOptions{Timeout: roce.AckTimeout(12), RetryCnt: new(uint8(3))})
			home := p.pair.A.Namespace
			for round := range size(2, 10) {
				var elsewhere *netlab.Namespace
				before := opener.Counters(p.devices[0]).Link
				if how == "deleted" {
					change(t, &p.pair.A, netlink.LinkDel)
				} else {
					var err error
					elsewhere, err = netlab.NewNamespace()
					require.NoError(t, err)
					move(t, &p.pair.A, elsewhere)
				}
				require.Less(t, untilEvent(t, p.devices[0], verbs.EventPortErr), soonEnough)
				portState(t, p.devices[0], verbs.PortDown)
				require.NoError(t, a.qp.PostSend(long(a, b)))
				if round == 0 {
					require.Equal(t, verbs.WCRetryExcErr, hasty.do(t, long(hasty, hastyPeer)).Status)
				}
				if how == "deleted" {
					remake(t, p.pair, netlab.PairOptions{Queues: 2})
				} else {
					requireLeft(t, p, b, a)
					move(t, &p.pair.A, home)
					require.NoError(t, elsewhere.Close())
					setUp(t, &p.pair.A)
				}
				untilEvent(t, p.devices[0], verbs.EventPortActive)
				require.Equal(t, verbs.WCSuccess, poll(t, a.sends).Status, "round %d", round)
				if how == "moved" {
					require.Equal(t, verbs.WCSuccess, poll(t, b.sends).Status, "round %d", round)
				}
				requireWorks(t, a, b)
				require.Equal(t, verbs.StateRTS, a.qp.State())
				after := opener.Counters(p.devices[0]).Link
				require.GreaterOrEqual(t, after.Transmitted, before.Transmitted+60, "counters go on")
				require.GreaterOrEqual(t, after.Received, before.Received+60)
			}
			a, b = p.ends(t, verbs.ConnectOptions{})
			requireWorks(t, a, b)
			support.Object(t, "QP", "network device "+how+" and back before its resends are used up", verbs.WCSuccess)
		})
	}
}

// requireLeft says that nothing of ours is on end A's device where it is now: the kernel gets what the peer goes on
// sending.
func requireLeft(t *testing.T, p *ports, from, to *end) {
	t.Helper()
	e := &p.pair.A
	// The port is down before the device leaves, so the event may come a moment earlier than the program goes.
	require.Eventually(t, func() (free bool) {
		change(t, e, func(device netlink.Link) error {
			xdp := device.Attrs().Xdp
			free = xdp == nil || !xdp.Attached
			return nil
		})
		return free
	}, soonEnough, time.Millisecond, "the XDP program went with the device")
	setUp(t, e)
	var socket *net.UDPConn
	require.NoError(t, e.Namespace.Do(func() (err error) {
		socket, err = net.ListenUDP("udp", &net.UDPAddr{Port: 4791})
		return err
	}))
	defer socket.Close()
	untilEvent(t, p.devices[1], verbs.EventPortActive)
	require.NoError(t, from.qp.PostSend(long(from, to)))
	require.NoError(t, socket.SetReadDeadline(time.Now().Add(2*time.Second)))
	_, _, err := socket.ReadFromUDP(make([]byte, 9000))
	require.NoError(t, err, "what the peer sends was swallowed")
}

// TestCase_E3_Lost: the network device does not come back, or not as one that can be served. Requests end at their
// time, nothing spins, and everything can be closed.
func TestCase_E3_Lost(t *testing.T) {
	for _, how := range []string{"down", "deleted", "moved", "with one queue"} {
		t.Run(how, func(t *testing.T) {
			netlab.RequireRoot(t)
			pair, err := netlab.NewPair(netlab.PairOptions{Queues: 2})
			require.NoError(t, err)
			defer pair.Close()
			p := &ports{pair: pair, devices: [2]*verbs.Device{openDevice(t, &pair.A, verbs.Options{}), openDevice(t, &pair.B, verbs.Options{})}}
			o := verbs.ConnectOptions{Timeout: roce.AckTimeout(14), RetryCnt: new(uint8(7))}
			a, b := p.ends(t, o)
			never, neverPeer := p.ends(t, verbs.ConnectOptions{Timeout: noTimeout})
			switch how {
			case "down":
				change(t, &pair.A, netlink.LinkSetDown)
			case "moved":
				elsewhere, err := netlab.NewNamespace()
				require.NoError(t, err)
				defer elsewhere.Close()
				home := pair.A.Namespace
				move(t, &pair.A, elsewhere)
				pair.A.Namespace = home
			default:
				change(t, &pair.A, netlink.LinkDel)
			}
			untilEvent(t, p.devices[0], verbs.EventPortErr)
			if how == "with one queue" {
				remake(t, pair, netlab.PairOptions{Queues: 1})
			}
			require.NoError(t, never.qp.PostSend(long(never, neverPeer)))
			begin := time.Now()
			for range 60 { // more than there is room for in the transmit ring
				require.NoError(t, a.qp.PostSend(long(a, b)))
			}
			wc := poll(t, a.sends)
			took := time.Since(begin)
			require.Equal(t, verbs.WCRetryExcErr, wc.Status)
			require.GreaterOrEqual(t, took, 8*(4096<<14)*time.Nanosecond)
			require.Less(t, took, 8*(4096<<14)*time.Nanosecond+soonEnough)
			for range 59 {
				require.Equal(t, verbs.WCWRFlushErr, poll(t, a.sends).Status)
			}
			err = p.devices[0].CheckPathMTU(verbs.MTU256)
			require.ErrorIs(t, err, verbs.ErrDown)
			if how == "with one queue" {
				require.ErrorContains(t, err, "veth0 has 1 queues and had 2 (ethtool -L changes that)")
			}
			portState(t, p.devices[0], verbs.PortDown)

			const rest = 500 * time.Millisecond
			least := rest
			for range 3 { // what else the process does, such as collecting garbage, comes and goes
				busy := processTime(t)
				time.Sleep(rest)
				least = min(least, processTime(t)-busy)
			}
			t.Logf("%v of CPU time in %v", least, rest)
			require.Less(t, least, 2*rest/100)

			begin = time.Now()
			require.NoError(t, never.qp.Destroy())
			require.Less(t, time.Since(begin), soonEnough)
			never.qp, err = never.pd.CreateQP(verbs.QPInitAttr{SendCQ: never.sends, RecvCQ: never.recvs}) // for newEnd to destroy
			require.NoError(t, err)
		})
	}
}

// processTime is the CPU time that the process has used so far.
func processTime(t *testing.T) time.Duration {
	t.Helper()
	var usage unix.Rusage
	require.NoError(t, unix.Getrusage(unix.RUSAGE_SELF, &usage))
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// TestCase_E3_Changed: the network device comes back with other properties.
func TestCase_E3_Changed(t *testing.T) {
	options := netlab.PairOptions{MTU: 3000, Queues: 2}
	p := newPorts(t, options)
	large, largePeer := p.ends(t, endurance)
	o := endurance
	o.PathMTU = verbs.MTU1024
	small, smallPeer := p.ends(t, o)
	requireWorks(t, large, largePeer)
	lose := func() {
		change(t, &p.pair.A, netlink.LinkDel)
		for _, d := range p.devices {
			untilEvent(t, d, verbs.EventPortErr)
		}
		require.NoError(t, small.qp.PostSend(long(small, smallPeer)))
	}

	// A smaller MTU: the queue pairs whose path MTU does not fit any more end, the others go on.
	lose()
	options.MTU = 1280
	remake(t, p.pair, options)
	untilEvent(t, p.devices[0], verbs.EventQPFatal)
	require.Equal(t, verbs.WCLocQPOpErr, large.qp.Failure().Status)
	require.Contains(t, large.qp.Explain(large.qp.Failure()), "path MTU 2048 needs netdev MTU 2144, veth0 has 1280")
	require.Equal(t, verbs.WCSuccess, poll(t, small.sends).Status)
	requireWorks(t, small, smallPeer)

	// Fewer queues: not served. As many as before: served.
	lose()
	options.Queues = 1
	remake(t, p.pair, options)
	require.Eventually(t, func() bool {
		err := p.devices[0].CheckPathMTU(verbs.MTU1024)
		require.ErrorIs(t, err, verbs.ErrDown)
		return err != nil && len(err.Error()) > 100
	}, time.Second, time.Millisecond)
	require.ErrorContains(t, p.devices[0].CheckPathMTU(verbs.MTU1024), "veth0 has 1 queues and had 2")
	change(t, &p.pair.A, netlink.LinkDel)
	options.Queues = 2
	remake(t, p.pair, options)
	require.Equal(t, verbs.WCSuccess, poll(t, small.sends).Status)
	requireWorks(t, small, smallPeer)

	// Another address: that of the queue pair is not there, and then it is again.
	lose()
	was := p.pair.A.Addresses[0]
	p.pair.A.Addresses[0] = netip.MustParsePrefix("10.9.0.77/24")
	remake(t, p.pair, options)
	untilEvent(t, p.devices[0], verbs.EventGIDChange)
	time.Sleep(100 * time.Millisecond)
	require.Equal(t, 1, small.qp.Outstanding())
	other, otherPeer := newEnd(t, p.devices[0], make([]byte, 64<<10), verbs.QPCap{}), newEnd(t, p.devices[1], make([]byte, 64<<10), verbs.QPCap{})
	connect(t, other, otherPeer, verbs.ConnectOptions{})
	require.Equal(t, "10.9.0.77", gidOf(t, other).String())
	requireWorks(t, other, otherPeer)
	require.Equal(t, 1, small.qp.Outstanding())
	change(t, &p.pair.A, func(device netlink.Link) error {
		address, err := netlink.ParseAddr(was.String())
		return errors.Join(err, netlink.AddrAdd(device, address))
	})
	require.Equal(t, verbs.WCSuccess, poll(t, small.sends).Status)
	requireWorks(t, small, smallPeer)
	requireWorks(t, other, otherPeer)
}

// TestCase_E3_Together: all network devices of a process are deleted and made again at the same time, under traffic.
func TestCase_E3_Together(t *testing.T) {
	first := newPorts(t, netlab.PairOptions{Queues: 2})
	pair, err := netlab.Join(first.pair.A.Namespace, first.pair.B.Namespace, netlab.PairOptions{Queues: 2})
	require.NoError(t, err)
	defer pair.Close()
	second := &ports{pair: pair, devices: [2]*verbs.Device{openDevice(t, &pair.A, verbs.Options{}), openDevice(t, &pair.B, verbs.Options{})}}
	var as, bs []*end
	for _, p := range []*ports{first, second, first, second} {
		a, b := p.ends(t, endurance)
		as, bs = append(as, a), append(bs, b)
	}
	for range size(2, 10) {
		for i := range as {
			for range 8 {
				require.NoError(t, as[i].qp.PostSend(long(as[i], bs[i])))
				require.NoError(t, bs[i].qp.PostSend(long(bs[i], as[i])))
			}
		}
		for _, p := range []*ports{first, second} {
			change(t, &p.pair.A, netlink.LinkDel)
		}
		for _, p := range []*ports{first, second} {
			remake(t, p.pair, netlab.PairOptions{Queues: 2})
		}
		for i := range as {
			for range 8 {
				require.Equal(t, verbs.WCSuccess, poll(t, as[i].sends).Status)
				require.Equal(t, verbs.WCSuccess, poll(t, bs[i].sends).Status)
			}
		}
	}
}
