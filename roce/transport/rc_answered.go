package transport

// Requests that the responder answers with a response of their own: READ, atomics, atomic write, FLUSH.
//
// They are kept in a ring of max_dest_rd_atomic entries until that many newer ones have come, so that a duplicate can
// be answered: a READ with the bytes as they are then, an atomic with the saved result, since it must never be executed
// twice. FLUSH and atomic write are answered with an empty READ RESPONSE ONLY (IBTA annex A19;
// drivers/infiniband/sw/rxe/rxe_resp.c). The responses themselves are written by rc_response.go.

import (
	"encoding/binary"

	"github.com/xroce/xroce/roce"
	"github.com/xroce/xroce/roce/memory"
	"github.com/xroce/xroce/roce/queue"
)

// savedRequest is a request that was accepted: its responses may still be due, and a duplicate may ask for them
// again.
type savedRequest struct {
	operation    roce.Operation
	first, count uint64 // sequence numbers of the response packets
	va, length   uint64 // of a READ
	rkey         uint32
	original     uint64 // the word as an atomic found it
	// Responses due are next..stop-1; start is where the run began, whose packet is a FIRST or an ONLY, and
	// limit is the byte of the message where the run ends. sent is one past the newest response ever sent.
	start, next, stop uint64
	limit             uint64
	sent              uint64
}

func (s *savedRequest) due() bool { return s.next < s.stop }

// unanswered says that the peer cannot have seen all responses yet.
func (s *savedRequest) unanswered() bool { return s.sent < s.first+s.count }

func (s *savedRequest) isAtomic() bool {
	return s.operation == roce.OperationCompareSwap || s.operation == roce.OperationFetchAdd
}

// receiveAnswered executes an expected request, after the checks in the order of rxe_resp.c: right of the QP,
// resources, length, R_Key, alignment.
func (r *responder) receiveAnswered(p *roce.Packet) {
	q := r.qp
	right := rightFor(p)
	if right == 0 || right&^q.attrs.Access != 0 || r.full() || !answeredLengthFits(p) {
		r.refuse(roce.SyndromeNAKInvalidRequest, queue.WCRemInvReqErr)
		return
	}
	s := savedRequest{operation: p.Info.Operation, first: r.expected, count: 1}
	fault := &r.fault
	switch p.Info.Operation {
	case roce.OperationRead:
		reth := p.RETH()
		s.va, s.length, s.rkey = reth.VA(), uint64(reth.Length()), reth.RKey()
		s.count = max(1, (s.length+q.mtu-1)/q.mtu)
		// With length 0 key and address may be anything (drivers/infiniband/sw/rxe/rxe_resp.c cites C9-88).
		if s.length > 0 {
			*fault = q.engine.memory.Check(q.principal, right,
				memory.Range{Key: s.rkey, Address: s.va, Length: s.length})
		}
	case roce.OperationCompareSwap, roce.OperationFetchAdd:
		s.original, *fault = r.executeAtomic(p)
	case roce.OperationAtomicWrite:
		*fault = r.executeAtomicWrite(p)
	case roce.OperationFlush:
		// The host's caches are coherent: what was written is visible to everybody already.
		reth := p.RETH()
		if p.FETH().Selectivity() == flushRegion {
			*fault = q.engine.memory.CheckRegion(q.principal, right, reth.RKey())
		} else {
			*fault = q.engine.memory.Check(q.principal, right,
				memory.Range{Key: reth.RKey(), Address: reth.VA(), Length: uint64(reth.Length())})
		}
	}
	switch *fault {
	case memory.FaultNone:
		r.save(&s)
	case memory.FaultAlignment:
		r.refuse(roce.SyndromeNAKInvalidRequest, queue.WCRemInvReqErr)
	default:
		r.refuse(roce.SyndromeNAKRemoteAccess, queue.WCRemAccessErr)
	}
}

// What a FLUSH may ask for (struct rxe_feth in drivers/infiniband/sw/rxe/rxe_hdr.h).
const (
	flushGlobal     = 1
	flushPersistent = 2
	flushRegion     = 1 // selectivity: the whole region instead of a range
)

// rightFor is the right that a request needs of the QP and of the region; 0 if the request makes no sense.
func rightFor(p *roce.Packet) memory.Access {
	switch p.Info.Operation {
	case roce.OperationRead:
		return memory.RemoteRead
	case roce.OperationCompareSwap, roce.OperationFetchAdd:
		return memory.RemoteAtomic
	case roce.OperationAtomicWrite:
		return memory.RemoteWrite
	case roce.OperationFlush:
		feth := p.FETH()
		need := memory.Access(0)
		if feth.Placement()&flushGlobal != 0 {
			need |= memory.FlushGlobal
		}
		if feth.Placement()&flushPersistent != 0 {
			need |= memory.FlushPersistent
		}
		if feth.Placement()&^(flushGlobal|flushPersistent) != 0 || feth.Selectivity() > flushRegion {
			return 0
		}
		return need
	}
	return 0
}

func answeredLengthFits(p *roce.Packet) bool {
	want := 0
	if p.Info.Operation == roce.OperationAtomicWrite {
		want = 8
	}
	if p.PayloadLength != want || p.PadCount != 0 {
		return false
	}
	if !p.Info.Has(roce.HeaderRETH) {
		return true
	}
	length := uint64(p.RETH().Length())
	return length <= queue.MaxMessage && (want == 0 || length == uint64(want))
}

// executeAtomic executes a compare-and-swap or fetch-and-add and returns the word as it was.
func (r *responder) executeAtomic(p *roce.Packet) (original uint64, fault memory.Fault) {
	h := p.AtomicETH()
	word := memory.Range{Key: h.RKey(), Address: h.VA(), Length: 8}
	if fault := r.checkWord(memory.RemoteAtomic, word); fault != memory.FaultNone {
		return 0, fault
	}
	if p.Info.Operation == roce.OperationFetchAdd {
		return r.qp.engine.memory.FetchAdd(r.qp.principal, word, h.SwapAdd())
	}
	return r.qp.engine.memory.CompareSwap(r.qp.principal, word, h.Compare(), h.SwapAdd())
}

// executeAtomicWrite stores a word in one go, with its bytes in the order of the payload.
func (r *responder) executeAtomicWrite(p *roce.Packet) memory.Fault {
	reth := p.RETH()
	word := memory.Range{Key: reth.RKey(), Address: reth.VA(), Length: 8}
	if fault := r.checkWord(memory.RemoteWrite, word); fault != memory.FaultNone {
		return fault
	}
	var value [8]byte
	n := 0
	for _, piece := range p.Payload() {
		n += copy(value[n:], piece)
	}
	return r.qp.engine.memory.StoreWord(r.qp.principal, word, binary.NativeEndian.Uint64(value[:]))
}

// checkWord checks key, rights and bounds of a word, then its alignment.
func (r *responder) checkWord(need memory.Access, word memory.Range) memory.Fault {
	fault := r.qp.engine.memory.Check(r.qp.principal, need, word)
	if fault == memory.FaultNone && word.Address%8 != 0 {
		return memory.FaultAlignment
	}
	return fault
}

// full says that the peer has as many requests in flight as it was granted.
func (r *responder) full() bool {
	if r.limit == 0 {
		return true
	}
	return r.savedNext >= r.limit && r.saved[(r.savedNext-r.limit)%uint64(len(r.saved))].unanswered()
}

// grant changes how many requests the peer may have in flight. The ring only grows: a peer that has not got an answer
// may still ask for it, whatever it is granted from now on.
func (r *responder) grant(limit uint8) {
	r.limit = uint64(limit)
	old := uint64(len(r.saved))
	if r.limit <= old {
		return
	}
	ring := make([]savedRequest, limit)
	for i := r.savedNext - min(r.savedNext, old); i < r.savedNext; i++ {
		ring[i%r.limit] = r.saved[i%old]
	}
	r.saved = ring
}

// save accepts a request. It takes all its PSNs and its MSN now (hfi1_rc_rcv in drivers/infiniband/hw/hfi1/rc.c);
// its response implies the acknowledgements before it.
func (r *responder) save(s *savedRequest) {
	place := &r.saved[r.savedNext%uint64(len(r.saved))]
	if place.due() {
		r.responsesDue-- // for a late duplicate of a request that the peer must have finished
	}
	s.sent = s.first
	*place = *s
	r.savedNext++
	r.expected += s.count
	r.msn++
	r.answer.pending = false
	r.respond(place, s.first, s.length)
}

// respond makes the responses for length bytes from the sequence number start on due.
func (r *responder) respond(s *savedRequest, start, length uint64) {
	mtu := r.qp.mtu
	if !s.due() {
		r.responsesDue++
	}
	s.start, s.next, s.stop = start, start, start+max(1, (length+mtu-1)/mtu)
	s.limit = (start-s.first)*mtu + length
	r.recovery.answersLong = r.recovery.answersLong || s.count > longRead
	r.qp.engine.Ready(r.qp)
}

// receiveDuplicateAnswered sends a response again. A READ may ask for the rest of the original only: a READ restart.
func (r *responder) receiveDuplicateAnswered(p *roce.Packet, sequence uint64) {
	s := r.find(sequence)
	if s == nil || s.operation != p.Info.Operation {
		r.qp.drop(roce.DropDuplicateUnanswerable)
		return
	}
	if s.operation != roce.OperationRead {
		r.respond(s, s.first, 0)
		return
	}
	reth := p.RETH()
	offset := (sequence - s.first) * r.qp.mtu
	length := uint64(reth.Length())
	if p.PayloadLength != 0 || reth.RKey() != s.rkey || reth.VA() != s.va+offset || length > s.length-offset {
		r.qp.drop(roce.DropDuplicateUnanswerable)
		return
	}
	if s.count > longRead && sequence == s.start && s.due() && s.next-s.start < longRead {
		return // they are just leaving
	}
	r.respond(s, sequence, length)
}

func (r *responder) find(sequence uint64) *savedRequest {
	for i := range r.saved {
		if s := &r.saved[i]; sequence >= s.first && sequence-s.first < s.count {
			return s
		}
	}
	return nil
}
