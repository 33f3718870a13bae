package transport

import (
	"fmt"

	"github.com/xroce/xroce/internal/enum"
	"github.com/xroce/xroce/roce"
)

// EventType is what an asynchronous event tells; the values are those of enum ibv_event_type.
type EventType uint8

// Asynchronous events. What a RoCE device never raises is left out: path migration, and what a subnet manager does.
const (
	EventCQErr            EventType = 0  // a CQ had no room for a completion
	EventQPFatal          EventType = 1  // the QP cannot go on, for a reason that no completion tells
	EventQPReqErr         EventType = 2  // the peer's request was invalid and took no receive request
	EventQPAccessErr      EventType = 3  // the same with an access that is not permitted
	EventCommEst          EventType = 4  // the first packet of the peer came while the QP was in RTR
	EventSQDrained        EventType = 5  // everything that had begun before SQD is done
	EventDeviceFatal      EventType = 8  // the device cannot go on
	EventPortActive       EventType = 9  // the network device came up, or has another MTU
	EventPortErr          EventType = 10 // the network device went down
	EventSRQErr           EventType = 14 // an SRQ cannot go on
	EventSRQLimitReached  EventType = 15 // fewer requests are left in an SRQ than its limit
	EventQPLastWQEReached EventType = 16 // a QP in the error state takes no further request from its SRQ
	EventGIDChange        EventType = 18 // the GID table changed
)

var eventNames = map[EventType]string{
	EventCQErr:            "CQ error",
	EventQPFatal:          "QP fatal error",
	EventQPReqErr:         "QP invalid request error",
	EventQPAccessErr:      "QP access error",
	EventCommEst:          "communication established",
	EventSQDrained:        "send queue drained",
	EventDeviceFatal:      "device fatal error",
	EventPortActive:       "port active",
	EventPortErr:          "port error",
	EventSRQErr:           "SRQ error",
	EventSRQLimitReached:  "SRQ limit reached",
	EventQPLastWQEReached: "last WQE reached",
	EventGIDChange:        "GID change",
}

func (t EventType) String() string {
	if name, ok := eventNames[t]; ok {
		return name
	}
	return fmt.Sprintf("event %d", uint8(t))
}

// MarshalText returns the text of String, for logs and JSON.
func (t EventType) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

// UnmarshalText takes what MarshalText returns.
func (t *EventType) UnmarshalText(text []byte) error { return enum.Parse(t, text) }

// Events takes the events of a QP.
type Events interface {
	// Event is called under the same rule as everything else of the QP: by one goroutine at a time. It must not
	// call the transport.
	Event(EventType)
	// Unanswered is called, under the same rule, when ACK timeouts in a row have brought nothing, and before the QP
	// ends because of it: the way to the peer may be another one than path by now.
	Unanswered(path roce.Path)
}
