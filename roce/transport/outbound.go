package transport

// Messages on their way out: how a SEND or WRITE becomes packets. It is the same for all services that send messages of
// more than one packet.
//
// Way of a packet: segment says what the packet with a number carries, writeSegment lays it out in a buffer and copies
// its payload from the memory that the request names.

import (
	"github.com/xroce/xroce/roce"
	"github.com/xroce/xroce/roce/memory"
	"github.com/xroce/xroce/roce/queue"
)

// segment is one packet of a message.
type segment struct {
	opcode  roce.Opcode // of RC
	offset  uint64      // into the message
	payload int         // bytes
	last    bool
}

// segment is the packet with the number index of a SEND or WRITE.
func (w *work) segment(index, mtu uint64) segment {
	last := index == w.count-1
	offset := index * mtu
	return segment{
		opcode: messageOpcode(w.wr.Opcode, index == 0, last), offset: offset,
		payload: int(min(mtu, w.length-offset)), last: last,
	}
}

// writeSegment writes a packet of a SEND or WRITE but for its ICRC.
func (q *QP) writeSegment(to *path, buffer []byte, w *work, s segment, psn roce.PSN, ask bool) (packet, memory.Fault) {
	p := q.layOut(to, buffer, roce.BTHFields{
		Opcode:     s.opcode,
		Solicited:  s.last && w.wr.Flags&queue.SendSolicited != 0 && takesReceive(w.wr.Opcode),
		AckRequest: ask,
		PSN:        psn,
	}, s.payload)
	info := s.opcode.Info()
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
	return p, q.gather(w, s.offset, p.payload)
}

// takesReceive says whether an operation takes a receive of the peer.
func takesReceive(o queue.Opcode) bool {
	switch o {
	case queue.Send, queue.SendWithImmediate, queue.SendWithInvalidate, queue.RDMAWriteWithImmediate:
		return true
	}
	return false
}

// messageOpcodes are the opcodes of a SEND or WRITE by position.
var messageOpcodes = [...]struct{ first, middle, last, only roce.Opcode }{
	queue.RDMAWrite: {roce.RCWriteFirst, roce.RCWriteMiddle, roce.RCWriteLast, roce.RCWriteOnly},
	queue.RDMAWriteWithImmediate: {
		roce.RCWriteFirst, roce.RCWriteMiddle, roce.RCWriteLastImmediate, roce.RCWriteOnlyImmediate,
	},
	queue.Send:              {roce.RCSendFirst, roce.RCSendMiddle, roce.RCSendLast, roce.RCSendOnly},
	queue.SendWithImmediate: {roce.RCSendFirst, roce.RCSendMiddle, roce.RCSendLastImmediate, roce.RCSendOnlyImmediate},
	queue.SendWithInvalidate: {
		roce.RCSendFirst, roce.RCSendMiddle, roce.RCSendLastInvalidate, roce.RCSendOnlyInvalidate,
	},
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
