package transport

// A QP: state machine, attributes, and what all services share.
//
// Way of a packet through it: receive counts one that has come in and, if its service admits it, has the service act on
// it. emit asks the service for the way of the next packet, takes a buffer from whoever takes the frames of that way,
// has the service fill it, and counts it. Deadlines may have changed after either, so the engine's timer is set again
// (schedule).

import (
	"fmt"
	"sync/atomic"

	"github.com/xroce/xroce/roce"
	"github.com/xroce/xroce/roce/memory"
	"github.com/xroce/xroce/roce/queue"
)

// CompletionQueue takes completions.
type CompletionQueue interface {
	// Complete adds a completion, which it copies; false means that the queue is full. Solicited says
	// that the peer asked for a solicited event, or that wc is an error.
	Complete(wc *queue.WC, solicited bool) bool
}

// ReceiveQueue gives out receive requests, in the order in which they were posted.
type ReceiveQueue interface {
	// Take copies the oldest request into wr, whose SGList has the capacity for the largest list, and
	// removes it. found is false if there is none, valid is false if the request makes no sense.
	Take(wr *queue.RecvWR) (found, valid bool)
	// Waiting is how many requests there are to take.
	Waiting() int
	// Discard drops all requests, because the QP goes to RESET.
	Discard()
}

// Config is what a queue pair is made of; none of it changes later.
type Config struct {
	QPN     roce.QPN
	Type    Type
	Domain  *memory.Domain
	Send    *queue.Consumer // the engine's end of the send queue
	Receive ReceiveQueue
	SendCQ  CompletionQueue
	RecvCQ  CompletionQueue
	// SignalAll makes every send request complete as if it had SendSignaled.
	SignalAll bool
	// MaxSendSGE and MaxRecvSGE are the list lengths that the rings were made for, MaxInline the inline data in bytes.
	MaxSendSGE, MaxRecvSGE, MaxInline int
	// Window bounds the frames in flight towards the peer and, for READ, from it; 0 means DefaultWindow.
	Window int
	// SharedReceive says that Receive gives out requests of a queue that other QPs use too: nothing of it is flushed.
	SharedReceive bool
	// Events is told what happens to the QP beside its completions; it may be nil.
	Events Events
}

// QP is a queue pair: its state and attributes, its place in the engine, and what all services share, around the
// service of its type. It belongs to the Engine that it was last given to, by Attach or Adopt.
type QP struct {
	config    Config
	principal *memory.Principal // on whose behalf user memory is accessed
	engine    *Engine
	service   service
	state     State
	shared    atomic.Uint32          // state, for State
	screen    atomic.Pointer[screen] // nil without a connection
	attrs     Attributes
	path      path
	mtu       uint64 // path MTU in bytes
	drained   bool   // in SQD: nothing that was begun is open

	list           *qpList // of the engine, that it is in; or nil
	next, previous *QP     // in there
	timer          timer

	recovery recovery
	tally    tally
	laidOut  roce.Opcode // of the packet that was written last
	again    bool        // it was sent before

	// failure is why the QP went to the error state, for Query.
	failure queue.WC
	// completion is what a CompletionQueue is given: a local variable would be allocated, since it goes through an
	// interface.
	completion queue.WC
}

// NewQP makes a queue pair in state RESET.
func NewQP(config Config) (*QP, error) {
	if config.Window == 0 {
		config.Window = DefaultWindow
	}
	q := &QP{config: config, principal: &memory.Principal{Domain: config.Domain}}
	q.recovery.init(q)
	var err error
	if q.service, err = newService(q); err != nil {
		return nil, err
	}
	return q, nil
}

// Attach gives a QP in RESET or INIT, which has nothing to do yet, to an engine. Later ones it goes to by
// Engine.Release and Engine.Adopt.
func (q *QP) Attach(e *Engine) { q.engine = e }

// Principal is on whose behalf the QP accesses memory.
func (q *QP) Principal() *memory.Principal { return q.principal }

// QPN is the QP's number.
func (q *QP) QPN() roce.QPN { return q.config.QPN }

// DestinationQPN is the number of the peer, 0 before RTR.
func (q *QP) DestinationQPN() roce.QPN { return q.attrs.DestinationQPN }

// State is the QP's state. It may be called from any goroutine.
func (q *QP) State() State { return State(q.shared.Load()) }

func (q *QP) setState(s State) {
	q.state = s
	q.shared.Store(uint32(s))
	q.config.Send.SetState(uint32(s)) // for a client elsewhere
}

// Attributes returns all attributes as they are now.
func (q *QP) Attributes() Attributes {
	a := q.attrs
	a.State, a.CurrentState = q.state, q.state
	a.Draining = q.state == StateSQD && !q.drained
	return a
}

// Failure is the completion that brought the QP into the error state; its Status is WCSuccess if there is none.
func (q *QP) Failure() queue.WC { return q.failure }

func (q *QP) raise(e EventType) {
	if q.config.Events != nil {
		q.config.Events.Event(e)
	}
}

// CheckModify says whether Modify would accept the attributes.
func (q *QP) CheckModify(a *Attributes, mask AttributeMask) error {
	if err := checkTransition(q.service.transitions(), q.state, a, mask); err != nil {
		return err
	}
	if q.state != StateSQD {
		return nil
	}
	leaves := mask&MaskState != 0 && (a.State == StateError || a.State == StateReset)
	if !q.drained && !leaves {
		return fmt.Errorf("%w: the send queue is still draining", ErrTransition)
	}
	return nil
}

// Modify changes state and attributes: all of it, or nothing and an error.
func (q *QP) Modify(now Time, a *Attributes, mask AttributeMask) error {
	if err := q.CheckModify(a, mask); err != nil {
		return err
	}
	q.engine.now = now
	q.attrs.merge(a, mask)
	to := q.state
	if mask&MaskState != 0 {
		to = a.State
	}
	switch to {
	case StateReset:
		q.reset()
	case StateError:
		q.enterError()
	default:
		q.enter(to, mask)
	}
	q.schedule()
	return nil
}

// enter goes to a state in which the QP works, or puts attributes to use that have changed in it.
func (q *QP) enter(to State, mask AttributeMask) {
	from := q.state
	if mask&MaskPathMTU != 0 {
		q.mtu = uint64(q.attrs.PathMTU.Bytes())
	}
	if to == StateSQD && from != StateSQD {
		q.drained = false
	}
	q.setState(to)
	if mask&MaskAV != 0 {
		q.path = path{
			template:    roce.NewHeaderTemplate(q.attrs.Path),
			destination: q.attrs.DestinationQPN,
			transmitter: q.attrs.Loopback,
		}
		q.screen.Store(&screen{own: q.attrs.Path.Source, peer: q.attrs.Path.Destination})
		q.engine.leaveFlight(q)
		q.engine.joinFlight(q)
	}
	q.service.enter(from, mask)
	if to == StateRTS || to == StateSQD && mask&MaskAV != 0 { // for what was posted before, or waited on the old way
		q.engine.Ready(q)
	}
}

// drain tells the program that its send queue has drained: all that was begun is complete
// (IBTA volume 1, chapter 10, state SQD).
func (q *QP) drain() {
	if q.state != StateSQD || q.drained {
		return
	}
	q.drained = true
	if q.attrs.EnSQDAsyncNotify {
		q.raise(EventSQDrained)
	}
}

// Reroute has the packets of a QP that has a path take the next hop of another one: Ethernet addresses, VLAN tag and
// hop limit. Packets that are sent from now on, resends among them, take the new way.
func (q *QP) Reroute(to roce.Path) {
	p := &q.attrs.Path
	p.SourceMAC, p.DestinationMAC, p.HopLimit = to.SourceMAC, to.DestinationMAC, to.HopLimit
	p.Tagged, p.VLAN, p.Priority = to.Tagged, to.VLAN, to.Priority
	q.path.template = roce.NewHeaderTemplate(*p)
}

// Fail ends a QP that cannot go on for a reason that lies beside the protocol: the oldest send request that has begun
// completes with status, the others are flushed, and EventQPFatal is raised.
func (q *QP) Fail(now Time, status queue.WCStatus) {
	q.engine.now = now
	q.failure = queue.WC{Status: status, QPN: q.config.QPN}
	q.service.fail(status)
	q.raise(EventQPFatal)
	q.schedule()
}

// Sizes are, of a QP that has failed, the largest payload in bytes of a packet that the peer has answered, or of a
// response of it, and that of the packet that it had not answered yet; -1 is none.
func (q *QP) Sizes() (answered, unanswered int) {
	return q.recovery.answeredSize - 1, q.recovery.unansweredSize - 1
}

// reset brings the QP back to how it was made. Work requests still in the rings are dropped without a
// completion, as ibv_modify_qp(3) has it.
func (q *QP) reset() {
	q.engine.Remove(q)
	q.engine.memory.InvalidateWindows(q.principal)
	q.recovery.reset()
	q.service.reset()
	q.attrs, q.path = Attributes{}, path{}
	q.screen.Store(nil)
	q.failure = queue.WC{}
	q.setState(StateReset)
}

// enterError moves the QP to the error state and flushes both queues, in posting order.
func (q *QP) enterError() {
	entered := q.state != StateError
	q.setState(StateError)
	q.recovery.stop()
	q.engine.Ready(q) // the responder may have a last word
	q.service.flush()
	if entered && q.config.SharedReceive {
		// Its receives are those of others, too: only the QP can tell that it takes no more of them.
		q.raise(EventQPLastWQEReached)
	}
}

// sends says whether the QP may send requests at all.
func (q *QP) sends() bool { return q.state == StateRTS || q.state == StateSQD }

// fromPeer checks that a packet is of the QP's connection, and has its partition key.
func (q *QP) fromPeer(p *roce.Packet) roce.DropReason {
	switch {
	case q.state < StateRTR || q.state == StateError:
		return roce.DropQPState
	case p.Source != q.attrs.Path.Destination || p.Destination != q.attrs.Path.Source:
		return roce.DropAddressMismatch
	case !pkeyMatches(p.BTH.PKey()):
		return roce.DropPKey
	}
	return roce.DropNone
}

// pkeyMatches compares with the default key, a full member: the low 15 bits must be equal; bit 15 need not be
// set in the packet, since it is set here (pkey_match in
// drivers/infiniband/sw/rxe/rxe_verbs.h).
func pkeyMatches(key uint16) bool { return key&0x7FFF == defaultPKey&0x7FFF }

// receive takes a packet for the QP.
func (q *QP) receive(p *roce.Packet) {
	q.countReceived(p)
	if p.Opcode == roce.CNP && q.fromPeer(p) == roce.DropNone {
		q.recovery.notified(q.engine.now)
		q.schedule()
	}
	if reason := q.service.admit(p); reason != roce.DropNone { // a CNP, too, while no congestion control acts on it
		q.drop(reason)
		return
	}
	q.countAdmitted(p.Opcode)
	q.engine.verdict.Admitted = true
	const ecn, congestionExperienced = 3, 3 // RFC 3168
	if p.TrafficClass&ecn == congestionExperienced {
		q.recovery.marked(q.engine.now)
	}
	q.service.receive(p)
	if p.Info.Request {
		q.recovery.moved(p.PayloadLength)
	}
	q.schedule()
}

// emit writes at most budget frames. more means that the QP has something left to send right now.
func (q *QP) emit(transmit Transmitter, budget int) (sent int, more bool) {
	if q.state == StateError {
		q.service.flush()
	}
	for ; sent < budget; sent++ {
		to := q.service.path()
		if to == nil {
			return sent, false
		}
		by := transmit
		if to.transmitter != nil {
			by = to.transmitter
		}
		buffer := by.Buffer()
		if buffer == nil {
			return sent, true
		}
		n := q.service.emit(to, buffer)
		if n == 0 {
			return sent, false
		}
		if tap := q.engine.tap; tap != nil {
			tap.Sent(SentPacket{
				Time: q.engine.now, QP: q, Opcode: q.laidOut, Frame: buffer[:n], Again: q.again, By: by,
			})
		}
		by.Commit(n)
		q.countSent(q.laidOut)
	}
	return sent, true
}

// complete hands over the completion that was made. A CQ without room has lost it, which its QP cannot survive (the
// verbs call it CQ overrun).
func (q *QP) complete(cq CompletionQueue, solicited bool) {
	q.completion.Timestamp = int64(q.engine.now)
	if cq.Complete(&q.completion, solicited || q.completion.Status != queue.WCSuccess) {
		return
	}
	q.count(completionsDropped)
	if q.state != StateError {
		q.failure = queue.WC{Status: queue.WCFatalErr, QPN: q.config.QPN}
		q.enterError()
	}
}
