package verbs

import (
	"github.com/xroce/xroce/internal/enum"
	"github.com/xroce/xroce/roce/transport"
)

// QPType is the service of a queue pair; the values are those of enum ibv_qp_type.
type QPType uint8

// Services of queue pairs.
const (
	QPTRC QPType = 2 // reliable connection
)

// String is the name of the value.
func (q QPType) String() string { return transport.Type(q).String() }

// MarshalText returns the text of String, for logs and JSON.
func (q QPType) MarshalText() ([]byte, error) { return []byte(q.String()), nil }

// UnmarshalText takes what MarshalText returns.
func (q *QPType) UnmarshalText(text []byte) error { return enum.Parse(q, text) }

// QPState is the state of a queue pair; the values are those of enum ibv_qp_state.
type QPState uint8

// States of a queue pair.
const (
	StateReset QPState = 0
	StateInit  QPState = 1 // receives may be posted
	StateRTR   QPState = 2 // ready to receive
	StateRTS   QPState = 3 // ready to send
	StateSQD   QPState = 4 // send queue draining: what was started is finished, nothing new is
	StateError QPState = 6 // all requests are flushed
)

// String is the name of the value.
func (q QPState) String() string { return transport.State(q).String() }

// MarshalText returns the text of String, for logs and JSON.
func (q QPState) MarshalText() ([]byte, error) { return []byte(q.String()), nil }

// UnmarshalText takes what MarshalText returns.
func (q *QPState) UnmarshalText(text []byte) error { return enum.Parse(q, text) }

// QPAttrMask says which fields of a QPAttr are set; the bits are those of enum ibv_qp_attr_mask.
type QPAttrMask uint32

// Bits of a QPAttrMask.
const (
	QPStateMask       QPAttrMask = 1 << 0
	QPCurState        QPAttrMask = 1 << 1
	QPEnSQDNotify     QPAttrMask = 1 << 2
	QPAccessFlags     QPAttrMask = 1 << 3
	QPPKeyIndex       QPAttrMask = 1 << 4
	QPPort            QPAttrMask = 1 << 5
	QPAV              QPAttrMask = 1 << 7
	QPPathMTU         QPAttrMask = 1 << 8
	QPTimeout         QPAttrMask = 1 << 9
	QPRetryCnt        QPAttrMask = 1 << 10
	QPRNRRetry        QPAttrMask = 1 << 11
	QPRQPSN           QPAttrMask = 1 << 12
	QPMaxQPRDAtomic   QPAttrMask = 1 << 13
	QPMinRNRTimer     QPAttrMask = 1 << 15
	QPSQPSN           QPAttrMask = 1 << 16
	QPMaxDestRDAtomic QPAttrMask = 1 << 17
	QPDestQPN         QPAttrMask = 1 << 20
)

// String names the bits, with | between them; "0" is none.
func (q QPAttrMask) String() string { return transport.AttributeMask(q).String() }

// MarshalText returns the text of String, for logs and JSON.
func (q QPAttrMask) MarshalText() ([]byte, error) { return []byte(q.String()), nil }

// UnmarshalText takes what MarshalText returns.
func (q *QPAttrMask) UnmarshalText(text []byte) error { return enum.ParseFlags(q, text) }

// AHAttr names the peer of a connected queue pair, and the way there.
type AHAttr struct {
	DGID         GID    // of the peer
	SGIDIndex    int    // of the entry of the own GID table that packets come from
	TrafficClass uint8  // DSCP in bits 7:2, ECN in bits 1:0
	FlowLabel    uint32 // 20 bits; 0 derives one from the QPNs
}

// EventType is what an asynchronous event tells; the values are those of enum ibv_event_type.
type EventType uint8

// Types of asynchronous events. EventPortErr, EventPortActive and EventGIDChange say that something has changed; how
// the port is now, QueryPort and QueryGIDTable tell.
const (
	EventCQErr            EventType = 0  // a CQ had no room for a completion
	EventQPFatal          EventType = 1  // the QP cannot go on, for a reason that no completion tells
	EventQPReqErr         EventType = 2  // the peer's request was invalid and took no receive request
	EventQPAccessErr      EventType = 3  // the same with an access that is not permitted
	EventCommEst          EventType = 4  // the first packet of the peer came while the QP was in RTR
	EventSQDrained        EventType = 5  // everything that had begun before SQD is done
	EventDeviceFatal      EventType = 8  // not raised
	EventPortActive       EventType = 9  // the network device came up, or has another MTU
	EventPortErr          EventType = 10 // the network device went down
	EventSRQErr           EventType = 14 // not raised
	EventSRQLimitReached  EventType = 15 // fewer requests are left in an SRQ than its limit
	EventQPLastWQEReached EventType = 16 // a QP in the error state takes no further request from its SRQ
	EventGIDChange        EventType = 18 // the GID table changed
)

// String is the name of the value.
func (e EventType) String() string { return transport.EventType(e).String() }

// MarshalText returns the text of String, for logs and JSON.
func (e EventType) MarshalText() ([]byte, error) { return []byte(e.String()), nil }

// UnmarshalText takes what MarshalText returns.
func (e *EventType) UnmarshalText(text []byte) error { return enum.Parse(e, text) }
