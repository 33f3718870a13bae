package driver

import (
	"context"
	"errors"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/xroce/xroce/internal/support"
	"github.com/xroce/xroce/roce"
	"github.com/xroce/xroce/roce/link"
	"github.com/xroce/xroce/roce/link/loop"
	"github.com/xroce/xroce/roce/link/mem"
	"github.com/xroce/xroce/roce/memory"
	"github.com/xroce/xroce/roce/queue"
	"github.com/xroce/xroce/roce/transport"
)

// station is a manual device with one QP and 1 MiB of memory.
type station struct {
	device *Device
	domain *memory.Domain
	cq     *CQ
	qp     *QP
	region *memory.Region
	buffer []byte // of the region

	label, timeout uint8 // of the QPs to connect: flow label, ACK timeout code
	noRetry        bool  // retry count 0 instead of 7
}

type inNetwork struct {
	*mem.Device
	name string
}

func (n inNetwork) Network() string { return n.name }

func newStation(t *testing.T, network *mem.Network, name string) *station {
	t.Helper()
	return newStationOf(t, network, name, mem.DeviceOptions{}, Options{})
}

func newStationOf(t testing.TB, network *mem.Network, name string, lo mem.DeviceOptions, o Options) *station {
	t.Helper()
	l, err := network.NewDevice(lo)
	require.NoError(t, err)
	o.Manual = true
	d, err := Open(inNetwork{l, name}, o)
	require.NoError(t, err)
	return newStationOn(t, d)
}

func newStationOn(t testing.TB, d *Device) *station {
	t.Helper()
	s := &station{device: d, domain: new(memory.Domain), buffer: make([]byte, 1<<20)}
	var err error
	s.region, err = d.memory.Register(s.domain, s.buffer, 0, memory.LocalWrite|memory.RemoteWrite)
	require.NoError(t, err)
	s.cq = newCQ(t, d, CQConfig{Capacity: 64})
	s.qp = s.newQP(t)
	return s
}

func (s *station) newQP(t testing.TB) *QP {
	t.Helper()
	qp := newQP(t, s.device, QPConfig{
		Type: transport.RC, Domain: s.domain, SendCQ: s.cq, RecvCQ: s.cq,
		MaxSendWR: 16, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1,
	})
	return qp
}

func (s *station) close(t testing.TB) {
	t.Helper()
	require.NoError(t, s.qp.Close())
	require.NoError(t, s.cq.Close())
	require.NoError(t, s.device.memory.Deregister(s.region))
	require.NoError(t, s.device.Close())
}

// connect brings a QP to RTS, with a QP of a number at a peer's address.
func (s *station) connect(t testing.TB, q *QP, peer *station, number roce.QPN) {
	t.Helper()
	gid, err := peer.device.GID(0)
	require.NoError(t, err)
	retries := uint8(7)
	if s.noRetry {
		retries = 0
	}
	for _, step := range []struct {
		a    transport.Attributes
		mask transport.AttributeMask
	}{
		{transport.Attributes{State: transport.StateInit, Port: 1, Access: memory.RemoteWrite},
			transport.MaskState | transport.MaskPKeyIndex | transport.MaskPort | transport.MaskAccess},
		{transport.Attributes{State: transport.StateRTR, PathMTU: roce.MTU1024, DestinationQPN: number, MaxDestRDAtomic: 1},
			transport.MaskState | transport.MaskAV | transport.MaskPathMTU | transport.MaskDestinationQPN | transport.MaskRQPSN |
				transport.MaskMaxDestRDAtomic | transport.MaskMinRNRTimer},
		{transport.Attributes{State: transport.StateRTS, MaxRDAtomic: 1, Timeout: s.timeout, RetryCount: retries},
			transport.MaskState | transport.MaskTimeout | transport.MaskRetryCount | transport.MaskRNRRetry |
				transport.MaskSQPSN | transport.MaskMaxRDAtomic},
	} {
		require.NoError(t, q.Modify(context.Background(), &step.a, &AddressVector{DGID: gid, FlowLabel: uint32(s.label)}, step.mask))
	}
}

func (s *station) write(t testing.TB, q *QP, peer *station, length int) {
	t.Helper()
	_, err := poster(q).PostSend([]queue.SendWR{{
		Opcode: queue.RDMAWrite, Flags: queue.SendSignaled, RemoteAddr: peer.region.Address(), RKey: peer.region.Key(),
		SGList: []queue.SGE{{Addr: s.region.Address(), Length: uint32(length), LKey: s.region.Key()}},
	}})
	require.NoError(t, err)
}

// window is how many packets a QP sends before anything is acknowledged.
const window = 32

// occupy has somebody else be at a shard, so that nobody can drive it, until leave is told how to let go of the lock.
// It is another goroutine: none holds the locks of two shards, or tries the one that it has.
func occupy(s *Shard) (leave func(release func())) {
	taken, releases, gone := make(chan struct{}), make(chan func()), make(chan struct{})
	go func() {
		defer close(gone)
		s.mu.Lock()
		close(taken)
		(<-releases)()
	}()
	<-taken
	return func(release func()) {
		releases <- release
		<-gone
	}
}

// TestLoopbackWaitsForTheInbox: a queue pair whose peer's inbox is full goes on when its peer's shard has drained it,
// without anybody who drives its own, and nothing is lost.
func TestLoopbackWaitsForTheInbox(t *testing.T) {
	network := mem.NewNetwork(mem.Options{Manual: true})
	a, b := newStation(t, network, "one"), newStation(t, network, "one")
	defer b.close(t)
	defer a.close(t)
	sa, sb := a.device.shards[0], b.device.shards[0]
	const pairs = loop.Slots/window + 2
	var qps []*QP
	for range pairs {
		near, far := a.newQP(t), b.newQP(t)
		a.connect(t, near, b, far.number)
		b.connect(t, far, a, near.number)
		defer func() { require.NoError(t, errors.Join(near.Close(), far.Close())) }()
		qps = append(qps, near)
	}
	leave := occupy(sb)
	for _, q := range qps {
		a.write(t, q, b, 2*window*1024)
	}
	sent := sa.engine.Counters().SentPackets
	idle, more := sa.engine.Idle(), sa.drive(driveBriefly)
	leave(sb.unlock)
	resumed := sa.engine.Counters().SentPackets
	for b.device.Drive() || a.device.Drive() {
	}
	require.EqualValues(t, loop.Slots, sent)
	require.Greater(t, resumed, sent, "b has made it go on")
	require.False(t, idle)
	require.False(t, more, "nothing could be done")
	for _, q := range qps {
		require.Zero(t, poster(q).Outstanding())
	}
	require.EqualValues(t, pairs*2*window, sa.engine.Counters().SentPackets)
	require.True(t, sa.engine.Idle())
	require.Zero(t, sa.queue.Counters(), "nothing went over the wire")
	require.Zero(t, sb.queue.Counters())
	support.Object(t, "Loopback", "peer that is too slow", "the sender waits, nothing is lost")
}

// TestForgetGoesOn: frames that a device has left behind when it stopped are processed, and what they make ready is
// done, without anybody else who drives.
func TestForgetGoesOn(t *testing.T) {
	network := mem.NewNetwork(mem.Options{Manual: true})
	a, b := newStation(t, network, "one"), newStation(t, network, "one")
	defer b.close(t)
	defer a.close(t)
	a.connect(t, a.qp, b, b.qp.number)
	b.connect(t, b.qp, a, a.qp.number)
	sa, sb := a.device.shards[0], b.device.shards[0]
	leave := occupy(sb)
	a.write(t, a.qp, b, 8)
	require.Equal(t, 1, sb.inboxFrom(sa).ring.Waiting())
	leave(sb.mu.Unlock) // without another look
	sb.forget(a.device)
	require.EqualValues(t, 1, sb.engine.Counters().SentPackets, "the acknowledgement")
	require.True(t, sb.engine.Idle())
	require.Zero(t, poster(a.qp).Outstanding())

	// A device that it has nothing to do with is no reason to drive it.
	b.write(t, b.qp, a, 8)
	leave = occupy(sb)
	b.write(t, b.qp, a, 8)
	require.NotNil(t, sb.doorbells.Load())
	leave(sb.mu.Unlock)
	sb.forget(newStation(t, network, "two").device)
	require.NotNil(t, sb.doorbells.Load())
	sb.drive(driveBriefly)
}

// TestInboxOfSilentPeer: whoever drains an inbox has the queue pairs go on that found it full, also where no answer
// does so and where somebody else is at their shard just then.
func TestInboxOfSilentPeer(t *testing.T) {
	for _, held := range []bool{false, true} {
		inboxOfSilentPeer(t, held)
	}
}

func inboxOfSilentPeer(t *testing.T, held bool) {
	network := mem.NewNetwork(mem.Options{Manual: true})
	a, b := newStation(t, network, "one"), newStation(t, network, "one")
	defer b.close(t)
	defer a.close(t)
	sa, sb := a.device.shards[0], b.device.shards[0]
	const count = loop.Slots/window + 2
	leave := occupy(sb)
	for range count {
		q := a.newQP(t)
		a.connect(t, q, b, b.qp.number) // which is in RESET
		defer func() { require.NoError(t, q.Close()) }()
		a.write(t, q, b, window*1024)
	}
	leave(sb.mu.Unlock)
	if held {
		leave = occupy(sa)
	}
	sb.drive(driveBriefly)
	if held {
		leave(sa.unlock)
	}
	require.EqualValues(t, count*window, sa.engine.Counters().SentPackets)
	b.device.Drive()
	require.EqualValues(t, count*window, sb.engine.Counters().Drops[roce.DropQPState])
}

// TestFullWireHoldsUpNoLoopback: queue pairs whose link has no transmit buffer do not hold up one on loopback that is
// ready before, between or behind them.
func TestFullWireHoldsUpNoLoopback(t *testing.T) {
	network := mem.NewNetwork(mem.Options{Manual: true})
	a, far := newStation(t, network, ""), newStation(t, network, "")
	defer far.close(t)
	defer a.close(t)
	a.connect(t, a.qp, a, a.qp.number)
	s := a.device.shards[0]
	s.queue = &fullQueue{s.queue}
	var wired []*QP
	defer func() {
		for _, q := range wired {
			require.NoError(t, q.Close())
		}
	}()
	for range 4 {
		q := a.newQP(t)
		a.connect(t, q, far, far.qp.number)
		wired = append(wired, q)
	}
	for position := range len(wired) + 1 {
		leave := occupy(s)
		for i := range len(wired) + 1 {
			if i == position {
				a.write(t, a.qp, a, 200*1024)
			}
			if i < len(wired) {
				a.write(t, wired[i], far, 8)
			}
		}
		leave(s.unlock)
		a.device.Drive()
		require.Zero(t, poster(a.qp).Outstanding(), "in position %d", position)
		for _, q := range wired {
			require.Equal(t, position+1, poster(q).Outstanding())
		}
	}
}

type fullQueue struct{ link.Queue }

func (*fullQueue) Buffer() []byte { return nil }

// TestLastFramesOfAClosedDevice: what a device has sent before it was closed arrives, and its inboxes are gone.
func TestLastFramesOfAClosedDevice(t *testing.T) {
	network := mem.NewNetwork(mem.Options{Manual: true})
	a, b := newStation(t, network, "one"), newStation(t, network, "one")
	defer b.close(t)
	a.connect(t, a.qp, b, b.qp.number)
	b.connect(t, b.qp, a, a.qp.number)
	sa, sb := a.device.shards[0], b.device.shards[0]
	var more []*QP
	for range 5 {
		q := b.newQP(t)
		b.connect(t, q, a, a.qp.number)
		defer func() { require.NoError(t, q.Close()) }()
		more = append(more, q)
	}
	leave := occupy(sa)
	b.write(t, b.qp, a, 8)
	leave(sa.mu.Unlock)
	leave = occupy(sb)
	require.True(t, sa.drive(driveBriefly))
	leave(sb.mu.Unlock)
	require.Equal(t, 1, poster(b.qp).Outstanding(), "the acknowledgement is in the inbox")
	require.Len(t, *sb.inboxes.Load(), 2)
	a.close(t)
	require.Zero(t, poster(b.qp).Outstanding())
	require.Len(t, *sb.inboxes.Load(), 1, "its own one")
	// Packets to a device that is gone are lost at once, instead of filling its inbox.
	sent := sb.engine.Counters().SentPackets
	for _, q := range more {
		b.write(t, q, a, window*1024)
	}
	b.device.Drive()
	require.Greater(t, len(more)*window, loop.Slots)
	require.EqualValues(t, len(more)*window, sb.engine.Counters().SentPackets-sent)
	require.True(t, sb.engine.Idle())
	support.Object(t, "Loopback", "from a device that is closed", "what it has sent arrives")
}

// TestWithin: an address leads into the process if it is the device's own, or that of an open device of the same
// network.
func TestWithin(t *testing.T) {
	network := mem.NewNetwork(mem.Options{Manual: true})
	a, b, other := newStation(t, network, "one"), newStation(t, network, "one"), newStation(t, network, "two")
	unknown, unknownToo := newStation(t, network, ""), newStation(t, network, "")
	for _, s := range []*station{a, other, unknown, unknownToo} {
		defer s.close(t)
	}
	find := func(from, to *station, index int) *Device {
		t.Helper()
		addresses, err := to.device.link.Addresses()
		require.NoError(t, err)
		found, err := from.device.within(addresses[index])
		require.NoError(t, err)
		return found
	}
	for index := range 2 {
		require.Same(t, a.device, find(a, a, index))
		require.Same(t, unknown.device, find(unknown, unknown, index))
		require.Same(t, b.device, find(a, b, index))
		require.Nil(t, find(a, other, index))
		require.Nil(t, find(a, unknown, index))
		require.Nil(t, find(unknown, a, index))
		require.Nil(t, find(unknown, unknownToo, index))
	}
	found, err := a.device.within(netip.MustParseAddr("10.0.0.77"))
	require.NoError(t, err)
	require.Nil(t, found)
	b.close(t)
	require.Nil(t, find(a, b, 0), "closed")
	support.Object(t, "Loopback", "to an address of the device itself or of an open device of its network", "within the process")
}

// TestErrands: each shard is run twice at most, and what is left is left to its sleeper.
func TestErrands(t *testing.T) {
	shards := make([]*Shard, errandShards+1)
	for i := range shards {
		shards[i] = new(Shard)
	}
	var e errands
	require.Nil(t, e.next())
	e.add(shards[0])
	e.add(shards[1])
	e.add(shards[0])
	require.Same(t, shards[0], e.next())
	require.Same(t, shards[1], e.next())
	require.Nil(t, e.next())
	e.add(shards[0])
	require.Same(t, shards[0], e.next())
	e.add(shards[0])
	require.Nil(t, e.next(), "often enough")
	w, err := newWaiter()
	require.NoError(t, err)
	defer w.close()
	shards[0].sleep.leader.Store(w)
	shards[0].sleep.until.Store(1)
	e.leave()
	require.True(t, w.woken.Load())
	for _, s := range shards[:errandShards] {
		e.add(s)
	}
	require.False(t, e.full)
	e.add(shards[errandShards])
	require.True(t, e.full)
}

// TestErrandsWithoutPlace: a shard that found no place among the errands is driven by its sleeper.
func TestErrandsWithoutPlace(t *testing.T) {
	d, q := newManual(t, 1)
	s := d.shards[0]
	w, err := newWaiter()
	require.NoError(t, err)
	defer w.close()
	_, ok := s.lead(w)
	require.True(t, ok)
	e := errands{full: true}
	e.leave()
	require.False(t, w.woken.Load(), "nothing to do")
	s.ring(q)
	e.leave()
	require.True(t, w.woken.Load())
	s.sleep.leave(w)
	s.drive(1)
}
