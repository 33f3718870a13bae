// Package driver joins a link to the transport: it shares the work out to shards, reads the clock, resolves
// addresses, and decides who drives whom and who sleeps.
//
// A shard is one queue of the link with the transport state of the queue pairs at home there, under one mutex. Whoever
// needs progress drives: posting and polling try the shard's lock and, if they get it, do whatever is to be done
// (shard.go). A blocked wait leads the shard from poll(2) (wait.go); a goroutine in the background does so while nobody
// polls or waits (background.go). Frames that arrive at the wrong shard are handed over (inbox.go), and a queue pair
// whose frames all do so moves (move.go). Frames to an address of this process go through inboxes, too (loopback.go).
// Deadlines wait for what had arrived when they passed (heard.go). What changes about the port is followed (follow.go),
// and the way to a peer that is silent looked at (confirm.go).
//
// Programs use a device through its port (port.go): a client posts and polls in rings, of which the other ends are
// here.
//
// The locks of this package and of its clients are taken in one order (internal/lockorder, and docs/architecture.md for
// what each of them guards). No system call is made under a shard's lock.
//
// It is the engine's own and changes as that needs; programs use package verbs.
package driver

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/xroce/xroce/internal/lockorder"
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
	// MoveAfter is how many packets of a QP have to come in at another queue in a row, and none at its own, until it
	// moves there; 0 means 256. Each move takes twice as many as the last one.
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
	routes  routes
	crowd   crowd
	asked   atomic.Int64 // the shards are to read what had arrived by this time (heard.go)

	follower follower
	doubts   doubts
	captures captures

	done    chan struct{}             // closed by Close
	clients atomic.Pointer[[]*Client] // replaced under mu, never changed; never nil

	mu      lockorder.Mutex[lockorder.Device]
	qpCount int
	cqs     map[*CQ]struct{}
	srqs    map[*SRQ]struct{}
	lastID  uint32 // of a CQ or SRQ, for Snapshot
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
	d.clients.Store(new([]*Client))
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
	random := rand.New(rand.NewPCG(o.Seed, 0x71706e73))
	assigned, err := l.Steer(proposeQPNs(random))
	if err == nil {
		err = d.numbers.init(assigned, random)
	}
	if err != nil {
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

// Close stops the device. It fails while objects exist, and with ErrClosed once another Close has begun.
func (d *Device) Close() error {
	if err := d.shut(); err != nil {
		return err
	}
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

// shut has the device make nothing any more, unless there are objects.
func (d *Device) shut() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return ErrClosed
	}
	if d.qpCount > 0 || len(d.cqs) > 0 || len(d.srqs) > 0 || d.memory.Count() > 0 {
		return fmt.Errorf("device %s: %w: %d QPs, %d CQs, %d SRQs, %d memory regions",
			d.link.Information().Name, ErrInUse, d.qpCount, len(d.cqs), len(d.srqs), d.memory.Count())
	}
	d.closed = true
	for _, c := range *d.clients.Load() {
		c.closed = true
		c.end()
	}
	return nil
}

func (d *Device) stop() {
	d.stopFollowing()
	for _, s := range d.shards {
		s.stop()
	}
	d.mu.Lock()
	waiters := d.waiters
	d.waiters = nil
	d.mu.Unlock()
	for _, w := range waiters {
		w.close()
	}
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

// adopt makes a QP a user of its CQs and its SRQ.
func (d *Device) adopt(q *QP) (err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	c := &q.config
	if err := q.client.admits("QP", len(q.client.qps), q.client.limits.QPs); err != nil {
		return err
	}
	switch {
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
	q.client.qps[q] = struct{}{}
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
	q.client.events.forget(AsyncEvent{QP: q})
	d.mu.Lock()
	defer d.mu.Unlock()
	d.qpCount--
	delete(q.client.qps, q)
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
	t := s.engine.Counters()
	s.unlock()
	return t, s.queue.Counters()
}
