package driver

// The port is how programs use a device: what is on this page, and the rings.
//
// A Client makes queue pairs, CQs and SRQs out of rings in memory that it brings along: ordinary memory of this
// process, or memory that another one maps, too. It keeps one end of each ring and gives the other one to the engine,
// by making the object. From then on they talk through the rings alone: the client posts and rings (QP.Ring), the
// engine completes and, if the CQ's arm word asks for it, notifies. Package verbs is one client, and
// internal/ringclient a small one.
//
// What an object of the engine becomes is in the state word of a ring: the state of a QP in that of its send queue, and
// why a CQ is over in its own. A client posts, publishes, and then looks at the state; the engine changes the state,
// and then looks at the rings (transport.QP.Modify to the error state flushes them). One of the two sees the other, so
// nothing is left without a completion. RESET drops what is in the rings: what a client posts during a change to RESET
// may be dropped or stay for the next life, so a client that minds does not post meanwhile.
//
// The engine trusts no ring. Every word that is the client's is read a bounded number of times in a turn, and clamped;
// every request is copied, and then checked. No lock of any kind lies in memory that is shared. What a client does to
// its rings harms its own objects only.
//
// A change of a QP that has to find its peer takes until its context ends, and holds nothing up: QP.Modify is called
// off the control loop, by a goroutine for each request, so results come out of order and a protocol on top of this
// needs numbers of requests.

import (
	"fmt"

	"github.com/xroce/xroce/roce/memory"
	"github.com/xroce/xroce/roce/queue"
	"github.com/xroce/xroce/roce/transport"
)

// Ring is memory with a ring in it, made by queue.Create or queue.New: one end is the client's, the other one the
// engine's.
type Ring struct {
	Memory []byte
	// Release, if not nil, is called when the engine will touch Memory no more: during Close of the object or a
	// replacement of the ring, without a lock of the driver. It is not called if the object could not be made.
	Release func()
}

func (r *Ring) release() {
	if r.Release != nil {
		r.Release()
	}
}

// QPConfig describes a queue pair to make.
type QPConfig struct {
	Type           transport.Type
	Domain         *memory.Domain
	SendCQ, RecvCQ *CQ
	MaxSendWR      int
	MaxRecvWR      int
	MaxSendSGE     int
	MaxRecvSGE     int
	MaxInline      int // bytes
	SignalAll      bool
	// SRQ gives out the receive requests instead of a queue of the QP's own; MaxRecvWR and MaxRecvSGE then count for
	// nothing.
	SRQ *SRQ
	// Send has the layout queue.SendLayout(MaxSendWR, MaxSendSGE, MaxInline), Receive queue.RecvLayout(MaxRecvWR,
	// MaxRecvSGE); with an SRQ there is no Receive.
	Send, Receive Ring

	closed func() // called last, by Close; may be nil
}

func (c *QPConfig) sendLayout() queue.Layout {
	return queue.SendLayout(c.MaxSendWR, c.MaxSendSGE, c.MaxInline)
}

func (c *QPConfig) recvLayout() queue.Layout { return queue.RecvLayout(c.MaxRecvWR, c.MaxRecvSGE) }

// MakeRings makes the rings in ordinary memory, for a client in this process. It returns ErrLimit if they would be too
// large.
func (c *QPConfig) MakeRings() (err error) {
	if err = c.checkLimits(); err != nil {
		return err
	}
	if c.Send.Memory, err = queue.New(c.sendLayout()); err != nil || c.SRQ != nil {
		return err
	}
	c.Receive.Memory, err = queue.New(c.recvLayout())
	return err
}

func (c *QPConfig) checkLimits() error {
	limits := []limitCheck{{"max_send_wr", c.MaxSendWR, MaxWR}, {"max_send_sge", c.MaxSendSGE, queue.MaxSGE}}
	if c.SRQ == nil {
		limits = append(limits,
			limitCheck{"max_recv_wr", c.MaxRecvWR, MaxWR}, limitCheck{"max_recv_sge", c.MaxRecvSGE, queue.MaxSGE})
	}
	if c.MaxInline < 0 || c.MaxInline > queue.MaxInline {
		return fmt.Errorf("%w: max_inline_data is %d, the limit is %d", ErrLimit, c.MaxInline, queue.MaxInline)
	}
	return checkLimits(limits)
}

// CQConfig describes a completion queue to make.
type CQConfig struct {
	Capacity int
	Ring     Ring     // of the layout queue.CompletionLayout(Capacity)
	Notifier Notifier // is told of completions that the ring's arm word asks for; may be nil
	Group    *Group   // that waits for the CQ beside others; may be nil

	closed func() // called last, by Close; may be nil
}

// Notifier takes notifications of a CQ.
type Notifier interface {
	// Notify is called by whoever drives the shard of a QP, without a lock of the driver. It must not block: all other
	// QPs would wait with it.
	Notify()
}

// MakeRing makes the ring in ordinary memory; see QPConfig.MakeRings.
func (c *CQConfig) MakeRing() (err error) {
	if c.Capacity < 1 || c.Capacity > MaxCQE {
		return fmt.Errorf("%w: CQ of %d entries, the limit is 1 to %d", ErrLimit, c.Capacity, MaxCQE)
	}
	c.Ring.Memory, err = queue.New(queue.CompletionLayout(c.Capacity))
	return err
}

// SRQConfig describes a shared receive queue to make.
type SRQConfig struct {
	Domain *memory.Domain
	MaxWR  int
	MaxSGE int
	// Limit arms the limit event from the beginning; 0 does not.
	Limit int
	Ring  Ring // of the layout queue.RecvLayout(MaxWR, MaxSGE)
}

// MakeRing makes the ring in ordinary memory; see QPConfig.MakeRings.
func (c *SRQConfig) MakeRing() (err error) {
	if err = c.checkLimits(); err != nil {
		return err
	}
	c.Ring.Memory, err = queue.New(queue.RecvLayout(c.MaxWR, c.MaxSGE))
	return err
}

func (c *SRQConfig) checkLimits() error {
	return checkLimits([]limitCheck{{"max_srq_wr", c.MaxWR, MaxWR}, {"max_srq_sge", c.MaxSGE, queue.MaxSGE}})
}
