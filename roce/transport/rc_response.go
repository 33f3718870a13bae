package transport

// Responses, in the order of the requests: an acknowledgement never overtakes the response of a READ or atomic before
// it. A READ is answered packet by packet, from the memory as it is at that moment; its key is looked up for every
// packet, since the region may go away in between.

import (
	"github.com/xroce/xroce/roce"
	"github.com/xroce/xroce/roce/memory"
	"github.com/xroce/xroce/roce/queue"
)

// emit writes the next response into buffer and returns the frame's length, or 0 if none is due.
func (r *responder) emit(to *path, buffer []byte) int {
	q := r.qp
	if q.state < StateRTR || q.state == StateError && !r.lastWords {
		return 0
	}
	for r.responsesDue > 0 {
		s := r.oldestDue()
		if r.answer.pending && s.next > r.answer.sequence {
			break
		}
		if !r.recovery.mayRespond(q.engine.now, s.count, int(q.mtu)) {
			return 0
		}
		if n := r.emitSaved(s, to, buffer); n > 0 {
			return n
		}
	}
	if r.responsesDue == 0 {
		r.recovery.answersLong = false
	}
	if !r.answer.pending {
		return 0
	}
	p := q.layOut(to, buffer, roce.BTHFields{Opcode: roce.RCAcknowledge, PSN: r.psn(r.answer.sequence)}, 0)
	roce.AETHFields{Syndrome: r.answer.syndrome, MSN: r.msn & roce.PSNMask}.Put(p.extension)
	r.answer.pending = false
	r.lastWords = false
	return q.seal(to, p)
}

// oldestDue is the request whose next response has the lowest PSN.
func (r *responder) oldestDue() *savedRequest {
	var oldest *savedRequest
	for i := range r.saved {
		if s := &r.saved[i]; s.due() && (oldest == nil || s.next < oldest.next) {
			oldest = s
		}
	}
	return oldest
}

// emitSaved writes the next response of a READ, atomic, atomic write or FLUSH. 0 says that s is not due any more.
func (r *responder) emitSaved(s *savedRequest, to *path, buffer []byte) int {
	q := r.qp
	offset := (s.next - s.first) * q.mtu
	length := min(q.mtu, s.limit-offset)
	opcode := readResponseOpcode(s.next == s.start, s.next+1 == s.stop)
	if s.isAtomic() {
		opcode = roce.RCAtomicAcknowledge
	}
	p := q.layOut(to, buffer, roce.BTHFields{Opcode: opcode, PSN: r.psn(s.next)}, int(length))
	if opcode.Info().Has(roce.HeaderAETH) {
		roce.AETHFields{Syndrome: roce.SyndromeAckNoCredits, MSN: r.msn & roce.PSNMask}.Put(p.extension)
	}
	if s.isAtomic() {
		roce.AtomicAckETHFields{Original: s.original}.Put(p.extension[roce.AETHLength:])
	}
	if length > 0 {
		from := memory.Range{Key: s.rkey, Address: s.va + offset, Length: length}
		if fault := q.engine.memory.Read(q.principal, memory.RemoteRead, from, p.payload); fault != memory.FaultNone {
			if s.unanswered() {
				r.breakRead(s, fault)
			} else {
				r.forgetRepeat(s)
			}
			return 0
		}
	}
	q.again = s.next < s.sent
	s.next++
	s.sent = max(s.sent, s.next)
	if !s.due() {
		r.responsesDue--
	}
	return q.seal(to, p)
}

// breakRead ends a READ whose region went away, or the memory of it: a NAK takes the place of the response that could
// not be sent, and nothing after it is answered (IBTA volume 1, chapter 9; rdma_rxe puts the first PSN of the request
// there).
func (r *responder) breakRead(s *savedRequest, fault memory.Fault) {
	q := r.qp
	at := s.next
	for i := range r.saved {
		r.saved[i].stop = r.saved[i].next
	}
	r.responsesDue = 0
	q.count(sentFatalNAKs)
	r.reply(at, roce.SyndromeNAKRemoteAccess)
	r.lastWords = true
	q.failure = queue.WC{
		Status: queue.WCRemAccessErr, Opcode: queue.WCRDMARead, Flags: queue.WCPeerRequest, QPN: q.config.QPN,
		PSN: r.psn(at), Syndrome: roce.SyndromeNAKRemoteAccess, VendorErr: uint32(fault),
	}
	q.raise(EventQPAccessErr)
	if q.state != StateError {
		q.enterError()
	}
}

// forgetRepeat drops a duplicate of a READ whose responses were all sent before, and whose region has gone away since.
// Most likely the network has delayed it and the peer is long done with the region: its queue pair must not fail for
// that (rc_rcv_error in drivers/infiniband/hw/hfi1/rc.c drops it, too).
func (r *responder) forgetRepeat(s *savedRequest) {
	s.stop = s.next
	r.responsesDue--
	r.qp.drop(roce.DropDuplicateUnanswerable)
}

func readResponseOpcode(first, last bool) roce.Opcode {
	switch {
	case first && last:
		return roce.RCReadResponseOnly
	case first:
		return roce.RCReadResponseFirst
	case last:
		return roce.RCReadResponseLast
	}
	return roce.RCReadResponseMiddle
}
