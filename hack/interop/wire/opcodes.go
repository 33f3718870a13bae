//go:build linux

// Package wire captures the packets between the two ends, takes them apart, and forges some. It shares nothing with
// package roce, whose mistakes it is to find.
package wire

// Opcodes of the service RC (IBTA section 9.2, annex A17 and A19), and what a NAK says. They stand here once more,
// beside those of package roce.
const (
	SendFirst         = 0x00
	SendMiddle        = 0x01
	SendLast          = 0x02
	SendOnly          = 0x04
	WriteFirst        = 0x06
	WriteMiddle       = 0x07
	WriteLast         = 0x08
	WriteOnly         = 0x0a
	ReadRequest       = 0x0c
	ReadFirst         = 0x0d
	ReadMiddle        = 0x0e
	ReadLast          = 0x0f
	ReadResponseOnly  = 0x10
	Acknowledge       = 0x11
	AtomicAcknowledge = 0x12
	CompareSwap       = 0x13
	FetchAdd          = 0x14
	FlushOpcode       = 0x1c
	AtomicWrite       = 0x1d

	NAKRemoteAccess = 0x62 // the syndrome in an AETH
)

// AnswerNames are those of the opcodes that may carry a NAK to an atomic.
var AnswerNames = map[byte]string{Acknowledge: "Acknowledge (0x11)", AtomicAcknowledge: "Atomic Acknowledge (0x12)"}
