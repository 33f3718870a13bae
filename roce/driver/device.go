// Package driver joins a link to the transport: it shares the work out to shards, reads the clock, resolves
// addresses, and decides who drives whom and who sleeps.
//
// A shard is one queue of the link with the transport state of the queue pairs at home there, under one mutex.
// Whoever needs progress drives: posting and polling try the shard's lock and, if they get it, do whatever is to be
// done (shard.go). A blocked wait leads the shard from poll(2) (wait.go); a goroutine in the background does so
// while nobody polls or waits (background.go). Frames that arrive at the wrong shard are handed over (inbox.go).
//
// Lock order: QP.control, QP.send, QP.receive, Shard.mu, CQ.produce. No two shard locks are ever held at once,
// and no system call is made under one.
package driver

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/xroce/xroce/roce"
	"github.com/xroce/xroce/roce/link"
	"github.com/xroce/xroce/roce/memory"
	"github.com/xroce/xroce/roce/transport"
)

// Errors of the driver.
var (
	ErrClosed       = errors.New("closed")
	ErrInUse        = errors.New("still in use")
	ErrInvalid      = errors.New("invalid argument")
	ErrLimit        = errors.New("device limit exceeded")
	ErrState        = errors.New("QP is in the wrong state")
	ErrPathMTU      = errors.New("path MTU does not fit the device")
	ErrNoGID        = errors.New("no such GID")
	ErrNotSupported = errors.New("not supported")
	errNoSuchQueue  = errors.New("link has no queue")
)

// Options of a Device; the zero value works.
type Options struct {
	// Seed decides QPNs and keys; 0 draws one at random.
	Seed uint64
	// Window is the largest number of frames in flight per QP and direction; 0 means
	// transport.DefaultWindow.
	Window int
	// Manual leaves all driving to Device.Drive and to posts and polls: no background goroutine runs. It is for
	// simulations, which also bring their own Clock.
	Manual bool
	Clock  func() transport.Time
}

// qpnBits is the size of the range of QPNs that a device uses. Its base is drawn at random at every start, so that a
// restarted process is not taken for its predecessor.
const qpnBits = 14

const maxShards = 64 // a CQ keeps the set of its shards in one word

// Device is an open device.
type Device struct {
	link    link.Device
	options Options
	memory  *memory.Table
	shards  []*Shard
	base    roce.QPN
	qps     [1 << qpnBits]atomic.Pointer[QP]

	mu      sync.Mutex
	nextQPN uint32
	taken   [1 << qpnBits]bool
	qpCount int
	cqCount int
	closed  bool
	waiters []*waiter // free ones
}

// Open starts a device on a link, which it owns from then on: Close closes it too, and so does a failed Open.
func Open(l link.Device, o Options) (*Device, error) {
	d, err := open(l, o)
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return d, nil
}

func open(l link.Device, o Options) (*Device, error) {
	if o.Seed == 0 {
		o.Seed = rand.Uint64()
	}
	if o.Clock == nil {
		o.Clock = monotonic()
	}
	if o.Window < 0 || o.Window > 1<<16 {
		return nil, fmt.Errorf("%w: window of %d frames, the limit is %d", ErrInvalid, o.Window, 1<<16)
	}
	queues := l.Queues()
	if len(queues) == 0 || len(queues) > maxShards {
		return nil, fmt.Errorf("%w: %d queues, the driver works with 1 to %d", errNoSuchQueue, len(queues), maxShards)
	}
	random := rand.New(rand.NewPCG(o.Seed, 0x71706e73))
	// Neither the range of the reserved QPNs 0 and 1 nor that of the multicast QPN.
	ranges := uint32(1) << (24 - qpnBits)
	d := &Device{
		link:    l,
		options: o,
		memory:  memory.NewTable(o.Seed),
		base:    roce.QPN((1 + random.Uint32N(ranges-2)) << qpnBits),
		nextQPN: random.Uint32N(1 << qpnBits),
	}
	for i, q := range queues {
		s, err := newShard(d, i, q)
		if err != nil {
			d.stop()
			return nil, err
		}
		d.shards = append(d.shards, s)
	}
	if err := l.Steer(link.Steering{QPNBase: d.base, QPNBits: qpnBits}); err != nil {
		d.stop()
		return nil, err
	}
	if !o.Manual {
		for _, s := range d.shards {
			s.startBackground()
		}
	}
	return d, nil
}

// monotonic returns a clock that starts at 1.
func monotonic() func() transport.Time {
	start := time.Now()
	return func() transport.Time { return transport.Time(time.Since(start)) + 1 }
}

// Close stops the device. It fails while QPs or CQs exist.
func (d *Device) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return ErrClosed
	}
	if d.qpCount > 0 || d.cqCount > 0 || d.memory.Count() > 0 {
		return fmt.Errorf("device %s: %w: %d QPs, %d CQs, %d memory regions",
			d.link.Information().Name, ErrInUse, d.qpCount, d.cqCount, d.memory.Count())
	}
	d.closed = true
	d.stop()
	return d.link.Close()
}

func (d *Device) stop() {
	for _, s := range d.shards {
		s.stop()
	}
	for _, w := range d.waiters {
		w.close()
	}
	d.waiters = nil
}

// Link is the link that the device runs on.
func (d *Device) Link() link.Device { return d.link }

// Memory is the table of the device's memory regions.
func (d *Device) Memory() *memory.Table { return d.memory }

// Shards is the number of shards.
func (d *Device) Shards() int { return len(d.shards) }

// GIDs returns the GID table: the addresses that the network device has right now.
func (d *Device) GIDs() ([]roce.GID, error) {
	addresses, err := d.link.Addresses()
	if err != nil {
		return nil, err
	}
	gids := make([]roce.GID, len(addresses))
	for i, a := range addresses {
		gids[i] = roce.GIDFromAddr(a)
	}
	return gids, nil
}

// GID returns one entry of the GID table.
func (d *Device) GID(index int) (roce.GID, error) {
	gids, err := d.GIDs()
	if err != nil {
		return roce.GID{}, err
	}
	if index < 0 || index >= len(gids) {
		return roce.GID{}, fmt.Errorf("%w: index %d, %s has %d", ErrNoGID, index, d.link.Information().Name, len(gids))
	}
	return gids[index], nil
}

// ActiveMTU is the largest path MTU that the device carries now.
func (d *Device) ActiveMTU() (roce.MTU, error) {
	mtu, _, err := d.activeMTU()
	return mtu, err
}

func (d *Device) activeMTU() (active roce.MTU, netdev int, err error) {
	netdev, err = d.link.MTU()
	if err != nil {
		return 0, 0, err
	}
	// A frame is an IP packet and up to 18 bytes of Ethernet header.
	carried := min(netdev, d.link.MaximumFrame()-18)
	active, ok := roce.ActiveMTU(carried)
	if !ok {
		return 0, netdev, fmt.Errorf("%w: %s has MTU %d, the smallest path MTU (256) needs %d",
			ErrPathMTU, d.link.Information().Name, netdev, 256+roce.MTUOverhead)
	}
	return active, netdev, nil
}

func (d *Device) checkPathMTU(m roce.MTU) error {
	active, netdev, err := d.activeMTU()
	if err != nil || m <= active {
		return err
	}
	name := d.link.Information().Name
	if need := m.Bytes() + roce.MTUOverhead; netdev < need {
		return fmt.Errorf("%w: path MTU %v needs netdev MTU %d, %s has %d", ErrPathMTU, m, need, name, netdev)
	}
	return fmt.Errorf("%w: path MTU %v needs frames of %d bytes, %s carries %d",
		ErrPathMTU, m, m.Bytes()+roce.MTUOverhead+18, name, d.link.MaximumFrame())
}

// AddressVector names the peer of a connected QP.
type AddressVector struct {
	DGID         roce.GID
	SGIDIndex    int
	TrafficClass uint8  // DSCP in bits 7:2, ECN in bits 1:0
	FlowLabel    uint32 // 0 derives one from the QPNs
}

// resolve makes a path out of an address vector.
func (d *Device) resolve(ctx context.Context, av *AddressVector, local, remote roce.QPN) (roce.Path, error) {
	source, err := d.GID(av.SGIDIndex)
	if err != nil {
		return roce.Path{}, err
	}
	name := d.link.Information().Name
	if source.Is4() != av.DGID.Is4() {
		return roce.Path{}, fmt.Errorf("%w: GID %d of %s is %v, the peer's is %v: not of the same family",
			ErrInvalid, av.SGIDIndex, name, source, av.DGID)
	}
	if av.DGID.IsZero() || av.DGID.IsMulticast() {
		return roce.Path{}, fmt.Errorf("%w: destination GID %v is not the address of a peer", ErrInvalid, av.DGID)
	}
	destination := av.DGID.Addr()
	own, err := d.link.Addresses()
	if err != nil {
		return roce.Path{}, err
	}
	for _, a := range own {
		if a.WithZone("") == destination {
			return roce.Path{}, fmt.Errorf("%w: %v is an address of %s itself", ErrNotSupported, destination, name)
		}
	}
	neighbour, err := d.link.Resolve(ctx, source.Addr(), destination)
	if err != nil {
		return roce.Path{}, err
	}
	label := av.FlowLabel & 0xFFFFF
	if label == 0 {
		label = roce.FlowLabel(local, remote)
	}
	return roce.Path{
		SourceMAC: d.link.HardwareAddr(), DestinationMAC: neighbour.HardwareAddr,
		Source: source, Destination: av.DGID,
		TrafficClass: av.TrafficClass, HopLimit: neighbour.HopLimit,
		// The flow label of the IP header stays 0 unless the user asked for one, as rdma_rxe sends it.
		FlowLabel: av.FlowLabel & 0xFFFFF, SourcePort: roce.UDPSourcePort(label),
	}, nil
}

// home is the shard where the QP of a path lives: both ends compute the same flow label, and on a device
// that delivers by the sender's queue the frames then arrive where their QP is.
func (d *Device) home(av *AddressVector, local, remote roce.QPN) *Shard {
	label := av.FlowLabel & 0xFFFFF
	if label == 0 {
		label = roce.FlowLabel(local, remote)
	}
	return d.shards[label%uint32(len(d.shards))]
}

// qp finds a QP by its number.
func (d *Device) qp(number roce.QPN) *QP {
	offset := number - d.base
	if offset >= 1<<qpnBits {
		return nil
	}
	return d.qps[offset].Load()
}

// adopt gives a QP its number and makes it a user of its CQs. Numbers are used in turn, so that a late packet to a
// QP that is gone finds nobody for as long as possible.
func (d *Device) adopt(q *QP) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed || q.config.SendCQ.closed.Load() || q.config.RecvCQ.closed.Load() {
		return ErrClosed
	}
	for range 1 << qpnBits {
		offset := d.nextQPN % (1 << qpnBits)
		d.nextQPN++
		if !d.taken[offset] {
			d.taken[offset] = true
			q.number = d.base + roce.QPN(offset)
			d.qpCount++
			q.config.SendCQ.qps++
			q.config.RecvCQ.qps++
			return nil
		}
	}
	return fmt.Errorf("%w: all %d QP numbers are in use", ErrLimit, 1<<qpnBits)
}

// release undoes adopt.
func (d *Device) release(q *QP) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.qps[q.number-d.base].Store(nil)
	d.taken[q.number-d.base] = false
	d.qpCount--
	q.config.SendCQ.qps--
	q.config.RecvCQ.qps--
}

// Drive runs every shard until none has anything to do, and reports whether any did. It is for Manual devices.
func (d *Device) Drive() bool {
	progress := false
	for again := true; again; {
		again = false
		for _, s := range d.shards {
			again = s.drive(driveFully) || again
		}
		progress = progress || again
	}
	return progress
}

// NextDeadline is when a Manual device must be driven at the latest.
func (d *Device) NextDeadline() (transport.Time, bool) {
	next, found := transport.Time(0), false
	for _, s := range d.shards {
		s.mu.Lock()
		if t, ok := s.engine.NextDeadline(); ok && (!found || t < next) {
			next, found = t, true
		}
		s.mu.Unlock()
	}
	return next, found
}

// Counters returns the sums over all shards.
func (d *Device) Counters() (transport.Counters, link.Counters) {
	var t transport.Counters
	var l link.Counters
	for _, s := range d.shards {
		s.mu.Lock()
		t.Add(s.engine.Counters())
		s.mu.Unlock()
		c := s.queue.Counters()
		l.Received += c.Received
		l.Transmitted += c.Transmitted
		l.ReceiveDropped += c.ReceiveDropped
		l.TransmitDropped += c.TransmitDropped
		l.Kicks += c.Kicks
		l.KickRetries += c.KickRetries
		l.InvalidDescriptors += c.InvalidDescriptors
	}
	return t, l
}
