package transport

// The responder executes the peer's requests.
//
// Way of a request: its PSN is the expected one, or it is a duplicate, or something before it was lost
// (IBTA volume 1, chapter 9). An expected one passes the checks in the order of rxe_resp.c: opcode sequence,
// rights of the QP, resources, length, R_Key; then its payload is placed, the expected PSN and on the last packet the
// MSN move on, a completion is made, and an answer is noted. Answers are written by response.go: one
// acknowledgement for all requests of a receive batch.
//
// Nothing moves because of a packet that fails. A fatal fault notes the NAK first and then moves the QP to the error
// state; the NAK still leaves.

import (
	"github.com/xroce/xroce/roce"
	"github.com/xroce/xroce/roce/memory"
	"github.com/xroce/xroce/roce/queue"
)

// message is the kind of the message that the responder is in the middle of.
type message uint8

const (
	messageNone message = iota
	messageSend
	messageWrite
)

// answer is the acknowledgement or NAK that is to be sent. A newer one replaces an older one: it acknowledges
// everything before it too.
type answer struct {
	pending  bool
	sequence uint64
	syndrome roce.Syndrome
}

type responder struct {
	expected uint64 // sequence number of the next request packet
	msn      uint32

	operation roce.Operation // of the packet that is or was processed last
	fault     memory.Fault   // why memory could not be accessed for it
	message   message
	receive   queue.RecvWR // claimed by the message, if claimed
	claimed   bool
	capacity  uint64 // bytes of the receive's list
	received  uint64 // bytes of the message so far
	// Of a WRITE:
	write     memory.Range // what is still to come
	writeSize uint64

	// refused says that the packet with the expected PSN was answered with a NAK or an RNR NAK. Until it
	// comes, packets behind it are dropped silently: one NAK per loss.
	refused bool
	answer  answer
	// skipped is the highest sequence number of a packet that was dropped because one before it was missing.
	skipped uint64
	// lastPlain is the last SEND or WRITE packet that was accepted: what a duplicate is acknowledged with.
	// An acknowledgement of a READ's PSN would be wrong while its responses may be lost.
	lastPlain    uint64
	hasLastPlain bool

	// saved is a ring of the requests with a response of their own accepted last (answered.go); savedNext is one
	// past the newest.
	saved        []savedRequest
	savedNext    uint64
	limit        uint64 // max_dest_rd_atomic
	responsesDue int    // saved requests with responses due

	established bool // the first request of the peer has come

	// lastWords says that the QP is in the error state and still owes the NAK that brought it there.
	lastWords bool
}

func (r *responder) init(config *Config) {
	r.receive.SGList = make([]queue.SGE, 0, config.MaxRecvSGE)
}

func (r *responder) start(maxDestRDAtomic uint8) {
	r.expected = origin
	r.grant(maxDestRDAtomic)
}

func (r *responder) reset(config *Config) {
	config.Receive.Discard()
	*r = responder{receive: queue.RecvWR{SGList: r.receive.SGList[:0]}}
}

func (q *QP) expectedPSN(sequence uint64) roce.PSN { return q.attrs.RQPSN.Add(uint32(sequence)) }

func (q *QP) receiveRequest(p *roce.Packet) {
	r := &q.responder
	distance := p.PSN.Diff(q.expectedPSN(r.expected))
	switch {
	case distance == 0:
		if !r.established {
			r.established = true
			if q.state == StateRTR {
				q.raise(EventCommEst)
			}
		}
		r.refused = false
		unsaid := r.answer.pending && r.answer.syndrome == roce.SyndromeNAKSequence
		q.receiveExpected(p)
		if unsaid && q.state != StateError && !r.refused && r.expected <= r.skipped {
			// The missing packet came before the NAK left: the network had changed the order. What was skipped
			// is still missing, and nobody else would tell.
			q.refuseSequence()
		}
	case distance < 0:
		q.count(duplicateRequests)
		q.engine.verdict.Duplicate = true
		q.receiveDuplicate(p, r.expected+uint64(int64(distance)))
	default:
		q.count(outOfSequence)
		q.drop(roce.DropOutOfSequence)
		if !r.refused {
			r.skipped = 0 // of an earlier loss, or of a packet that belongs to no life of this connection
			q.refuseSequence()
		}
		r.skipped = max(r.skipped, r.expected+uint64(distance))
	}
}

// refuseSequence asks for everything from the expected packet on, once per loss.
func (q *QP) refuseSequence() {
	q.responder.refused = true
	q.count(sentSequenceNAKs)
	q.answer(q.responder.expected, roce.SyndromeNAKSequence)
}

// answer notes what to send. It replaces what was noted before.
func (q *QP) answer(sequence uint64, syndrome roce.Syndrome) {
	q.responder.answer = answer{pending: true, sequence: sequence, syndrome: syndrome}
	q.engine.Ready(q)
}

// refuse answers a request with a fatal NAK and moves the QP to the error state. The receive request that the
// message claimed, if any, completes with status; otherwise an event tells the program.
func (q *QP) refuse(syndrome roce.Syndrome, status queue.WCStatus) {
	q.count(sentFatalNAKs)
	q.answer(q.responder.expected, syndrome)
	q.breakOff(syndrome, status)
}

// breakOff moves the QP to the error state because of the request that is being processed. The answer that was noted
// still leaves.
func (q *QP) breakOff(syndrome roce.Syndrome, status queue.WCStatus) {
	r := &q.responder
	q.failure = queue.WC{
		Status: status, Opcode: queue.WCRecv, QPN: q.config.QPN,
		PSN: q.expectedPSN(r.answer.sequence), Syndrome: syndrome, VendorErr: uint32(r.fault),
	}
	if !r.claimed {
		q.failure.Flags, q.failure.Opcode = queue.WCPeerRequest, peerOpcode(r.operation)
	}
	switch {
	case r.claimed:
		q.failure.WRID = r.receive.WRID
		r.claimed = false
		wc := q.failure
		q.complete(q.config.RecvCQ, &wc, false)
	case syndrome == roce.SyndromeNAKRemoteAccess:
		q.raise(EventQPAccessErr)
	default:
		q.raise(EventQPReqErr)
	}
	r.lastWords = true
	q.enterError()
}

// peerOpcode names an operation of the peer as its own completion would.
func peerOpcode(o roce.Operation) queue.WCOpcode {
	switch o {
	case roce.OperationWrite:
		return queue.WCRDMAWrite
	case roce.OperationRead:
		return queue.WCRDMARead
	case roce.OperationCompareSwap:
		return queue.WCCompareSwap
	case roce.OperationFetchAdd:
		return queue.WCFetchAdd
	case roce.OperationFlush:
		return queue.WCFlush
	case roce.OperationAtomicWrite:
		return queue.WCAtomicWrite
	}
	return queue.WCSend
}

func (q *QP) receiveExpected(p *roce.Packet) {
	r := &q.responder
	operation := p.Info.Operation
	r.operation, r.fault = operation, memory.FaultNone
	inSequence := p.Info.Starts()
	switch r.message {
	case messageSend:
		inSequence = !p.Info.Starts() && operation == roce.OperationSend
	case messageWrite:
		inSequence = !p.Info.Starts() && operation == roce.OperationWrite
	}
	if !inSequence {
		q.refuse(roce.SyndromeNAKInvalidRequest, queue.WCRemInvReqErr)
		return
	}
	switch operation {
	case roce.OperationSend:
		q.receiveSend(p)
	case roce.OperationWrite:
		q.receiveWrite(p)
	default:
		q.receiveAnswered(p)
	}
}

// claim takes a receive request for the message. false means that there is none, or that the one taken
// is of no use; the answer is noted.
func (q *QP) claim() bool {
	r := &q.responder
	found, valid := q.config.Receive.Take(&r.receive)
	if !found {
		r.refused = true
		q.count(sentRNRNAKs)
		q.answer(r.expected, roce.RNRNAK(q.attrs.MinRNRTimer))
		return false
	}
	r.claimed = true
	if !valid {
		q.refuse(roce.SyndromeNAKRemoteOperational, queue.WCLocQPOpErr)
		return false
	}
	r.capacity = 0
	for _, s := range r.receive.SGList {
		r.capacity += uint64(s.Length)
	}
	return true
}

// lengthFits checks payload and pad of a packet of a SEND by its position (table in
// IBTA volume 1, chapter 9; rxe_resp_check_length in drivers/infiniband/sw/rxe/rxe_resp.c).
func (q *QP) lengthFits(p *roce.Packet) bool {
	n := uint64(p.PayloadLength)
	switch p.Info.Position {
	case roce.PositionFirst, roce.PositionMiddle:
		return n == q.mtu && p.PadCount == 0
	case roce.PositionLast:
		return n >= 1 && n <= q.mtu && padFits(p)
	}
	return n <= q.mtu && padFits(p)
}

func padFits(p *roce.Packet) bool { return int(p.PadCount) == -p.PayloadLength&3 }

func (q *QP) receiveSend(p *roce.Packet) {
	r := &q.responder
	if p.Info.Starts() {
		if !q.claim() {
			return
		}
		r.received = 0
	}
	if !q.lengthFits(p) {
		q.refuse(roce.SyndromeNAKInvalidRequest, queue.WCRemInvReqErr)
		return
	}
	if uint64(p.PayloadLength) > r.capacity-r.received {
		// rdma_rxe answers 0x63 here; the specification has invalid request.
		q.refuse(roce.SyndromeNAKInvalidRequest, queue.WCLocLenErr)
		return
	}
	r.fault = q.scatter(r.receive.SGList, r.received, p.Payload(), uint64(p.PayloadLength), p.Info.Ends())
	if r.fault != memory.FaultNone {
		q.refuse(roce.SyndromeNAKRemoteOperational, queue.WCLocProtErr)
		return
	}
	r.received += uint64(p.PayloadLength)
	r.message = messageSend
	if p.Info.Has(roce.HeaderIETH) {
		r.fault = q.engine.memory.Invalidate(q.principal, p.IETH().RKey())
	}
	if r.fault != memory.FaultNone {
		// The message itself has arrived, so it is acknowledged; what is wrong is a matter of this end
		// (drivers/infiniband/sw/rxe/rxe_resp.c sends no NAK either).
		r.expected++
		r.msn++
		q.answer(r.expected-1, roce.SyndromeAckNoCredits)
		q.breakOff(roce.SyndromeAckNoCredits, queue.WCRemInvReqErr)
		return
	}
	q.accept(p, queue.WCRecv, r.received)
}

func (q *QP) receiveWrite(p *roce.Packet) {
	r := &q.responder
	if p.Info.Starts() {
		reth := p.RETH()
		if q.attrs.Access&memory.RemoteWrite == 0 {
			q.refuse(roce.SyndromeNAKInvalidRequest, queue.WCRemInvReqErr)
			return
		}
		r.write = memory.Range{Key: reth.RKey(), Address: reth.VA(), Length: uint64(reth.Length())}
		r.writeSize = r.write.Length
	}
	// A plain WRITE takes no receive request; one with immediate data takes it with its last packet.
	if p.Info.Has(roce.HeaderImmDt) && !q.claim() {
		return
	}
	n, left := uint64(p.PayloadLength), r.write.Length
	fits := left <= queue.MaxMessage && padFits(p)
	if left > q.mtu {
		fits = fits && !p.Info.Ends() && n == q.mtu
	} else {
		fits = fits && p.Info.Ends() && n == left
	}
	if !fits {
		q.refuse(roce.SyndromeNAKInvalidRequest, queue.WCRemInvReqErr)
		return
	}
	// With length 0 key and address may be anything (drivers/infiniband/sw/rxe/rxe_resp.c cites C9-88).
	if p.Info.Starts() && left > 0 {
		r.fault = q.engine.memory.Check(q.principal, memory.RemoteWrite, r.write)
	}
	if r.fault == memory.FaultNone && n > 0 {
		into := r.write
		into.Length = n
		r.fault = q.engine.memory.Write(q.principal, memory.RemoteWrite, into, p.Payload(), p.Info.Ends())
	}
	if r.fault != memory.FaultNone {
		q.refuse(roce.SyndromeNAKRemoteAccess, queue.WCRemAccessErr)
		return
	}
	r.write.Address += n
	r.write.Length -= n
	r.message = messageWrite
	q.accept(p, queue.WCRecvRDMAWithImmediate, r.writeSize)
}

// accept moves on behind a packet of a SEND or WRITE that was executed.
func (q *QP) accept(p *roce.Packet, opcode queue.WCOpcode, length uint64) {
	r := &q.responder
	r.lastPlain, r.hasLastPlain = r.expected, true
	r.expected++
	if p.BTH.AckRequest() {
		q.answer(r.lastPlain, roce.SyndromeAckNoCredits)
	}
	if !p.Info.Ends() {
		return
	}
	r.message = messageNone
	r.msn++
	if !r.claimed {
		return
	}
	r.claimed = false
	wc := queue.WC{
		WRID: r.receive.WRID, Opcode: opcode, QPN: q.config.QPN, ByteLen: uint32(length), PSN: p.PSN,
	}
	if p.Info.Has(roce.HeaderImmDt) {
		wc.Flags |= queue.WCWithImmediate
		wc.ImmData = p.ImmDt().Value()
	}
	if p.Info.Has(roce.HeaderIETH) {
		wc.Flags |= queue.WCWithInvalidate
		wc.InvalidatedRKey = p.IETH().RKey()
	}
	q.complete(q.config.RecvCQ, &wc, p.BTH.Solicited())
}

// receiveDuplicate answers a request that was executed before. It touches neither memory nor the state of a message in
// progress, and is not answered with a NAK (drivers/infiniband/hw/hfi1/rc.c: rc_rcv_error), unless it is a READ that was not yet
// answered in full and never will be.
func (q *QP) receiveDuplicate(p *roce.Packet, sequence uint64) {
	r := &q.responder
	switch p.Info.Operation {
	case roce.OperationSend, roce.OperationWrite:
		switch {
		case !r.hasLastPlain:
			q.drop(roce.DropDuplicateUnanswerable) // of an earlier life of the connection
		case !r.answer.pending || r.answer.sequence < r.lastPlain:
			q.answer(r.lastPlain, roce.SyndromeAckNoCredits)
		}
	default:
		q.receiveDuplicateAnswered(p, sequence)
	}
}

// flushReceives completes the receive requests that the QP holds or that wait in its queue.
func (q *QP) flushReceives() {
	r := &q.responder
	// What is posted meanwhile rings the doorbell again: nobody keeps the shard busy by posting to a dead QP.
	for left := q.config.Receive.Waiting(); r.claimed || left > 0; {
		if !r.claimed {
			left--
			if found, _ := q.config.Receive.Take(&r.receive); !found {
				return
			}
		}
		r.claimed = false
		wc := queue.WC{WRID: r.receive.WRID, Status: queue.WCWRFlushErr, Opcode: queue.WCRecv, QPN: q.config.QPN}
		q.complete(q.config.RecvCQ, &wc, false)
	}
}
