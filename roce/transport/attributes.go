package transport

import (
	"errors"
	"fmt"

	"github.com/xroce/xroce/internal/enum"
	"github.com/xroce/xroce/roce"
	"github.com/xroce/xroce/roce/memory"
)

// Type is the service of a queue pair.
type Type uint8

// Services of queue pairs; the values are those of enum ibv_qp_type.
const (
	RC Type = 2 // reliable connection
)

func (t Type) String() string {
	if t == RC {
		return "RC"
	}
	return fmt.Sprintf("QP type %d", uint8(t))
}

// MarshalText returns the text of String, for logs and JSON.
func (t Type) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

// UnmarshalText takes what MarshalText returns.
func (t *Type) UnmarshalText(text []byte) error { return enum.Parse(t, text) }

// State is the state of a queue pair; the values are those of enum ibv_qp_state.
type State uint8

// States of a queue pair.
const (
	StateReset State = 0
	StateInit  State = 1
	StateRTR   State = 2 // ready to receive
	StateRTS   State = 3 // ready to send
	StateSQD   State = 4 // send queue draining: what was started is finished, nothing new is
	StateSQE   State = 5 // send queue error, which a reliable connection never gets into
	StateError State = 6
)

func (s State) String() string {
	switch s {
	case StateReset:
		return "RESET"
	case StateInit:
		return "INIT"
	case StateRTR:
		return "RTR"
	case StateRTS:
		return "RTS"
	case StateSQD:
		return "SQD"
	case StateSQE:
		return "SQE"
	case StateError:
		return "ERR"
	}
	return fmt.Sprintf("state %d", uint8(s))
}

// MarshalText returns the text of String, for logs and JSON.
func (s State) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText takes what MarshalText returns.
func (s *State) UnmarshalText(text []byte) error { return enum.Parse(s, text) }

// Attributes are the attributes of a queue pair that Modify sets.
type Attributes struct {
	State          State
	CurrentState   State
	PKeyIndex      uint16
	Port           uint8
	Access         memory.Access // what the peer may do, whatever the regions grant
	Path           roce.Path     // the address vector, resolved
	Loopback       Transmitter   // takes the frames, if not nil, instead of the engine's; set with the Path (MaskAV)
	PathMTU        roce.MTU
	DestinationQPN roce.QPN
	RQPSN          roce.PSN // first PSN expected from the peer
	SQPSN          roce.PSN // first PSN sent
	// MaxRDAtomic bounds the READs and atomics in flight towards the peer, MaxDestRDAtomic those that the
	// peer may have in flight towards here.
	MaxRDAtomic     uint8
	MaxDestRDAtomic uint8
	MinRNRTimer     uint8 // RNR timer code sent when no receive is posted, 0..31
	Timeout         uint8 // local ACK timeout, 4.096 us * 2^Timeout; 0 waits for ever
	RetryCount      uint8 // resends without progress before the QP fails, 0..7
	RNRRetry        uint8 // the same after RNR NAKs; 7 means for ever
	// EnSQDAsyncNotify asks for EventSQDrained.
	EnSQDAsyncNotify bool
	// Draining says that the QP is in SQD and has not drained yet. Modify ignores it.
	Draining bool
}

// AttributeMask says which Attributes a Modify sets; the bits are those of enum ibv_qp_attr_mask.
type AttributeMask uint32

// Bits of an AttributeMask.
const (
	MaskState           AttributeMask = 1 << 0
	MaskCurrentState    AttributeMask = 1 << 1
	MaskEnSQDNotify     AttributeMask = 1 << 2
	MaskAccess          AttributeMask = 1 << 3
	MaskPKeyIndex       AttributeMask = 1 << 4
	MaskPort            AttributeMask = 1 << 5
	MaskAV              AttributeMask = 1 << 7
	MaskPathMTU         AttributeMask = 1 << 8
	MaskTimeout         AttributeMask = 1 << 9
	MaskRetryCount      AttributeMask = 1 << 10
	MaskRNRRetry        AttributeMask = 1 << 11
	MaskRQPSN           AttributeMask = 1 << 12
	MaskMaxRDAtomic     AttributeMask = 1 << 13
	MaskMinRNRTimer     AttributeMask = 1 << 15
	MaskSQPSN           AttributeMask = 1 << 16
	MaskMaxDestRDAtomic AttributeMask = 1 << 17
	MaskDestinationQPN  AttributeMask = 1 << 20
)

var maskNames = []enum.Flag[AttributeMask]{
	{Bit: MaskState, Name: "STATE"},
	{Bit: MaskCurrentState, Name: "CUR_STATE"},
	{Bit: MaskAccess, Name: "ACCESS_FLAGS"},
	{Bit: MaskEnSQDNotify, Name: "EN_SQD_ASYNC_NOTIFY"},
	{Bit: MaskPKeyIndex, Name: "PKEY_INDEX"},
	{Bit: MaskPort, Name: "PORT"},
	{Bit: MaskAV, Name: "AV"},
	{Bit: MaskPathMTU, Name: "PATH_MTU"},
	{Bit: MaskTimeout, Name: "TIMEOUT"},
	{Bit: MaskRetryCount, Name: "RETRY_CNT"},
	{Bit: MaskRNRRetry, Name: "RNR_RETRY"},
	{Bit: MaskRQPSN, Name: "RQ_PSN"},
	{Bit: MaskMaxRDAtomic, Name: "MAX_QP_RD_ATOMIC"},
	{Bit: MaskMinRNRTimer, Name: "MIN_RNR_TIMER"},
	{Bit: MaskSQPSN, Name: "SQ_PSN"},
	{Bit: MaskMaxDestRDAtomic, Name: "MAX_DEST_RD_ATOMIC"},
	{Bit: MaskDestinationQPN, Name: "DEST_QPN"},
}

// String names the bits as libibverbs does, without the prefix IBV_QP_.
func (m AttributeMask) String() string { return enum.Flags(m, maskNames) }

// MarshalText returns the text of String, for logs and JSON.
func (m AttributeMask) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

// UnmarshalText takes what MarshalText returns.
func (m *AttributeMask) UnmarshalText(text []byte) error { return enum.ParseFlags(m, text) }

var (
	// ErrTransition is returned by Modify for a change of state that does not exist, or whose attributes do not fit.
	ErrTransition = errors.New("invalid QP transition")
	// ErrAttribute is returned by Modify for an attribute whose value is out of range.
	ErrAttribute = errors.New("invalid QP attribute")
)

// MaxRDAtomic is the largest MaxRDAtomic and MaxDestRDAtomic.
const MaxRDAtomic = 128

// transition is a change of state, or of attributes in a state, that a service has. Any state goes to RESET, and any
// but RESET to ERR, without attributes, in all services.
type transition struct {
	from, to State
	required AttributeMask
	optional AttributeMask
}

// checkTransition says whether a QP in state from may be modified with these attributes.
func checkTransition(transitions []transition, from State, a *Attributes, mask AttributeMask) error {
	if mask&MaskCurrentState != 0 && a.CurrentState != from {
		return fmt.Errorf("%w: the QP is in %v, CUR_STATE says %v", ErrTransition, from, a.CurrentState)
	}
	to := from
	if mask&MaskState != 0 {
		to = a.State
	}
	given := mask &^ MaskState
	t := transition{from: from, to: to}
	switch {
	case to == StateReset, to == StateError && from != StateReset:
	default:
		found := false
		for _, row := range transitions {
			if row.from == from && row.to == to {
				t, found = row, true
			}
		}
		if !found {
			return fmt.Errorf("%w: %v to %v", ErrTransition, from, to)
		}
	}
	if missing := t.required &^ given; missing != 0 {
		return fmt.Errorf("%w: %v to %v also needs %v", ErrTransition, from, to, missing)
	}
	if extra := given &^ (t.required | t.optional); extra != 0 {
		return fmt.Errorf("%w: %v to %v does not take %v", ErrTransition, from, to, extra)
	}
	return checkRanges(a, given)
}

// permitted are the access flags that a QP may have. LocalWrite and BindWindow have no meaning for it, but programs
// pass them.
const permitted = memory.LocalWrite | memory.RemoteWrite | memory.RemoteRead | memory.RemoteAtomic | memory.BindWindow |
	memory.FlushGlobal | memory.FlushPersistent

func checkRanges(a *Attributes, mask AttributeMask) error {
	for _, r := range []struct {
		bit        AttributeMask
		value, max uint32
	}{
		{MaskPKeyIndex, uint32(a.PKeyIndex), 0}, // one partition key: the default 0xFFFF
		{MaskTimeout, uint32(a.Timeout), 31},
		{MaskMinRNRTimer, uint32(a.MinRNRTimer), 31},
		{MaskRetryCount, uint32(a.RetryCount), 7},
		{MaskRNRRetry, uint32(a.RNRRetry), 7},
		{MaskMaxRDAtomic, uint32(a.MaxRDAtomic), MaxRDAtomic},
		{MaskMaxDestRDAtomic, uint32(a.MaxDestRDAtomic), MaxRDAtomic},
		{MaskDestinationQPN, uint32(a.DestinationQPN), roce.QPNMask},
	} {
		if mask&r.bit != 0 && r.value > r.max {
			return fmt.Errorf("%w: %v is %d, the limit is %d", ErrAttribute, r.bit, r.value, r.max)
		}
	}
	if mask&MaskPort != 0 && a.Port != 1 {
		return fmt.Errorf("%w: PORT is %d, the device has port 1", ErrAttribute, a.Port)
	}
	if mask&MaskPathMTU != 0 && !a.PathMTU.Valid() {
		return fmt.Errorf("%w: PATH_MTU is %d, the values are 1 (256 bytes) to 5 (4096 bytes)",
			ErrAttribute, uint8(a.PathMTU))
	}
	if mask&MaskAccess != 0 {
		if unknown := a.Access &^ permitted; unknown != 0 {
			return fmt.Errorf("%w: ACCESS_FLAGS has unknown bits %#x", ErrAttribute, uint32(unknown))
		}
	}
	return nil
}

// merge copies the attributes that mask names. PSNs are masked to 24 bits, as in Linux.
func (a *Attributes) merge(b *Attributes, mask AttributeMask) {
	set := func(bit AttributeMask, assign func()) {
		if mask&bit != 0 {
			assign()
		}
	}
	set(MaskPKeyIndex, func() { a.PKeyIndex = b.PKeyIndex })
	set(MaskPort, func() { a.Port = b.Port })
	set(MaskAccess, func() { a.Access = b.Access })
	set(MaskAV, func() { a.Path, a.Loopback = b.Path, b.Loopback })
	set(MaskPathMTU, func() { a.PathMTU = b.PathMTU })
	set(MaskDestinationQPN, func() { a.DestinationQPN = b.DestinationQPN })
	set(MaskRQPSN, func() { a.RQPSN = b.RQPSN & roce.PSNMask })
	set(MaskSQPSN, func() { a.SQPSN = b.SQPSN & roce.PSNMask })
	set(MaskMaxRDAtomic, func() { a.MaxRDAtomic = b.MaxRDAtomic })
	set(MaskMaxDestRDAtomic, func() { a.MaxDestRDAtomic = b.MaxDestRDAtomic })
	set(MaskMinRNRTimer, func() { a.MinRNRTimer = b.MinRNRTimer })
	set(MaskTimeout, func() { a.Timeout = b.Timeout })
	set(MaskRetryCount, func() { a.RetryCount = b.RetryCount })
	set(MaskRNRRetry, func() { a.RNRRetry = b.RNRRetry })
	set(MaskEnSQDNotify, func() { a.EnSQDAsyncNotify = b.EnSQDAsyncNotify })
}
