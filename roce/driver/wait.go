package driver

// A blocked wait spins for a moment, since the answer of a peer is usually that near, then sleeps in poll(2) on the
// sockets of its CQ's shards itself: no other thread has to be woken first (a wake-up on another CPU costs 30
// to 35 us). The first one on a shard leads, the others follow: they park until a completion of theirs is
// noticed by whoever drives, or until the leader leaves and one of them takes its place.

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// spinTime is how long a wait polls before it sleeps; yieldEvery is how many empty polls go between
	// two calls of sched_yield. With 20 to 50 us and 4 to 16 a round trip takes 4 us on two CPUs and 5 us on one.
	spinTime   = 30 * time.Microsecond
	yieldEvery = 8
)

// waiter is a goroutine that sleeps, in poll(2) or parked.
type waiter struct {
	event eventfd
	park  chan struct{}
	set   pollSet

	// background says that this is a shard's background goroutine, which gives way to blocked waits.
	background bool

	woken atomic.Bool
	mode  atomic.Int32

	mu     sync.Mutex
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

// sleep waits in poll(2) on the sockets of the shards, for at most timeout unless it is negative.
func (w *waiter) sleep(shards []*Shard, timeout time.Duration) {
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

// Wait returns as soon as the CQ is not empty, or with the error of ctx, or with ErrClosed. Any number of goroutines may
// wait. It may return although another goroutine was faster to poll.
func (c *CQ) Wait(ctx context.Context) error {
	start := time.Now()
	for i := 1; ; i++ {
		if c.notEmpty() {
			return nil
		}
		if err := c.over(ctx); err != nil {
			return err
		}
		c.drive()
		if i%yieldEvery == 0 {
			if time.Since(start) > spinTime {
				break
			}
			yield()
		}
	}
	return c.block(ctx)
}

func (c *CQ) over(ctx context.Context) error {
	if c.closed.Load() {
		return ErrClosed
	}
	return ctx.Err()
}

func (c *CQ) block(ctx context.Context) error {
	w, err := c.device.takeWaiter()
	if err != nil {
		return err
	}
	defer c.device.returnWaiter(w)
	c.addWaiter(w)
	defer c.removeWaiter(w)
	defer context.AfterFunc(ctx, w.wake)()
	for {
		// A QP that comes to life on another shard changes the set.
		if done, err := c.blockOn(ctx, w, c.shards.Load()); done {
			return err
		}
	}
}

// blockOn waits with a fixed set of shards; done is false if the set has changed.
func (c *CQ) blockOn(ctx context.Context, w *waiter, set uint64) (done bool, err error) {
	var shards, led []*Shard
	for i, s := range c.device.shards {
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
		c.arm()
		if c.notEmpty() {
			return true, nil
		}
		if err := c.over(ctx); err != nil {
			return true, err
		}
		if c.shards.Load() != set {
			return false, nil
		}
		if len(led) > 0 {
			w.sleep(led, timeout)
		} else {
			w.parkUntilWoken()
		}
		for _, s := range led {
			s.sleep.awake()
			s.drive(driveBriefly)
		}
	}
}
