package roce

import (
	"fmt"
	"math/bits"

	"github.com/xroce/xroce/internal/enum"
)

// Opcode is the first byte of a BTH: the transport in bits 7:5, the operation in bits 4:0.
type Opcode uint8

// Opcodes of the reliable connection. Flush and atomic write are optional (IBTA annex A19, memory
// placement extensions).
const (
	RCSendFirst          Opcode = 0x00
	RCSendMiddle         Opcode = 0x01
	RCSendLast           Opcode = 0x02
	RCSendLastImmediate  Opcode = 0x03
	RCSendOnly           Opcode = 0x04
	RCSendOnlyImmediate  Opcode = 0x05
	RCWriteFirst         Opcode = 0x06
	RCWriteMiddle        Opcode = 0x07
	RCWriteLast          Opcode = 0x08
	RCWriteLastImmediate Opcode = 0x09
	RCWriteOnly          Opcode = 0x0A
	RCWriteOnlyImmediate Opcode = 0x0B
	RCReadRequest        Opcode = 0x0C
	RCReadResponseFirst  Opcode = 0x0D
	RCReadResponseMiddle Opcode = 0x0E
	RCReadResponseLast   Opcode = 0x0F
	RCReadResponseOnly   Opcode = 0x10
	RCAcknowledge        Opcode = 0x11
	RCAtomicAcknowledge  Opcode = 0x12
	RCCompareSwap        Opcode = 0x13
	RCFetchAdd           Opcode = 0x14
	RCSendLastInvalidate Opcode = 0x16
	RCSendOnlyInvalidate Opcode = 0x17
	RCFlush              Opcode = 0x1C
	RCAtomicWrite        Opcode = 0x1D
)

// Opcodes of the unreliable connection.
const (
	UCSendFirst          Opcode = 0x20
	UCSendMiddle         Opcode = 0x21
	UCSendLast           Opcode = 0x22
	UCSendLastImmediate  Opcode = 0x23
	UCSendOnly           Opcode = 0x24
	UCSendOnlyImmediate  Opcode = 0x25
	UCWriteFirst         Opcode = 0x26
	UCWriteMiddle        Opcode = 0x27
	UCWriteLast          Opcode = 0x28
	UCWriteLastImmediate Opcode = 0x29
	UCWriteOnly          Opcode = 0x2A
	UCWriteOnlyImmediate Opcode = 0x2B
)

// Opcodes of the unreliable datagram, and the congestion notification packet.
const (
	UDSendOnly          Opcode = 0x64
	UDSendOnlyImmediate Opcode = 0x65
	CNP                 Opcode = 0x81
)

// Transport is the upper three bits of an opcode.
type Transport uint8

// Transports. RD and XRC are named for messages only: their opcodes have no [OpcodeInfo].
const (
	TransportRC  Transport = 0
	TransportUC  Transport = 1
	TransportRD  Transport = 2
	TransportUD  Transport = 3
	TransportCNP Transport = 4
	TransportXRC Transport = 5
)

// String returns the usual abbreviation, such as "RC".
func (t Transport) String() string {
	names := [...]string{"RC", "UC", "RD", "UD", "CNP", "XRC"}
	if int(t) < len(names) {
		return names[t]
	}
	return fmt.Sprintf("Transport(%d)", uint8(t))
}

// MarshalText returns the text of String, for logs and JSON.
func (t Transport) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

// UnmarshalText takes what MarshalText returns.
func (t *Transport) UnmarshalText(text []byte) error { return enum.Parse(t, text) }

// Operation is what an opcode does, whatever the transport and the position in the message.
type Operation uint8

// Operations.
const (
	OperationSend Operation = iota
	OperationWrite
	OperationRead
	OperationReadResponse
	OperationAcknowledge
	OperationAtomicAcknowledge
	OperationCompareSwap
	OperationFetchAdd
	OperationFlush
	OperationAtomicWrite
	OperationCNP
)

var operationNames = [...]string{
	OperationSend:              "SEND",
	OperationWrite:             "RDMA WRITE",
	OperationRead:              "RDMA READ",
	OperationReadResponse:      "RDMA READ response",
	OperationAcknowledge:       "acknowledge",
	OperationAtomicAcknowledge: "atomic acknowledge",
	OperationCompareSwap:       "compare-and-swap",
	OperationFetchAdd:          "fetch-and-add",
	OperationFlush:             "FLUSH",
	OperationAtomicWrite:       "atomic write",
	OperationCNP:               "CNP",
}

func (o Operation) String() string {
	if int(o) < len(operationNames) && operationNames[o] != "" {
		return operationNames[o]
	}
	return fmt.Sprintf("operation %d", uint8(o))
}

// MarshalText returns the text of String, for logs and JSON.
func (o Operation) MarshalText() ([]byte, error) { return []byte(o.String()), nil }

// UnmarshalText takes what MarshalText returns.
func (o *Operation) UnmarshalText(text []byte) error { return enum.Parse(o, text) }

// Position is the place of a packet in its message.
type Position uint8

// Positions.
const (
	PositionFirst Position = iota
	PositionMiddle
	PositionLast
	PositionOnly
)

var positionNames = [...]string{
	PositionFirst:  "first",
	PositionMiddle: "middle",
	PositionLast:   "last",
	PositionOnly:   "only",
}

func (p Position) String() string {
	if int(p) < len(positionNames) && positionNames[p] != "" {
		return positionNames[p]
	}
	return fmt.Sprintf("position %d", uint8(p))
}

// MarshalText returns the text of String, for logs and JSON.
func (p Position) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText takes what MarshalText returns.
func (p *Position) UnmarshalText(text []byte) error { return enum.Parse(p, text) }

// Header is a set of extension headers. The bits stand in the order of the headers on the wire, so
// that one walk from the lowest bit up finds every header: FETH comes before RETH, DETH and RETH
// before ImmDt, AETH before AtomicAckETH.
type Header uint8

// Extension headers.
const (
	HeaderDETH Header = 1 << iota
	HeaderFETH
	HeaderRETH
	HeaderAtomicETH
	HeaderAETH
	HeaderAtomicAckETH
	HeaderImmDt
	HeaderIETH
)

var headerNames = []enum.Flag[Header]{
	{Bit: HeaderDETH, Name: "DETH"},
	{Bit: HeaderFETH, Name: "FETH"},
	{Bit: HeaderRETH, Name: "RETH"},
	{Bit: HeaderAtomicETH, Name: "AtomicETH"},
	{Bit: HeaderAETH, Name: "AETH"},
	{Bit: HeaderAtomicAckETH, Name: "AtomicAckETH"},
	{Bit: HeaderImmDt, Name: "ImmDt"},
	{Bit: HeaderIETH, Name: "IETH"},
}

// String names the bits, such as "DETH|FETH"; "0" is none.
func (h Header) String() string { return enum.Flags(h, headerNames) }

// MarshalText returns the text of String, for logs and JSON.
func (h Header) MarshalText() ([]byte, error) { return []byte(h.String()), nil }

// UnmarshalText takes what MarshalText returns.
func (h *Header) UnmarshalText(text []byte) error { return enum.ParseFlags(h, text) }

var headerLengths = [8]uint8{DETHLength, FETHLength, RETHLength, AtomicETHLength, AETHLength, AtomicAckETHLength, ImmDtLength, IETHLength}

// PayloadRule is the payload that an opcode may carry.
type PayloadRule uint8

// Payload rules. Pad is not payload; the rules that fix the length to a multiple of 4 forbid it.
const (
	PayloadNone    PayloadRule = iota // no payload
	PayloadFull                       // exactly the path MTU
	PayloadSome                       // 1 byte to the path MTU
	PayloadAny                        // nothing to the path MTU
	PayloadEight                      // exactly 8 bytes
	PayloadSixteen                    // exactly 16 bytes, all reserved
)

var payloadRuleNames = [...]string{
	PayloadNone:    "none",
	PayloadFull:    "path MTU",
	PayloadSome:    "1 byte to path MTU",
	PayloadAny:     "0 bytes to path MTU",
	PayloadEight:   "8 bytes",
	PayloadSixteen: "16 bytes",
}

func (r PayloadRule) String() string {
	if int(r) < len(payloadRuleNames) && payloadRuleNames[r] != "" {
		return payloadRuleNames[r]
	}
	return fmt.Sprintf("payload rule %d", uint8(r))
}

// MarshalText returns the text of String, for logs and JSON.
func (r PayloadRule) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// UnmarshalText takes what MarshalText returns.
func (r *PayloadRule) UnmarshalText(text []byte) error { return enum.Parse(r, text) }

// Fits reports whether length bytes of payload and padCount bytes of pad obey the rule on a path of
// the given MTU. An MTU that is not valid, such as 0, stands for one that is not known: any of the
// five may then be the right one.
func (r PayloadRule) Fits(length int, padCount uint8, mtu MTU) bool {
	if length < 0 || int(padCount) != -length&3 {
		return false
	}
	most := MTU4096.Bytes()
	if mtu.Valid() {
		most = mtu.Bytes()
	}
	switch r {
	case PayloadNone:
		return length == 0
	case PayloadFull:
		_, full := MTUFromBytes(length)
		return full && (length == most || !mtu.Valid())
	case PayloadSome:
		return length > 0 && length <= most
	case PayloadAny:
		return length <= most
	case PayloadEight:
		return length == 8
	case PayloadSixteen:
		return length == 16
	}
	return false
}

// OpcodeInfo describes an opcode. It is shared and must not be changed.
type OpcodeInfo struct {
	Name         string // as in the specification, with the transport: "RC_RDMA_WRITE_ONLY"
	Operation    Operation
	Position     Position
	Headers      Header
	HeaderLength int // bytes of extension headers between BTH and payload
	Payload      PayloadRule
	Request      bool // travels from requester to responder; false for CNPs too

	offsets [8]uint8 // from the BTH to each header of the set, by bit
}

// Starts reports whether the packet is the first, or the only one, of its message.
func (i *OpcodeInfo) Starts() bool {
	return i.Position == PositionFirst || i.Position == PositionOnly
}

// Ends reports whether the packet is the last, or the only one, of its message.
func (i *OpcodeInfo) Ends() bool { return i.Position >= PositionLast }

// Has reports whether packets of this opcode carry all headers of the set.
func (i *OpcodeInfo) Has(headers Header) bool { return i.Headers&headers == headers }

// Offset returns the distance in bytes from the start of the BTH to an extension header, -1 if
// packets of this opcode do not carry it. header is a single bit.
func (i *OpcodeInfo) Offset(header Header) int {
	if header == 0 || i.Headers&header != header {
		return -1
	}
	return int(i.offsets[bits.TrailingZeros8(uint8(header))])
}

// Info returns what is known about the opcode, nil for reserved opcodes and for those of transports
// that do not exist here.
func (o Opcode) Info() *OpcodeInfo { return opcodes[o] }

// Transport returns the transport of the opcode.
func (o Opcode) Transport() Transport { return Transport(o >> 5) }

// String returns the name of the opcode, such as "RC_SEND_ONLY", or its number if it has none.
func (o Opcode) String() string {
	if info := opcodes[o]; info != nil {
		return info.Name
	}
	return fmt.Sprintf("opcode %#02x", uint8(o))
}

// MarshalText returns the text of String, for logs and JSON.
func (o Opcode) MarshalText() ([]byte, error) { return []byte(o.String()), nil }

// UnmarshalText takes what MarshalText returns.
func (o *Opcode) UnmarshalText(text []byte) error { return enum.Parse(o, text) }
