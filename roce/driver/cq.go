package driver

// Life of a completion: the transport adds it under the lock of its QP's shard (completions.Complete); if somebody asked to
// be told, the CQ is noted as fired, and once the lock is released he is (CQ.fire). A completion without room is lost,
// which must not go unseen: the CQ takes no further one, and all its QPs end, wherever they are at home.

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/xroce/xroce/roce/queue"
	"github.com/xroce/xroce/roce/transport"
)

// MaxCQE is the largest capacity of a completion queue.
const MaxCQE = queue.MaxCapacity

// ErrOverrun is returned by everything that needs a CQ which had no room for a completion: it has lost that one.
var ErrOverrun = errors.New("a completion was lost for lack of room")

// CQ is a completion queue. Its methods may be called concurrently.
type CQ struct {
	device  *Device
	id      uint32
	channel *CompChannel // or nil
	owner   atomic.Value
	events  eventState
	listed  bool // it is in the channel's list; guarded by the lock of that

	shards   shardSet // where QPs of the CQ are at home
	sleepers sleepers
	awaited  atomic.Bool   // a blocked wait wants to be woken by the next completion
	due      atomic.Uint32 // what fire has to do
	closed   atomic.Bool
	overrun  atomic.Bool // set under produce; from then on nothing is added

	mu  sync.Mutex
	qps roster // that complete here

	produce  sync.Mutex // held by the shard that adds a completion
	producer *queue.Producer

	consume  sync.Mutex
	consumer *queue.Consumer
	misses   uint32 // empty polls in a row
}

// What is due after a completion, once the shard's lock is released.
const (
	dueWake    = 1 << iota // blocked waits
	dueEvent               // an event of the channel
	dueOverrun             // the end of all QPs of the CQ
	dueShards              // who waits has to look at another shard, too
)

// CreateCQ makes a completion queue for capacity completions. Its channel may be nil.
func (d *Device) CreateCQ(capacity int, channel *CompChannel) (*CQ, error) {
	if channel != nil && channel.device != d {
		return nil, fmt.Errorf("CQ: %w: the completion channel belongs to another device", ErrInvalid)
	}
	producer, consumer, err := completionRing(capacity)
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.closed, channel != nil && channel.closed.Load():
		return nil, ErrClosed
	case len(d.cqs) == MaxCQ:
		return nil, fmt.Errorf("%w: CQ number %d, the device has %d", ErrLimit, len(d.cqs)+1, MaxCQ)
	}
	if channel != nil {
		channel.cqs++
	}
	d.lastID++
	c := &CQ{device: d, id: d.lastID, channel: channel, producer: producer, consumer: consumer}
	d.cqs[c] = struct{}{}
	return c, nil
}

func completionRing(capacity int) (*queue.Producer, *queue.Consumer, error) {
	if capacity < 1 || capacity > MaxCQE {
		return nil, nil, fmt.Errorf("%w: CQ of %d entries, the limit is 1 to %d", ErrLimit, capacity, MaxCQE)
	}
	return ringPair(queue.CompletionLayout(capacity))
}

// ringPair makes both ends of a ring in ordinary memory.
func ringPair(layout queue.Layout) (*queue.Producer, *queue.Consumer, error) {
	memory, err := queue.New(layout)
	if err != nil {
		return nil, nil, err
	}
	producer, err := queue.NewProducer(memory, layout)
	if err != nil {
		return nil, nil, err
	}
	consumer, err := queue.NewConsumer(memory, layout)
	return producer, consumer, err
}

// SetOwner attaches a value that Owner returns.
func (c *CQ) SetOwner(o any) { c.owner.Store(o) }

// Owner is what SetOwner has attached, or nil.
func (c *CQ) Owner() any { return c.owner.Load() }

// Capacity is the number of completions that the CQ holds.
func (c *CQ) Capacity() int {
	c.consume.Lock()
	defer c.consume.Unlock()
	return c.consumer.Capacity()
}

// Poll takes at most len(wcs) completions out of the queue and returns their number. If there are none it drives
// the shards of the CQ's QPs first. A poller that finds nothing gives its CPU away now and then; on a machine with more runnable
// threads than CPUs it then sleeps, for a millisecond at most and until something has come in.
func (c *CQ) Poll(wcs []queue.WC) (int, error) {
	err := c.over() // asked first: what was added before the end is taken before it is told
	if n, empty := c.take(wcs); !empty {
		return n, nil
	}
	if err != nil {
		return 0, err
	}
	c.device.drivePolled(&c.shards)
	c.consume.Lock()
	n := c.consumer.ReadCompletions(wcs)
	if n > 0 {
		c.misses = 0
	} else {
		c.misses++
	}
	misses := c.misses
	c.consume.Unlock()
	c.device.pause(misses, c)
	return n, nil
}

func (c *CQ) take(wcs []queue.WC) (n int, empty bool) {
	c.consume.Lock()
	defer c.consume.Unlock()
	n = c.consumer.ReadCompletions(wcs)
	return n, n == 0 && len(wcs) > 0
}

// ReqNotify asks for one event of the CQ's channel: for the next completion, or with solicitedOnly for the next one of a
// message that its sender marked so or that has an error status. Asking twice asks for the union. A completion that
// is in the CQ already makes no event, so ask first, then poll until the CQ is empty, then wait.
func (c *CQ) ReqNotify(solicitedOnly bool) error {
	if c.channel == nil {
		return fmt.Errorf("CQ: %w: it was made without a completion channel", ErrInvalid)
	}
	c.consume.Lock()
	c.consumer.Arm(solicitedOnly)
	c.consume.Unlock()
	if c.channel.selected.Load() {
		c.device.giveBack(&c.shards)
	}
	// Asked afterwards: an overrun that came first has left the request unanswered.
	return c.over()
}

// Resize changes the number of completions that the CQ holds. What is inside stays inside, in order; a capacity below
// its number is refused.
func (c *CQ) Resize(capacity int) error {
	producer, consumer, err := completionRing(capacity)
	if err != nil {
		return err
	}
	c.consume.Lock()
	defer c.consume.Unlock()
	c.produce.Lock()
	defer c.produce.Unlock()
	if err := c.overLocked(c.consumer.Capacity()); err != nil {
		return err
	}
	if count, moved := c.consumer.Move(producer); !moved {
		return fmt.Errorf("%w: CQ of %d entries, %d are inside", ErrInvalid, capacity, count)
	}
	c.producer, c.consumer = producer, consumer
	return nil
}

// Wait returns as soon as the CQ is not empty, or with the error of ctx, or with ErrClosed or ErrOverrun. Any number of
// goroutines may wait. It may return although another goroutine was faster to poll.
func (c *CQ) Wait(ctx context.Context) error { return c.device.wait(ctx, c) }

func (c *CQ) shardSet() *shardSet { return &c.shards }
func (c *CQ) asleep() *sleepers   { return &c.sleepers }
func (c *CQ) arm()                { c.awaited.Store(true) }

func (c *CQ) ready() bool {
	c.consume.Lock()
	defer c.consume.Unlock()
	return c.consumer.Available(0) > 0
}

// over says why nothing is added any more, if so.
func (c *CQ) over() error {
	if c.closed.Load() || c.overrun.Load() {
		return c.overLocked(c.Capacity())
	}
	return nil
}

func (c *CQ) overLocked(capacity int) error {
	switch {
	case c.closed.Load():
		return ErrClosed
	case c.overrun.Load():
		return fmt.Errorf("CQ of %d entries: %w", capacity, ErrOverrun)
	}
	return nil
}

// enter notes that a queue of a QP at home at a shard completes here, and reports whether that is news for those who wait.
func (c *CQ) enter(s *Shard) (news bool) {
	news = c.shards.add(s)
	if c.channel != nil {
		news = c.channel.shards.add(s) || news
	}
	return news
}

// exit undoes enter.
func (c *CQ) exit(s *Shard) {
	c.shards.remove(s)
	if c.channel != nil {
		c.channel.shards.remove(s)
	}
}

// addQP makes a QP one that completes here.
func (c *CQ) addQP(q *QP) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	// Either the end sees the QP in the list, or this sees the end.
	c.qps.add(q)
	if err := c.over(); err != nil {
		c.qps.remove(q)
		return err
	}
	return nil
}

func (c *CQ) removeQP(q *QP) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.qps.remove(q)
}

// add adds a completion. It says what is due then.
func (c *CQ) add(wc *queue.WC, solicited bool) (ok bool, due uint32) {
	c.produce.Lock()
	defer c.produce.Unlock()
	if c.overrun.Load() {
		return false, 0 // one that came before this one is lost
	}
	if ok = c.producer.WriteCompletion(wc); !ok {
		c.overrun.Store(true)
		c.device.raise(AsyncEvent{Type: transport.EventCQErr, CQ: c})
		due, solicited = dueOverrun, true // whoever waits for something shall learn of it
	}
	// The entry is visible before the words are looked at.
	if c.awaited.Load() && c.awaited.Swap(false) {
		due |= dueWake
	}
	if c.producer.Disarm(solicited) {
		due |= dueEvent
	}
	return ok, due
}

// fire does what became due under a shard's lock. The shards where QPs are that must end are added to e.
func (c *CQ) fire(e *errands) {
	due := c.due.Swap(0)
	if due&dueOverrun != 0 {
		c.mu.Lock()
		for _, entry := range c.qps.entries {
			q := entry.qp
			e.add(q.end())
		}
		c.mu.Unlock()
	}
	if due&(dueWake|dueShards) != 0 {
		c.sleepers.wake()
	}
	if due&dueShards != 0 && c.channel != nil {
		c.channel.sleepers.wake()
	}
	if due&dueEvent != 0 && c.channel != nil {
		c.channel.add(c)
	}
}

// Close destroys the CQ. It fails while QPs use it; blocked waits return ErrClosed.
func (c *CQ) Close() error {
	d := c.device
	d.mu.Lock()
	defer d.mu.Unlock()
	if c.closed.Load() {
		return fmt.Errorf("CQ: %w", ErrClosed)
	}
	c.mu.Lock()
	users := c.qps.uses
	c.mu.Unlock()
	if users > 0 {
		return fmt.Errorf("CQ: %w by %d queues of QPs", ErrInUse, users)
	}
	c.closed.Store(true)
	delete(d.cqs, c)
	d.forget(AsyncEvent{CQ: c})
	c.sleepers.wake()
	if c.channel != nil {
		c.channel.remove(c)
		c.channel.cqs--
	}
	return nil
}

// completions is a CQ as the transport sees it from one QP.
type completions struct {
	cq *CQ
	qp *QP
}

// Complete implements transport.CompletionQueue. It runs under the lock of the QP's shard.
func (c *completions) Complete(wc *queue.WC, solicited bool) bool {
	ok, due := c.cq.add(wc, solicited)
	if due != 0 {
		c.cq.due.Or(due)
		home := c.qp.shard()
		home.fired = append(home.fired, c.cq)
		home.hasFired.Store(true)
	}
	if !ok {
		c.qp.end() // the CQ may have overrun long ago, when the QP was in RESET
	}
	return ok
}

// end makes the QP's shard bring it into the error state, because a CQ of it overran. It takes no lock, since the
// caller may be at another shard: the doorbell tells, and the caller drives that shard later.
func (q *QP) end() *Shard {
	home := q.shard()
	if !q.ended.Swap(true) {
		home.ring(q)
	}
	return home
}

// answerEnd does what end asked for, under the shard's lock.
func (s *Shard) answerEnd(q *QP) {
	switch q.transport.State() {
	case transport.StateReset:
		return
	case transport.StateError: // by the completion that found no room
	default:
		a := transport.Attributes{State: transport.StateError}
		_ = q.transport.Modify(s.device.options.Clock(), &a, transport.MaskState) // every state but RESET permits it
	}
	(*qpEvents)(q).Event(transport.EventQPFatal)
}
