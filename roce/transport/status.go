package transport

import (
	"github.com/xroce/xroce/roce"
	"github.com/xroce/xroce/roce/queue"
)

// Status is where a queue pair stands, for people who look for what is wrong with it.
type Status struct {
	State State
	// Of the requester: the oldest PSN that was not acknowledged, the next one to send (lower than NextPSN while
	// packets are sent again), and the next one that was never sent.
	UnacknowledgedPSN, SendPSN, NextPSN roce.PSN
	InFlight                            uint64 // packets sent and not acknowledged
	Window                              uint64 // frames that may be in flight now
	Requests                            uint64 // send requests that the engine has taken and not completed
	Retries, RNRRetries                 uint8  // used since the last progress
	WaitingRNR                          bool   // it waits as an RNR NAK told it
	Recovering                          bool   // packets were sent again and none of them was acknowledged yet
	RoundTrip                           Time   // smoothed, in nanoseconds; 0 if nothing was measured yet
	LastSyndrome                        roce.Syndrome
	// Of the responder: the next PSN expected, and the messages executed so far modulo 2^24.
	ExpectedPSN  roce.PSN
	MSN          uint32
	ResponsesDue int // READs and atomics whose responses have not all left

	Failure  queue.WC // see QP.Failure
	Counters Counters // since the QP was made, resets included
}

// Status returns where the QP stands.
func (q *QP) Status() Status {
	r := &q.recovery
	s := Status{
		State: q.state, Window: r.window,
		Retries: r.retries, RNRRetries: r.rnrRetries, WaitingRNR: r.waitingRNR, Recovering: r.recovering,
		RoundTrip: r.roundTrip.smoothed, LastSyndrome: roce.SyndromeNone,
		Failure: q.failure, Counters: q.tally.counters(),
	}
	q.service.status(&s)
	return s
}
