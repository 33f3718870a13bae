package transport

// The requester of RC turns send requests into request packets.
//
// Life of a send request: next fetches it from the send queue (sendqueue.go) and gives it its range of sequence
// numbers; emit writes its packets one by one, as far as recovery (recovery.go), the peer's credits and the limit of
// READs and atomics permit; the completer retires it. A loss moves the cursor of recovery back, and the same packets
// are made again from the same memory: nothing is kept.

import (
	"time"

	"github.com/xroce/xroce/roce"
	"github.com/xroce/xroce/roce/memory"
	"github.com/xroce/xroce/roce/queue"
)

type requester struct {
	qp        *QP
	recovery  *recovery
	sends     *sendQueue
	completer *completer

	current   uint64 // the request in the send queue that the cursor is in, or its tail
	allocated uint64 // first sequence number that belongs to no request
	messages  uint64 // messages of all requests fetched so far

	// Ends of the requests in flight that the peer answers (READ, atomic, FLUSH, atomic write), oldest first.
	answers     []uint64
	answerCount int

	credits credits
}

func (r *requester) start(maxRDAtomic uint8) {
	r.allocated = origin
	r.answers = make([]uint64, maxRDAtomic)
	r.answerCount = 0
}

func (r *requester) psn(sequence uint64) roce.PSN { return r.qp.attrs.SQPSN.Add(uint32(sequence)) }

// seek moves current on to the request that the cursor is in. Neither a request that failed nor a local operation that
// was not executed is ever passed: nothing behind it may be sent.
func (r *requester) seek() {
	for r.current < r.sends.tail {
		w := r.sends.work(r.current)
		if w.status != queue.WCSuccess || w.end() > r.recovery.cursor || w.isLocal() && !w.done {
			return
		}
		r.current++
	}
}

// next is the request that the cursor is in, if need be a new one from the send queue, or nil.
func (r *requester) next() *work {
	if r.current < r.sends.tail {
		return r.sends.work(r.current)
	}
	// In SQD everything that was begun is fetched already, and what else there is must not be judged yet: attributes
	// may change before it begins.
	if r.qp.state == StateSQD {
		return nil
	}
	w := r.sends.fetch()
	if w == nil {
		return nil
	}
	w.first, w.ssn = r.allocated, r.messages+1
	if w.answered() && len(r.answers) == 0 {
		w.status = queue.WCLocQPOpErr
	}
	if w.status == queue.WCSuccess {
		r.sends.check(w)
	}
	if w.status != queue.WCSuccess || w.isLocal() {
		return w
	}
	w.count = max(1, (w.length+r.qp.mtu-1)/r.qp.mtu)
	r.allocated += w.count
	if w.isRead() {
		// READ is windowed by the requester: one READ of 2 GiB would make the responder flood without
		// any acknowledgement. Boundaries are fixed per request, so that a restart stays within
		// what one earlier request asked for: responders answer only such duplicates.
		w.chunk = max(1, uint64(r.qp.config.Window)/min(4, uint64(len(r.answers))))
	}
	r.messages += w.messages()
	return w
}

// mayStart says whether a request whose first packet is next, or a local operation, may begin now.
func (r *requester) mayStart(w *work) bool {
	switch {
	case w.first < r.recovery.next:
		return true // it is sent again
	case r.qp.state == StateSQD:
		return false
	case w.wr.Flags&queue.SendFence != 0 && r.answerCount > 0:
		return false
	case w.wr.Opcode == queue.LocalInvalidate || w.wr.Opcode == queue.RegisterRegion:
		// The requests before it may still use the key (drivers/infiniband/hw/hfi1/rc.c waits, too).
		return r.sends.head == r.current
	}
	return !takesReceive(w.wr.Opcode) || r.credits.permit(w.ssn)
}

// emit writes the packet at the cursor into buffer and returns the frame's length, or 0 if there is none to send now.
func (r *requester) emit(to *path, buffer []byte) int {
	q := r.qp
	for range quantum {
		if !q.sends() || r.recovery.waitingRNR {
			return 0
		}
		w := r.next()
		if w == nil {
			return 0
		}
		if w.status != queue.WCSuccess {
			r.completer.retire()
			return 0
		}
		if r.recovery.cursor == w.first && !r.mayStart(w) {
			return 0
		}
		switch {
		case w.isLocal():
			if r.sends.execute(w); w.done {
				r.current++
			}
			r.completer.retire()
		case w.answered():
			return r.emitAnswered(w, to, buffer)
		default:
			return r.emitMessage(w, to, buffer)
		}
	}
	q.engine.Ready(q) // many local operations in a row: the others get their turn
	return 0
}

// emitMessage writes a packet of a SEND or WRITE.
func (r *requester) emitMessage(w *work, to *path, buffer []byte) int {
	permitted, ask := r.recovery.offer(r.qp.engine.now, 1)
	if !permitted {
		return 0
	}
	sequence := r.recovery.cursor
	s := w.segment(sequence-w.first, r.qp.mtu)
	ask = ask || s.last
	var p packet
	if p, w.fault = r.qp.writeSegment(to, buffer, w, s, r.psn(sequence), ask); w.fault != memory.FaultNone {
		r.completer.stopAt(w, queue.WCLocProtErr)
		return 0
	}
	r.advance(w, 1, s.payload, ask)
	return r.qp.seal(to, p)
}

// emitAnswered writes a request that the peer answers with a response of its own. A READ asks for the response packets
// from the cursor to the end of its chunk.
func (r *requester) emitAnswered(w *work, to *path, buffer []byte) int {
	q := r.qp
	sequence := r.recovery.cursor
	index, packets := sequence-w.first, uint64(1)
	if w.isRead() {
		packets = min(w.chunk-index%w.chunk, w.count-index)
	}
	switch {
	case len(r.answers) == 0: // the limit was taken down to 0 in SQD
		r.completer.stopAt(w, queue.WCLocQPOpErr)
		return 0
	case r.answerCount >= len(r.answers):
		return 0
	}
	if permitted, _ := r.recovery.offer(q.engine.now, packets); !permitted {
		return 0
	}
	payload := 0
	if w.wr.Opcode == queue.AtomicWrite {
		payload = int(w.length)
	}
	p := q.layOut(to, buffer, roce.BTHFields{
		Opcode:     answeredOpcodes[w.wr.Opcode],
		AckRequest: true,
		PSN:        r.psn(sequence),
	}, payload)
	reth := roce.RETHFields{VA: w.wr.RemoteAddr, RKey: w.wr.RKey}
	switch w.wr.Opcode {
	case queue.RDMARead:
		offset := index * q.mtu
		reth.VA += offset
		reth.Length = uint32(min(packets*q.mtu, w.length-offset))
		reth.Put(p.extension)
	case queue.CompareSwap:
		roce.AtomicETHFields{
			VA: reth.VA, RKey: reth.RKey, SwapAdd: w.wr.Swap, Compare: w.wr.CompareAdd,
		}.Put(p.extension)
	case queue.FetchAdd:
		roce.AtomicETHFields{VA: reth.VA, RKey: reth.RKey, SwapAdd: w.wr.CompareAdd}.Put(p.extension)
	case queue.AtomicWrite:
		reth.Length = uint32(w.length)
		reth.Put(p.extension)
	case queue.Flush:
		roce.FETHFields{Selectivity: w.wr.Flush.Selectivity, Placement: w.wr.Flush.Placement}.Put(p.extension)
		reth.Length = w.wr.Flush.Length
		reth.Put(p.extension[roce.FETHLength:])
	}
	if w.fault = q.gather(w, 0, p.payload); w.fault != memory.FaultNone {
		r.completer.stopAt(w, queue.WCLocProtErr)
		return 0
	}
	r.answers[r.answerCount] = sequence + packets
	r.answerCount++
	r.advance(w, packets, int(reth.Length), true)
	return q.seal(to, p)
}

// advance goes on behind a packet that was written.
func (r *requester) advance(w *work, packets uint64, bytes int, asked bool) {
	starts := r.recovery.cursor == w.first
	if again := r.recovery.sent(r.qp.engine.now, packets, bytes, asked); again {
		r.qp.count(retransmitted)
		r.qp.again = true
	} else if !takesReceive(w.wr.Opcode) && (starts || w.isRead()) {
		r.credits.sentFreely()
	}
	if r.recovery.cursor == w.end() {
		r.seek() // in a resend also past local operations: they were executed
	}
}

// acknowledged follows recovery, whose una has moved on.
func (r *requester) acknowledged() {
	r.seek()
	answered := 0
	for answered < r.answerCount && r.answers[answered] <= r.recovery.una {
		answered++
	}
	r.answerCount = copy(r.answers, r.answers[answered:r.answerCount])
}

// lost goes back to the oldest packet that was not acknowledged, unless that is being done already.
func (r *requester) lost(kind loss) {
	switch r.recovery.lost(r.qp.engine.now, kind) {
	case actionResend:
		r.qp.count(recoveries)
		r.rewind()
	case actionGiveUp:
		r.qp.count(retriesExceeded)
		r.completer.fail(queue.WCRetryExcErr)
	}
}

// refused waits as an RNR NAK says, then resends.
func (r *requester) refused(syndrome roce.Syndrome) {
	switch r.recovery.refused(r.qp.engine.now, Time(roce.RNRTimer(syndrome.Value())/time.Nanosecond)) {
	case actionResend:
		r.rewind()
	case actionGiveUp:
		r.qp.count(rnrRetriesExceeded)
		r.completer.fail(queue.WCRNRRetryExcErr)
	}
}

// rewind follows the cursor of recovery back.
func (r *requester) rewind() {
	r.current = r.sends.head
	r.seek()
	for r.answerCount > 0 && r.answers[r.answerCount-1] > r.recovery.cursor {
		r.answerCount--
	}
	r.qp.engine.Ready(r.qp)
}

// unanswered is called when the ACK timeout has passed.
func (r *requester) unanswered() {
	q := r.qp
	q.count(timeouts)
	if (r.recovery.retries > 0 || q.attrs.RetryCount == 0) && q.config.Events != nil {
		q.config.Events.Unanswered(q.attrs.Path)
	}
	r.lost(lossTimer)
}

var answeredOpcodes = [...]roce.Opcode{
	queue.RDMARead:    roce.RCReadRequest,
	queue.CompareSwap: roce.RCCompareSwap,
	queue.FetchAdd:    roce.RCFetchAdd,
	queue.Flush:       roce.RCFlush,
	queue.AtomicWrite: roce.RCAtomicWrite,
}
