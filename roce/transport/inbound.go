package transport

// Messages on their way in: how packets become a SEND or WRITE. It is the same for all services that take messages of
// more than one packet; what a packet is answered with if something is wrong, and whether it came in its turn, is the
// service's.
//
// Way of a packet: follows says whether it goes on with the message in progress; send or write checks it, takes a
// receive if the message needs one, and places the payload. They return an outcome, and nothing has changed because of
// a packet that was not accepted, but that a receive may be claimed. After the last packet finish completes the
// receive.

import (
	"github.com/xroce/xroce/roce"
	"github.com/xroce/xroce/roce/memory"
	"github.com/xroce/xroce/roce/queue"
)

// outcome is what became of a packet.
type outcome struct {
	kind  outcomeKind
	fault memory.Fault // why memory could not be accessed
}

type outcomeKind uint8

const (
	outcomeAccepted    outcomeKind = iota
	outcomeNoReceive               // none is posted
	outcomeBadReceive              // the one that was claimed makes no sense
	outcomeNoRight                 // the QP does not let the peer do that
	outcomeBadLength               // payload or pad do not fit the packet's place in the message
	outcomeTooLong                 // the message does not fit into the receive
	outcomeLocalFault              // the memory of the receive cannot be written
	outcomeRemoteFault             // that of a WRITE cannot
	outcomeKeyFault                // the packet was placed, but the key could not be invalidated
)

// message is the kind of the message in progress.
type message uint8

const (
	messageNone message = iota
	messageSend
	messageWrite
)

type inbound struct {
	qp       *QP
	message  message
	receive  queue.RecvWR // claimed by the message, if claimed
	claimed  bool
	capacity uint64 // bytes of the receive's list
	received uint64 // bytes of a SEND so far
	// Of a WRITE:
	left memory.Range // what is still to come
	size uint64
}

func (in *inbound) init(q *QP) {
	in.qp = q
	in.receive.SGList = make([]queue.SGE, 0, q.config.MaxRecvSGE)
}

// reset drops what is in the receive queue.
func (in *inbound) reset() {
	in.qp.config.Receive.Discard()
	*in = inbound{qp: in.qp, receive: queue.RecvWR{SGList: in.receive.SGList[:0]}}
}

// follows says whether a request is one that may come now: one that starts, or the next packet of the message in
// progress.
func (in *inbound) follows(p *roce.Packet) bool {
	switch in.message {
	case messageSend:
		return !p.Info.Starts() && p.Info.Operation == roce.OperationSend
	case messageWrite:
		return !p.Info.Starts() && p.Info.Operation == roce.OperationWrite
	}
	return p.Info.Starts()
}

// claim takes a receive request for the message.
func (in *inbound) claim() outcomeKind {
	found, valid := in.qp.config.Receive.Take(&in.receive)
	if !found {
		return outcomeNoReceive
	}
	in.claimed = true
	if !valid {
		return outcomeBadReceive
	}
	in.capacity = 0
	for _, s := range in.receive.SGList {
		in.capacity += uint64(s.Length)
	}
	return outcomeAccepted
}

// lengthFits checks payload and pad of a packet of a SEND by its position (table in
// IBTA volume 1, chapter 9; rxe_resp_check_length in drivers/infiniband/sw/rxe/rxe_resp.c).
func (in *inbound) lengthFits(p *roce.Packet) bool {
	n, mtu := uint64(p.PayloadLength), in.qp.mtu
	switch p.Info.Position {
	case roce.PositionFirst, roce.PositionMiddle:
		return n == mtu && p.PadCount == 0
	case roce.PositionLast:
		return n >= 1 && n <= mtu && padFits(p)
	}
	return n <= mtu && padFits(p)
}

func padFits(p *roce.Packet) bool { return int(p.PadCount) == -p.PayloadLength&3 }

// send takes a packet of a SEND.
func (in *inbound) send(p *roce.Packet) outcome {
	if p.Info.Starts() {
		if kind := in.claim(); kind != outcomeAccepted {
			return outcome{kind: kind}
		}
		in.received = 0
	}
	n := uint64(p.PayloadLength)
	if !in.lengthFits(p) {
		return outcome{kind: outcomeBadLength}
	}
	if n > in.capacity-in.received {
		return outcome{kind: outcomeTooLong}
	}
	fault := in.qp.scatter(in.receive.SGList, in.received, p.Payload(), n, p.Info.Ends())
	if fault != memory.FaultNone {
		return outcome{outcomeLocalFault, fault}
	}
	in.received += n
	in.message = messageSend
	if p.Info.Has(roce.HeaderIETH) {
		if fault = in.qp.engine.memory.Invalidate(in.qp.principal, p.IETH().RKey()); fault != memory.FaultNone {
			return outcome{outcomeKeyFault, fault}
		}
	}
	return outcome{}
}

// write takes a packet of a WRITE. A plain one takes no receive request; one with immediate data takes it with its last
// packet.
func (in *inbound) write(p *roce.Packet) outcome {
	q := in.qp
	if p.Info.Starts() {
		if q.attrs.Access&memory.RemoteWrite == 0 {
			return outcome{kind: outcomeNoRight}
		}
		reth := p.RETH()
		in.left = memory.Range{Key: reth.RKey(), Address: reth.VA(), Length: uint64(reth.Length())}
		in.size = in.left.Length
	}
	if p.Info.Has(roce.HeaderImmDt) {
		if kind := in.claim(); kind != outcomeAccepted {
			return outcome{kind: kind}
		}
	}
	n, left := uint64(p.PayloadLength), in.left.Length
	fits := left <= queue.MaxMessage && padFits(p)
	if left > q.mtu {
		fits = fits && !p.Info.Ends() && n == q.mtu
	} else {
		fits = fits && p.Info.Ends() && n == left
	}
	if !fits {
		return outcome{kind: outcomeBadLength}
	}
	fault := memory.FaultNone
	// With length 0 key and address may be anything (drivers/infiniband/sw/rxe/rxe_resp.c cites C9-88).
	if p.Info.Starts() && left > 0 {
		fault = q.engine.memory.Check(q.principal, memory.RemoteWrite, in.left)
	}
	if fault == memory.FaultNone && n > 0 {
		into := in.left
		into.Length = n
		fault = q.engine.memory.Write(q.principal, memory.RemoteWrite, into, p.Payload(), p.Info.Ends())
	}
	if fault != memory.FaultNone {
		return outcome{outcomeRemoteFault, fault}
	}
	in.left.Address += n
	in.left.Length -= n
	in.message = messageWrite
	return outcome{}
}

// finish ends the message with its last packet, and completes the receive that it has claimed, if any.
func (in *inbound) finish(p *roce.Packet) {
	q := in.qp
	opcode, length := queue.WCRecv, in.received
	if in.message == messageWrite {
		opcode, length = queue.WCRecvRDMAWithImmediate, in.size
	}
	in.message = messageNone
	if !in.claimed {
		return
	}
	in.claimed = false
	wc := &q.completion
	*wc = queue.WC{
		WRID: in.receive.WRID, Opcode: opcode, QPN: q.config.QPN, ByteLen: uint32(length), PSN: p.PSN,
	}
	if p.Info.Has(roce.HeaderImmDt) {
		wc.Flags |= queue.WCWithImmediate
		wc.ImmData = p.ImmDt().Value()
	}
	if p.Info.Has(roce.HeaderIETH) {
		wc.Flags |= queue.WCWithInvalidate
		wc.InvalidatedRKey = p.IETH().RKey()
	}
	q.complete(q.config.RecvCQ, p.BTH.Solicited())
}

// abandon gives up the message and returns the receive that it has claimed, if any, for the service to complete.
func (in *inbound) abandon() (wrID uint64, claimed bool) {
	claimed, in.claimed = in.claimed, false
	return in.receive.WRID, claimed
}

// flush completes the receive requests that are claimed or wait in the queue. Those of an SRQ are not the QP's to
// complete.
func (in *inbound) flush() {
	q := in.qp
	// What is posted meanwhile rings the doorbell again: nobody keeps the shard busy by posting to a dead QP.
	for left := q.config.Receive.Waiting(); in.claimed || left > 0; {
		if !in.claimed {
			left--
			if found, _ := q.config.Receive.Take(&in.receive); !found {
				return
			}
		}
		in.claimed = false
		q.completion = queue.WC{
			WRID: in.receive.WRID, Status: queue.WCWRFlushErr, Opcode: queue.WCRecv, QPN: q.config.QPN,
		}
		q.complete(q.config.RecvCQ, false)
	}
}
