package transport

// The completer takes the responses of the peer and retires send requests.
//
// Way of a response: it lies between una and next or it is dropped; an acknowledgement or a NAK
// acknowledges everything before it, as far as no unanswered READ is in between; a READ response at una is placed into
// the request's memory, one behind una shows that others were lost. Whatever made progress completes requests from
// the oldest on, in posting order, reloads the retry counters and moves the deadline.

import (
	"time"

	"github.com/xroce/xroce/roce"
	"github.com/xroce/xroce/roce/memory"
	"github.com/xroce/xroce/roce/queue"
)

func (q *QP) receiveResponse(p *roce.Packet) {
	r := &q.requester
	sequence := r.una + uint64(int64(p.PSN.Diff(q.requestPSN(r.una))))
	if sequence >= r.next {
		q.drop(roce.DropUnexpectedResponse)
		return
	}
	if sequence < r.una {
		if p.Opcode == roce.RCAcknowledge && isFatal(p.AETH().Syndrome()) && q.breaksRead(sequence) {
			r.lastSyndrome = p.AETH().Syndrome()
			q.fail(statusOf(r.lastSyndrome))
			return
		}
		q.drop(roce.DropStaleResponse)
		return
	}
	switch p.Info.Operation {
	case roce.OperationAcknowledge:
		q.receiveAcknowledge(sequence, p.AETH().Syndrome())
	case roce.OperationReadResponse:
		q.receiveReadResponse(sequence, p)
	default:
		q.drop(roce.DropUnexpectedResponse)
	}
}

func (q *QP) drop(reason roce.DropReason) { q.engine.counters.Drops[reason]++ }

func (q *QP) receiveAcknowledge(sequence uint64, syndrome roce.Syndrome) {
	r := &q.requester
	switch {
	case syndrome.IsAck():
		r.lastSyndrome = syndrome
		if implied := q.acknowledge(sequence + 1); implied {
			q.engine.counters.ImpliedNAKs++
			q.recover()
		}
	case syndrome.IsRNR():
		if r.waitingRNR && sequence == r.una {
			return // a duplicate: nothing was sent since the first one
		}
		r.lastSyndrome = syndrome
		q.engine.counters.ReceivedRNRNAKs++
		if implied := q.acknowledge(sequence); implied {
			q.recover()
			return
		}
		q.waitRNR(syndrome)
	case syndrome == roce.SyndromeNAKSequence:
		q.engine.counters.ReceivedNAKs++
		if r.waitingRNR {
			// rdma_rxe sends one for the packets behind a refused one. The wait goes on.
			return
		}
		r.lastSyndrome = syndrome
		q.acknowledge(sequence)
		q.recover()
	case isFatal(syndrome):
		r.lastSyndrome = syndrome
		if implied := q.acknowledge(sequence); implied && !q.breaksRead(sequence) {
			q.recover()
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
	return w.isRead() && sequence >= w.first && sequence < w.end() && r.una >= w.first
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

// acknowledge retires everything before the sequence number upTo. It stops at a READ that was not answered and
// then returns true: its response was lost, and the acknowledgement is a NAK of it (drivers/infiniband/hw/hfi1/rc.c: do_rc_ack).
func (q *QP) acknowledge(upTo uint64) (implied bool) {
	r := &q.requester
	una := r.una
	for i := r.head; i < r.tail && una < upTo; i++ {
		w := r.work(i)
		if w.end() <= una {
			continue
		}
		if w.isRead() {
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
	if una == r.una {
		return
	}
	q.window.acknowledged(una - r.una)
	r.una = una
	r.retries, r.rnrRetries = 0, 0
	r.recovering = r.recovering && una <= r.recoverFrom
	if r.cursor < una {
		// Acknowledged while a resend was to come: it starts behind.
		r.cursor = una
		r.seekCurrent()
	}
	answered := 0
	for answered < r.readCount && r.reads[answered] <= una {
		answered++
	}
	r.readCount = copy(r.reads, r.reads[answered:r.readCount])
	// What was refused for lack of a receive was executed after all: there is nothing to wait for.
	r.waitingRNR = false
	q.stopTimer()
	if r.cursor > una {
		q.startAckTimer()
	}
	q.retire()
	q.engine.Ready(q)
}

// retire completes the oldest requests that are done.
func (q *QP) retire() {
	r := &q.requester
	for r.head < r.tail && q.state == StateRTS {
		w := r.work(r.head)
		if w.status != queue.WCSuccess {
			// It is the oldest and nothing of what was sent before it is open.
			if r.una >= w.first {
				q.fail(w.status)
			}
			return
		}
		if w.end() > r.una {
			return
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
		PSN:        q.requestPSN(r.una),
		Syndrome:   r.lastSyndrome,
		Retries:    r.retries,
		RNRRetries: r.rnrRetries,
	}
	q.complete(q.config.SendCQ, &wc, false)
}

// complete adds a completion. A CQ without room has lost it, which its QP cannot survive (the verbs call it CQ overrun).
func (q *QP) complete(cq CompletionQueue, wc *queue.WC, solicited bool) {
	q.completion = *wc
	if cq.Complete(&q.completion, solicited || wc.Status != queue.WCSuccess) {
		return
	}
	q.engine.counters.CompletionsDropped++
	if q.state != StateError {
		q.failure = queue.WC{Status: queue.WCFatalErr, QPN: q.config.QPN}
		q.enterError()
	}
}

func (q *QP) receiveReadResponse(sequence uint64, p *roce.Packet) {
	r := &q.requester
	index := r.head
	for index < r.tail && r.work(index).end() <= sequence {
		index++
	}
	w := r.work(index)
	if index == r.tail || !w.isRead() || w.status != queue.WCSuccess {
		q.drop(roce.DropUnexpectedResponse)
		return
	}
	// It implies that everything before this READ was done.
	implied := q.acknowledge(w.first)
	if q.state != StateRTS {
		return
	}
	if implied || sequence != r.una {
		q.engine.counters.ImpliedNAKs++
		q.drop(roce.DropOutOfSequence)
		q.recover()
		return
	}
	offset := (sequence - w.first) * q.mtu
	if uint64(p.PayloadLength) != min(q.mtu, w.length-offset) {
		q.stopAt(w, queue.WCLocLenErr)
		return
	}
	last := sequence+1 == w.end()
	if q.scatter(w.wr.SGList, offset, p, last) != memory.FaultNone {
		q.stopAt(w, queue.WCLocProtErr)
		return
	}
	if aeth := p.AETH(); aeth != nil {
		r.lastSyndrome = aeth.Syndrome()
	}
	q.progress(sequence + 1)
}

// waitRNR holds everything until the peer's time has passed, then resends from una.
func (q *QP) waitRNR(syndrome roce.Syndrome) {
	r := &q.requester
	const forEver = 7
	if q.attrs.RNRRetry != forEver {
		if r.rnrRetries >= q.attrs.RNRRetry {
			q.engine.counters.RNRRetriesExceeded++
			q.fail(queue.WCRNRRetryExcErr)
			return
		}
		r.rnrRetries++
	}
	q.rewind()
	r.waitingRNR = true
	r.recovering = false
	q.setTimer(q.engine.now + Time(roce.RNRTimer(syndrome.Value())/time.Nanosecond))
}

// fail completes the oldest send request with status and brings the QP into the error state.
func (q *QP) fail(status queue.WCStatus) {
	r := &q.requester
	if r.head < r.tail {
		w := r.work(r.head)
		q.failure = queue.WC{
			WRID: w.wr.WRID, Status: status, Opcode: w.wr.Opcode.Completed(), QPN: q.config.QPN,
			PSN: q.requestPSN(r.una), Syndrome: r.lastSyndrome,
			Retries: r.retries, RNRRetries: r.rnrRetries,
		}
		q.completeSend(w, status)
	}
	q.enterError()
}

// enterError moves the QP to the error state and flushes both queues, in posting order.
func (q *QP) enterError() {
	q.setState(StateError)
	q.stopTimer()
	q.engine.Ready(q) // the responder may have a last word
	q.flush()
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
