package transport

// The responder of RC executes the peer's requests.
//
// Way of a request: its PSN is the expected one, or it is a duplicate, or something before it was lost (IBTA volume 1,
// chapter 9). An expected one passes the checks in the order of rxe_resp.c: opcode sequence, rights of the QP,
// resources, length, R_Key; then its payload is placed (inbound.go), the expected PSN and on the last packet the MSN
// move on, a completion is made, and an answer is noted. What has a response of its own is in rc_answered.go. Answers
// are written by rc_response.go: one acknowledgement for all requests of a receive batch.
//
// Nothing moves because of a packet that fails. A fatal fault notes the NAK first and then moves the QP to the error
// state; the NAK still leaves.

import (
	"github.com/xroce/xroce/roce"
	"github.com/xroce/xroce/roce/memory"
	"github.com/xroce/xroce/roce/queue"
)

// answer is the acknowledgement or NAK that is to be sent. A newer one replaces an older one: it acknowledges
// everything before it too.
type answer struct {
	pending  bool
	sequence uint64
	syndrome roce.Syndrome
}

type responder struct {
	qp       *QP
	recovery *recovery
	inbound  *inbound

	expected uint64 // sequence number of the next request packet
	msn      uint32

	operation roce.Operation // of the packet that is or was processed last
	fault     memory.Fault   // why memory could not be accessed for it

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

	// saved is a ring of the requests with a response of their own accepted last (rc_answered.go); savedNext is one
	// past the newest.
	saved        []savedRequest
	savedNext    uint64
	limit        uint64 // max_dest_rd_atomic
	responsesDue int    // saved requests with responses due

	established bool // the first request of the peer has come

	// lastWords says that the QP is in the error state and still owes the NAK that brought it there.
	lastWords bool
}

func (r *responder) start(maxDestRDAtomic uint8) {
	r.expected = origin
	r.grant(maxDestRDAtomic)
}

func (r *responder) psn(sequence uint64) roce.PSN { return r.qp.attrs.RQPSN.Add(uint32(sequence)) }

// receive takes a request.
func (r *responder) receive(p *roce.Packet) {
	distance := p.PSN.Diff(r.psn(r.expected))
	switch {
	case distance == 0:
		if !r.established {
			r.established = true
			if r.qp.state == StateRTR {
				r.qp.raise(EventCommEst)
			}
		}
		r.refused = false
		unsaid := r.answer.pending && r.answer.syndrome == roce.SyndromeNAKSequence
		r.receiveExpected(p)
		if unsaid && r.qp.state != StateError && !r.refused && r.expected <= r.skipped {
			// The missing packet came before the NAK left: the network had changed the order. What was skipped
			// is still missing, and nobody else would tell.
			r.refuseSequence()
		}
	case distance < 0:
		r.qp.count(duplicateRequests)
		r.qp.engine.verdict.Duplicate = true
		r.receiveDuplicate(p, r.expected+uint64(int64(distance)))
	default:
		r.qp.count(outOfSequence)
		r.qp.drop(roce.DropOutOfSequence)
		if !r.refused {
			r.skipped = 0 // of an earlier loss, or of a packet that belongs to no life of this connection
			r.refuseSequence()
		}
		r.skipped = max(r.skipped, r.expected+uint64(distance))
	}
}

// refuseSequence asks for everything from the expected packet on, once per loss.
func (r *responder) refuseSequence() {
	r.refused = true
	r.qp.count(sentSequenceNAKs)
	r.reply(r.expected, roce.SyndromeNAKSequence)
}

// reply notes what to send. It replaces what was noted before.
func (r *responder) reply(sequence uint64, syndrome roce.Syndrome) {
	r.answer = answer{pending: true, sequence: sequence, syndrome: syndrome}
	r.qp.engine.Ready(r.qp)
}

// refuse answers a request with a fatal NAK and moves the QP to the error state. The receive request that the
// message claimed, if any, completes with status; otherwise an event tells the program.
func (r *responder) refuse(syndrome roce.Syndrome, status queue.WCStatus) {
	r.qp.count(sentFatalNAKs)
	r.reply(r.expected, syndrome)
	r.breakOff(syndrome, status)
}

// breakOff moves the QP to the error state because of the request that is being processed. The answer that was noted
// still leaves.
func (r *responder) breakOff(syndrome roce.Syndrome, status queue.WCStatus) {
	q := r.qp
	wrID, claimed := r.inbound.abandon()
	q.failure = queue.WC{
		Status: status, Opcode: queue.WCRecv, QPN: q.config.QPN,
		PSN: r.psn(r.answer.sequence), Syndrome: syndrome, VendorErr: uint32(r.fault),
	}
	switch {
	case claimed:
		q.failure.WRID = wrID
		q.completion = q.failure
		q.complete(q.config.RecvCQ, false)
	default:
		q.failure.Flags, q.failure.Opcode = queue.WCPeerRequest, peerOpcode(r.operation)
		if syndrome == roce.SyndromeNAKRemoteAccess {
			q.raise(EventQPAccessErr)
		} else {
			q.raise(EventQPReqErr)
		}
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

func (r *responder) receiveExpected(p *roce.Packet) {
	r.operation, r.fault = p.Info.Operation, memory.FaultNone
	if !r.inbound.follows(p) {
		r.refuse(roce.SyndromeNAKInvalidRequest, queue.WCRemInvReqErr)
		return
	}
	switch r.operation {
	case roce.OperationSend:
		r.conclude(p, r.inbound.send(p))
	case roce.OperationWrite:
		r.conclude(p, r.inbound.write(p))
	default:
		r.receiveAnswered(p)
	}
}

// refusals are the NAK and the status at this end by the outcome of a packet.
var refusals = [...]struct {
	syndrome roce.Syndrome
	status   queue.WCStatus
}{
	outcomeBadReceive: {roce.SyndromeNAKRemoteOperational, queue.WCLocQPOpErr},
	outcomeNoRight:    {roce.SyndromeNAKInvalidRequest, queue.WCRemInvReqErr},
	outcomeBadLength:  {roce.SyndromeNAKInvalidRequest, queue.WCRemInvReqErr},
	// rdma_rxe answers 0x63 here; the specification has invalid request.
	outcomeTooLong:     {roce.SyndromeNAKInvalidRequest, queue.WCLocLenErr},
	outcomeLocalFault:  {roce.SyndromeNAKRemoteOperational, queue.WCLocProtErr},
	outcomeRemoteFault: {roce.SyndromeNAKRemoteAccess, queue.WCRemAccessErr},
}

// conclude draws the consequences of a packet of a SEND or WRITE.
func (r *responder) conclude(p *roce.Packet, o outcome) {
	r.fault = o.fault
	switch o.kind {
	case outcomeAccepted:
		r.accept(p)
	case outcomeNoReceive:
		r.refused = true
		r.qp.count(sentRNRNAKs)
		r.reply(r.expected, roce.RNRNAK(r.qp.attrs.MinRNRTimer))
	case outcomeKeyFault:
		// The message itself has arrived, so it is acknowledged; what is wrong is a matter of this end
		// (drivers/infiniband/sw/rxe/rxe_resp.c sends no NAK either).
		r.expected++
		r.msn++
		r.reply(r.expected-1, roce.SyndromeAckNoCredits)
		r.breakOff(roce.SyndromeAckNoCredits, queue.WCRemInvReqErr)
	default:
		r.refuse(refusals[o.kind].syndrome, refusals[o.kind].status)
	}
}

// accept moves on behind a packet of a SEND or WRITE that was executed. An answer that has not left yet becomes an
// acknowledgement of this packet: if it was a NAK, it asked for what has come now.
func (r *responder) accept(p *roce.Packet) {
	r.lastPlain, r.hasLastPlain = r.expected, true
	r.expected++
	if p.BTH.AckRequest() || r.answer.pending {
		r.answer = answer{pending: true, sequence: r.lastPlain, syndrome: roce.SyndromeAckNoCredits}
		r.qp.engine.owe(r.qp)
	}
	if p.Info.Ends() {
		r.msn++
		r.inbound.finish(p)
	}
}

// receiveDuplicate answers a request that was executed before. It touches neither memory nor the state of a message in
// progress, and is not answered with a NAK (drivers/infiniband/hw/hfi1/rc.c: rc_rcv_error), unless it is a READ that
// was not yet answered in full and never will be.
func (r *responder) receiveDuplicate(p *roce.Packet, sequence uint64) {
	switch p.Info.Operation {
	case roce.OperationSend, roce.OperationWrite:
		switch {
		case !r.hasLastPlain:
			r.qp.drop(roce.DropDuplicateUnanswerable) // of an earlier life of the connection
		case !r.answer.pending || r.answer.sequence < r.lastPlain:
			r.reply(r.lastPlain, roce.SyndromeAckNoCredits)
		}
	default:
		r.receiveDuplicateAnswered(p, sequence)
	}
}
