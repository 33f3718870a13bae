package transport

// Recovery: which packet leaves next, when, and what happens when one is lost. There is one of it for each QP, since a
// QP has one way to its peer, whatever travels on it.
//
// Way of a request packet: offer says whether it may leave, which takes the window, the QP's share of the flight
// (flight.go) and the gap to the packet before; sent notes that it has left and starts the clock; acknowledged takes it
// off again. If that does not come, the deadline passes, or the peer says so, lost tells the requester to send
// everything from the oldest unacknowledged packet on again (go-back-N). One recovery at a time: further news of the
// same loss starts no second one, only a timeout does. A packet that found no receive is no loss: refused holds
// everything back for as long as the peer has said.
//
// Sequence numbers are PSNs that do not wrap: their low 24 bits, added to the first PSN, are the PSN on the wire.
// The cursor is where the next packet comes from; una <= cursor <= next.
//
// How much may be in flight and how fast it leaves is the business of a congestion, which writes window and gap when it
// learns something, and is not asked for a packet.

import (
	"time"

	"github.com/xroce/xroce/roce"
)

// origin is the first sequence number; a multiple of 2^24 large enough that nothing goes below 0.
const origin = uint64(1) << 32

// congestion is a congestion control. It sets window, gap and control of the recovery when one of these things happens.
type congestion interface {
	start(r *recovery, limit uint64)                    // the connection begins; the window is never larger than limit
	acknowledged(r *recovery, now Time, packets uint64) // by one answer
	lost(r *recovery, now Time, kind loss)
	refused(r *recovery, now Time)  // by a peer without a receive
	marked(r *recovery, now Time)   // a packet of the peer has met congestion (CE, RFC 3168): the peer is owed a CNP
	notified(r *recovery, now Time) // the peer has sent a CNP: packets to it meet congestion
	expired(r *recovery, now Time)  // its deadline, control, has passed
}

// loss is how a loss has shown.
type loss uint8

const (
	lossTold  loss = iota // by a NAK, or an answer that jumps over one
	lossTimer             // by the ACK timeout
)

// action is what the requester has to do about a loss.
type action uint8

const (
	actionNone   action = iota // it is being done already, or the QP has failed
	actionResend               // go on from the cursor, which was moved back
	actionGiveUp               // retries are used up
)

type recovery struct {
	attributes *Attributes // of the QP: timeout and retry counts
	congestion congestion
	share      share // of what may be in flight to the peer

	una, cursor, next uint64 // the oldest that was not acknowledged; the next to send; the next that was never sent
	sinceAck          uint64 // packets since the last that asked for an acknowledgement

	// What the congestion writes. A gap is the time that a packet of path MTU takes at the rate that it permits; 0 is
	// as fast as it can be.
	window uint64
	gap    Time

	// Deadlines; 0 is none.
	retransmission Time // the ACK timeout, or the end of an RNR wait
	pacing         Time // the end of the gap that a packet waits for
	control        Time // the congestion's own

	free Time // when the gap behind the last packet ends

	retries, rnrRetries uint8 // used since the last progress
	waitingRNR          bool  // nothing is sent until retransmission
	// recovering says that packets from recoverFrom on were sent again and none of that was acknowledged yet.
	recovering  bool
	recoverFrom uint64
	stopped     bool // the QP is in the error state

	// answersLong says that a long READ is or was among the requests of the peer since none was due (pace.go).
	answersLong bool

	// One more than the largest payload of a packet that was answered, and than that of the packet that was not when
	// the QP gave up; 0 if there is none.
	answeredSize, unansweredSize int

	roundTrip roundTrip
}

func (r *recovery) init(q *QP) {
	*r = recovery{attributes: &q.attrs, congestion: &windowControl{}, share: share{qp: q}}
}

// start begins with nothing in flight.
func (r *recovery) start(limit int) {
	r.una, r.cursor, r.next = origin, origin, origin
	r.congestion.start(r, uint64(limit))
}

// reset forgets everything. The QP is in no flight any more.
func (r *recovery) reset() {
	*r = recovery{attributes: r.attributes, congestion: r.congestion, share: share{qp: r.share.qp}}
}

// stop ends it: the QP has failed. What is in flight does not count any more.
func (r *recovery) stop() {
	r.stopped = true
	r.retransmission, r.pacing, r.control = 0, 0, 0
	r.settle()
}

// nextSend is when the next packet may leave; 0 is now.
func (r *recovery) nextSend(now Time) Time {
	if r.free <= now {
		return 0
	}
	return r.free
}

// offer says whether a request may leave from the cursor that brings so many packets into flight, and whether it must
// ask for an acknowledgement.
func (r *recovery) offer(now Time, packets uint64) (permitted, ask bool) {
	inFlight := r.cursor - r.una
	if inFlight > 0 && inFlight+packets > r.window {
		return false, false
	}
	if r.pacing = r.nextSend(now); r.pacing != 0 {
		return false, false
	}
	probe := r.probes()
	permitted, ask = r.share.offer(packets, r.cursor == r.una && !r.recovering, probe || r.sinceAck > 0)
	// Without the bit at the end of the window the sender would wait for an answer to a question that it
	// never asked; on a resend it brings the earliest possible news.
	return permitted, ask || probe || r.sinceAck+1 >= ackInterval(r.window) || inFlight+1 >= r.window
}

// probes says whether the packet at the cursor is the first one of a resend.
func (r *recovery) probes() bool { return r.recovering && r.cursor == r.recoverFrom }

// sent notes that a request has left which offer has permitted, and tells whether it was sent before.
func (r *recovery) sent(now Time, packets uint64, bytes int, asked bool) (again bool) {
	again = r.cursor < r.next
	r.sinceAck++
	if asked {
		r.sinceAck = 0
		if !again {
			r.roundTrip.asked(now, r.cursor)
		}
	}
	r.cursor += packets
	r.next = max(r.next, r.cursor)
	r.settle()
	if r.retransmission == 0 {
		r.startTimeout(now)
	}
	r.pace(now, packets)
	r.moved(bytes)
	r.share.sent(bytes)
	return again
}

// pace makes the gap behind packets that have left.
func (r *recovery) pace(now Time, packets uint64) {
	if r.gap > 0 {
		r.free = max(r.free, now) + r.gap*Time(packets)
	}
}

// settle counts what is in flight now. It is called whenever that has changed.
func (r *recovery) settle() {
	inFlight := r.cursor - r.una
	if r.stopped {
		inFlight = 0
	}
	r.share.hold(inFlight)
}

func (r *recovery) startTimeout(now Time) {
	r.retransmission = 0
	if timeout := roce.AckTimeout(r.attributes.Timeout); timeout > 0 {
		r.retransmission = now + Time(timeout/time.Nanosecond)
	}
}

// acknowledged notes that everything before upTo has arrived. It is above una.
func (r *recovery) acknowledged(now Time, upTo uint64) {
	packets := upTo - r.una
	r.congestion.acknowledged(r, now, packets)
	r.share.acknowledged(packets, r.roundTrip.smoothed)
	r.roundTrip.acknowledged(now, upTo)
	r.una = upTo
	r.cursor = max(r.cursor, upTo) // acknowledged while a resend was to come: it starts behind
	r.retries, r.rnrRetries = 0, 0
	r.recovering = r.recovering && upTo <= r.recoverFrom
	r.settle()
	// What was refused for lack of a receive was executed after all: there is nothing to wait for.
	r.waitingRNR = false
	r.retransmission = 0
	if r.cursor > upTo {
		r.startTimeout(now)
	}
}

// lost notes that the packet at una is missing.
func (r *recovery) lost(now Time, kind loss) action {
	if r.stopped { // by what the same answer has acknowledged
		return actionNone
	}
	if kind == lossTold {
		r.share.renew()
		if r.recovering && r.recoverFrom == r.una {
			return actionNone
		}
	}
	if r.retries >= r.attributes.RetryCount {
		return actionGiveUp
	}
	r.retries++
	r.recovering, r.recoverFrom = true, r.una
	r.waitingRNR = false // an implied NAK during the wait tells that the refused request was executed after all
	r.congestion.lost(r, now, kind)
	r.share.lost()
	r.rewind()
	r.startTimeout(now)
	return actionResend
}

// refused notes that the peer had no receive for the request at una and wants it again after a time.
func (r *recovery) refused(now, wait Time) action {
	if r.stopped {
		return actionNone
	}
	const forEver = 7
	if r.attributes.RNRRetry != forEver {
		if r.rnrRetries >= r.attributes.RNRRetry {
			return actionGiveUp
		}
		r.rnrRetries++
	}
	r.share.renew()
	r.rewind()
	r.congestion.refused(r, now)
	r.waitingRNR = true
	r.recovering = false
	r.retransmission = now + wait
	return actionResend
}

// rewind moves the cursor back to the oldest packet that was not acknowledged.
func (r *recovery) rewind() {
	r.cursor = r.una
	r.sinceAck = 0
	r.roundTrip.abandon()
	r.settle()
}

// deadline is when expired has something to do; 0 is never.
func (r *recovery) deadline() Time {
	return earlier(earlier(r.retransmission, r.pacing), r.control)
}

func earlier(a, b Time) Time {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// expired ends the waits whose deadlines had passed by a time. unanswered says that the ACK timeout is one of them.
func (r *recovery) expired(now, by Time) (unanswered bool) {
	passed := func(deadline *Time) bool {
		if *deadline == 0 || *deadline > by {
			return false
		}
		*deadline = 0
		return true
	}
	if passed(&r.control) {
		r.congestion.expired(r, now)
	}
	passed(&r.pacing)
	if !passed(&r.retransmission) {
		return false
	}
	if r.waitingRNR {
		r.waitingRNR = false
		return false
	}
	return r.una != r.next
}

// mayRespond says whether the next response to a READ may leave; the whole has so many packets. If not, the QP becomes
// ready when it may.
func (r *recovery) mayRespond(now Time, packets uint64, bytes int) bool {
	if at := r.nextSend(now); at != 0 {
		r.pacing = at
		return false
	}
	if !r.share.mayRespond(packets, bytes) {
		return false
	}
	r.pace(now, 1)
	return true
}

// moved notes that a packet of the QP has left or come.
func (r *recovery) moved(bytes int) {
	if f := r.share.flight; f != nil && !r.answersLong {
		f.moved(bytes)
	}
}

// answered notes the payload in bytes of a packet that was answered, the largest of its message.
func (r *recovery) answered(bytes int) { r.answeredSize = max(r.answeredSize, bytes+1) }

// unanswered notes that of the packet that was not, when the QP gives up.
func (r *recovery) unanswered(bytes int) { r.unansweredSize = bytes + 1 }

// marked notes that a packet of the peer has met congestion.
func (r *recovery) marked(now Time) { r.congestion.marked(r, now) }

// notified notes a CNP of the peer.
func (r *recovery) notified(now Time) { r.congestion.notified(r, now) }
