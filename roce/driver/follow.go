package driver

// A port does not stay as it was when it was opened: its carrier comes and goes, MTU and addresses change, a peer's
// Ethernet address or the way to it does, and the network device itself may be deleted and made again.
//
// Life of a change: the link notes it (Device.note) and a goroutine, off the data path, asks what is so now. It raises
// the events of the port and ends the queue pairs whose path MTU the network device does not carry any more; another
// one finds the ways to the peers again. A way that is not found now stays as it is and is looked for again, for a
// while.

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/xroce/xroce/roce"
	"github.com/xroce/xroce/roce/link"
	"github.com/xroce/xroce/roce/queue"
	"github.com/xroce/xroce/roce/transport"
)

const (
	// wayTimeout bounds one search for a way. A neighbour that is there answers within a millisecond; the kernel asks
	// one that does not three times, a second apart (mcast_solicit, net/ipv4/arp.c).
	wayTimeout = 500 * time.Millisecond
	// wayPause and wayTries bound the repetitions, while no further change comes: longer than the ACK timeouts of a
	// queue pair usually last (code 17 and 7 resends are 4.3 s).
	wayPause = 200 * time.Millisecond
	wayTries = 30
	// wayRest is the least time between two searches.
	wayRest = 20 * time.Millisecond
	// waySearches is how many ways are looked for at once: those to peers that are gone must not hold up the others.
	waySearches = 16
)

// follower is what a device knows of its port; name, up, mtu and gids belong to the goroutine that looks at it.
type follower struct {
	pending      atomic.Uint32 // link.Change bits
	wake, search chan struct{} // to look at the port, and for the ways
	stop         context.CancelFunc
	ended        sync.WaitGroup

	renamed atomic.Pointer[func(name string)] // see OnRename

	name string // of the network device
	up   bool
	mtu  int // of the network device, bytes
	gids []roce.GID
}

// startFollowing takes down how the port is and follows it from then on.
func (d *Device) startFollowing() {
	f := &d.follower
	f.wake, f.search = make(chan struct{}, 1), make(chan struct{}, 1)
	d.link.Watch(d.note)
	mtu, err := d.link.MTU()
	f.up, f.mtu = err == nil, mtu
	f.name = d.link.Information().Name
	f.gids, _ = d.GIDs()
	ctx, cancel := context.WithCancel(context.Background())
	f.stop = cancel
	d.startConfirming(ctx)
	if !d.options.Manual {
		f.ended.Go(func() { d.follow(ctx) })
		f.ended.Go(func() { d.search(ctx) })
		f.ended.Go(func() { d.watch(ctx) })
	}
}

func (d *Device) stopFollowing() {
	if d.follower.stop != nil {
		d.follower.stop()
		d.follower.ended.Wait()
	}
}

// OnRename has f called, off the data path, with each new name of the network device until Close.
func (d *Device) OnRename(f func(name string)) { d.follower.renamed.Store(&f) }

// note takes a change from the link, or one that may have passed unseen.
func (d *Device) note(c link.Change) {
	f := &d.follower
	f.pending.Or(uint32(c))
	signal(f.wake)
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

func (d *Device) follow(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-d.follower.wake:
			if d.look() {
				signal(d.follower.search)
			}
		}
	}
}

// search looks for the ways, on a goroutine of its own: it may wait for peers that are gone, and the port must not.
func (d *Device) search(ctx context.Context) {
	again := time.NewTimer(0)
	defer again.Stop()
	again.Stop()
	for tries := 0; ; {
		select {
		case <-ctx.Done():
			return
		case <-d.follower.search:
			tries = 0
		case <-again.C:
		}
		if found := d.reroute(ctx); !found && tries < wayTries {
			tries++
			again.Reset(wayPause)
		}
		select { // routes may change all the time
		case <-ctx.Done():
			return
		case <-time.After(wayRest):
		}
	}
}

// look sees to what has changed but the ways. It reports whether anything has.
func (d *Device) look() bool {
	c := link.Change(d.follower.pending.Swap(0))
	if c&link.ChangedQueues != 0 {
		for _, s := range d.shards {
			s.resume()
		}
	}
	if c&(link.ChangedPort|link.ChangedDown) != 0 {
		d.followPort(c&link.ChangedDown != 0)
	}
	return c != 0
}

// resume has the shard's queue use what was made anew under it, if anything, and try again what has failed; whoever
// sleeps in poll(2) gets the new descriptor. No kick is under way meanwhile, whose result would be that of the old one.
func (s *Shard) resume() {
	s.kickMu.Lock()
	s.mu.Lock()
	if !s.closed {
		s.queue.Renew()
	}
	s.failed.Store(false)
	s.down.Store(false)
	s.mu.Unlock()
	s.kickMu.Unlock()
	s.kick() // for those, too, who found one of the locks taken
	s.drive(driveBriefly)
	s.sleep.remind(0)
}

// followPort tells about the port and ends the queue pairs that it does not carry any more. wasDown says that it was
// down, perhaps for a moment only. Another MTU makes EventPortActive: there is no event of its own, and a NIC takes its
// port down and up for it.
func (d *Device) followPort(wasDown bool) {
	f := &d.follower
	active, netdev, err := d.ActiveMTU()
	if name := d.link.Information().Name; name != f.name {
		f.name = name
		if renamed := f.renamed.Load(); renamed != nil {
			(*renamed)(name)
		}
	}
	if f.up && (wasDown || errors.Is(err, link.ErrDown)) {
		f.up = false
		d.raise(transport.EventPortErr)
	}
	if !f.up && !errors.Is(err, link.ErrDown) {
		f.up = true
		for _, s := range d.shards {
			s.resume()
		}
		d.raise(transport.EventPortActive)
	}
	// A device that is gone says nothing of its addresses, and may come back with the same ones.
	if gids, err := d.GIDs(); err == nil && !slices.Equal(gids, f.gids) {
		f.gids = gids
		d.raise(transport.EventGIDChange)
	}
	if netdev == 0 {
		return // it is gone
	}
	for _, q := range d.wired() {
		q.limitMTU(active)
	}
	if f.mtu != netdev && f.up {
		d.raise(transport.EventPortActive)
	}
	f.mtu = netdev
}

// wired returns the queue pairs with a peer over the wire.
func (d *Device) wired() (list []*QP) {
	for _, users := range d.routes.all() {
		for _, h := range users {
			if q := h.holder.Load(); q != nil {
				list = append(list, q)
			}
		}
	}
	return list
}

// locked runs f under the lock of the shard where a queue pair is at home, if its packets go over the wire.
func (q *QP) locked(f func(*transport.QP)) {
	q.control.Lock()
	home := q.lock()
	if s := q.transport.State(); q.handle != nil && q.handle.within == nil && s >= transport.StateRTR && s != transport.StateError {
		f(q.transport)
	}
	home.unlock()
	q.control.Unlock()
	home.drive(driveBriefly)
}

// reroute has the queue pair's packets take the next hop of its address handle.
func (q *QP) reroute(h *AddressHandle) {
	q.locked(func(t *transport.QP) {
		if q.handle == h { // in SQD it may have got another peer meanwhile
			t.Reroute(h.path(0))
		}
	})
}

// limitMTU ends the queue pair if its path MTU is larger than the port's.
func (q *QP) limitMTU(active roce.MTU) {
	q.locked(func(t *transport.QP) {
		if t.Attributes().PathMTU > active {
			t.Fail(q.device.options.Clock(), queue.WCLocQPOpErr)
		}
	})
}

// reroute finds the next hops of all routes again.
func (d *Device) reroute(ctx context.Context) (found bool) {
	var missing atomic.Bool
	var searches sync.WaitGroup
	places := make(chan struct{}, waySearches)
	for w, users := range d.routes.all() {
		places <- struct{}{}
		searches.Go(func() {
			defer func() { <-places }()
			ctx, cancel := context.WithTimeout(ctx, wayTimeout)
			defer cancel()
			neighbour, err := d.link.Resolve(ctx, w.source, w.destination)
			if err != nil {
				if !errors.Is(err, link.ErrDown) { // otherwise there is another change when it is up
					missing.Store(true)
				}
				return
			}
			for _, h := range users {
				h.reroute(&neighbour)
			}
		})
	}
	searches.Wait()
	return !missing.Load()
}
