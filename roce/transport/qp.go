package transport

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

// QP is a queue pair. It belongs to the Engine that it was last given to, by Attach or Adopt.
type QP struct {
	config    Config
	principal *memory.Principal // on whose behalf user memory is accessed
	engine    *Engine
	state     State
	shared    atomic.Uint32 // state, for State
	attrs     Attributes
	template  roce.HeaderTemplate
	mtu       uint64 // path MTU in bytes

	ready                    bool
	readyNext, readyPrevious *QP // in the engine's list
	timer                    timer
	flying                   flying

	requester requester
	responder responder
	window    window
	counters  Counters
	counts    [2]*Counters // where what the QP does is counted: its own counters, and its engine's
	laidOut   roce.Opcode  // of the packet that was written last
	again     bool         // it was sent before

	// preferRequest alternates between requests and responses, so that neither starves the other.
	preferRequest bool
	// failure is why the QP went to the error state, for Query.
	failure queue.WC
	// completion is what a CompletionQueue is given: a local variable would be allocated, since it goes through an
	// interface.
	completion queue.WC
	// word is the result of an atomic on its way to user memory, for the same reason.
	word       [8]byte
	wordPieces [1][]byte
}

// NewQP makes a queue pair in state RESET.
func NewQP(config Config) (*QP, error) {
	if config.Type != RC {
		return nil, fmt.Errorf("transport: %v is not supported", config.Type)
	}
	if config.Window == 0 {
		config.Window = DefaultWindow
	}
	q := &QP{config: config, principal: &memory.Principal{Domain: config.Domain}}
	q.requester.init(&config)
	q.responder.init(&config)
	return q, nil
}

// Attach gives a QP in RESET or INIT, which has nothing to do yet, to an engine. Later ones it goes to by Engine.Release and
// Engine.Adopt.
func (q *QP) Attach(e *Engine) {
	q.engine = e
	q.counts = [2]*Counters{&q.counters, &e.counters}
}

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
	a.Draining = q.state == StateSQD && !q.requester.drained
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
	if err := checkTransition(q.state, a, mask); err != nil {
		return err
	}
	if q.state != StateSQD {
		return nil
	}
	leaves := mask&MaskState != 0 && (a.State == StateError || a.State == StateReset)
	if !q.requester.drained && !leaves {
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
	switch {
	case to == StateReset:
		q.reset()
	case to == StateInit:
		q.setState(StateInit)
	case to == StateRTR:
		q.template = roce.NewHeaderTemplate(q.attrs.Path)
		q.mtu = uint64(q.attrs.PathMTU.Bytes())
		q.responder.start(q.attrs.MaxDestRDAtomic)
		q.setState(StateRTR)
		q.engine.joinFlight(q)
	case to == StateRTS && q.state == StateRTR:
		q.requester.start(q.attrs.MaxRDAtomic)
		q.window.start(q.config.Window)
		q.setState(StateRTS)
		q.engine.Ready(q)
	case to == StateRTS:
		q.setState(StateRTS) // from SQD: go on
		q.engine.Ready(q)
	case to == StateSQD && q.state == StateRTS:
		q.requester.drained = false
		q.setState(StateSQD)
		q.checkDrained()
	case to == StateSQD:
		q.reconfigure(mask)
	case to == StateError:
		q.enterError()
	}
	return nil
}

// reconfigure puts attributes to use that may change in SQD, while no request of this end is in flight.
func (q *QP) reconfigure(mask AttributeMask) {
	if mask&MaskAV != 0 {
		q.template = roce.NewHeaderTemplate(q.attrs.Path)
		q.engine.leaveFlight(q)
		q.engine.joinFlight(q)
		q.engine.Ready(q) // its responses may have waited there
	}
	if mask&MaskMaxRDAtomic != 0 {
		q.requester.answers = make([]uint64, q.attrs.MaxRDAtomic)
	}
	if mask&MaskMaxDestRDAtomic != 0 {
		q.responder.grant(q.attrs.MaxDestRDAtomic)
	}
}

// Reroute has the packets of a QP that has a path take the next hop of another one: Ethernet addresses, VLAN tag and hop limit. Packets
// that are sent from now on, resends among them, take the new way.
func (q *QP) Reroute(to roce.Path) {
	path := &q.attrs.Path
	path.SourceMAC, path.DestinationMAC, path.HopLimit = to.SourceMAC, to.DestinationMAC, to.HopLimit
	path.Tagged, path.VLAN, path.Priority = to.Tagged, to.VLAN, to.Priority
	q.template = roce.NewHeaderTemplate(*path)
}

// Fail ends a QP that cannot go on for a reason that lies beside the protocol: the oldest send request that has begun completes
// with status, the others are flushed, and EventQPFatal is raised.
func (q *QP) Fail(now Time, status queue.WCStatus) {
	q.engine.now = now
	q.failure = queue.WC{Status: status, QPN: q.config.QPN}
	q.fail(status)
	q.raise(EventQPFatal)
}

// reset brings the QP back to how it was made. Work requests still in the rings are dropped without a
// completion, as ibv_modify_qp(3) has it.
func (q *QP) reset() {
	q.engine.Remove(q)
	q.engine.memory.InvalidateWindows(q.principal)
	q.requester.reset(&q.config)
	q.responder.reset(&q.config)
	q.attrs = Attributes{}
	q.failure = queue.WC{}
	q.setState(StateReset)
}

// admit checks what a packet must fulfil before it may change anything: the checks of rxe_rcv
// (drivers/infiniband/sw/rxe/rxe_recv.c) that need the QP. Packets that fail are dropped without an answer.
func (q *QP) admit(p *roce.Packet) roce.DropReason {
	switch {
	case p.Opcode.Transport() != roce.TransportRC:
		return roce.DropTransportMismatch
	case q.state < StateRTR || q.state == StateError:
		return roce.DropQPState
	case !p.Info.Request && q.state < StateRTS:
		return roce.DropQPState
	case p.Source != q.attrs.Path.Destination || p.Destination != q.attrs.Path.Source:
		return roce.DropAddressMismatch
	case !pkeyMatches(p.BTH.PKey()):
		return roce.DropPKey
	}
	return roce.DropNone
}

const defaultPKey = 0xFFFF

// pkeyMatches compares with the default key, a full member: the low 15 bits must be equal; bit 15 need not be
// set in the packet, since it is set here (pkey_match in
// drivers/infiniband/sw/rxe/rxe_verbs.h).
func pkeyMatches(key uint16) bool { return key&0x7FFF == defaultPKey&0x7FFF }

// emit writes at most budget frames. more means that the QP has something left to send right now.
func (q *QP) emit(transmit Transmitter, budget int) (sent int, more bool) {
	if q.state == StateError {
		q.flush()
	}
	if q.attrs.Loopback != nil {
		transmit = q.attrs.Loopback
	}
	for ; sent < budget; sent++ {
		buffer := transmit.Buffer()
		if buffer == nil {
			return sent, true
		}
		n := 0
		if q.preferRequest {
			if n = q.emitRequest(buffer); n == 0 {
				n = q.emitResponse(buffer)
			}
		} else if n = q.emitResponse(buffer); n == 0 {
			n = q.emitRequest(buffer)
		}
		if n == 0 {
			return sent, false
		}
		q.preferRequest = !q.preferRequest
		if tap := q.engine.tap; tap != nil {
			tap.Sent(SentPacket{
				Time: q.engine.now, QP: q, Opcode: q.laidOut, Frame: buffer[:n], Again: q.again, By: transmit,
			})
		}
		transmit.Commit(n)
		for _, c := range q.counts {
			c.SentPackets++
			c.SentOpcodes[q.laidOut&opcodeMask]++
		}
	}
	return sent, true
}

// expire is called when the QP's deadline has passed.
func (q *QP) expire() {
	if q.sends() {
		q.requesterExpired()
	}
}

// packet lays a packet out in a transmit buffer. The caller fills extension and payload, then seals the frame.
type packet struct {
	frame     []byte
	extension []byte // the extension headers
	payload   []byte
}

func (q *QP) layOut(buffer []byte, fields roce.BTHFields, payload int) packet {
	pad := -payload & 3
	extension := fields.Opcode.Info().HeaderLength
	start := q.template.Length()
	body := start + roce.BTHLength + extension
	frame := buffer[:body+payload+pad+roce.ICRCLength]
	q.template.Put(frame)
	fields.DestinationQPN = q.attrs.DestinationQPN
	fields.PKey = defaultPKey
	// There is no path migration on RoCE, so the state is always "migrated". ConnectX-3 Pro refuses
	// packets that do not say so.
	fields.MigReq = true
	fields.PadCount = uint8(pad)
	fields.Put(frame[start:])
	q.laidOut, q.again = fields.Opcode, false
	clear(frame[body+payload : body+payload+pad])
	return packet{frame: frame, extension: frame[start+roce.BTHLength : body], payload: frame[body : body+payload]}
}

// seal finishes the packet and returns the frame's length.
func (q *QP) seal(p packet) int {
	q.template.Seal(p.frame)
	for _, c := range q.counts {
		c.SentBytes += uint64(len(p.payload))
	}
	return len(p.frame)
}

// gather copies the data of a request from offset on into payload. Length 0 elements may name anything.
func (q *QP) gather(w *work, offset uint64, payload []byte) memory.Fault {
	if w.wr.Flags&queue.SendInline != 0 {
		copy(payload, w.wr.Inline[offset:])
		return memory.FaultNone
	}
	for _, s := range w.wr.SGList {
		if len(payload) == 0 {
			break
		}
		length := uint64(s.Length)
		if offset >= length {
			offset -= length
			continue
		}
		n := min(length-offset, uint64(len(payload)))
		from := memory.Range{Key: s.LKey, Address: s.Addr + offset, Length: n}
		if fault := q.engine.memory.Read(q.principal, 0, from, payload[:n]); fault != memory.FaultNone {
			return fault
		}
		payload, offset = payload[n:], 0
	}
	return memory.FaultNone
}

// scatter copies length bytes of data into the bytes of a list from offset on; final says that they end the
// message.
func (q *QP) scatter(list []queue.SGE, offset uint64, data [][]byte, length uint64, final bool) memory.Fault {
	left := length
	pieces := cutter{pieces: data}
	for _, s := range list {
		if left == 0 {
			break
		}
		size := uint64(s.Length)
		if offset >= size {
			offset -= size
			continue
		}
		n := min(size-offset, left)
		left -= n
		into := memory.Range{Key: s.LKey, Address: s.Addr + offset, Length: n}
		piece := pieces.cut(int(n))
		if fault := q.engine.memory.Write(q.principal, memory.LocalWrite, into, piece, final && left == 0); fault != memory.FaultNone {
			return fault
		}
		offset = 0
	}
	return memory.FaultNone
}

// cutter hands out the bytes of a list of pieces in portions.
type cutter struct {
	pieces [][]byte
	offset int // into the first piece
	out    [roce.MaxSegments][]byte
}

// cut returns the next n bytes, at most what is left. The result is valid until the next cut.
func (c *cutter) cut(n int) [][]byte {
	count := 0
	for n > 0 && len(c.pieces) > 0 {
		piece := c.pieces[0][c.offset:]
		if len(piece) > n {
			piece = piece[:n]
			c.offset += n
		} else {
			c.pieces, c.offset = c.pieces[1:], 0
		}
		c.out[count] = piece
		count++
		n -= len(piece)
	}
	return c.out[:count]
}
