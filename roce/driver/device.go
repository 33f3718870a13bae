// Package driver joins a link to the transport: it shares the work out to shards, reads the clock, resolves
// addresses, and decides who drives whom and who sleeps.
//
// A shard is one queue of the link with the transport state of the queue pairs at home there, under one mutex.
// Whoever needs progress drives: posting and polling try the shard's lock and, if they get it, do whatever is to be
// done (shard.go). A blocked wait leads the shard from poll(2) (wait.go); a goroutine in the background does so
// while nobody polls or waits (background.go). Frames that arrive at the wrong shard are handed over (inbox.go), and a queue
// pair whose frames all do so moves (move.go). Frames to an address of this process go through inboxes, too (loopback.go). Deadlines wait
// for what had arrived when they passed (heard.go). What changes about the port is followed (follow.go), and the way to a peer that
// is silent looked at (confirm.go).
//
// Lock order: QP.control, QP.send, QP.receive, Shard.kickMu, Shard.mu, CQ.produce. No two shard locks are ever held at once,
// and no system call is made under one. The rest in the same notation: Shard.mu, SRQ.take, and a resize holds SRQ.post
// and SRQ.take; a resize of a CQ holds CQ.consume, CQ.produce; Device.mu, CQ.mu, CQ.consume. Below them all are the lists of
// events (backlog.mu), of ways in doubt (doubts.mu) and of who sleeps, under which nothing of these is locked.
//
// It is the engine's own and changes as that needs; programs use package verbs.
package driver

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
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
	ErrClosed       = link.ErrClosed
	ErrNotSupported = errors.ErrUnsupported
	ErrInUse        = errors.New("still in use")
	ErrInvalid      = errors.New("invalid argument")
	ErrLimit        = errors.New("device limit exceeded")
	ErrState        = errors.New("QP is in the wrong state")
	ErrPathMTU      = errors.New("path MTU does not fit the device")
	ErrNoGID        = errors.New("no such GID")
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
	// MoveAfter is how many packets of a QP have to come in at another queue in a row, and none at its own, until it moves
	// there; 0 means 256. Each move takes twice as many as the last one.
	MoveAfter int
}

const maxShards = 64 // a CQ keeps the set of its shards in one word

// Device is an open device.
type Device struct {
	link    link.Device
	options Options
	memory  *memory.Table
	shards  []*Shard
	numbers numbers
	gids    gids
	crowd   crowd
	asked   atomic.Int64 // the shards are to read what had arrived by this time (heard.go)

	follower follower
	doubts   doubts
	captures captures

	events    backlog[AsyncEvent]
	ownEvents eventState    // of the device itself
	done      chan struct{} // closed by Close

	mu           sync.Mutex
	qpCount      int
	cqs          map[*CQ]struct{}
	srqs         map[*SRQ]struct{}
	lastID       uint32 // of a CQ or SRQ, for Snapshot
	channelCount int
	closed       bool
	waiters      []*waiter // free ones
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
	if o.MoveAfter < 0 || o.MoveAfter > longestMoveAfter {
		return nil, fmt.Errorf("%w: moving after %d packets, the limit is %d", ErrInvalid, o.MoveAfter, longestMoveAfter)
	} else if o.MoveAfter == 0 {
		o.MoveAfter = defaultMoveAfter
	}
	queues := l.Queues()
	if len(queues) == 0 || len(queues) > maxShards {
		return nil, fmt.Errorf("%w: %s has %d queues, the engine drives 1 to %d: ask for fewer of them",
			ErrLimit, l.Information().Name, len(queues), maxShards)
	}
	d := &Device{
		link: l, options: o, memory: memory.NewTable(o.Seed), done: make(chan struct{}),
		cqs: make(map[*CQ]struct{}), srqs: make(map[*SRQ]struct{}),
	}
	d.events.init()
	d.numbers.init(rand.New(rand.NewPCG(o.Seed, 0x71706e73)))
	for i, q := range queues {
		s, err := newShard(d, i, q)
		if err != nil {
			d.stop()
			return nil, err
		}
		d.shards = append(d.shards, s)
	}
	for _, s := range d.shards {
		inboxes := make([]*inbox, len(d.shards))
		for i, from := range d.shards {
			inboxes[i] = &inbox{from: from, to: s}
			s.ways = append(s.ways, place{shard: s, to: from})
		}
		s.inboxes.Store(&inboxes)
	}
	if err := l.Steer(link.Steering{QPNBase: d.numbers.base, QPNBits: qpnBits}); err != nil {
		d.stop()
		return nil, err
	}
	d.startFollowing()
	if !o.Manual {
		for _, s := range d.shards {
			s.startBackground()
		}
	}
	d.enroll()
	return d, nil
}

// monotonic returns a clock that starts at 1.
func monotonic() func() transport.Time {
	start := time.Now()
	return func() transport.Time { return transport.Time(time.Since(start)) + 1 }
}

// Close stops the device. It fails while objects exist.
func (d *Device) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return ErrClosed
	}
	if d.qpCount > 0 || len(d.cqs) > 0 || len(d.srqs) > 0 || d.channelCount > 0 || d.memory.Count() > 0 {
		return fmt.Errorf("device %s: %w: %d QPs, %d CQs, %d SRQs, %d completion channels, %d memory regions",
			d.link.Information().Name, ErrInUse, d.qpCount, len(d.cqs), len(d.srqs), d.channelCount, d.memory.Count())
	}
	d.closed = true
	close(d.done)
	d.leave()
	d.stop()
	for _, other := range openDevices() {
		for _, s := range other.shards {
			s.forget(d)
		}
	}
	return d.link.Close()
}

func (d *Device) stop() {
	d.stopFollowing()
	for _, s := range d.shards {
		s.stop()
	}
	for _, w := range d.waiters {
		w.close()
	}
	d.waiters = nil
}

// Clock is the reading of the device's clock, the one of queue.WC.Timestamp: the time since the device was opened.
func (d *Device) Clock() time.Duration { return time.Duration(d.options.Clock()) }

// Link is the link that the device runs on.
func (d *Device) Link() link.Device { return d.link }

// Memory is the table of the device's memory regions.
func (d *Device) Memory() *memory.Table { return d.memory }

// Shards is the number of shards.
func (d *Device) Shards() int { return len(d.shards) }

// ethernetHeader is the longest there is: with an 802.1Q tag.
const ethernetHeader = 18

// MaxMTU is the largest path MTU that the buffers of the device's queues have room for.
func (d *Device) MaxMTU() roce.MTU {
	mtu, _ := roce.ActiveMTU(d.link.MaximumFrame() - ethernetHeader)
	return mtu
}

// ActiveMTU is the largest path MTU that the device carries now, and the network device's own MTU in bytes. With
// link.ErrDown they are those of a device which is down.
func (d *Device) ActiveMTU() (active roce.MTU, netdev int, err error) {
	netdev, err = d.link.MTU()
	if err != nil && !errors.Is(err, link.ErrDown) {
		return 0, 0, err
	}
	active, ok := roce.ActiveMTU(netdev)
	if !ok && err == nil {
		err = fmt.Errorf("%w: %s has MTU %d, the smallest path MTU (256) needs %d",
			ErrPathMTU, d.link.Information().Name, netdev, 256+roce.MTUOverhead)
	}
	return min(active, d.MaxMTU()), netdev, err
}

// CheckPathMTU says whether the device carries a path MTU now.
func (d *Device) CheckPathMTU(m roce.MTU) error { return d.checkPathMTU(m, false) }

// checkPathMTU is CheckPathMTU for the wire, or for loopback, which needs no carrier.
func (d *Device) checkPathMTU(m roce.MTU, loopback bool) error {
	active, netdev, err := d.ActiveMTU()
	if loopback && errors.Is(err, link.ErrDown) {
		err = nil
	}
	if err != nil || m <= active {
		return err
	}
	name := d.link.Information().Name
	if need := m.Bytes() + roce.MTUOverhead; netdev < need {
		return fmt.Errorf("%w: path MTU %v needs netdev MTU %d, %s has %d", ErrPathMTU, m, need, name, netdev)
	}
	return fmt.Errorf("%w: path MTU %v needs frames of %d bytes, %s has buffers for %d",
		ErrPathMTU, m, m.Bytes()+roce.MTUOverhead+ethernetHeader, name, d.link.MaximumFrame())
}

// checkWay says whether a route whose MTU is known (bytes; 0 is none) carries a path MTU.
func (d *Device) checkWay(m roce.MTU, mtu int, destination roce.GID) error {
	if need := m.Bytes() + roce.MTUOverhead; m != 0 && mtu != 0 && mtu < need {
		return fmt.Errorf("%w: path MTU %v needs MTU %d on the way, the route to %v over %s has %d",
			ErrPathMTU, m, need, destination, d.link.Information().Name, mtu)
	}
	return nil
}

// CheckWay says, with ErrPathMTU, that the route from source to destination has too small an MTU for a path MTU.
func (d *Device) CheckWay(m roce.MTU, source, destination roce.GID) error {
	return d.checkWay(m, d.routeMTU(source, destination), destination)
}

// WayMTU is the largest path MTU that the route from source to destination carries, at most m. If it carries none, it is m.
func (d *Device) WayMTU(m roce.MTU, source, destination roce.GID) roce.MTU {
	if active, ok := roce.ActiveMTU(d.routeMTU(source, destination)); ok {
		return min(m, active)
	}
	return m
}

// routeMTU is the MTU of the route from source to destination in bytes; 0 if it names none, or is not known.
func (d *Device) routeMTU(source, destination roce.GID) int {
	if within, err := d.within(destination.Addr()); within != nil || err != nil {
		return 0
	}
	return d.route(source.Addr(), destination).MTU
}

// route is what the kernel knows at once of the way from source, or where that is invalid from the address that it chooses.
func (d *Device) route(source netip.Addr, destination roce.GID) link.Neighbour {
	ctx, cancel := context.WithCancel(context.Background())
	cancel() // nothing depends on whether the neighbour is known
	neighbour, _ := d.link.Resolve(ctx, source, destination.Addr())
	return neighbour
}

// SourceTowards is the address from which the kernel would send to a peer over this device; the zero GID if that is not known.
func (d *Device) SourceTowards(peer roce.GID) roce.GID {
	source := d.route(netip.Addr{}, peer).Source
	if !source.IsValid() {
		return roce.GID{}
	}
	return roce.GIDFromAddr(source)
}

// AddressVector names the peer of a connected QP.
type AddressVector struct {
	DGID         roce.GID
	SGIDIndex    int
	TrafficClass uint8  // DSCP in bits 7:2, ECN in bits 1:0
	FlowLabel    uint32 // 0 derives one from the QPNs
}

// source checks an address vector and returns the GID that packets come from.
func (d *Device) source(av *AddressVector) (roce.GID, error) {
	source, err := d.GID(av.SGIDIndex)
	if err != nil {
		return source, err
	}
	if source.Is4() != av.DGID.Is4() {
		return source, fmt.Errorf("%w: GID %d of %s is %v, the peer's is %v: not of the same family",
			ErrInvalid, av.SGIDIndex, d.link.Information().Name, source, av.DGID)
	}
	if av.DGID.IsZero() || av.DGID.IsMulticast() {
		return source, fmt.Errorf("%w: destination GID %v is not the address of a peer", ErrInvalid, av.DGID)
	}
	return source, nil
}

// resolve makes a path out of an address vector, whose peer is on the device within the process or, if that is nil, to be
// found over the wire. The way has to carry a path MTU, if one is given.
func (d *Device) resolve(
	ctx context.Context, av *AddressVector, source roce.GID, within *Device, label uint32, need roce.MTU,
) (roce.Path, error) {
	// Nobody looks at the Ethernet addresses of frames on loopback.
	neighbour := link.Neighbour{HardwareAddr: d.link.HardwareAddr()}
	if within == nil {
		var err error
		if neighbour, err = d.link.Resolve(ctx, source.Addr(), av.DGID.Addr()); err != nil {
			return roce.Path{}, err
		}
		if err := d.checkWay(need, neighbour.MTU, av.DGID); err != nil {
			return roce.Path{}, err
		}
	}
	return roce.Path{
		SourceMAC: d.link.HardwareAddr(), DestinationMAC: neighbour.HardwareAddr,
		Source: source, Destination: av.DGID,
		TrafficClass: av.TrafficClass, HopLimit: neighbour.HopLimit,
		// The flow label of the IP header stays 0 unless the user asked for one, as rdma_rxe sends it.
		FlowLabel: av.FlowLabel & 0xFFFFF, SourcePort: roce.UDPSourcePort(label),
	}, nil
}

// adopt makes a QP a user of its CQs and its SRQ.
func (d *Device) adopt(q *QP) (err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	c := &q.config
	switch {
	case d.closed:
		return fmt.Errorf("device %s: %w", d.link.Information().Name, ErrClosed)
	case q.config.SendCQ.closed.Load():
		return fmt.Errorf("send CQ: %w", ErrClosed)
	case q.config.RecvCQ.closed.Load():
		return fmt.Errorf("receive CQ: %w", ErrClosed)
	case c.SRQ != nil && c.SRQ.closed.Load():
		return fmt.Errorf("SRQ: %w", ErrClosed)
	}
	if err = c.SendCQ.addQP(q); err == nil {
		if err = c.RecvCQ.addQP(q); err != nil {
			c.SendCQ.removeQP(q)
		}
	}
	if err != nil {
		return err
	}
	d.qpCount++
	if c.SRQ != nil {
		c.SRQ.qps++
	}
	return nil
}

// release undoes adopt, and gives the number back.
func (d *Device) release(q *QP) {
	d.numbers.release(q.number)
	c := &q.config
	c.SendCQ.removeQP(q)
	c.RecvCQ.removeQP(q)
	d.forget(AsyncEvent{QP: q})
	d.mu.Lock()
	defer d.mu.Unlock()
	d.qpCount--
	if c.SRQ != nil {
		c.SRQ.qps--
	}
}

// Drive runs every shard until none has anything to do, and reports whether any did. It is for Manual devices.
func (d *Device) Drive() bool {
	if d.look() {
		d.reroute(context.Background())
	}
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
		s.unlock()
	}
	return next, found
}

// Counters returns the sums over all shards.
func (d *Device) Counters() (transport.Counters, link.Counters) {
	var t transport.Counters
	var l link.Counters
	for _, s := range d.shards {
		own, carrier := s.counters()
		t.Add(&own)
		l.Add(&carrier)
	}
	return t, l
}

// counters returns the counts of the shard and of its queue.
func (s *Shard) counters() (transport.Counters, link.Counters) {
	s.mu.Lock()
	t := *s.engine.Counters()
	s.unlock()
	return t, s.queue.Counters()
}
