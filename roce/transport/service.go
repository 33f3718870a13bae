package transport

import (
	"fmt"

	"github.com/xroce/xroce/roce"
	"github.com/xroce/xroce/roce/queue"
)

// service is what the type of a queue pair makes of its work requests and packets. The QP around it has what all types
// share: state, attributes, the turn of the engine, completions and counts. RC (rc.go) is the one there is.
//
// Its parts know each other by pointers, not by interfaces, and it is asked by interface only where a packet comes or
// goes: a pointer that goes through an interface makes what it points to escape to the heap.
type service interface {
	// transitions are the changes of state that the type has, but for those to RESET and ERR, which all have.
	transitions() []transition
	// enter is called when the QP has gone from one state to the one that it is in now, or has changed attributes in
	// it.
	enter(from State, mask AttributeMask)
	// admit checks what a packet must fulfil before it may change anything. One that fails is dropped without an
	// answer.
	admit(p *roce.Packet) roce.DropReason
	receive(p *roce.Packet)
	// path is the way of the packet that emit would write next, or nil if there is none.
	path() *path
	// emit writes the next packet, which goes that way, into buffer and returns the frame's length; 0 if there is none
	// after all.
	emit(to *path, buffer []byte) int
	// expire is called when a deadline of recovery had passed by a time.
	expire(by Time)
	// fail ends the QP: the oldest send request that was taken, if any, completes with status, and the others are
	// flushed.
	fail(status queue.WCStatus)
	// flush completes everything that waits in the rings of a QP in the error state.
	flush()
	// reset drops what is in the rings, and brings everything back to how it was made.
	reset()
	// mobile says whether all packets of the QP come from one peer, so that it may move to where they arrive.
	mobile() bool
	// status adds where the service stands.
	status(s *Status)
}

func newService(q *QP) (service, error) {
	if q.config.Type == RC {
		return newRC(q), nil
	}
	return nil, fmt.Errorf("transport: %v is not supported", q.config.Type)
}

// path is the way of packets to a peer. A connected QP has one; a datagram names the one that it takes.
type path struct {
	template    roce.HeaderTemplate
	destination roce.QPN
	transmitter Transmitter // takes the frames; nil: the engine's
}
