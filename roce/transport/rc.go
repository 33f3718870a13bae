package transport

// RC, the reliable connection.
//
// Life of a message: the requester (rc_requester.go) cuts a send request into packets, as recovery permits. At the
// other end the responder (rc_responder.go) takes them in the order of their PSNs and has them put together
// (inbound.go) or answers them from memory (rc_answered.go); its answers (rc_response.go) go back. The completer
// (rc_completer.go) of the first end takes those, moves recovery on and retires the request. Requester and completer
// know each other: what was acknowledged may let more be sent, and what cannot be sent completes with an error. The
// responder knows neither of them.

import (
	"github.com/xroce/xroce/roce"
	"github.com/xroce/xroce/roce/queue"
)

type rc struct {
	qp        *QP
	sends     sendQueue
	inbound   inbound
	requester requester
	completer completer
	responder responder

	// preferRequest alternates between requests and responses, so that neither starves the other.
	preferRequest bool
}

func newRC(q *QP) *rc {
	c := &rc{qp: q}
	c.sends.init(q)
	c.inbound.init(q)
	c.link()
	return c
}

// link makes requester, completer and responder as they are before the connection begins.
func (c *rc) link() {
	r := &c.qp.recovery
	c.requester = requester{qp: c.qp, recovery: r, sends: &c.sends, completer: &c.completer}
	c.completer = completer{
		qp: c.qp, recovery: r, sends: &c.sends, requester: &c.requester, lastSyndrome: roce.SyndromeNone,
	}
	c.responder = responder{qp: c.qp, recovery: r, inbound: &c.inbound}
}

// rcTransitions are those of an RC QP, after qp_state_table in drivers/infiniband/core/verbs.c. ALT_PATH and
// PATH_MIG_STATE do not exist on RoCE.
var rcTransitions = []transition{
	{from: StateReset, to: StateInit, required: MaskPKeyIndex | MaskPort | MaskAccess},
	{from: StateInit, to: StateInit, optional: MaskPKeyIndex | MaskPort | MaskAccess},
	{
		from: StateInit, to: StateRTR,
		required: MaskAV | MaskPathMTU | MaskDestinationQPN | MaskRQPSN | MaskMaxDestRDAtomic | MaskMinRNRTimer,
		optional: MaskAccess | MaskPKeyIndex,
	},
	{
		from: StateRTR, to: StateRTS,
		required: MaskTimeout | MaskRetryCount | MaskRNRRetry | MaskSQPSN | MaskMaxRDAtomic,
		optional: MaskCurrentState | MaskAccess | MaskMinRNRTimer,
	},
	{from: StateRTS, to: StateRTS, optional: MaskCurrentState | MaskAccess | MaskMinRNRTimer},
	{from: StateRTS, to: StateSQD, optional: MaskEnSQDNotify},
	{from: StateSQD, to: StateRTS, optional: MaskCurrentState | MaskAccess | MaskMinRNRTimer},
	{
		from: StateSQD, to: StateSQD,
		optional: MaskPort | MaskAV | MaskTimeout | MaskRetryCount | MaskRNRRetry | MaskMaxRDAtomic |
			MaskMaxDestRDAtomic | MaskAccess | MaskPKeyIndex | MaskMinRNRTimer,
	},
}

func (c *rc) transitions() []transition { return rcTransitions }

func (c *rc) enter(from State, mask AttributeMask) {
	a := &c.qp.attrs
	switch to := c.qp.state; {
	case to == StateRTR:
		c.responder.start(a.MaxDestRDAtomic)
	case to == StateRTS && from == StateRTR:
		c.qp.recovery.start(c.qp.config.Window)
		c.requester.start(a.MaxRDAtomic)
	case to == StateSQD && from == StateRTS:
		c.completer.checkDrained()
	case to == StateSQD:
		// No request of this end is in flight.
		if mask&MaskMaxRDAtomic != 0 {
			c.requester.answers = make([]uint64, a.MaxRDAtomic)
		}
		if mask&MaskMaxDestRDAtomic != 0 {
			c.responder.grant(a.MaxDestRDAtomic)
		}
	}
}

// admit makes the checks of rxe_rcv (drivers/infiniband/sw/rxe/rxe_recv.c) that need the QP.
func (c *rc) admit(p *roce.Packet) roce.DropReason {
	switch {
	case p.Opcode.Transport() != roce.TransportRC:
		return roce.DropTransportMismatch
	case !p.Info.Request && c.qp.state < StateRTS:
		return roce.DropQPState
	}
	return c.qp.fromPeer(p)
}

func (c *rc) receive(p *roce.Packet) {
	if p.Info.Request {
		c.responder.receive(p)
	} else {
		c.completer.receive(p)
	}
}

func (c *rc) path() *path { return &c.qp.path }

func (c *rc) emit(to *path, buffer []byte) (n int) {
	if c.preferRequest {
		if n = c.requester.emit(to, buffer); n == 0 {
			n = c.responder.emit(to, buffer)
		}
	} else if n = c.responder.emit(to, buffer); n == 0 {
		n = c.requester.emit(to, buffer)
	}
	if n > 0 {
		c.preferRequest = !c.preferRequest
	}
	return n
}

func (c *rc) expire(by Time) {
	if c.qp.recovery.expired(c.qp.engine.now, by) {
		c.requester.unanswered()
		return
	}
	c.qp.engine.Ready(c.qp)
}

func (c *rc) fail(status queue.WCStatus) { c.completer.fail(status) }

func (c *rc) flush() {
	c.sends.flush(c.completer.account())
	c.requester.current = c.sends.head
	c.inbound.flush()
}

func (c *rc) reset() {
	c.sends.reset()
	c.inbound.reset()
	c.link()
}

func (c *rc) mobile() bool { return true }

func (c *rc) status(s *Status) {
	r := &c.qp.recovery
	s.Requests = c.sends.tail - c.sends.head
	s.LastSyndrome = c.completer.lastSyndrome
	s.MSN, s.ResponsesDue = c.responder.msn&roce.PSNMask, c.responder.responsesDue
	if r.next >= origin {
		s.UnacknowledgedPSN, s.SendPSN = c.requester.psn(r.una), c.requester.psn(r.cursor)
		s.NextPSN = c.requester.psn(r.next)
		s.InFlight = r.next - r.una
	}
	if c.responder.expected >= origin {
		s.ExpectedPSN = c.responder.psn(c.responder.expected)
	}
}
