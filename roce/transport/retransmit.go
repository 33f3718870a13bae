package transport

// Going back. A loss shows as a NAK, as an answer that jumps over a READ or an atomic, or as an ACK timeout; each moves
// the cursor back to the oldest packet that was not acknowledged, and everything from there on is made again
// (go-back-N). One recovery at a time: further news of the same loss starts no second one, only a timeout does.

import (
	"time"

	"github.com/xroce/xroce/roce"
	"github.com/xroce/xroce/roce/queue"
)

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
	for r.answerCount > 0 && r.answers[r.answerCount-1] > r.cursor {
		r.answerCount--
	}
	r.sinceAck = 0
	r.roundTrip.abandon()
	q.settle()
	q.engine.Ready(q)
}

// recover resends from the oldest packet that was not acknowledged, unless that is under way already.
func (q *QP) recover() {
	r := &q.requester
	q.flying.renew()
	if r.recovering && r.recoverFrom == r.una {
		return
	}
	q.resend()
}

func (q *QP) resend() {
	r := &q.requester
	if r.retries >= q.attrs.RetryCount {
		q.count(retriesExceeded)
		q.fail(queue.WCRetryExcErr)
		return
	}
	r.retries++
	q.count(recoveries)
	r.recovering, r.recoverFrom = true, r.una
	r.waitingRNR = false // an implied NAK during the wait tells that the refused request was executed after all
	q.window.lost()
	q.flying.flight.lost()
	q.rewind()
	q.stopTimer()
	q.startAckTimer()
}

// waitRNR holds everything until the peer's time has passed, then resends from una.
func (q *QP) waitRNR(syndrome roce.Syndrome) {
	r := &q.requester
	const forEver = 7
	if q.attrs.RNRRetry != forEver {
		if r.rnrRetries >= q.attrs.RNRRetry {
			q.count(rnrRetriesExceeded)
			q.fail(queue.WCRNRRetryExcErr)
			return
		}
		r.rnrRetries++
	}
	q.flying.renew()
	q.rewind()
	q.window.refused()
	r.waitingRNR = true
	r.recovering = false
	q.setTimer(q.engine.now + Time(roce.RNRTimer(syndrome.Value())/time.Nanosecond))
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
	q.count(timeouts)
	if (r.retries > 0 || q.attrs.RetryCount == 0) && q.config.Events != nil {
		q.config.Events.Unanswered(q.attrs.Path)
	}
	q.resend()
}
