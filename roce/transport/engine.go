package transport

// The engine of a shard has the QPs that are at home there take turns.
//
// Way of a packet: Receive gives one that has come in to its QP (qp.go), which becomes ready if it has something to
// send now. Emit takes the ready QPs in the order in which they became ready, and each writes at most a quantum of
// frames into buffers of a Transmitter; who has more comes again behind the others. Deadlines lie in a heap
// (timer.go), and Expire lets the QPs know whose have passed.

import (
	"math"

	"github.com/xroce/xroce/roce"
	"github.com/xroce/xroce/roce/memory"
)

// Transmitter lends frames to fill, in the manner of link.Queue: Buffer returns the next free one or nil,
// Commit sends the first length bytes of it.
type Transmitter interface {
	Buffer() []byte
	Commit(length int)
}

// Tap is shown every packet that is sent.
type Tap interface {
	// Sent is called before the packet is committed. It may look at the frame and the QP during the call only.
	Sent(p SentPacket)
}

// SentPacket is a packet as it leaves.
type SentPacket struct {
	Time   Time
	QP     *QP
	Opcode roce.Opcode
	Frame  []byte // complete, with its ICRC
	// Again says that it was sent before: one of Counters.Retransmitted, or a response that the peer asked for again.
	Again bool
	By    Transmitter
}

// Verdict is what became of a received packet.
type Verdict struct {
	Admitted  bool            // it is the peer's: state, addresses and partition key are right
	Dropped   roce.DropReason // DropNone if it was of use
	Duplicate bool            // it is a request that was executed before
}

// quantum is how many frames one QP may emit before the next ready QP gets its turn: long enough to keep one
// QP's data in cache, short enough that no QP waits for a whole message of another. Half an emit budget; not measured.
const quantum = 16

// Engine schedules the queue pairs of one shard.
type Engine struct {
	memory *memory.User
	now    Time

	ready  qpList // QPs that may have something to send
	owing  qpList // QPs that have nothing to send but an acknowledgement that was put off
	putOff bool   // acknowledgements of this turn

	timers  timerHeap
	buffers Buffers
	flights map[roce.GID]*flight // by peer
	lines   *flight              // the flights in which QPs wait
	tally   tally

	tap     Tap     // or nil
	verdict Verdict // on the packet that is being received
}

// NewEngine makes an engine whose accesses to user memory go through user.
func NewEngine(user *memory.User) *Engine { return &Engine{memory: user} }

// Counters returns the counts of all QPs of the engine since it was made, and those of CountDrop and CountHandedOver.
func (e *Engine) Counters() Counters { return e.tally.counters() }

// CountDrop counts a packet that was dropped on its way to a QP.
func (e *Engine) CountDrop(reason roce.DropReason) { e.tally.drops[reason]++ }

// CountHandedOver counts a packet that came in here for a QP of another engine.
func (e *Engine) CountHandedOver() { e.tally.counts[handedOver]++ }

// SetTap has a Tap shown what is sent from now on; nil ends that.
func (e *Engine) SetTap(t Tap) { e.tap = t }

// Receive processes a packet for qp, one that Packet.Parse has accepted, and returns what became of it. The packet is
// only looked at during the call.
func (e *Engine) Receive(now Time, qp *QP, p *roce.Packet) Verdict {
	e.now, e.verdict = now, Verdict{}
	qp.receive(p)
	return e.verdict
}

// Ready marks a QP that may have something to do: work was posted, or its state was changed.
func (e *Engine) Ready(qp *QP) {
	if qp.list != &e.ready {
		qp.unlist()
		e.ready.push(qp)
	}
}

// Begin begins a turn of whoever drives. What was put off in the last one is sent in this one, and with putOff the
// acknowledgements of this one wait for the next: for what the program posts because of what it has received. It is for
// those who know that there will be a turn soon.
func (e *Engine) Begin(putOff bool) {
	for e.owing.head != nil {
		e.Ready(e.owing.head)
	}
	e.putOff = putOff
}

// Owes says that acknowledgements wait for the next turn.
func (e *Engine) Owes() bool { return e.owing.head != nil }

// SendOwed sends what a QP has put off, because it may not come to its next turn, and returns how many frames it wrote.
func (e *Engine) SendOwed(now Time, qp *QP, transmit Transmitter) int {
	if qp.list != &e.owing {
		return 0
	}
	qp.unlist()
	e.now = now
	sent, _ := qp.emit(transmit, quantum)
	e.Ready(qp)
	return sent
}

// owe marks a QP that has an acknowledgement to send.
func (e *Engine) owe(qp *QP) {
	switch {
	case !e.putOff:
		e.Ready(qp)
	case qp.list == nil:
		e.owing.push(qp)
	}
}

// Idle says that no QP is ready: Emit would do nothing.
func (e *Engine) Idle() bool { return e.ready.head == nil }

// Emit lets ready QPs write at most budget frames and returns how many they wrote. Local operations count, too: a
// program that posts them as fast as they are executed must not keep the engine from receiving. It ends early when
// nothing is left to send, or when whoever is left found no buffer; then Idle is false. QPs on loopback have
// transmitters of their own, so one without a buffer does not end it.
func (e *Engine) Emit(now Time, budget int, transmit Transmitter) int {
	e.now = now
	sent := 0
	var stuck *QP // the first one that found no buffer; when its turn comes again, all have had theirs
	for sent < budget && e.ready.head != nil && e.ready.head != stuck {
		qp := e.ready.head
		qp.unlist()
		n, more := qp.emit(transmit, min(quantum, budget-sent))
		sent += n
		if more {
			e.Ready(qp)
		}
		qp.schedule()
		qp.recovery.share.emitted()
		switch {
		case more:
			if n == 0 && stuck == nil {
				stuck = qp
			}
		case qp.list == &e.ready: // it has executed a quantum of local operations and goes on, or it has failed
			sent += quantum
		}
	}
	return sent
}

// NextDeadline is when Expire has something to do at the earliest. It may be early, never late.
func (e *Engine) NextDeadline() (Time, bool) {
	deadline := e.lineDeadline()
	if len(e.timers) > 0 {
		deadline = min(deadline, e.timers[0].timer.at)
	}
	return deadline, deadline != math.MaxInt64
}

// Overdue says whether a deadline has passed: whether Expire does something.
func (e *Engine) Overdue(now Time) bool { return e.lineDeadline() <= now || e.timerOverdue(now) }

func (e *Engine) timerOverdue(now Time) bool {
	for len(e.timers) > 0 && e.timers[0].timer.at <= now {
		qp := e.timers[0]
		switch {
		case qp.timer.deadline == 0:
			e.timers.remove(qp)
		case qp.timer.deadline > now:
			e.timers.postpone(qp)
		default:
			return true
		}
	}
	return false
}

// Expire fires the deadlines that had passed by a time, which may be before now. What they begin counts from now.
func (e *Engine) Expire(now, by Time) {
	e.now = now
	e.expireLines(by)
	for e.timerOverdue(by) {
		qp := e.timers[0]
		qp.timer.deadline = 0
		e.timers.remove(qp)
		qp.service.expire(by)
		qp.schedule()
	}
}

// Remove forgets a QP: it is neither ready nor has a deadline afterwards.
func (e *Engine) Remove(qp *QP) {
	qp.setTimer(0)
	e.Release(qp)
}

// Release lets a QP go, with its deadline: from then on it does nothing, and nothing may be done with it, until an
// engine adopts it, this one or another one of the same clock.
func (e *Engine) Release(qp *QP) {
	if qp.timer.queued {
		e.timers.remove(qp)
	}
	e.leaveFlight(qp)
	qp.unlist()
}

// Adopt takes in a QP that was released. It goes on where it was: a deadline that has passed meanwhile fires at once.
// Whether it was ready is not asked, since it costs no more to find out.
func (e *Engine) Adopt(qp *QP) {
	if qp.engine != e {
		qp.Attach(e)
		qp.recovery.roundTrip.abandon() // the turn that goes on here may have begun before the one that asked
		qp.count(moves)
	}
	if qp.timer.deadline != 0 {
		qp.setTimer(qp.timer.deadline)
	}
	e.joinFlight(qp)
	e.Ready(qp)
}
