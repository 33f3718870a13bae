package driver

// A blocked wait spins for a moment, since the answer of a peer is usually that near, then sleeps in poll(2) on the
// sockets of the shards of its CQ, or of its channel's CQs, itself: no other thread has to be woken first (a wake-up on
// another CPU costs 30 to 35 us). Where there is no socket but memory, it parks in the Go runtime instead, and who
// brings a frame wakes it. The first one on a shard leads, the others follow: they park until a completion of theirs is
// noticed by whoever drives, or until the leader leaves and one of them takes its place.

import (
	"context"
	"math/bits"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/xroce/xroce/internal/lockorder"
)

const (
	// spinTime is how long a wait polls before it sleeps, and spinPolls how often at most: in testing/synctest time
	// stands still while anybody runs. Elsewhere the time is over long before. yieldEvery is how many empty polls go
	// between two calls of sched_yield. With 20 to 50 us and 4 to 16 a round trip takes 4 us on two CPUs and 5 us on
	// one.
	spinTime   = 30 * time.Microsecond
	spinPolls  = 4096
	yieldEvery = 8
	// A poller that only calls sched_yield keeps its P: with one on every P the program's other goroutines advance by
	// what the runtime's monitor takes away from it, 10 ms at a time. So it calls the Go scheduler after
	// rescheduleFirst empty polls in a row, after twice as many each time, and every rescheduleEvery at last: each call
	// wakes another thread of the runtime to look for work. (TestStaleKeys with two pollers on two CPUs: 50
	// registrations a second without, 5,700 every 64, 4,600 so, and 360 every 4,096; TestCase_F15_Busy, one poller:
	// 1.10 CPUs every 64, 1.02 so.)
	rescheduleFirst, rescheduleEvery = 64, 4096
)

const (
	// slowYield is how long a call of sched_yield takes at most unless the CPU went to another thread for long: with a
	// peer that polls on the same CPU it takes 5 us.
	slowYield = 100 * time.Microsecond
	// longestNap bounds how long a poller sleeps, which may have other things to look at than this device.
	longestNap = time.Millisecond
	// mostNaps is how many naps are made at last between two yields: fewer than one round trip in a hundred then waits
	// for a yield, and a quarter of a second after the machine has become quiet pollers spin again.
	mostNaps = 256
)

// crowd is what the pollers of a device know of other threads that want their CPUs. With more runnable threads than
// CPUs each sched_yield gives a whole round of the others away (in Linux 6.6 and later it puts the thread's deadline
// off by a slice: yield_task_fair, kernel/sched/fair.c), whereas a thread that sleeps in poll(2) gets the CPU soon
// after its frame has come. So a yield that took long is followed by a nap instead of another one, two yields in a row
// by two naps, then by four, and so on. It is shared without a lock: a count that is lost does no harm.
type crowd struct {
	naps  atomic.Uint32 // to make before the next yield
	after atomic.Uint32 // how many there were after the last slow yield
}

// yield gives the CPU away, and reports whether it is better to sleep.
func (c *crowd) yield() (slow bool) {
	if left := c.naps.Load(); left > 0 {
		c.naps.Store(left - 1)
		return true
	}
	before := time.Now()
	yield()
	if time.Since(before) < slowYield {
		if c.after.Load() != 0 {
			c.after.Store(0)
		}
		return false
	}
	c.slow()
	return true
}

// slow notes that a yield took long.
func (c *crowd) slow() {
	naps := min(max(2*c.after.Load(), 1), mostNaps)
	c.after.Store(naps)
	c.naps.Store(naps - 1)
}

// Pause gives the CPU away now and then, after so many empty polls of o in a row.
func (g *Group) Pause(misses uint32, o Waitable) {
	switch {
	case misses == 0 || misses%yieldEvery != 0:
	case misses%rescheduleFirst == 0 && g.device.shards[0].waker != nil:
		g.nap(o) // time may have to wait for it
	case misses >= rescheduleFirst && misses&(misses-1) == 0, misses%rescheduleEvery == 0:
		runtime.Gosched()
	case g.device.crowd.yield():
		g.nap(o)
	}
}

// wakes says whether frames at the shard end a sleep.
func (s *Shard) wakes() bool { return s.waker != nil || s.queue.FD() >= 0 }

// nap sleeps for a moment, until something has come in for o.
func (g *Group) nap(o Waitable) {
	d, set := g.device, g.shards.bits.Load()
	if set == 0 || !d.shards[bits.TrailingZeros64(set)].wakes() {
		yield() // nothing would wake it
		return
	}
	w, err := d.takeWaiter()
	if err != nil {
		return
	}
	defer d.returnWaiter(w)
	g.sleepers.add(w)
	defer g.sleepers.remove(w)
	timeout := longestNap
	w.led = w.led[:0]
	for i, s := range d.shards {
		if set&(1<<i) == 0 {
			continue
		}
		s.sleep.waiters.Add(1)
		t, ok := s.lead(w)
		if !ok {
			s.sleep.displace()
			continue
		}
		w.led = append(w.led, s)
		if t >= 0 {
			timeout = min(timeout, t)
		}
	}
	o.Arm()
	if done, _ := look(context.Background(), o); !done {
		if d.shards[0].waker != nil {
			w.parkOn(w.led, timeout)
		} else {
			w.sleep(w.led, timeout)
		}
	}
	for i, s := range d.shards {
		if set&(1<<i) == 0 {
			continue
		}
		s.sleep.leave(w)
		if s.sleep.waiters.Add(-1) == 0 {
			s.background.endRest()
		}
	}
}

// waiter is a goroutine that sleeps, in poll(2) or parked.
type waiter struct {
	event eventfd
	park  chan struct{}
	set   pollSet
	led   []*Shard // in a nap

	// background says that this is a shard's background goroutine, which gives way to blocked waits.
	background bool

	woken atomic.Bool
	mode  atomic.Int32

	mu     lockorder.Mutex[lockorder.Waiter]
	closed bool
}

const (
	awake int32 = iota
	polling
	parked
)

func newWaiter() (*waiter, error) {
	event, err := newEventfd()
	return &waiter{event: event, park: make(chan struct{}, 1)}, err
}

// close ends the waiter's life. A late wake does no harm: it must not write to a descriptor that
// belongs to somebody else by now.
func (w *waiter) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	w.event.close()
}

// wake ends the present or else the next sleep.
func (w *waiter) wake() {
	w.woken.Store(true)
	switch w.mode.Load() {
	case polling:
		w.mu.Lock()
		if !w.closed {
			w.event.signal()
		}
		w.mu.Unlock()
	case parked:
		select {
		case w.park <- struct{}{}:
		default:
		}
	}
}

// sleep waits in poll(2) on the sockets of the shards, for at most timeout unless it is negative; or parked where they
// have none.
func (w *waiter) sleep(shards []*Shard, timeout time.Duration) {
	if len(shards) > 0 && shards[0].waker != nil {
		w.parkOn(shards, timeout)
		return
	}
	w.set.reset()
	w.set.add(w.event.fd)
	for _, s := range shards {
		w.set.add(s.queue.FD())
	}
	w.mode.Store(polling)
	if !w.woken.Load() && w.set.poll(timeout) {
		// Only what poll(2) has seen is taken back. A wake whose signal comes after that ends the next sleep
		// at once, which is one turn too many and not a wake-up lost.
		w.event.drain()
	}
	w.mode.Store(awake)
	w.woken.Store(false)
}

// parkOn waits until it is woken, frames wait at one of the shards, or the time is over.
func (w *waiter) parkOn(shards []*Shard, timeout time.Duration) {
	var alarm <-chan time.Time
	if timeout >= 0 {
		timer := time.NewTimer(timeout)
		defer timer.Stop()
		alarm = timer.C
	}
	// Frames that come from now on wake the leader.
	for _, s := range shards {
		if s.waker.Waiting() {
			w.woken.Store(true)
		}
	}
	w.parkFor(alarm)
}

// parkUntilWoken waits without any descriptor.
func (w *waiter) parkUntilWoken() { w.parkFor(nil) }

// parkFor waits without any descriptor until it is woken or something comes from alarm.
func (w *waiter) parkFor(alarm <-chan time.Time) {
	w.mode.Store(parked)
	if !w.woken.Load() {
		select {
		case <-w.park:
		case <-alarm:
		}
	}
	w.mode.Store(awake)
	w.woken.Store(false)
	select {
	case <-w.park:
	default:
	}
}

// takeWaiter returns a waiter that nobody uses.
func (d *Device) takeWaiter() (*waiter, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, ErrClosed
	}
	if last := len(d.waiters) - 1; last >= 0 {
		w := d.waiters[last]
		d.waiters = d.waiters[:last]
		w.woken.Store(false)
		return w, nil
	}
	return newWaiter()
}

func (d *Device) returnWaiter(w *waiter) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		w.close()
		return
	}
	d.waiters = append(d.waiters, w)
}

// Wait returns as soon as o is ready, or with an error when ctx has ended or o is over.
func (g *Group) Wait(ctx context.Context, o Waitable) error {
	start := time.Now()
	for i := 1; ; i++ {
		if done, err := look(ctx, o); done {
			return err
		}
		g.DrivePolled()
		if i%yieldEvery == 0 {
			if time.Since(start) > spinTime || i >= spinPolls || g.device.crowd.yield() {
				break
			}
		}
	}
	return g.block(ctx, o)
}

// look says whether a wait is done, and how.
func look(ctx context.Context, o Waitable) (done bool, err error) {
	err = o.Over() // asked first: what became ready before the end is taken before it is told
	switch {
	case o.Ready():
		return true, nil
	case err != nil:
		return true, err
	}
	err = ctx.Err()
	return err != nil, err
}

func (g *Group) block(ctx context.Context, o Waitable) error {
	w, err := g.device.takeWaiter()
	if err != nil {
		return err
	}
	defer g.device.returnWaiter(w)
	g.sleepers.add(w)
	defer g.sleepers.remove(w)
	defer context.AfterFunc(ctx, w.wake)()
	for {
		// A QP that comes to life on another shard changes the set.
		if done, err := g.blockOn(ctx, w, o, g.shards.bits.Load()); done {
			return err
		}
	}
}

// blockOn waits with a fixed set of shards; done is false if the set has changed.
func (g *Group) blockOn(ctx context.Context, w *waiter, o Waitable, set uint64) (done bool, err error) {
	var shards, led []*Shard
	for i, s := range g.device.shards {
		if set&(1<<i) != 0 {
			shards = append(shards, s)
			s.sleep.enter(w)
		}
	}
	defer func() {
		for _, s := range shards {
			if s.sleep.exit(w) {
				s.background.endRest()
			}
		}
	}()
	for {
		led = led[:0]
		timeout := time.Duration(-1)
		for _, s := range shards {
			t, ok := s.lead(w)
			if !ok {
				s.sleep.displace()
				continue
			}
			led = append(led, s)
			if t >= 0 && (timeout < 0 || t < timeout) {
				timeout = t
			}
		}
		o.Arm()
		if done, err := look(ctx, o); done {
			return true, err
		}
		if g.shards.bits.Load() != set {
			return false, nil
		}
		if len(led) > 0 {
			w.sleep(led, timeout)
		} else {
			w.parkUntilWoken()
		}
		for _, s := range led {
			s.sleep.awake()
			s.driveFor(driveBriefly, s.background.resting.Load())
		}
	}
}
