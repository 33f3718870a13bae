package transport

// The completer of RC takes the responses of the peer and retires send requests.
//
// Way of a response: it lies between una and next or it is dropped; an acknowledgement or a NAK acknowledges everything
// before it, as far as no unanswered READ or atomic is in between; a READ response at una is placed into the request's
// memory, one behind una shows that others were lost. Whatever made progress moves una of recovery and completes
// requests from the oldest on, in posting order.

import (
	"encoding/binary"

	"github.com/xroce/xroce/roce"
	"github.com/xroce/xroce/roce/memory"
	"github.com/xroce/xroce/roce/queue"
)

type completer struct {
	qp        *QP
	recovery  *recovery
	sends     *sendQueue
	requester *requester

	lastSyndrome roce.Syndrome

	// word is the result of an atomic on its way to user memory: a local variable would be allocated, since it goes
	// through an interface.
	word       [8]byte
	wordPieces [1][]byte
}

// receive takes a response.
func (c *completer) receive(p *roce.Packet) {
	una := c.recovery.una
	sequence := una + uint64(int64(p.PSN.Diff(c.requester.psn(una))))
	if sequence >= c.recovery.next {
		c.qp.drop(roce.DropUnexpectedResponse)
		return
	}
	aeth := p.AETH()
	if aeth != nil && aeth.Syndrome().IsAck() && sequence+1 >= una &&
		c.requester.credits.update(aeth.Syndrome(), aeth.MSN()) {
		c.qp.engine.Ready(c.qp)
	}
	if sequence < una {
		if aeth != nil && isFatal(aeth.Syndrome()) && c.breaksRead(sequence) {
			c.lastSyndrome = aeth.Syndrome()
			c.fail(statusOf(c.lastSyndrome))
			return
		}
		c.qp.drop(roce.DropStaleResponse)
		return
	}
	switch {
	case p.Info.Operation == roce.OperationAcknowledge, aeth != nil && !aeth.Syndrome().IsAck():
		// Which packet carries the NAK of a READ or an atomic is disputed: some responders put it into the form that
		// the response would have had.
		c.receiveAcknowledge(sequence, aeth.Syndrome())
	case p.Info.Operation == roce.OperationReadResponse:
		c.receiveReadResponse(sequence, p)
	case p.Info.Operation == roce.OperationAtomicAcknowledge:
		c.receiveAtomicAcknowledge(sequence, p)
	default:
		c.qp.drop(roce.DropUnexpectedResponse)
	}
}

func (c *completer) receiveAcknowledge(sequence uint64, syndrome roce.Syndrome) {
	switch {
	case syndrome.IsAck():
		c.lastSyndrome = syndrome
		if implied := c.acknowledge(sequence + 1); implied {
			c.qp.count(impliedNAKs)
			c.requester.lost(lossTold)
		}
	case syndrome.IsRNR():
		if c.recovery.waitingRNR && sequence == c.recovery.una {
			c.qp.drop(roce.DropStaleResponse) // a duplicate: nothing was sent since the first one
			return
		}
		c.lastSyndrome = syndrome
		c.qp.count(receivedRNRNAKs)
		if implied := c.acknowledge(sequence); implied {
			c.requester.lost(lossTold)
			return
		}
		c.requester.refused(syndrome)
	case syndrome == roce.SyndromeNAKSequence:
		c.qp.count(receivedNAKs)
		if c.recovery.waitingRNR {
			// rdma_rxe sends one for the packets behind a refused one. The wait goes on.
			c.qp.drop(roce.DropStaleResponse)
			return
		}
		c.lastSyndrome = syndrome
		c.acknowledge(sequence)
		c.requester.lost(lossTold)
	case isFatal(syndrome):
		c.lastSyndrome = syndrome
		if implied := c.acknowledge(sequence); implied && !c.breaksRead(sequence) {
			c.requester.lost(lossTold)
			return
		}
		c.fail(statusOf(syndrome))
	default:
		c.qp.drop(roce.DropUnexpectedResponse)
	}
}

func isFatal(syndrome roce.Syndrome) bool {
	return syndrome == roce.SyndromeNAKInvalidRequest || syndrome == roce.SyndromeNAKRemoteAccess ||
		syndrome == roce.SyndromeNAKRemoteOperational
}

// breaksRead says whether the PSN of a fatal NAK belongs to the oldest request, and this is a READ: then it was broken
// off and will never be answered in full, whichever of its responses were lost before. The PSN is that of the response
// that could not be sent or, from rdma_rxe, the first one of the request (drivers/infiniband/sw/rxe/rxe_resp.c).
func (c *completer) breaksRead(sequence uint64) bool {
	w := c.sends.oldest()
	return w != nil && w.isRead() && sequence >= w.first && sequence < w.end() && c.recovery.una >= w.first
}

func statusOf(syndrome roce.Syndrome) queue.WCStatus {
	switch syndrome {
	case roce.SyndromeNAKInvalidRequest:
		return queue.WCRemInvReqErr
	case roce.SyndromeNAKRemoteAccess:
		return queue.WCRemAccessErr
	}
	return queue.WCRemOpErr
}

// acknowledge retires everything before the sequence number upTo. It stops at a READ or atomic that was not answered
// and then returns true: its response was lost, and the acknowledgement is a NAK of it
// (drivers/infiniband/hw/hfi1/rc.c: do_rc_ack).
func (c *completer) acknowledge(upTo uint64) (implied bool) {
	una := c.recovery.una
	for i := c.sends.head; i < c.sends.tail && una < upTo; i++ {
		w := c.sends.work(i)
		if w.end() <= una {
			continue
		}
		if w.answered() {
			una = max(una, w.first)
			implied = true
			break
		}
		una = min(upTo, w.end())
	}
	c.progress(una)
	return implied
}

// progress moves una forward and draws the consequences.
func (c *completer) progress(una uint64) {
	if una == c.recovery.una {
		return
	}
	c.recovery.acknowledged(c.qp.engine.now, una)
	c.requester.acknowledged()
	c.retire()
	c.checkDrained()
	c.qp.engine.Ready(c.qp)
}

// checkDrained finds out whether all that was begun is complete.
func (c *completer) checkDrained() {
	if c.qp.state != StateSQD || c.recovery.una != c.recovery.next {
		return
	}
	if w := c.sends.oldest(); w == nil || w.first >= c.recovery.next {
		c.qp.drain()
	}
}

// retire completes the oldest requests that are done.
func (c *completer) retire() {
	for w := c.sends.oldest(); w != nil && c.qp.sends(); w = c.sends.oldest() {
		if w.status != queue.WCSuccess {
			// It is the oldest and nothing of what was sent before it is open. In SQD it has not begun yet.
			if c.recovery.una >= w.first && (c.qp.state == StateRTS || w.first < c.recovery.next) {
				c.fail(w.status)
			}
			return
		}
		if w.end() > c.recovery.una || w.isLocal() && !w.done {
			return
		}
		if !w.isLocal() {
			c.recovery.answered(int(min(w.length, c.qp.mtu)))
		}
		if c.requester.credits.limited {
			c.requester.credits.executed(w.ssn + w.messages() - 1)
		}
		c.sends.complete(queue.WCSuccess, c.account())
		c.requester.current = max(c.requester.current, c.sends.head)
	}
}

// account is what is known about the answers of the peer.
func (c *completer) account() account {
	return account{
		psn: c.requester.psn(c.recovery.una), syndrome: c.lastSyndrome,
		retries: c.recovery.retries, rnrRetries: c.recovery.rnrRetries,
	}
}

// requestAt is the request that a response belongs to. It is nil if there is none, or if the request has failed
// already.
func (c *completer) requestAt(sequence uint64) *work {
	for i := c.sends.head; i < c.sends.tail; i++ {
		if w := c.sends.work(i); w.end() > sequence {
			if w.status != queue.WCSuccess {
				return nil
			}
			return w
		}
	}
	return nil
}

// precede does what the response to w implies: everything before it was done. It returns false if the response is of no
// use: one before it was lost, or the QP has failed.
func (c *completer) precede(w *work, sequence uint64) bool {
	implied := c.acknowledge(w.first)
	if !c.qp.sends() {
		return false
	}
	if implied || sequence != c.recovery.una {
		c.qp.count(impliedNAKs)
		c.qp.drop(roce.DropOutOfSequence)
		c.requester.lost(lossTold)
		return false
	}
	return true
}

// receiveReadResponse takes a response to a READ, or the one to an atomic write or a FLUSH, which has no payload.
func (c *completer) receiveReadResponse(sequence uint64, p *roce.Packet) {
	w := c.requestAt(sequence)
	switch {
	case w == nil:
		c.qp.drop(roce.DropUnexpectedResponse)
		return
	case !w.answered() || w.wr.Opcode == queue.CompareSwap || w.wr.Opcode == queue.FetchAdd:
		c.badResponse(w)
		return
	case !c.precede(w, sequence):
		return
	}
	length, offset := uint64(0), uint64(0)
	if w.isRead() {
		offset = (sequence - w.first) * c.qp.mtu
		length = min(c.qp.mtu, w.length-offset)
	}
	if uint64(p.PayloadLength) != length {
		c.stopAt(w, queue.WCLocLenErr)
		return
	}
	last := sequence+1 == w.end()
	if w.fault = c.qp.scatter(w.wr.SGList, offset, p.Payload(), length, last); w.fault != memory.FaultNone {
		c.stopAt(w, queue.WCLocProtErr)
		return
	}
	if aeth := p.AETH(); aeth != nil {
		c.lastSyndrome = aeth.Syndrome()
	}
	c.progress(sequence + 1)
}

// receiveAtomicAcknowledge takes the response to an atomic: the word as it was.
func (c *completer) receiveAtomicAcknowledge(sequence uint64, p *roce.Packet) {
	w := c.requestAt(sequence)
	switch {
	case w == nil:
		c.qp.drop(roce.DropUnexpectedResponse)
		return
	case w.wr.Opcode != queue.CompareSwap && w.wr.Opcode != queue.FetchAdd:
		c.badResponse(w)
		return
	case !c.precede(w, sequence):
		return
	}
	// Big endian on the wire, host order in memory.
	binary.NativeEndian.PutUint64(c.word[:], p.AtomicAckETH().Original())
	c.wordPieces[0] = c.word[:]
	if w.fault = c.qp.scatter(w.wr.SGList, 0, c.wordPieces[:], uint64(len(c.word)), true); w.fault != memory.FaultNone {
		c.stopAt(w, queue.WCLocProtErr)
		return
	}
	c.lastSyndrome = p.AETH().Syndrome()
	c.progress(sequence + 1)
}

// badResponse ends a request that was answered with something that can never be its answer.
func (c *completer) badResponse(w *work) { c.stopAt(w, queue.WCBadRespErr) }

// stopAt marks a request that cannot go on because of a local fault. Earlier requests still run to their end; then this
// one completes with the status.
func (c *completer) stopAt(w *work, status queue.WCStatus) {
	w.status = status
	c.retire()
}

// fail completes the oldest send request with status and brings the QP into the error state.
func (c *completer) fail(status queue.WCStatus) {
	if w := c.sends.oldest(); w != nil {
		c.measure(w)
		c.qp.failure = c.sends.report(w, status, c.account())
		c.sends.complete(status, c.account())
	}
	c.qp.enterError()
}

// measure takes down how long the packet was that was not answered, and that others of its message were, when the
// oldest request fails.
func (c *completer) measure(w *work) {
	if w.isLocal() || c.recovery.una < w.first {
		return
	}
	mtu := c.qp.mtu
	done := (c.recovery.una - w.first) * mtu // of the request's payload, all in full packets
	if done > 0 {
		c.recovery.answered(int(mtu))
	}
	c.recovery.unanswered(int(min(w.length-min(done, w.length), mtu)))
}
