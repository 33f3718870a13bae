package transport

// The requester turns send requests into request packets.
//
// Life of a send request: fetch copies it out of the ring, checks the copy and gives it its range of PSNs;
// emitRequest writes its packets one by one, as far as recovery (recovery.go), the peer's credits and the limit of READs and
// atomics permit (local operations are executed instead: local.go); completer.go retires it. A loss moves the cursor of
// recovery back, and the same packets are made again from the same memory.

import (
	"time"

	"github.com/xroce/xroce/roce"
	"github.com/xroce/xroce/roce/memory"
	"github.com/xroce/xroce/roce/queue"
)

// work is a send request in flight, the engine's own copy of it.
type work struct {
	wr     queue.SendWR
	length uint64
	first  uint64         // sequence number of its first packet
	count  uint64         // packets, for READ response packets; 0 for local operations
	chunk  uint64         // READ: response packets asked for by one READ request
	ssn    uint64         // number of its first message on the wire, the first of all is 1 (IBTA: send sequence number)
	done   bool           // a local operation that was executed
	status queue.WCStatus // failure found before or while sending; it shows when the request is the oldest
	fault  memory.Fault   // what of memory or keys is the reason for status, if so
}

func (w *work) end() uint64    { return w.first + w.count }
func (w *work) isRead() bool   { return w.wr.Opcode == queue.RDMARead }
func (w *work) answered() bool { return w.wr.Opcode.Answered() }
func (w *work) isLocal() bool  { return w.wr.Opcode.Local() }

// messages is how many requests it is on the wire.
func (w *work) messages() uint64 {
	switch {
	case w.isLocal():
		return 0
	case w.isRead():
		return (w.count + w.chunk - 1) / w.chunk
	}
	return 1
}

type requester struct {
	works   []work // ring, indexed modulo its length by head..tail
	head    uint64 // the oldest request that is not complete
	tail    uint64 // one past the newest that was fetched
	current uint64 // the one that the cursor is in, or tail

	allocated uint64 // first sequence number that belongs to no request
	messages  uint64 // messages of all requests fetched so far

	// Ends of the requests in flight that the peer answers (READ, atomic, FLUSH, atomic write), oldest first.
	answers     []uint64
	answerCount int

	credits credits

	lastSyndrome roce.Syndrome

	answered   uint64 // one more than the largest payload of a packet of a request that is complete; 0 if none is
	unanswered uint64 // the same of the packet that was not answered when the QP gave up

	drained bool // in SQD: nothing that was started is open
}

func (r *requester) init(config *Config) {
	r.lastSyndrome = roce.SyndromeNone
	size := 1
	for size < config.Send.Capacity() {
		size <<= 1
	}
	r.works = make([]work, size)
	lists := make([]queue.SGE, size*config.MaxSendSGE)
	inline := make([]byte, size*config.MaxInline)
	for i := range r.works {
		at := i * config.MaxSendSGE
		r.works[i].wr.SGList = lists[at : at : at+config.MaxSendSGE]
		at = i * config.MaxInline
		r.works[i].wr.Inline = inline[at : at : at+config.MaxInline]
	}
}

func (r *requester) start(maxRDAtomic uint8) {
	r.allocated = origin
	r.answers = make([]uint64, maxRDAtomic)
	r.answerCount = 0
}

func (r *requester) reset(config *Config) {
	config.Send.Discard()
	*r = requester{works: r.works, lastSyndrome: roce.SyndromeNone}
}

// seekCurrent moves current on to the request that the cursor is in. Neither a request that failed nor a local
// operation that was not executed is ever passed: nothing behind it may be sent.
func (q *QP) seekCurrent() {
	r := &q.requester
	for r.current < r.tail {
		w := r.work(r.current)
		if w.status != queue.WCSuccess || w.end() > q.recovery.cursor || w.isLocal() && !w.done {
			return
		}
		r.current++
	}
}

func (r *requester) work(index uint64) *work { return &r.works[index&uint64(len(r.works)-1)] }

func (q *QP) requestPSN(sequence uint64) roce.PSN { return q.attrs.SQPSN.Add(uint32(sequence)) }

// sends says whether the QP may send requests at all.
func (q *QP) sends() bool { return q.state == StateRTS || q.state == StateSQD }

// fetch takes the next request out of the ring.
func (q *QP) fetch() bool {
	r := &q.requester
	inFlight := int(r.tail - r.head)
	if q.config.Send.Available(inFlight) <= inFlight {
		return false
	}
	w := r.work(r.tail)
	valid := q.config.Send.ReadSend(inFlight, &w.wr)
	r.tail++
	w.first, w.ssn = r.allocated, r.messages+1
	w.count, w.length, w.done, w.fault = 0, 0, false, memory.FaultNone
	if w.status = q.validate(w, valid); w.status != queue.WCSuccess || w.isLocal() {
		return true
	}
	w.count = max(1, (w.length+q.mtu-1)/q.mtu)
	r.allocated += w.count
	if w.isRead() {
		// READ is windowed by the requester: one READ of 2 GiB would make the responder flood without
		// any acknowledgement. Boundaries are fixed per request, so that a restart stays within
		// what one earlier request asked for: responders answer only such duplicates.
		w.chunk = max(1, uint64(q.config.Window)/min(4, uint64(len(r.answers))))
	}
	r.messages += w.messages()
	return true
}

func (q *QP) validate(w *work, valid bool) queue.WCStatus {
	if !valid || w.answered() && len(q.requester.answers) == 0 {
		return queue.WCLocQPOpErr
	}
	need := memory.Access(0)
	if w.answered() && w.wr.Opcode != queue.AtomicWrite {
		need = memory.LocalWrite
	}
	w.length = uint64(len(w.wr.Inline))
	for _, s := range w.wr.SGList {
		w.length += uint64(s.Length)
		if s.Length == 0 {
			continue
		}
		r := memory.Range{Key: s.LKey, Address: s.Addr, Length: uint64(s.Length)}
		if w.fault = q.engine.memory.Check(q.principal, need, r); w.fault != memory.FaultNone {
			return queue.WCLocProtErr
		}
	}
	return queue.WCSuccess
}

// mayStart says whether a request whose first packet is next, or a local operation, may begin now.
func (q *QP) mayStart(w *work) bool {
	r := &q.requester
	switch {
	case w.first < q.recovery.next:
		return true // it is sent again
	case q.state == StateSQD:
		return false
	case w.wr.Flags&queue.SendFence != 0 && r.answerCount > 0:
		return false
	case w.wr.Opcode == queue.LocalInvalidate || w.wr.Opcode == queue.RegisterRegion:
		// The requests before it may still use the key (drivers/infiniband/hw/hfi1/rc.c waits, too).
		return r.head == r.current
	}
	return !takesReceive(w.wr.Opcode) || r.credits.permit(w.ssn)
}

// takesReceive says whether an operation takes a receive of the peer.
func takesReceive(o queue.Opcode) bool {
	switch o {
	case queue.Send, queue.SendWithImmediate, queue.SendWithInvalidate, queue.RDMAWriteWithImmediate:
		return true
	}
	return false
}

// emitRequest writes the packet at the cursor into buffer and returns the frame's length, or 0 if there is
// none to send now.
func (q *QP) emitRequest(buffer []byte) int {
	r := &q.requester
	for range quantum {
		if !q.sends() || q.recovery.holds(q.engine.now) {
			return 0
		}
		// In SQD everything that was begun is fetched already, and what else there is must not be judged yet: attributes
		// may change before it begins.
		if r.current == r.tail && (q.state == StateSQD || !q.fetch()) {
			return 0
		}
		w := r.work(r.current)
		if w.status != queue.WCSuccess {
			q.retire()
			return 0
		}
		if q.recovery.cursor == w.first && !q.mayStart(w) {
			return 0
		}
		switch {
		case w.isLocal():
			q.executeLocal(w)
		case w.answered():
			return q.emitAnswered(w, buffer)
		default:
			return q.emitMessage(w, buffer)
		}
	}
	q.engine.Ready(q) // many local operations in a row: the others get their turn
	return 0
}

// emitMessage writes a packet of a SEND or WRITE.
func (q *QP) emitMessage(w *work, buffer []byte) int {
	ask, permitted := q.recovery.offer(1)
	if !permitted {
		return 0
	}
	sequence := q.recovery.cursor
	index := sequence - w.first
	offset := index * q.mtu
	payload := min(q.mtu, w.length-offset)
	last := index == w.count-1
	ask = ask || last
	opcode := messageOpcode(w.wr.Opcode, index == 0, last)
	p := q.layOut(buffer, roce.BTHFields{
		Opcode:     opcode,
		Solicited:  last && w.wr.Flags&queue.SendSolicited != 0 && takesReceive(w.wr.Opcode),
		AckRequest: ask,
		PSN:        q.requestPSN(sequence),
	}, int(payload))
	info := opcode.Info()
	extension := p.extension
	if info.Has(roce.HeaderRETH) {
		roce.RETHFields{VA: w.wr.RemoteAddr, RKey: w.wr.RKey, Length: uint32(w.length)}.Put(extension)
		extension = extension[roce.RETHLength:]
	}
	if info.Has(roce.HeaderImmDt) {
		roce.ImmDtFields{Value: w.wr.ImmData}.Put(extension)
	}
	if info.Has(roce.HeaderIETH) {
		roce.IETHFields{RKey: w.wr.InvalidateRKey}.Put(extension)
	}
	if w.fault = q.gather(w, offset, p.payload); w.fault != memory.FaultNone {
		q.stopAt(w, queue.WCLocProtErr)
		return 0
	}
	q.advance(w, 1, int(payload), ask)
	return q.seal(p)
}

// emitAnswered writes a request that the peer answers with a response of its own. A READ asks for the response packets
// from the cursor to the end of its chunk.
func (q *QP) emitAnswered(w *work, buffer []byte) int {
	r := &q.requester
	sequence := q.recovery.cursor
	index, packets := sequence-w.first, uint64(1)
	if w.isRead() {
		packets = min(w.chunk-index%w.chunk, w.count-index)
	}
	switch {
	case len(r.answers) == 0: // the limit was taken down to 0 in SQD
		q.stopAt(w, queue.WCLocQPOpErr)
		return 0
	case r.answerCount >= len(r.answers):
		return 0
	}
	if _, permitted := q.recovery.offer(packets); !permitted {
		return 0
	}
	payload := 0
	if w.wr.Opcode == queue.AtomicWrite {
		payload = int(w.length)
	}
	p := q.layOut(buffer, roce.BTHFields{
		Opcode:     answeredOpcodes[w.wr.Opcode],
		AckRequest: true,
		PSN:        q.requestPSN(sequence),
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
		q.stopAt(w, queue.WCLocProtErr)
		return 0
	}
	r.answers[r.answerCount] = sequence + packets
	r.answerCount++
	q.advance(w, packets, int(reth.Length), true)
	return q.seal(p)
}

// advance goes on behind a packet that was written.
func (q *QP) advance(w *work, packets uint64, bytes int, asked bool) {
	r := &q.requester
	starts := q.recovery.cursor == w.first
	if again := q.recovery.sent(q.engine.now, packets, bytes, asked); again {
		q.count(retransmitted)
		q.again = true
	} else if !takesReceive(w.wr.Opcode) && (starts || w.isRead()) {
		r.credits.sentFreely()
	}
	if q.recovery.cursor == w.end() {
		q.seekCurrent() // in a resend also past local operations: they were executed
	}
}

// lost goes back to the oldest packet that was not acknowledged, unless that is being done already.
func (q *QP) lost(kind loss) {
	switch q.recovery.lost(q.engine.now, kind) {
	case actionResend:
		q.count(recoveries)
		q.rewind()
	case actionGiveUp:
		q.count(retriesExceeded)
		q.fail(queue.WCRetryExcErr)
	}
}

// waitRNR holds everything until the peer's time has passed, then resends.
func (q *QP) waitRNR(syndrome roce.Syndrome) {
	switch q.recovery.refused(q.engine.now, Time(roce.RNRTimer(syndrome.Value())/time.Nanosecond)) {
	case actionResend:
		q.rewind()
	case actionGiveUp:
		q.count(rnrRetriesExceeded)
		q.fail(queue.WCRNRRetryExcErr)
	}
}

// rewind follows the cursor of recovery back.
func (q *QP) rewind() {
	r := &q.requester
	r.current = r.head
	q.seekCurrent()
	for r.answerCount > 0 && r.answers[r.answerCount-1] > q.recovery.cursor {
		r.answerCount--
	}
	q.engine.Ready(q)
}

// unanswered is called when the ACK timeout has passed.
func (q *QP) unanswered() {
	q.count(timeouts)
	if (q.recovery.retries > 0 || q.attrs.RetryCount == 0) && q.config.Events != nil {
		q.config.Events.Unanswered(q.attrs.Path)
	}
	q.lost(lossTimer)
}

// stopAt marks a request that cannot be sent further because of a local fault. Earlier requests still run
// to their end; then this one completes with the status.
func (q *QP) stopAt(w *work, status queue.WCStatus) {
	w.status = status
	q.retire()
}

var answeredOpcodes = [...]roce.Opcode{
	queue.RDMARead:    roce.RCReadRequest,
	queue.CompareSwap: roce.RCCompareSwap,
	queue.FetchAdd:    roce.RCFetchAdd,
	queue.Flush:       roce.RCFlush,
	queue.AtomicWrite: roce.RCAtomicWrite,
}

// messageOpcodes are the opcodes of a SEND or WRITE by position.
var messageOpcodes = [...]struct{ first, middle, last, only roce.Opcode }{
	queue.RDMAWrite:              {roce.RCWriteFirst, roce.RCWriteMiddle, roce.RCWriteLast, roce.RCWriteOnly},
	queue.RDMAWriteWithImmediate: {roce.RCWriteFirst, roce.RCWriteMiddle, roce.RCWriteLastImmediate, roce.RCWriteOnlyImmediate},
	queue.Send:                   {roce.RCSendFirst, roce.RCSendMiddle, roce.RCSendLast, roce.RCSendOnly},
	queue.SendWithImmediate:      {roce.RCSendFirst, roce.RCSendMiddle, roce.RCSendLastImmediate, roce.RCSendOnlyImmediate},
	queue.SendWithInvalidate:     {roce.RCSendFirst, roce.RCSendMiddle, roce.RCSendLastInvalidate, roce.RCSendOnlyInvalidate},
}

func messageOpcode(o queue.Opcode, first, last bool) roce.Opcode {
	codes := &messageOpcodes[o]
	switch {
	case first && last:
		return codes.only
	case first:
		return codes.first
	case last:
		return codes.last
	}
	return codes.middle
}
