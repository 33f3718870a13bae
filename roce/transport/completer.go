package transport

// The completer takes the responses of the peer and retires send requests.
//
// Way of a response: it lies between una and next or it is dropped; an acknowledgement or a NAK
// acknowledges everything before it, as far as no unanswered READ or atomic is in between; a READ response at una is
// placed into the request's memory, one behind una shows that others were lost. Whatever made progress completes requests from
// the oldest on, in posting order, reloads the retry counters and moves the deadline.

import (
	"encoding/binary"

	"github.com/xroce/xroce/roce"
	"github.com/xroce/xroce/roce/memory"
	"github.com/xroce/xroce/roce/queue"
)

func (q *QP) receiveResponse(p *roce.Packet) {
	r := &q.requester
	sequence := q.recovery.una + uint64(int64(p.PSN.Diff(q.requestPSN(q.recovery.una))))
	if sequence >= q.recovery.next {
		q.drop(roce.DropUnexpectedResponse)
		return
	}
	aeth := p.AETH()
	if aeth != nil && aeth.Syndrome().IsAck() && sequence+1 >= q.recovery.una && r.credits.update(aeth.Syndrome(), aeth.MSN()) {
		q.engine.Ready(q)
	}
	if sequence < q.recovery.una {
		if aeth != nil && isFatal(aeth.Syndrome()) && q.breaksRead(sequence) {
			r.lastSyndrome = aeth.Syndrome()
			q.fail(statusOf(r.lastSyndrome))
			return
		}
		q.drop(roce.DropStaleResponse)
		return
	}
	switch {
	case p.Info.Operation == roce.OperationAcknowledge, aeth != nil && !aeth.Syndrome().IsAck():
		// Which packet carries the NAK of a READ or an atomic is disputed: some responders put it into the form that the
		// response would have had.
		q.receiveAcknowledge(sequence, aeth.Syndrome())
	case p.Info.Operation == roce.OperationReadResponse:
		q.receiveReadResponse(sequence, p)
	case p.Info.Operation == roce.OperationAtomicAcknowledge:
		q.receiveAtomicAcknowledge(sequence, p)
	default:
		q.drop(roce.DropUnexpectedResponse)
	}
}

func (q *QP) receiveAcknowledge(sequence uint64, syndrome roce.Syndrome) {
	r := &q.requester
	switch {
	case syndrome.IsAck():
		r.lastSyndrome = syndrome
		if implied := q.acknowledge(sequence + 1); implied {
			q.count(impliedNAKs)
			q.lost(lossTold)
		}
	case syndrome.IsRNR():
		if q.recovery.waitingRNR && sequence == q.recovery.una {
			q.drop(roce.DropStaleResponse) // a duplicate: nothing was sent since the first one
			return
		}
		r.lastSyndrome = syndrome
		q.count(receivedRNRNAKs)
		if implied := q.acknowledge(sequence); implied {
			q.lost(lossTold)
			return
		}
		q.waitRNR(syndrome)
	case syndrome == roce.SyndromeNAKSequence:
		q.count(receivedNAKs)
		if q.recovery.waitingRNR {
			// rdma_rxe sends one for the packets behind a refused one. The wait goes on.
			q.drop(roce.DropStaleResponse)
			return
		}
		r.lastSyndrome = syndrome
		q.acknowledge(sequence)
		q.lost(lossTold)
	case isFatal(syndrome):
		r.lastSyndrome = syndrome
		if implied := q.acknowledge(sequence); implied && !q.breaksRead(sequence) {
			q.lost(lossTold)
			return
		}
		q.fail(statusOf(syndrome))
	default:
		q.drop(roce.DropUnexpectedResponse)
	}
}

func isFatal(syndrome roce.Syndrome) bool {
	return syndrome == roce.SyndromeNAKInvalidRequest || syndrome == roce.SyndromeNAKRemoteAccess ||
		syndrome == roce.SyndromeNAKRemoteOperational
}

// breaksRead says whether the PSN of a fatal NAK belongs to the oldest request, and this is a READ: then it was broken off
// and will never be answered in full, whichever of its responses were lost before. The PSN is that of the response that
// could not be sent or, from rdma_rxe, the first one of the request (drivers/infiniband/sw/rxe/rxe_resp.c).
func (q *QP) breaksRead(sequence uint64) bool {
	r := &q.requester
	if r.head == r.tail {
		return false
	}
	w := r.work(r.head)
	return w.isRead() && sequence >= w.first && sequence < w.end() && q.recovery.una >= w.first
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

// acknowledge retires everything before the sequence number upTo. It stops at a READ or atomic that was not answered and
// then returns true: its response was lost, and the acknowledgement is a NAK of it (drivers/infiniband/hw/hfi1/rc.c: do_rc_ack).
func (q *QP) acknowledge(upTo uint64) (implied bool) {
	r := &q.requester
	una := q.recovery.una
	for i := r.head; i < r.tail && una < upTo; i++ {
		w := r.work(i)
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
	q.progress(una)
	return implied
}

// progress moves una forward and draws the consequences.
func (q *QP) progress(una uint64) {
	r := &q.requester
	if una == q.recovery.una {
		return
	}
	q.recovery.acknowledged(q.engine.now, una)
	q.seekCurrent()
	answered := 0
	for answered < r.answerCount && r.answers[answered] <= una {
		answered++
	}
	r.answerCount = copy(r.answers, r.answers[answered:r.answerCount])
	q.retire()
	q.checkDrained()
	q.engine.Ready(q)
}

// checkDrained tells the program when its send queue has drained: all that was started is complete
// (IBTA volume 1, chapter 10, state SQD).
func (q *QP) checkDrained() {
	r := &q.requester
	if q.state != StateSQD || r.drained || q.recovery.una != q.recovery.next || r.head < r.tail && r.work(r.head).first < q.recovery.next {
		return
	}
	r.drained = true
	if q.attrs.EnSQDAsyncNotify {
		q.raise(EventSQDrained)
	}
}

// retire completes the oldest requests that are done.
func (q *QP) retire() {
	r := &q.requester
	for r.head < r.tail && q.sends() {
		w := r.work(r.head)
		if w.status != queue.WCSuccess {
			// It is the oldest and nothing of what was sent before it is open. In SQD it has not begun yet.
			if q.recovery.una >= w.first && (q.state == StateRTS || w.first < q.recovery.next) {
				q.fail(w.status)
			}
			return
		}
		if w.end() > q.recovery.una || w.isLocal() && !w.done {
			return
		}
		if !w.isLocal() {
			r.answered = max(r.answered, min(w.length, q.mtu)+1)
		}
		q.completeSend(w, queue.WCSuccess)
	}
}

// completeSend retires the oldest request. Its slot is free before the completion can be seen: who polls it may
// post at once.
func (q *QP) completeSend(w *work, status queue.WCStatus) {
	r := &q.requester
	r.head++
	r.current = max(r.current, r.head)
	if status == queue.WCSuccess && r.credits.limited {
		r.credits.executed(w.ssn + w.messages() - 1)
	}
	q.config.Send.Release(1)
	if status == queue.WCSuccess && w.wr.Flags&queue.SendSignaled == 0 && !q.config.SignalAll {
		return
	}
	wc := queue.WC{
		WRID:       w.wr.WRID,
		Status:     status,
		Opcode:     w.wr.Opcode.Completed(),
		ByteLen:    uint32(w.length),
		QPN:        q.config.QPN,
		PSN:        q.requestPSN(q.recovery.una),
		Syndrome:   r.lastSyndrome,
		Retries:    q.recovery.retries,
		RNRRetries: q.recovery.rnrRetries,
	}
	if status == w.status { // not flushed, and not what the peer said
		wc.VendorErr = uint32(w.fault)
	}
	q.complete(q.config.SendCQ, &wc, false)
}

// complete adds a completion. A CQ without room has lost it, which its QP cannot survive (the verbs call it CQ overrun).
func (q *QP) complete(cq CompletionQueue, wc *queue.WC, solicited bool) {
	q.completion = *wc
	q.completion.Timestamp = int64(q.engine.now)
	if cq.Complete(&q.completion, solicited || wc.Status != queue.WCSuccess) {
		return
	}
	q.count(completionsDropped)
	if q.state != StateError {
		q.failure = queue.WC{Status: queue.WCFatalErr, QPN: q.config.QPN}
		q.enterError()
	}
}

// requestAt is the request that a response belongs to. It is nil if there is none, or if the request has failed already.
func (q *QP) requestAt(sequence uint64) *work {
	r := &q.requester
	for i := r.head; i < r.tail; i++ {
		if w := r.work(i); w.end() > sequence {
			if w.status != queue.WCSuccess {
				return nil
			}
			return w
		}
	}
	return nil
}

// precede does what the response to w implies: everything before it was done. It returns false if the response is of no use:
// one before it was lost, or the QP has failed.
func (q *QP) precede(w *work, sequence uint64) bool {
	implied := q.acknowledge(w.first)
	if !q.sends() {
		return false
	}
	if implied || sequence != q.recovery.una {
		q.count(impliedNAKs)
		q.drop(roce.DropOutOfSequence)
		q.lost(lossTold)
		return false
	}
	return true
}

// receiveReadResponse takes a response to a READ, or the one to an atomic write or a FLUSH, which has no payload.
func (q *QP) receiveReadResponse(sequence uint64, p *roce.Packet) {
	r := &q.requester
	w := q.requestAt(sequence)
	switch {
	case w == nil:
		q.drop(roce.DropUnexpectedResponse)
		return
	case !w.answered() || w.wr.Opcode == queue.CompareSwap || w.wr.Opcode == queue.FetchAdd:
		q.badResponse(w)
		return
	case !q.precede(w, sequence):
		return
	}
	length, offset := uint64(0), uint64(0)
	if w.isRead() {
		offset = (sequence - w.first) * q.mtu
		length = min(q.mtu, w.length-offset)
	}
	if uint64(p.PayloadLength) != length {
		q.stopAt(w, queue.WCLocLenErr)
		return
	}
	last := sequence+1 == w.end()
	if w.fault = q.scatter(w.wr.SGList, offset, p.Payload(), length, last); w.fault != memory.FaultNone {
		q.stopAt(w, queue.WCLocProtErr)
		return
	}
	if aeth := p.AETH(); aeth != nil {
		r.lastSyndrome = aeth.Syndrome()
	}
	q.progress(sequence + 1)
}

// receiveAtomicAcknowledge takes the response to an atomic: the word as it was.
func (q *QP) receiveAtomicAcknowledge(sequence uint64, p *roce.Packet) {
	r := &q.requester
	w := q.requestAt(sequence)
	switch {
	case w == nil:
		q.drop(roce.DropUnexpectedResponse)
		return
	case w.wr.Opcode != queue.CompareSwap && w.wr.Opcode != queue.FetchAdd:
		q.badResponse(w)
		return
	case !q.precede(w, sequence):
		return
	}
	// Big endian on the wire, host order in memory.
	binary.NativeEndian.PutUint64(q.word[:], p.AtomicAckETH().Original())
	q.wordPieces[0] = q.word[:]
	if w.fault = q.scatter(w.wr.SGList, 0, q.wordPieces[:], uint64(len(q.word)), true); w.fault != memory.FaultNone {
		q.stopAt(w, queue.WCLocProtErr)
		return
	}
	r.lastSyndrome = p.AETH().Syndrome()
	q.progress(sequence + 1)
}

// badResponse ends a request that was answered with something that can never be its answer.
func (q *QP) badResponse(w *work) { q.stopAt(w, queue.WCBadRespErr) }

// fail completes the oldest send request with status and brings the QP into the error state.
func (q *QP) fail(status queue.WCStatus) {
	r := &q.requester
	if r.head < r.tail {
		w := r.work(r.head)
		q.measure(w)
		q.failure = queue.WC{
			WRID: w.wr.WRID, Status: status, Opcode: w.wr.Opcode.Completed(), QPN: q.config.QPN,
			PSN: q.requestPSN(q.recovery.una), Syndrome: r.lastSyndrome,
			Retries: q.recovery.retries, RNRRetries: q.recovery.rnrRetries,
		}
		if status == w.status {
			q.failure.VendorErr = uint32(w.fault)
		}
		q.completeSend(w, status)
	}
	q.enterError()
}

// measure takes down the sizes of packets that Sizes tells, when the oldest request fails.
func (q *QP) measure(w *work) {
	r := &q.requester
	if w.isLocal() || q.recovery.una < w.first {
		return
	}
	done := (q.recovery.una - w.first) * q.mtu // of the request's payload, all in full packets
	if done > 0 {
		r.answered = max(r.answered, q.mtu+1)
	}
	r.unanswered = min(w.length-min(done, w.length), q.mtu) + 1
}

// Sizes are, of a QP that has failed, the largest payload in bytes of a packet that the peer has answered, or of a response of it, and that
// of the packet that it had not answered yet; -1 is none.
func (q *QP) Sizes() (answered, unanswered int) {
	return int(q.requester.answered) - 1, int(q.requester.unanswered) - 1
}

// enterError moves the QP to the error state and flushes both queues, in posting order.
func (q *QP) enterError() {
	entered := q.state != StateError
	q.setState(StateError)
	q.recovery.stop()
	q.engine.Ready(q) // the responder may have a last word
	q.flush()
	if entered && q.config.SharedReceive {
		// Its receives are those of others, too: only the QP can tell that it takes no more of them.
		q.raise(EventQPLastWQEReached)
	}
}

// flush completes everything that waits in the rings. In the error state it also runs for what is posted later.
func (q *QP) flush() {
	r := &q.requester
	for r.head < r.tail {
		q.completeSend(r.work(r.head), queue.WCWRFlushErr)
	}
	for left := q.config.Send.Available(q.config.Send.Capacity()); left > 0; left-- {
		w := r.work(r.tail)
		q.config.Send.ReadSend(0, &w.wr)
		w.length = 0
		r.tail++
		q.completeSend(w, queue.WCWRFlushErr)
	}
	q.flushReceives()
}
