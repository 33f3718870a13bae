package driver

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/xroce/xroce/roce/queue"
)

// MaxCQE is the largest capacity of a completion queue.
const MaxCQE = queue.MaxCapacity

// CQ is a completion queue. Its methods may be called concurrently.
type CQ struct {
	device *Device

	// shards is the set of the shards at which QPs of the CQ are at home, a bit each.
	shards atomic.Uint64
	closed atomic.Bool
	qps    int // queues that complete here; guarded by Device.mu

	produce  sync.Mutex // held by the shard that adds a completion
	producer *queue.Producer

	consume  sync.Mutex
	consumer *queue.Consumer
	misses   int // empty polls in a row

	mu      sync.Mutex
	waiters []*waiter
}

// CreateCQ makes a completion queue for capacity completions.
func (d *Device) CreateCQ(capacity int) (*CQ, error) {
	if capacity < 1 || capacity > MaxCQE {
		return nil, fmt.Errorf("%w: CQ of %d entries, the limit is 1 to %d", ErrLimit, capacity, MaxCQE)
	}
	layout := queue.CompletionLayout(capacity)
	producer, consumer, err := ringPair(layout)
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, ErrClosed
	}
	d.cqCount++
	return &CQ{device: d, producer: producer, consumer: consumer}, nil
}

// ringPair makes both ends of a ring in ordinary memory.
func ringPair(layout queue.Layout) (*queue.Producer, *queue.Consumer, error) {
	memory := make([]byte, layout.Size())
	producer, err := queue.NewProducer(memory, layout)
	if err != nil {
		return nil, nil, err
	}
	consumer, err := queue.NewConsumer(memory, layout)
	return producer, consumer, err
}

// Capacity is the number of completions that the CQ holds.
func (c *CQ) Capacity() int { return c.producer.Capacity() }

// Poll takes at most len(wcs) completions out of the queue and returns their number. If there are none it drives
// the shards of the CQ's QPs first. It never blocks, but a poller that finds nothing gives its CPU away now and then.
func (c *CQ) Poll(wcs []queue.WC) (int, error) {
	if n, empty := c.take(wcs); !empty {
		return n, nil
	}
	if c.closed.Load() {
		return 0, ErrClosed
	}
	c.drive()
	c.consume.Lock()
	n := c.consumer.ReadCompletions(wcs)
	pause := false
	if n > 0 {
		c.misses = 0
	} else if c.misses++; c.misses%yieldEvery == 0 {
		pause = true
	}
	c.consume.Unlock()
	if pause {
		yield()
	}
	return n, nil
}

func (c *CQ) take(wcs []queue.WC) (n int, empty bool) {
	c.consume.Lock()
	defer c.consume.Unlock()
	n = c.consumer.ReadCompletions(wcs)
	return n, n == 0 && len(wcs) > 0
}

func (c *CQ) notEmpty() bool {
	c.consume.Lock()
	defer c.consume.Unlock()
	return c.consumer.Available(0) > 0
}

func (c *CQ) arm() {
	c.consume.Lock()
	defer c.consume.Unlock()
	c.consumer.Arm(false)
}

// drive drives the CQ's shards on behalf of a poller, which renews the lease on them.
func (c *CQ) drive() {
	for i, set := 0, c.shards.Load(); set != 0; i, set = i+1, set>>1 {
		if set&1 != 0 {
			s := c.device.shards[i]
			s.polls.Add(1)
			s.drive(driveBriefly)
		}
	}
}

// addShard notes that a QP of the CQ is at home at a shard.
func (c *CQ) addShard(s *Shard) {
	bit := uint64(1) << s.index
	for {
		old := c.shards.Load()
		if old&bit != 0 {
			return
		}
		if c.shards.CompareAndSwap(old, old|bit) {
			c.notify()
			return
		}
	}
}

// complete adds a completion; fired says that somebody waits for it.
func (c *CQ) complete(wc *queue.WC, solicited bool) (ok, fired bool) {
	c.produce.Lock()
	defer c.produce.Unlock()
	if !c.producer.WriteCompletion(wc) {
		return false, false
	}
	return true, c.producer.Disarm(solicited)
}

// notify wakes everybody who waits for the CQ.
func (c *CQ) notify() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, w := range c.waiters {
		w.wake()
	}
}

func (c *CQ) addWaiter(w *waiter) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.waiters = append(c.waiters, w)
}

func (c *CQ) removeWaiter(w *waiter) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, v := range c.waiters {
		if v == w {
			c.waiters = append(c.waiters[:i], c.waiters[i+1:]...)
			return
		}
	}
}

// Close destroys the CQ. It fails while QPs use it; blocked waits return ErrClosed.
func (c *CQ) Close() error {
	d := c.device
	d.mu.Lock()
	defer d.mu.Unlock()
	if c.closed.Load() {
		return ErrClosed
	}
	if c.qps > 0 {
		return fmt.Errorf("CQ: %w by %d queues of QPs", ErrInUse, c.qps)
	}
	c.closed.Store(true)
	d.cqCount--
	c.notify()
	return nil
}

// completions is a CQ as the transport sees it from one QP.
type completions struct {
	cq *CQ
	qp *QP
}

// Complete implements transport.CompletionQueue. It runs under the lock of the QP's shard.
func (c *completions) Complete(wc *queue.WC, solicited bool) bool {
	ok, fired := c.cq.complete(wc, solicited)
	if fired {
		home := c.qp.home.Load()
		home.fired = append(home.fired, c.cq)
		home.hasFired.Store(true)
	}
	return ok
}
