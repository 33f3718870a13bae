package transport

// Local operations of the send queue: local invalidate, binding a memory window, fast registration. Nothing of them goes
// to the peer. They are executed in posting order between the packets of their neighbours, once: a resend goes past
// them.

import (
	"github.com/xroce/xroce/roce/memory"
	"github.com/xroce/xroce/roce/queue"
)

// executeLocal executes the operation at the cursor.
func (q *QP) executeLocal(w *work) {
	r := &q.requester
	status := queue.WCLocQPOpErr
	switch w.wr.Opcode {
	case queue.LocalInvalidate:
		w.fault = q.engine.memory.Invalidate(q.principal, w.wr.InvalidateRKey)
	case queue.RegisterRegion:
		w.fault = q.engine.memory.FastRegister(q.principal, w.wr.RKey, memory.Access(w.wr.Access))
	case queue.BindWindow:
		status = queue.WCMWBindErr
		w.fault = q.engine.memory.Bind(q.principal, memory.Bind{
			Window: w.wr.RKey, Region: w.wr.Bind.LKey,
			Address: w.wr.Bind.Addr, Length: w.wr.Bind.Length, Access: memory.Access(w.wr.Bind.Access),
		})
	}
	if w.fault != memory.FaultNone {
		q.stopAt(w, status)
		return
	}
	w.done = true
	r.current++
	q.retire()
}
