package transport

// The send queue, which is the same for all services.
//
// Life of a send request: fetch copies it out of the ring and checks the copy; the service sends it, or has it executed
// here if nothing of it goes to a peer; complete retires it, in posting order, when the service says so. Its slot is
// free before the completion can be seen. In the error state flush completes what is left.

import (
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

// account is what a service knows about the answers of the peer when a request ends, for its completion.
type account struct {
	psn                 roce.PSN
	syndrome            roce.Syndrome
	retries, rnrRetries uint8
}

type sendQueue struct {
	qp    *QP
	ring  *queue.Consumer
	works []work // ring, indexed modulo its length by head..tail
	head  uint64 // the oldest request that is not complete
	tail  uint64 // one past the newest that was fetched
}

func (s *sendQueue) init(q *QP) {
	s.qp, s.ring = q, q.config.Send
	size, maxSGE, maxInline := 1, q.config.MaxSendSGE, q.config.MaxInline
	for size < s.ring.Capacity() {
		size <<= 1
	}
	s.works = make([]work, size)
	lists := make([]queue.SGE, size*maxSGE)
	inline := make([]byte, size*maxInline)
	for i := range s.works {
		at := i * maxSGE
		s.works[i].wr.SGList = lists[at : at : at+maxSGE]
		at = i * maxInline
		s.works[i].wr.Inline = inline[at : at : at+maxInline]
	}
}

// reset drops what is in the ring.
func (s *sendQueue) reset() {
	s.ring.Discard()
	s.head, s.tail = 0, 0
}

func (s *sendQueue) work(index uint64) *work { return &s.works[index&uint64(len(s.works)-1)] }

// oldest is the oldest request that is not complete, or nil if none was fetched.
func (s *sendQueue) oldest() *work {
	if s.head == s.tail {
		return nil
	}
	return s.work(s.head)
}

// fetch takes the next request out of the ring; nil says that there is none. One that makes no sense has a status.
func (s *sendQueue) fetch() *work {
	inFlight := int(s.tail - s.head)
	if s.ring.Available(inFlight) <= inFlight {
		return nil
	}
	w := s.work(s.tail)
	valid := s.ring.ReadSend(inFlight, &w.wr)
	s.tail++
	w.first, w.count, w.length, w.chunk, w.ssn, w.done = 0, 0, 0, 0, 0, false
	w.status, w.fault = queue.WCSuccess, memory.FaultNone
	if !valid {
		w.status = queue.WCLocQPOpErr
	}
	return w
}

// check finds out the length of a request, and whether its list names memory of the QP's.
func (s *sendQueue) check(w *work) {
	need := memory.Access(0)
	if w.answered() && w.wr.Opcode != queue.AtomicWrite {
		need = memory.LocalWrite
	}
	w.length = uint64(len(w.wr.Inline))
	for _, e := range w.wr.SGList {
		w.length += uint64(e.Length)
		if e.Length == 0 {
			continue
		}
		r := memory.Range{Key: e.LKey, Address: e.Addr, Length: uint64(e.Length)}
		if w.fault = s.qp.engine.memory.Check(s.qp.principal, need, r); w.fault != memory.FaultNone {
			w.status = queue.WCLocProtErr
			return
		}
	}
}

// execute executes a local operation: local invalidate, binding a memory window, fast registration. Nothing of them
// goes to the peer. The service has it done in posting order between the packets of its neighbours, once: a resend goes
// past it.
func (s *sendQueue) execute(w *work) {
	m, principal := s.qp.engine.memory, s.qp.principal
	status := queue.WCLocQPOpErr
	switch w.wr.Opcode {
	case queue.LocalInvalidate:
		w.fault = m.Invalidate(principal, w.wr.InvalidateRKey)
	case queue.RegisterRegion:
		w.fault = m.FastRegister(principal, w.wr.RKey, memory.Access(w.wr.Access))
	case queue.BindWindow:
		status = queue.WCMWBindErr
		w.fault = m.Bind(principal, memory.Bind{
			Window: w.wr.RKey, Region: w.wr.Bind.LKey,
			Address: w.wr.Bind.Addr, Length: w.wr.Bind.Length, Access: memory.Access(w.wr.Bind.Access),
		})
	}
	if w.fault != memory.FaultNone {
		w.status = status
		return
	}
	w.done = true
}

// report tells how a request has ended.
func (s *sendQueue) report(w *work, status queue.WCStatus, known account) queue.WC {
	wc := queue.WC{
		WRID: w.wr.WRID, Status: status, Opcode: w.wr.Opcode.Completed(), QPN: s.qp.config.QPN,
		PSN: known.psn, Syndrome: known.syndrome, Retries: known.retries, RNRRetries: known.rnrRetries,
	}
	if status == w.status { // not flushed, and not what the peer said
		wc.VendorErr = uint32(w.fault)
	}
	return wc
}

// complete retires the oldest request. Its slot is free before the completion can be seen: who polls it may
// post at once.
func (s *sendQueue) complete(status queue.WCStatus, known account) {
	w := s.work(s.head)
	s.head++
	s.ring.Release(1)
	if status == queue.WCSuccess && w.wr.Flags&queue.SendSignaled == 0 && !s.qp.config.SignalAll {
		return
	}
	s.qp.completion = s.report(w, status, known)
	s.qp.completion.ByteLen = uint32(w.length)
	s.qp.complete(s.qp.config.SendCQ, false)
}

// flush completes everything that was fetched or waits in the ring. In the error state it also runs for what is posted
// later.
func (s *sendQueue) flush(known account) {
	for s.head < s.tail {
		s.complete(queue.WCWRFlushErr, known)
	}
	for left := s.ring.Available(s.ring.Capacity()); left > 0; left-- {
		w := s.work(s.tail)
		s.ring.ReadSend(0, &w.wr)
		w.length = 0
		s.tail++
		s.complete(queue.WCWRFlushErr, known)
	}
}
