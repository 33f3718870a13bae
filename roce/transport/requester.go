package transport

// The requester turns send requests into request packets.
//
// Life of a send request: fetch copies it out of the ring, checks the copy and gives it its range of PSNs;
// emitRequest writes its packets one by one, as far as the window and the READ limit permit, setting the
// acknowledge bit often enough; completer.go retires it. A loss moves the cursor back (rewind) and the same packets
// are made again from the same memory.
//
// PSNs are kept as 64-bit sequence numbers whose low 24 bits, added to the first PSN, are the PSN on the
// wire: comparisons need no care for the wrap. The cursor is where the next packet comes from; una <= cursor <= next.

import (
	"time"

	"github.com/xroce/xroce/roce"
	"github.com/xroce/xroce/roce/memory"
	"github.com/xroce/xroce/roce/queue"
)

// origin is the first sequence number; a multiple of 2^24 large enough that nothing goes below 0.
const origin = uint64(1) << 32

// work is a send request in flight, the engine's own copy of it.
type work struct {
	wr     queue.SendWR
	length uint64
	first  uint64         // sequence number of its first packet
	count  uint64         // packets, for READ response packets
	chunk  uint64         // READ: response packets asked for by one READ request
	status queue.WCStatus // failure found before or while sending; it shows when the request is the oldest
}

func (w *work) end() uint64  { return w.first + w.count }
func (w *work) isRead() bool { return w.wr.Opcode == queue.RDMARead }

type requester struct {
	works   []work // ring, indexed modulo its length by head..tail
	head    uint64 // the oldest request that is not complete
	tail    uint64 // one past the newest that was fetched
	current uint64 // the one that the cursor is in, or tail

	una       uint64 // oldest sequence number not acknowledged
	cursor    uint64 // next to send
	next      uint64 // next that was never sent
	allocated uint64 // first sequence number that belongs to no request

	sinceAck uint64 // packets since the last that asked for an acknowledgement

	// Ends of the READ requests in flight, oldest first.
	reads     []uint64
	readCount int

	retries, rnrRetries uint8 // used since the last progress
	lastSyndrome        roce.Syndrome
	waitingRNR          bool // the timer is the end of an RNR wait; nothing is sent
	// recovering says that packets from recoverFrom on were sent again and none of that was acknowledged
	// yet: further news of the same loss starts no second resend.
	recovering  bool
	recoverFrom uint64
}

func (r *requester) init(config *Config) {
	size := 1
	for size < config.Send.Capacity() {
		size <<= 1
	}
	r.works = make([]work, size)
	lists := make([]queue.SGE, size*config.MaxSendSGE)
	for i := range r.works {
		at := i * config.MaxSendSGE
		r.works[i].wr.SGList = lists[at : at : at+config.MaxSendSGE]
	}
}

func (r *requester) start(maxRDAtomic uint8) {
	r.una, r.cursor, r.next, r.allocated = origin, origin, origin, origin
	r.reads = make([]uint64, maxRDAtomic)
	r.readCount = 0
}

func (r *requester) reset(config *Config) {
	config.Send.Discard()
	*r = requester{works: r.works}
}

// seekCurrent moves current on to the request that the cursor is in. A request that failed is never passed:
// nothing behind it may be sent.
func (r *requester) seekCurrent() {
	for r.current < r.tail {
		if w := r.work(r.current); w.status != queue.WCSuccess || w.end() > r.cursor {
			return
		}
		r.current++
	}
}

func (r *requester) work(index uint64) *work { return &r.works[index&uint64(len(r.works)-1)] }

func (q *QP) requestPSN(sequence uint64) roce.PSN { return q.attrs.SQPSN.Add(uint32(sequence)) }

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
	w.first = r.allocated
	w.count, w.length = 0, 0
	if w.status = q.validate(w, valid); w.status != queue.WCSuccess {
		return true
	}
	w.count = max(1, (w.length+q.mtu-1)/q.mtu)
	r.allocated += w.count
	if w.isRead() {
		// READ is windowed by the requester: one READ of 2 GiB would make the responder flood without
		// any acknowledgement. Boundaries are fixed per request, so that a restart stays within
		// what one earlier request asked for: responders answer only such duplicates.
		w.chunk = max(1, uint64(q.config.Window)/min(4, uint64(len(r.reads))))
	}
	return true
}

func (q *QP) validate(w *work, valid bool) queue.WCStatus {
	if !valid || w.isRead() && len(q.requester.reads) == 0 {
		return queue.WCLocQPOpErr
	}
	need := memory.Access(0)
	if w.isRead() {
		need = memory.LocalWrite
	}
	for _, s := range w.wr.SGList {
		w.length += uint64(s.Length)
		if s.Length == 0 {
			continue
		}
		r := memory.Range{Key: s.LKey, Address: s.Addr, Length: uint64(s.Length)}
		if q.engine.memory.Check(q.config.Domain, need, r) != memory.FaultNone {
			return queue.WCLocProtErr
		}
	}
	if w.length > queue.MaxMessage {
		return queue.WCLocLenErr
	}
	return queue.WCSuccess
}

// emitRequest writes the packet at the cursor into buffer and returns the frame's length, or 0 if there is
// none to send now.
func (q *QP) emitRequest(buffer []byte) int {
	r := &q.requester
	if q.state != StateRTS || r.waitingRNR {
		return 0
	}
	if r.current == r.tail && !q.fetch() {
		return 0
	}
	w := r.work(r.current)
	if w.status != queue.WCSuccess {
		q.retire()
		return 0
	}
	if w.wr.Flags&queue.SendFence != 0 && r.cursor == w.first && r.readCount > 0 {
		return 0
	}
	if w.isRead() {
		return q.emitReadRequest(w, buffer)
	}
	inFlight := r.cursor - r.una
	if inFlight >= q.window.size {
		return 0
	}
	index := r.cursor - w.first
	offset := index * q.mtu
	payload := min(q.mtu, w.length-offset)
	last := index == w.count-1
	opcode := requestOpcode(w.wr.Opcode, index == 0, last)
	// Without the bit at the end of the window the sender would wait for an answer to a question that it
	// never asked; on a resend it brings the earliest possible news.
	ask := last || r.sinceAck+1 >= q.window.ackInterval() || inFlight+1 >= q.window.size ||
		r.recovering && r.cursor == r.recoverFrom
	p := q.layOut(buffer, roce.BTHFields{
		Opcode:     opcode,
		Solicited:  last && w.wr.Flags&queue.SendSolicited != 0 && w.wr.Opcode != queue.RDMAWrite,
		AckRequest: ask,
		PSN:        q.requestPSN(r.cursor),
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
	if q.gather(w.wr.SGList, offset, p.payload) != memory.FaultNone {
		q.stopAt(w, queue.WCLocProtErr)
		return 0
	}
	if r.sinceAck++; ask {
		r.sinceAck = 0
	}
	q.advance(w, 1)
	return q.seal(p)
}

// emitReadRequest asks for the response packets from the cursor to the end of its chunk.
func (q *QP) emitReadRequest(w *work, buffer []byte) int {
	r := &q.requester
	index := r.cursor - w.first
	packets := min(w.chunk-index%w.chunk, w.count-index)
	inFlight := r.cursor - r.una
	if r.readCount == len(r.reads) || inFlight > 0 && inFlight+packets > q.window.size {
		return 0
	}
	offset := index * q.mtu
	length := min(packets*q.mtu, w.length-offset)
	p := q.layOut(buffer, roce.BTHFields{
		Opcode:     roce.RCReadRequest,
		AckRequest: true,
		PSN:        q.requestPSN(r.cursor),
	}, 0)
	roce.RETHFields{VA: w.wr.RemoteAddr + offset, RKey: w.wr.RKey, Length: uint32(length)}.Put(p.extension)
	r.reads[r.readCount] = r.cursor + packets
	r.readCount++
	r.sinceAck = 0
	q.advance(w, packets)
	return q.seal(p)
}

// advance moves the cursor behind a packet that was written.
func (q *QP) advance(w *work, packets uint64) {
	r := &q.requester
	if r.cursor < r.next {
		q.engine.counters.Retransmitted++
	}
	r.cursor += packets
	r.next = max(r.next, r.cursor)
	if r.cursor == w.end() {
		r.current++
	}
	if q.timer.deadline == 0 {
		q.startAckTimer()
	}
}

// stopAt marks a request that cannot be sent further because of a local fault. Earlier requests still run
// to their end; then this one completes with the status.
func (q *QP) stopAt(w *work, status queue.WCStatus) {
	w.status = status
	q.retire()
}

func requestOpcode(o queue.Opcode, first, last bool) roce.Opcode {
	send := o == queue.Send || o == queue.SendWithImmediate
	immediate := o == queue.SendWithImmediate || o == queue.RDMAWriteWithImmediate
	pick := func(forSend, forWrite roce.Opcode) roce.Opcode {
		if send {
			return forSend
		}
		return forWrite
	}
	switch {
	case first && last && immediate:
		return pick(roce.RCSendOnlyImmediate, roce.RCWriteOnlyImmediate)
	case first && last:
		return pick(roce.RCSendOnly, roce.RCWriteOnly)
	case first:
		return pick(roce.RCSendFirst, roce.RCWriteFirst)
	case last && immediate:
		return pick(roce.RCSendLastImmediate, roce.RCWriteLastImmediate)
	case last:
		return pick(roce.RCSendLast, roce.RCWriteLast)
	}
	return pick(roce.RCSendMiddle, roce.RCWriteMiddle)
}

func (q *QP) startAckTimer() {
	if timeout := roce.AckTimeout(q.attrs.Timeout); timeout > 0 {
		q.setTimer(q.engine.now + Time(timeout/time.Nanosecond))
	}
}

// rewind moves the cursor back to the oldest packet that was not acknowledged.
func (q *QP) rewind() {
	r := &q.requester
	r.cursor = r.una
	r.current = r.head
	r.seekCurrent()
	for r.readCount > 0 && r.reads[r.readCount-1] > r.cursor {
		r.readCount--
	}
	r.sinceAck = 0
	q.engine.Ready(q)
}

// recover resends from the oldest packet that was not acknowledged, unless that is under way already.
func (q *QP) recover() {
	r := &q.requester
	if r.recovering && r.recoverFrom == r.una {
		return
	}
	q.resend()
}

func (q *QP) resend() {
	r := &q.requester
	if r.retries >= q.attrs.RetryCount {
		q.engine.counters.RetriesExceeded++
		q.fail(queue.WCRetryExcErr)
		return
	}
	r.retries++
	q.engine.counters.Recoveries++
	r.recovering, r.recoverFrom = true, r.una
	r.waitingRNR = false // an implied NAK during the wait tells that the refused request was executed after all
	q.window.lost()
	q.rewind()
	q.stopTimer()
	q.startAckTimer()
}

// requesterExpired is called when the ACK timeout or an RNR wait has ended.
func (q *QP) requesterExpired() {
	r := &q.requester
	if r.waitingRNR {
		r.waitingRNR = false
		q.engine.Ready(q)
		return
	}
	if r.una == r.next {
		return
	}
	q.engine.counters.Timeouts++
	q.resend()
}
