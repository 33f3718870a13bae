package queue

import (
	"fmt"

	"github.com/xroce/xroce/internal/enum"
	"github.com/xroce/xroce/roce"
)

// WCStatus is the outcome of a work request; the values are those of enum ibv_wc_status.
type WCStatus uint8

// Completion statuses.
const (
	WCSuccess        WCStatus = 0
	WCLocLenErr      WCStatus = 1  // receive buffer too small, or a message of impossible length
	WCLocQPOpErr     WCStatus = 2  // malformed work request, or one this QP cannot do
	WCLocProtErr     WCStatus = 4  // a local SGE: unknown lkey, other PD, out of range, no access
	WCWRFlushErr     WCStatus = 5  // the QP was in the error state
	WCMWBindErr      WCStatus = 6  // a memory window could not be bound
	WCBadRespErr     WCStatus = 7  // the peer answered with an opcode that does not fit the request
	WCLocAccessErr   WCStatus = 8  // local buffer protection error
	WCRemInvReqErr   WCStatus = 9  // the peer refused the request as invalid (NAK 0x61)
	WCRemAccessErr   WCStatus = 10 // the peer refused the access (NAK 0x62)
	WCRemOpErr       WCStatus = 11 // the peer could not do it (NAK 0x63)
	WCRetryExcErr    WCStatus = 12 // no answer, or resends used up
	WCRNRRetryExcErr WCStatus = 13 // the peer never posted a receive
	WCFatalErr       WCStatus = 19
	WCGeneralErr     WCStatus = 21
)

var statusNames = map[WCStatus]string{
	WCSuccess:        "success",
	WCLocLenErr:      "local length error",
	WCLocQPOpErr:     "local QP operation error",
	WCLocProtErr:     "local protection error",
	WCWRFlushErr:     "work request flushed",
	WCMWBindErr:      "memory window bind error",
	WCBadRespErr:     "bad response",
	WCLocAccessErr:   "local access error",
	WCRemInvReqErr:   "remote invalid request error",
	WCRemAccessErr:   "remote access error",
	WCRemOpErr:       "remote operation error",
	WCRetryExcErr:    "transport retry counter exceeded",
	WCRNRRetryExcErr: "RNR retry counter exceeded",
	WCFatalErr:       "fatal error",
	WCGeneralErr:     "general error",
}

func (s WCStatus) String() string {
	if name, ok := statusNames[s]; ok {
		return name
	}
	return fmt.Sprintf("status %d", uint8(s))
}

// MarshalText returns the text of String, for logs and JSON.
func (s WCStatus) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText takes what MarshalText returns.
func (s *WCStatus) UnmarshalText(text []byte) error { return enum.Parse(s, text) }

// WCOpcode says which operation completed; the values are those of enum ibv_wc_opcode.
type WCOpcode uint8

// Completed operations.
const (
	WCSend                  WCOpcode = 0
	WCRDMAWrite             WCOpcode = 1
	WCRDMARead              WCOpcode = 2
	WCCompareSwap           WCOpcode = 3
	WCFetchAdd              WCOpcode = 4
	WCBindWindow            WCOpcode = 5
	WCLocalInvalidate       WCOpcode = 6
	WCFlush                 WCOpcode = 8
	WCAtomicWrite           WCOpcode = 9
	WCRegisterRegion        WCOpcode = 10 // not in libibverbs, which has no fast registration
	WCRecv                  WCOpcode = 128
	WCRecvRDMAWithImmediate WCOpcode = 129
)

func (o WCOpcode) String() string {
	switch o {
	case WCSend:
		return "SEND"
	case WCRDMAWrite:
		return "RDMA WRITE"
	case WCRDMARead:
		return "RDMA READ"
	case WCCompareSwap:
		return "compare-and-swap"
	case WCFetchAdd:
		return "fetch-and-add"
	case WCBindWindow:
		return "bind memory window"
	case WCLocalInvalidate:
		return "local invalidate"
	case WCFlush:
		return "FLUSH"
	case WCAtomicWrite:
		return "atomic write"
	case WCRegisterRegion:
		return "register memory region"
	case WCRecv:
		return "RECV"
	case WCRecvRDMAWithImmediate:
		return "RECV of RDMA WRITE with immediate"
	}
	return fmt.Sprintf("opcode %d", uint8(o))
}

// MarshalText returns the text of String, for logs and JSON.
func (o WCOpcode) MarshalText() ([]byte, error) { return []byte(o.String()), nil }

// UnmarshalText takes what MarshalText returns.
func (o *WCOpcode) UnmarshalText(text []byte) error { return enum.Parse(o, text) }

// WCFlags say which optional fields of a WC are valid; the values are those of enum ibv_wc_flags.
type WCFlags uint8

// Flags of completions.
const (
	WCWithImmediate  WCFlags = 2
	WCWithInvalidate WCFlags = 8
	// WCPeerRequest marks the failure of a QP that a request of the peer has brought into the error state and that no
	// completion tells, because no receive was involved: Opcode is then the peer's operation, and WRID means nothing.
	// libibverbs has no such flag.
	WCPeerRequest WCFlags = 0x80
)

var wCFlagsNames = []enum.Flag[WCFlags]{
	{Bit: WCWithImmediate, Name: "WITH_IMM"},
	{Bit: WCWithInvalidate, Name: "WITH_INV"},
	{Bit: WCPeerRequest, Name: "PEER_REQUEST"},
}

// String names the bits, such as "WITH_IMM|WITH_INV"; "0" is none.
func (f WCFlags) String() string { return enum.Flags(f, wCFlagsNames) }

// MarshalText returns the text of String, for logs and JSON.
func (f WCFlags) MarshalText() ([]byte, error) { return []byte(f.String()), nil }

// UnmarshalText takes what MarshalText returns.
func (f *WCFlags) UnmarshalText(text []byte) error { return enum.ParseFlags(f, text) }

// WC is a work completion. If Status is not WCSuccess only WRID, Status, QPN, Timestamp and the fields that
// explain the failure are valid.
type WC struct {
	WRID    uint64
	Status  WCStatus
	Opcode  WCOpcode
	Flags   WCFlags
	ByteLen uint32 // bytes received or read
	ImmData uint32 // if Flags has WCWithImmediate
	// InvalidatedRKey is the local key that the peer's SEND made unusable, if Flags has WCWithInvalidate.
	InvalidatedRKey uint32
	QPN             roce.QPN // the local QP
	// Timestamp is when the completion was made, in nanoseconds of the device's clock: the reading of the turn that
	// made it, so completions of one batch share it, and one may be earlier by a turn than the one before it when the
	// QP has moved to another queue of the device in between. It is valid whatever Status is; 0 if the engine set none.
	Timestamp int64

	// What the engine knew when the request ended, to explain a failure.
	PSN        roce.PSN      // of the packet in question
	Syndrome   roce.Syndrome // the last one seen from the peer or sent to it
	Retries    uint8         // resends used since the last progress
	RNRRetries uint8         // RNR resends used since the last progress
	// VendorErr is why this end could not access memory, or not execute an operation on a key: a memory.Fault; 0 if
	// that was not the reason, or if only the peer knows.
	VendorErr uint32
}

// CompletionLayout is the layout of a completion queue.
func CompletionLayout(capacity int) Layout {
	return Layout{Capacity: capacity, Stride: len(CompletionSlot{})}
}

// WriteCompletion encodes wc into the next slot and publishes it; false means that there is no room.
func (p *Producer) WriteCompletion(wc *WC) bool {
	if p.Free() == 0 {
		return false
	}
	s := (*CompletionSlot)(p.Slot(0))
	s.SetWRID(wc.WRID)
	s.SetStatus(uint8(wc.Status))
	s.SetOpcode(uint8(wc.Opcode))
	s.SetFlags(uint16(wc.Flags))
	s.SetByteLen(wc.ByteLen)
	s.SetImmediate(wc.ImmData | wc.InvalidatedRKey) // never both
	s.SetQPN(uint32(wc.QPN))
	s.SetPSN(uint32(wc.PSN))
	s.SetTimestamp(uint64(wc.Timestamp))
	s.SetVendorErr(wc.VendorErr)
	s.SetSyndrome(uint8(wc.Syndrome))
	s.SetRetries(wc.Retries)
	s.SetRNRRetries(wc.RNRRetries)
	p.Publish(1)
	return true
}

// ReadCompletions decodes as many completions as there are, at most len(wcs), releases them and returns
// their number. Fewer than len(wcs) means that there were no more, as with ibv_poll_cq.
func (c *Consumer) ReadCompletions(wcs []WC) int {
	n := min(c.Available(len(wcs)-1), len(wcs))
	for i := range wcs[:n] {
		s := (*CompletionSlot)(c.Slot(i))
		wcs[i] = WC{
			WRID:       s.WRID(),
			Status:     WCStatus(s.Status()),
			Opcode:     WCOpcode(s.Opcode()),
			Flags:      WCFlags(s.Flags()),
			ByteLen:    s.ByteLen(),
			ImmData:    s.Immediate(),
			QPN:        roce.QPN(s.QPN()),
			PSN:        roce.PSN(s.PSN()),
			Timestamp:  int64(s.Timestamp()),
			VendorErr:  s.VendorErr(),
			Syndrome:   roce.Syndrome(s.Syndrome()),
			Retries:    s.Retries(),
			RNRRetries: s.RNRRetries(),
		}
		if wcs[i].Flags&WCWithInvalidate != 0 {
			wcs[i].InvalidatedRKey, wcs[i].ImmData = wcs[i].ImmData, 0
		}
	}
	if n > 0 {
		c.Release(n)
	}
	return n
}

// What the arm word of a completion queue asks for.
const (
	armNone      = 0
	armSolicited = 1 // the next solicited completion
	armNext      = 2 // the next completion
)

// Arm asks the producer for one notification of the next completion, or of the next solicited one. Arming twice
// asks for both, so "next" wins. The caller then looks at the queue once more: a completion that came in between
// made no notification.
func (c *Consumer) Arm(solicitedOnly bool) {
	if solicitedOnly {
		c.arm.CompareAndSwap(armNone, armSolicited)
		return
	}
	c.arm.Swap(armNext)
}

// disarmTries bounds how often Disarm looks at the arm word, which is the other end's: one that changes it all the time
// must not hold the producer, who has the lock of a shard.
const disarmTries = 2

// Disarm reports whether the consumer asked to be notified of a completion like the one that was written last, and
// clears the request. The producer calls it after WriteCompletion: the entry is visible before the arm word is looked
// at. Completions with an error status count as solicited. A consumer that changes the word meanwhile may be notified
// without need; it never misses a notification that it asked for.
func (p *Producer) Disarm(solicited bool) bool {
	for range disarmTries {
		armed := p.arm.Load()
		if armed == armNone || armed == armSolicited && !solicited {
			return false
		}
		if p.arm.CompareAndSwap(armed, armNone) {
			return true
		}
	}
	return true
}
