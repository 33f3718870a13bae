package driver

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/xroce/xroce/internal/lockorder"
	"github.com/xroce/xroce/roce"
	"github.com/xroce/xroce/roce/memory"
	"github.com/xroce/xroce/roce/queue"
	"github.com/xroce/xroce/roce/transport"
)

// MaxWR is the largest number of requests of a send or receive queue.
const MaxWR = 1 << 16

// QP is the engine's side of a queue pair. Its methods may be called concurrently.
type QP struct {
	device    *Device
	client    *Client
	number    roce.QPN
	config    QPConfig
	transport *transport.QP
	place     atomic.Pointer[place] // where it is at home (move.go)
	arrivals  arrivals
	counted   *Shard // where its CQs count it; guarded by the lock of its home

	ringing     atomic.Bool // on its shard's stack of doorbells
	ringingNext *QP

	owner  atomic.Value
	events eventState
	ended  atomic.Bool // a CQ of the QP overran (CQ.fire)
	within atomic.Bool // its peer is within the process: what says so and comes from the wire is a forgery
	fatal  bool        // EventQPFatal was raised; guarded by the shard's lock

	closed  atomic.Bool
	control lockorder.Mutex[lockorder.Control] // held by Modify and Close while they change something
	handle  *AddressHandle                     // of the peer; nil if it has none

	posted *queue.Consumer // the receive queue
}

// CreateQP makes a queue pair in state RESET.
func (client *Client) CreateQP(c QPConfig) (*QP, error) {
	if err := c.check(client); err != nil {
		return nil, err
	}
	d := client.device
	q := &QP{device: d, client: client, config: c}
	fetched, err := queue.NewConsumer(c.Send.Memory, c.sendLayout())
	if err != nil {
		return nil, err
	}
	var receive transport.ReceiveQueue = (*receives)(q)
	if c.SRQ != nil {
		receive, c.MaxRecvSGE = (*sharedReceives)(c.SRQ), c.SRQ.config.MaxSGE
	} else if q.posted, err = queue.NewConsumer(c.Receive.Memory, c.recvLayout()); err != nil {
		return nil, err
	}
	q.place.Store(&d.shards[0].place)
	if q.number, err = d.numbers.claim(); err != nil {
		return nil, err
	}
	q.transport, err = transport.NewQP(transport.Config{
		QPN: q.number, Type: c.Type, Domain: c.Domain,
		Send: fetched, Receive: receive,
		SendCQ: &completions{c.SendCQ, q}, RecvCQ: &completions{c.RecvCQ, q},
		SignalAll: c.SignalAll, MaxSendSGE: c.MaxSendSGE, MaxRecvSGE: c.MaxRecvSGE, MaxInline: c.MaxInline,
		Window: d.options.Window, SharedReceive: c.SRQ != nil, Events: (*qpEvents)(q),
	})
	if err == nil {
		// First, since a CQ that overruns ends the QPs that it knows.
		q.transport.Attach(d.shards[0].engine)
		err = d.adopt(q)
	}
	if err != nil {
		d.numbers.release(q.number)
		return nil, err
	}
	d.numbers.publish(q)
	return q, nil
}

func (c *QPConfig) check(client *Client) error {
	switch {
	case c.Domain == nil:
		return fmt.Errorf("%w: a QP needs a protection domain", ErrInvalid)
	case c.SendCQ == nil || c.RecvCQ == nil:
		return fmt.Errorf("%w: a QP needs a CQ for sends and one for receives", ErrInvalid)
	case c.SendCQ.device != client.device || c.RecvCQ.device != client.device:
		return fmt.Errorf("%w: the CQs belong to another device", ErrInvalid)
	case c.SendCQ.client != client || c.RecvCQ.client != client:
		return fmt.Errorf("%w: the CQs belong to another client", ErrInvalid) // an overrun there would end its QPs
	case c.Type != transport.RC:
		return fmt.Errorf("%w: %v", ErrNotSupported, c.Type)
	}
	if c.SRQ != nil {
		return errors.Join(c.SRQ.checkUser(client, c.Domain), c.checkLimits())
	}
	return c.checkLimits()
}

// receives is the QP's own receive queue as the transport sees it.
type receives QP

// Take implements transport.ReceiveQueue. It runs under the lock of the QP's shard.
func (q *receives) Take(wr *queue.RecvWR) (found, valid bool) {
	if q.posted.Available(0) == 0 {
		return false, false
	}
	valid = q.posted.ReadRecv(0, wr)
	q.posted.Release(1)
	return true, valid
}

// Waiting implements transport.ReceiveQueue.
func (q *receives) Waiting() int { return q.posted.Available(q.posted.Capacity()) }

// Discard implements transport.ReceiveQueue.
func (q *receives) Discard() { q.posted.Discard() }

// Number is the QP's number.
func (q *QP) Number() roce.QPN { return q.number }

// Config returns what the QP was made of.
func (q *QP) Config() QPConfig { return q.config }

// SetOwner attaches a value that Owner returns.
func (q *QP) SetOwner(o any) { q.owner.Store(o) }

// Owner is what SetOwner has attached, or nil.
func (q *QP) Owner() any { return q.owner.Load() }

// State is the QP's state.
func (q *QP) State() transport.State { return q.transport.State() }

// Gather copies the registered memory that a list names, on behalf of the QP: it implements queue.Gatherer for clients
// in this process.
func (q *QP) Gather(list []queue.SGE, into []byte) error {
	for i, s := range list {
		part := memory.Range{Key: s.LKey, Address: s.Addr, Length: uint64(s.Length)}
		if s.Length == 0 {
			continue
		}
		if fault := q.device.memory.Read(q.transport.Principal(), 0, part, into[:s.Length]); fault != memory.FaultNone {
			return fmt.Errorf("%w: inline data: element %d, %d bytes at %#x with key %#x: %v",
				ErrInvalid, i, s.Length, s.Addr, s.LKey, fault)
		}
		into = into[s.Length:]
	}
	return nil
}

// Ring tells the engine that something was published in the send queue, or in the receive queue while the QP was in the
// error state, and drives it: the doorbell of clients in this process.
func (q *QP) Ring() {
	home := q.shard()
	home.ring(q)
	home.drive(driveBriefly)
}

// Over says why the QP takes nothing any more, if so.
func (q *QP) Over() error {
	if q.closed.Load() {
		return fmt.Errorf("QP %v: %w", q.number, ErrClosed)
	}
	return nil
}

// Modify changes attributes and state. av is the address vector if mask has MaskAV; resolving it may take until
// ctx ends, without holding anything up.
func (q *QP) Modify(ctx context.Context, a *transport.Attributes, av *AddressVector, mask transport.AttributeMask) error {
	if mask&transport.MaskState != 0 && a.State == transport.StateSQE {
		return fmt.Errorf("%w: QP state %v", ErrNotSupported, a.State)
	}
	q.control.Lock()
	err := q.checkModify(a, mask)
	q.control.Unlock()
	if err != nil {
		return err
	}
	attributes := *a
	var handle *AddressHandle
	if mask&transport.MaskAV != 0 {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(q.client.ctx, cancel)()
		need := roce.MTU(0)
		if mask&transport.MaskPathMTU != 0 {
			need = a.PathMTU
		}
		if handle, err = q.device.newAddressHandle(ctx, av, need); err != nil {
			return err
		}
	}
	q.control.Lock()
	defer q.control.Unlock()
	if err = q.checkModify(a, mask); err == nil { // the state may be another one by now
		err = q.change(&attributes, mask, handle)
	}
	if err != nil && handle != nil {
		handle.close()
	}
	return err
}

// change makes a change with the handle of a new peer, if there is one. The caller holds control.
func (q *QP) change(a *transport.Attributes, mask transport.AttributeMask, handle *AddressHandle) error {
	if handle == nil {
		return q.modify(a, mask, nil)
	}
	remote := a.DestinationQPN
	if mask&transport.MaskDestinationQPN == 0 {
		remote = q.destination()
	}
	label := handle.label(q.number, remote)
	if q.State() == transport.StateInit {
		// Both ends compute the same flow label, and on a device that delivers by the sender's queue the frames
		// then arrive where their QP is at home.
		q.settle(q.device.shards[label%uint32(len(q.device.shards))])
	}
	var loop *loopback
	if handle.within != nil {
		loop = &loopback{device: handle.within, peer: remote}
	}
	handle.holder.Store(q)
	a.Path = handle.path(label)
	if err := q.modify(a, mask, loop); err != nil {
		return err
	}
	q.dropHandle()
	q.handle = handle
	return nil
}

// checkModify says whether the QP is in a state for the change. The caller holds control.
func (q *QP) checkModify(a *transport.Attributes, mask transport.AttributeMask) error {
	if err := q.Over(); err != nil {
		return err
	}
	home := q.lock()
	defer home.unlock()
	return q.transport.CheckModify(a, mask)
}

// modify makes a change. loop is the way to the peer if that is within the process, and nil otherwise.
func (q *QP) modify(a *transport.Attributes, mask transport.AttributeMask, loop *loopback) error {
	home := q.lock()
	a.Loopback = nil
	if loop != nil {
		loop.from, a.Loopback = home, loop
	}
	home.sendOwed(q)
	err := q.transport.Modify(q.device.options.Clock(), a, mask)
	if err == nil && mask&transport.MaskAV != 0 {
		q.within.Store(loop != nil) // from here on it stays where it is
	}
	if err == nil && q.transport.State() == transport.StateReset {
		q.fatal = false
	}
	if q.closed.Load() {
		q.belong(nil, home)
	}
	ended := err == nil && q.transport.State() == transport.StateReset
	home.unlock()
	if ended {
		q.dropHandle()
	}
	home.drive(driveBriefly) // what the change made ready to send
	return err
}

// sendOwed sends an acknowledgement of a QP that waits for the next turn: the QP may not come to it. The caller holds
// the lock, and drives.
func (s *Shard) sendOwed(q *QP) {
	if s.engine.SendOwed(s.device.options.Clock(), q.transport, (*transmitter)(s)) > 0 {
		s.queue.Publish()
	}
}

// dropHandle ends the handle of the peer, if there is one. The caller holds control.
func (q *QP) dropHandle() {
	if q.handle != nil {
		q.handle.close()
		q.handle = nil
	}
}

// destination is the number of the peer. The caller holds control.
func (q *QP) destination() roce.QPN {
	home := q.lock()
	defer home.unlock()
	return q.transport.DestinationQPN()
}

// settle brings a QP in INIT to its first home.
func (q *QP) settle(to *Shard) {
	from := q.lock()
	defer from.unlock()
	from.engine.Remove(q.transport)
	q.transport.Attach(to.engine)
	q.restart()
	q.belong(to, from)
	q.place.Store(&to.place)
}

// Query returns the attributes as they are now, and the completion that brought the QP into the error state, if any.
func (q *QP) Query() (transport.Attributes, AddressVector, queue.WC) {
	q.control.Lock()
	defer q.control.Unlock()
	home := q.lock()
	defer home.unlock()
	vector := AddressVector{}
	if q.handle != nil {
		vector = q.handle.vector
	}
	return q.transport.Attributes(), vector, q.transport.Failure()
}

// Sizes are those of transport.QP.Sizes.
func (q *QP) Sizes() (answered, unanswered int) {
	q.control.Lock()
	defer q.control.Unlock()
	home := q.lock()
	defer home.unlock()
	return q.transport.Sizes()
}

// Close destroys the QP. Its requests get no completions; those that are in the CQs already stay there. When it
// returns, the engine touches none of the QP's buffers any more.
func (q *QP) Close() error {
	q.control.Lock()
	defer q.control.Unlock()
	if err := q.Over(); err != nil {
		return err
	}
	q.closed.Store(true)
	if err := q.modify(&transport.Attributes{State: transport.StateReset}, transport.MaskState, nil); err != nil {
		return err
	}
	q.device.release(q)
	q.config.Send.release()
	q.config.Receive.release()
	if q.config.closed != nil {
		q.config.closed()
	}
	return nil
}
