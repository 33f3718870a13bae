package verbs

import (
	"github.com/xroce/xroce/internal/enum"
	"github.com/xroce/xroce/roce"
	"github.com/xroce/xroce/roce/queue"
)

// WCStatus is the outcome of a work request; the values are those of enum ibv_wc_status. QP.Err makes an error of one.
type WCStatus uint8

// Statuses of a WC.
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
	WCFatalErr       WCStatus = 19 // the completion queue was full
	WCGeneralErr     WCStatus = 21
)

// String is the name of the value.
func (w WCStatus) String() string { return queue.WCStatus(w).String() }

// MarshalText returns the text of String, for logs and JSON.
func (w WCStatus) MarshalText() ([]byte, error) { return []byte(w.String()), nil }

// UnmarshalText takes what MarshalText returns.
func (w *WCStatus) UnmarshalText(text []byte) error { return enum.Parse(w, text) }

// WCOpcode says which operation completed; the values are those of enum ibv_wc_opcode.
type WCOpcode uint8

// Opcodes of a WC.
const (
	WCSend            WCOpcode = 0
	WCRDMAWrite       WCOpcode = 1
	WCRDMARead        WCOpcode = 2
	WCCompSwap        WCOpcode = 3
	WCFetchAdd        WCOpcode = 4
	WCBindMW          WCOpcode = 5
	WCLocalInv        WCOpcode = 6
	WCFlush           WCOpcode = 8
	WCAtomicWrite     WCOpcode = 9
	WCRegMR           WCOpcode = 10 // not in libibverbs, which has no fast registration
	WCRecv            WCOpcode = 128
	WCRecvRDMAWithImm WCOpcode = 129
)

// String is the name of the value.
func (w WCOpcode) String() string { return queue.WCOpcode(w).String() }

// MarshalText returns the text of String, for logs and JSON.
func (w WCOpcode) MarshalText() ([]byte, error) { return []byte(w.String()), nil }

// UnmarshalText takes what MarshalText returns.
func (w *WCOpcode) UnmarshalText(text []byte) error { return enum.Parse(w, text) }

// WCFlags say which optional fields of a WC are valid; the values are those of enum ibv_wc_flags.
type WCFlags uint8

// Flags of a WC.
const (
	WCWithImm WCFlags = 2 // ImmData is valid
	WCWithInv WCFlags = 8 // InvalidatedRKey is valid
	// WCPeerRequest marks a QP.Failure that a request of the peer has caused and that no completion tells, because no
	// receive was involved: Opcode is then the peer's operation, and WRID means nothing. libibverbs has no such flag.
	WCPeerRequest WCFlags = 128
)

// String names the bits, with | between them; "0" is none.
func (w WCFlags) String() string { return queue.WCFlags(w).String() }

// MarshalText returns the text of String, for logs and JSON.
func (w WCFlags) MarshalText() ([]byte, error) { return []byte(w.String()), nil }

// UnmarshalText takes what MarshalText returns.
func (w *WCFlags) UnmarshalText(text []byte) error { return enum.ParseFlags(w, text) }

// WC is a work completion. If Status is not WCSuccess only WRID, Status, QPN, Timestamp and the fields that
// explain the failure are valid; QP.Err explains it.
type WC struct {
	WRID    uint64
	Status  WCStatus
	Opcode  WCOpcode
	Flags   WCFlags
	ByteLen uint32 // bytes received or read
	ImmData uint32 // if Flags has WCWithImm
	// InvalidatedRKey is the local key that the peer's SEND made unusable, if Flags has WCWithInv.
	InvalidatedRKey uint32
	QPN             QPN // the local QP
	// Timestamp is when the completion was made, in nanoseconds of the device's clock (Device.Clock): the reading of
	// the turn that made it, so completions of one batch share it, and one may be earlier by a turn than the one
	// before it when the QP has moved to another queue of the device in between. It is valid whatever Status is; 0 if
	// the engine set none.
	Timestamp int64

	// What the engine knew when the request ended, to explain a failure.
	PSN        PSN           // of the packet in question
	Syndrome   roce.Syndrome // the last one seen from the peer or sent to it
	Retries    uint8         // resends used since the last progress
	RNRRetries uint8         // RNR resends used since the last progress
	// VendorErr is why this end could not access memory, or not execute an operation on a key: an AccessFault; 0 if
	// that was not the reason, or if only the peer knows.
	VendorErr uint32
}
