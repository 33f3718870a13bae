package driver

// Life of a completion: the transport adds it under the lock of its QP's shard (completions.Complete); if somebody
// asked to be told, the CQ is noted as fired, and once the lock is released he is (CQ.fire): goroutines that wait here
// are woken, and the client's notifier is called. The completion is visible before the words that ask for it are looked
// at, so whoever asks and then looks into the CQ misses none. A completion without room is lost, which must not go
// unseen: the CQ takes no further one, and all its QPs end, wherever they are at home.

import (
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/xroce/xroce/internal/lockorder"
	"github.com/xroce/xroce/roce/queue"
	"github.com/xroce/xroce/roce/transport"
)

// MaxCQE is the largest capacity of a completion queue.
const MaxCQE = queue.MaxCapacity

// ErrOverrun is returned by everything that needs a CQ which had no room for a completion: it has lost that one.
var ErrOverrun = errors.New("a completion was lost for lack of room")

// Why a CQ is over, in the state word of its ring; 0 while it is not.
const (
	CQOverrun = 1
	CQClosed  = 2
)

// CQ is the engine's end of a completion queue. Its methods may be called concurrently.
type CQ struct {
	Group    // of itself
	client   *Client
	id       uint32
	notifier Notifier // or nil
	with     *Group   // that it belongs to, too; or nil
	owner    atomic.Value
	events   eventState

	awaited atomic.Bool   // a blocked wait wants to be woken by the next completion
	due     atomic.Uint32 // what fire has to do
	closed  atomic.Bool
	overrun atomic.Bool // set under produce; from then on nothing is added

	mu  lockorder.Mutex[lockorder.CQ]
	qps roster // that complete here

	produce  lockorder.Mutex[lockorder.Produce] // held by the shard that adds a completion
	producer *queue.Producer
	ring     Ring // that the producer is in

	whenClosed func() // or nil
}

// What is due after a completion, once the shard's lock is released.
const (
	dueWake    = 1 << iota // blocked waits
	dueEvent               // a notification
	dueOverrun             // the end of all QPs of the CQ
	dueShards              // who waits has to look at another shard, too
)

// CreateCQ makes a completion queue.
func (client *Client) CreateCQ(config CQConfig) (*CQ, error) {
	d := client.device
	if config.Group != nil && config.Group.device != d {
		return nil, fmt.Errorf("CQ: %w: the group belongs to another device", ErrInvalid)
	}
	c := &CQ{Group: Group{device: d}, client: client, notifier: config.Notifier, with: config.Group}
	c.ring, c.whenClosed = config.Ring, config.closed
	var err error
	if c.producer, err = queue.NewProducer(config.Ring.Memory, queue.CompletionLayout(config.Capacity)); err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := client.admits("CQ", len(client.cqs), client.limits.CQs); err != nil {
		return nil, err
	}
	if len(d.cqs) == MaxCQ {
		return nil, fmt.Errorf("%w: CQ number %d, the device has %d", ErrLimit, len(d.cqs)+1, MaxCQ)
	}
	d.lastID++
	c.id = d.lastID
	d.cqs[c], client.cqs[c] = struct{}{}, struct{}{}
	return c, nil
}

// SetOwner attaches a value that Owner returns.
func (c *CQ) SetOwner(o any) { c.owner.Store(o) }

// Owner is what SetOwner has attached, or nil.
func (c *CQ) Owner() any { return c.owner.Load() }

// Capacity is the number of completions that the CQ holds.
func (c *CQ) Capacity() int {
	c.produce.Lock()
	defer c.produce.Unlock()
	return c.producer.Capacity()
}

// Replace has the engine go on in another ring, of the layout queue.CompletionLayout(capacity): that is how the CQ is
// resized. What is inside goes over, in order, and so does the request for a notification; a capacity below its number
// is refused. The client takes nothing out of either ring meanwhile.
func (c *CQ) Replace(r Ring, capacity int) error {
	producer, err := queue.NewProducer(r.Memory, queue.CompletionLayout(capacity))
	if err != nil {
		return err
	}
	c.produce.Lock()
	old := c.ring
	if err = c.overLocked(c.producer.Capacity()); err == nil {
		if _, count, moved := c.producer.Move(producer); !moved {
			err = fmt.Errorf("%w: CQ of %d entries, %d are inside", ErrInvalid, capacity, count)
		} else {
			c.producer, c.ring = producer, r
		}
	}
	c.produce.Unlock()
	if err == nil {
		old.release()
	}
	return err
}

// Arm has the next completion wake the CQ's group: a request of its own beside that of the ring's arm word, which is
// the client's. A client's Waitable calls it.
func (c *CQ) Arm() { c.awaited.Store(true) }

// Over says why nothing is added any more, if so.
func (c *CQ) Over() error {
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

// enter notes that a queue of a QP at home at a shard completes here, and reports whether that is news for those who
// wait.
func (c *CQ) enter(s *Shard) (news bool) {
	news = c.shards.add(s)
	if c.with != nil {
		news = c.with.shards.add(s) || news
	}
	return news
}

// exit undoes enter.
func (c *CQ) exit(s *Shard) {
	c.shards.remove(s)
	if c.with != nil {
		c.with.shards.remove(s)
	}
}

// addQP makes a QP one that completes here.
func (c *CQ) addQP(q *QP) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	// Either the end sees the QP in the list, or this sees the end.
	c.qps.add(q)
	if err := c.Over(); err != nil {
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
		c.producer.SetState(CQOverrun)
		c.client.events.raise(AsyncEvent{Type: transport.EventCQErr, CQ: c})
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
	if due&dueShards != 0 && c.with != nil {
		c.with.Wake()
	}
	if due&dueEvent != 0 && c.notifier != nil {
		c.notifier.Notify()
	}
}

// Close destroys the CQ. It fails while QPs use it; blocked waits return ErrClosed.
func (c *CQ) Close() error {
	if err := c.close(); err != nil {
		return err
	}
	c.sleepers.wake()
	c.ring.release()
	if c.whenClosed != nil {
		c.whenClosed()
	}
	return nil
}

func (c *CQ) close() error {
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
	c.produce.Lock() // nobody is about to add or to look
	defer c.produce.Unlock()
	c.producer.SetState(CQClosed)
	c.closed.Store(true)
	delete(d.cqs, c)
	delete(c.client.cqs, c)
	c.client.events.forget(AsyncEvent{CQ: c})
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
